/* Completion: see complete.h. Values of an option are those that its meta lists ("cosine|linear|constant"), or come
 * from where the command takes them. */
#include "complete.h"

#include "firn/graph.h"
#include "firn/kernels.h"
#include "firn/model.h"
#include "model/random_model.h"

#include <string.h>

bool cmd_completing;

void cmd_complete_word(const char *word, const char *typed, const char *about)
{
    if (strncmp(word, typed, strlen(typed)) == 0)
        printf(about ? "%s\t%s\n" : "%s\n", word, about);
}

/* Each of "a|b|c". */
static void each_of(const char *list, const char *typed)
{
    for (const char *at = list; at; at = strchr(at, '|')) {
        char word[64];
        at += *at == '|';
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        cmd_complete_word(word, typed, NULL);
    }
}

static void types(const char *typed)
{
    for (int t = 0; t < FIRN_TYPE_LIMIT; t++)
        if (firn_type_can_encode((firn_type)t))
            cmd_complete_word(firn_type_name((firn_type)t), typed, NULL);
}

static void shapes(const char *typed)
{
    for (int i = 0; firn_random_shape_at(i); i++)
        cmd_complete_word(firn_random_shape_at(i)->name, typed, firn_random_shape_at(i)->arch);
}

static void devices(const char *typed)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_device_info d = {.size = sizeof d};

    for (int i = 0; ctx && i < firn_device_count(); i++)
        if (firn_device_describe(ctx, i, &d) == FIRN_OK && !d.error[0])
            cmd_complete_word(d.name, typed, d.about);
    firn_context_destroy(ctx);
}

/* A list with commas: what stands before the last one is kept. */
static void targets(const char *typed)
{
    const char *comma = strrchr(typed, ',');
    const size_t kept = comma ? (size_t)(comma + 1 - typed) : 0;
    char word[512];

    for (int c = 0; c <= FIRN_CLASS_COUNT && kept < sizeof word / 2; c++) {
        snprintf(word, sizeof word, "%.*s%s", (int)kept, typed,
                 c < FIRN_CLASS_COUNT ? firn_class_name((firn_class)c) : "all");
        cmd_complete_word(word, typed, NULL);
    }
}

static void values(const cmd_option *o, const char *typed)
{
    if (strchr(o->meta, '|'))
        each_of(o->meta, typed);
    else if (strcmp(o->meta, "TYPE") == 0)
        types(typed);
    else if (strcmp(o->name, "--like") == 0)
        shapes(typed);
    else if (strcmp(o->name, "--targets") == 0)
        targets(typed);
    else if (strcmp(o->name, "--device") == 0)
        devices(typed);
}

/* What arguments without a dash may be, where they are no files: command, place, words. */
static const struct {
    const char *command;
    int place;
    const char *words; /* NULL: types */
} arguments[] = {
    {"adapter", 1, "info|diff|merge|scale"},
    {"data", 1, "show|check"},
    {"quantize", 3, NULL},
};

static const cmd_option *find(const cmd_spec *spec, const char *word)
{
    const cmd_option *o = spec->options;

    while (o && o->name && !cmd_option_named(o, word, strcspn(word, "=")))
        o++;
    return o && o->name ? o : NULL;
}

static void names(const cmd_spec *spec, const char *typed)
{
    for (const cmd_option *o = spec->options; o && o->name; o++) {
        const char *name = strrchr(o->name, ','); /* the long one of "-n,--tokens" */
        cmd_complete_word(name ? name + 1 : o->name, typed, o->help);
    }
    cmd_complete_word("--help", typed, "explain the command");
}

void cmd_complete(const cmd_spec *spec, int argc, char **argv)
{
    const char *typed = argv[argc - 1];
    int place = 1;

    for (int i = 1; i < argc - 1; i++) {
        const cmd_option *o = argv[i][0] == '-' ? find(spec, argv[i]) : NULL;
        if (argv[i][0] != '-')
            place++;
        else if (o && o->kind != 'b' && !strchr(argv[i], '=') && i + 1 == argc - 1) {
            values(o, typed);
            return;
        } else if (o && o->kind != 'b' && !strchr(argv[i], '='))
            i++;
    }
    if (typed[0] == '-') {
        names(spec, typed);
        return;
    }
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++)
        if (strcmp(arguments[i].command, argv[0]) == 0 && arguments[i].place == place) {
            if (arguments[i].words)
                each_of(arguments[i].words, typed);
            else
                types(typed);
        }
}
