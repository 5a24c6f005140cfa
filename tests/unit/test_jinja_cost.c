/* The steps of a rendering bound its work: every filter, test, method, function and operator of the engine, on values
 * of every kind and of growing size, does at most BLOCKS of work for each step that it pays, and pays beforehand. Work
 * is counted, not timed: the engine's files are built with -fsanitize-coverage=trace-pc, which calls us in each basic
 * block, and with counted.h for what the C library does. */
#include "jinja/eval.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* FREE: what a call may do before it pays, as binding arguments. 1,000 blocks take about half a microsecond: 20 million
 * steps end after some ten seconds even in the worst case. */
enum { FREE = 1500, BLOCKS = 1000, MAX_STEPS = 10000, SMALL = 1024, LARGE = 8192 };

static size_t work;
static const char *running = "a template"; /* named where the work does not end */

void count_work(size_t blocks)
{
    work += blocks;
}

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    if (++work == (size_t)1 << 32) {
        fprintf(stderr, "%s does not end\n", running);
        exit(1);
    }
}

static firn_context *ctx;
static firn_jinja nothing;     /* of an evaluator without a template */
static jinja_eval inputs;      /* owns the values */
static size_t n_calls, n_paid; /* what the walk saw, so that a walk over nothing fails */

static void begin(jinja_eval *e, size_t steps)
{
    if (!nothing.secret.factor)
        nothing.secret = firn_secret_draw();
    *e = (jinja_eval){.ctx = ctx, .jinja = &nothing, .limits = {steps, 400, 1 << 20, 64 << 20}, .steps = steps};
    e->now = (struct tm){.tm_year = 126, .tm_mday = 2, .tm_wday = 5, .tm_yday = 1};
    firn_arena_init(&e->arena, ctx, e->limits.memory);
}

/* ---- values ---- */

enum { MAX_VALUES = 64 };
static jinja_value values[MAX_VALUES];
static const char *labels[MAX_VALUES];
static size_t n_values;

static jinja_value add(const char *label, jinja_value v)
{
    assert_true(n_values < MAX_VALUES);
    labels[n_values] = label;
    return values[n_values++] = v;
}

/* `unit` again and again, n bytes or a little less. */
static jinja_value text_of(const char *unit, size_t n)
{
    const size_t size = strlen(unit), count = n / size;
    char *text = malloc(count * size + 1);
    jinja_value v;

    assert_non_null(text);
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * size, unit, size);
    assert_int_equal(firn_jinja_string(&inputs, text, count * size, &v), FIRN_OK);
    free(text);
    return v;
}

static jinja_value list_of(jinja_type type, jinja_value item, size_t n)
{
    jinja_value v;

    assert_int_equal(firn_jinja_list(&inputs, type, n, &v), FIRN_OK);
    for (size_t i = 0; i < n; i++)
        v.list->items[i] = item;
    return v;
}

static jinja_value numbers(jinja_type type, size_t n)
{
    jinja_value v = list_of(type, jinja_int(0), n);

    for (size_t i = 0; i < n; i++)
        v.list->items[i] = jinja_int((int64_t)((i * 7919) % n));
    v.list->range[1] = (int64_t)n;
    v.list->range[2] = 1;
    return v;
}

static jinja_value dict_of(size_t n, const char *long_key)
{
    jinja_value d, key, value = jinja_int(1);

    assert_int_equal(firn_jinja_dict(&inputs, &d), FIRN_OK);
    for (size_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%zu", i);
        key = text_of(name, strlen(name));
        assert_int_equal(firn_jinja_dict_set(&inputs, d.dict, key, value), FIRN_OK);
    }
    if (long_key)
        assert_int_equal(firn_jinja_dict_set(&inputs, d.dict, text_of(long_key, 32 * n), value), FIRN_OK);
    return d;
}

/* Values of about n bytes or n / 16 items. */
static void make_values(size_t n)
{
    static const struct {
        const char *label, *unit;
    } texts[] = {
        {"a...", "a"},     {"white space", " "},   {"tabs", "\t"},       {"words", "ab "},
        {"pairs", "ab"},   {"accents", "é"},       {"ligatures", "ﬃ"},   {"zeros", "0"},
        {"lines", "\n"},   {"%s", "%s"},           {"%(k1)s", "%(k1)s"}, {"{}", "{}"},
        {"{k1}", "{k1}"},  {"%c", "%c"},           {"%r %5d", "%r%5d"},  {"dots", "a."},
        {"commas", "a,"},  {"control", "\x01"},    {"quotes", "'\""},    {"markup", "<&"},
        {"hyphens", "a-"}, {"underscores", "1_0"}, {"{0:>9}", "{0:>9}"}, {"wide", "\xE3\x80\x80"},
    };

    n_values = 0;
    begin(&inputs, SIZE_MAX);
    inputs.limits.memory = (size_t)512 << 20;
    firn_arena_init(&inputs.arena, ctx, inputs.limits.memory);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        add(texts[i].label, text_of(texts[i].unit, n));
    const jinja_value a = values[0];
    jinja_value safe = add("safe markup", text_of("<a>", n));
    values[n_values - 1].flag = 1;
    (void)safe;
    add("none", jinja_none());
    add("undefined", jinja_undefined(NULL));
    add("n", jinja_int((int64_t)n));
    add("1", jinja_int(1));
    add("float", jinja_float(1.2345678901234567e-300));
    add("ints", numbers(JINJA_LIST, n / 16));
    add("tuple", numbers(JINJA_TUPLE, n / 16));
    add("range", numbers(JINJA_RANGE, n / 16));
    add("texts", list_of(JINJA_LIST, text_of("ab", 2), n / 16));
    add("long texts", list_of(JINJA_LIST, a, 16));
    add("pairs of texts", list_of(JINJA_LIST, list_of(JINJA_TUPLE, a, 2), 8));
    add("dict", dict_of(n / 32, NULL));
    add("dict with a long key", dict_of(n / 32, "key"));
    add("dicts", list_of(JINJA_LIST, values[n_values - 1], 16));
    jinja_value deep = list_of(JINJA_TUPLE, jinja_int(1), 1);
    for (int i = 0; i < 50; i++)
        deep = list_of(JINJA_TUPLE, deep, 2);
    add("2^50 numbers", deep);
    jinja_value lists = list_of(JINJA_LIST, jinja_int(1), 1);
    for (int i = 0; i < 50; i++)
        lists = list_of(JINJA_LIST, lists, 2);
    add("2^50 numbers in lists", lists);
}

/* ---- the calls ---- */

typedef firn_status operation(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args);

/* What is called, on what: for the message. */
typedef struct {
    operation *call;
    const void *what;
    const char *name;
    size_t self, arg[3], n_args;
} one_call;

static size_t run(const one_call *c, size_t steps, size_t *paid, firn_status *status)
{
    jinja_eval e;
    jinja_value arg[3];
    const jinja_args args = {.items = arg, .n = c->n_args};

    for (size_t i = 0; i < c->n_args; i++)
        arg[i] = values[c->arg[i]];
    begin(&e, steps);
    running = c->name;
    work = 0;
    *status = c->call(&e, c->what, values[c->self], &args);
    const size_t done = work;
    *paid = steps - e.steps;
    firn_arena_clear(&e.arena);
    return done;
}

/* The steps that it paid. */
static size_t hold(const one_call *c, size_t steps, size_t n)
{
    size_t paid;
    firn_status status;
    const size_t done = run(c, steps, &paid, &status);

    n_calls++;
    n_paid += paid;
    if (done > FREE + BLOCKS * paid)
        fail_msg("%s(%s | %s %s %s) of size %zu did %zu blocks for %zu steps (of %zu)", c->name, labels[c->self],
                 c->n_args > 0 ? labels[c->arg[0]] : "", c->n_args > 1 ? labels[c->arg[1]] : "",
                 c->n_args > 2 ? labels[c->arg[2]] : "", n, done, paid, steps);
    return paid;
}

/* Once with steps enough, once with half of what it took, once with hardly any. */
static void hold_all(const one_call *c, size_t n)
{
    const size_t paid = hold(c, MAX_STEPS, n);

    if (paid > 3) {
        hold(c, paid / 2, n);
        hold(c, 2, n);
    }
}

/* Every self, alone, with itself, and with up to max_args arguments of a few kinds (more than one where n is small). */
static void walk(operation *call, const void *what, const char *name, bool (*takes)(jinja_value), size_t max_args,
                 size_t n)
{
    static const char *const kinds[] = {"a...", "n", "1", "ints", "2^50 numbers", "dots"};
    enum { N_KINDS = sizeof kinds / sizeof *kinds, N_SECOND = 4 };
    size_t of[N_KINDS];
    one_call c = {.call = call, .what = what, .name = name};

    for (size_t k = 0; k < N_KINDS; k++)
        for (of[k] = 0; strcmp(labels[of[k]], kinds[k]) != 0;)
            of[k]++;
    for (c.self = 0; c.self < n_values; c.self++) {
        if (takes && !takes(values[c.self]))
            continue;
        c.n_args = 0;
        hold_all(&c, n);
        for (size_t i = 0; max_args > 0 && i <= N_KINDS; i++) {
            c.n_args = 1;
            c.arg[0] = i < N_KINDS ? of[i] : c.self;
            hold_all(&c, n);
        }
        for (size_t i = 0; max_args > 1 && n == SMALL && i < N_KINDS * N_SECOND; i++) {
            c.n_args = max_args > 2 ? 3 : 2;
            c.arg[0] = of[i % N_KINDS];
            c.arg[1] = of[i / N_KINDS];
            c.arg[2] = of[2];
            hold_all(&c, n);
        }
    }
}

static firn_status call_row(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value out;

    return firn_jinja_call_row(e, what, self, args, &out);
}

static size_t parameters(const jinja_row *row)
{
    size_t n = row->parameters ? *row->parameters != 0 : 2;

    for (const char *p = row->parameters; p && *p; p++)
        n += *p == ' ';
    return n;
}

static bool is_text(jinja_value v)
{
    return v.type == JINJA_STRING;
}

static bool is_dict(jinja_value v)
{
    return v.type == JINJA_DICT;
}

static bool is_sequence(jinja_value v)
{
    return v.type >= JINJA_LIST && v.type <= JINJA_RANGE;
}

static bool is_none(jinja_value v)
{
    return v.type == JINJA_NONE;
}

static void walk_rows(const jinja_row *rows, bool (*takes)(jinja_value))
{
    for (size_t n = SMALL; n <= LARGE; n *= LARGE / SMALL) {
        make_values(n);
        for (const jinja_row *row = rows; row->name; row++)
            walk(call_row, row, row->name, takes, parameters(row), n);
        firn_arena_clear(&inputs.arena);
    }
    assert_true(n_calls > 100 && n_paid > 100);
}

static void every_filter_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_filters, NULL);
}

static void every_filter_of_sequences_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_sequence_filters, NULL);
}

static void every_filter_of_markup_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_markup_filters, NULL);
}

static void every_test_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_tests, NULL);
}

static void every_method_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_text_methods, is_text);
    walk_rows(firn_jinja_find_methods, is_text);
    walk_rows(firn_jinja_dict_methods, is_dict);
    walk_rows(firn_jinja_list_methods, is_sequence);
}

static void every_function_pays(void **state)
{
    (void)state;
    walk_rows(firn_jinja_globals, is_none);
}

/* map and its kin call what their first argument names. */
static firn_status through_map(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    static const jinja_string map = {"map", 3};
    const jinja_row *row = what;
    jinja_value items[4], out;

    FIRN_TRY(firn_jinja_view(e, row->name, strlen(row->name), &items[0]));
    memcpy(items + 1, args->items, args->n * sizeof *items);
    return firn_jinja_call_row(e, firn_jinja_find_filter(&map), self, &(jinja_args){.items = items, .n = args->n + 1},
                               &out);
}

static void every_filter_in_map_pays(void **state)
{
    (void)state;
    make_values(SMALL);
    for (const jinja_row *row = firn_jinja_filters; row->name; row++)
        walk(through_map, row, row->name, is_sequence, 0, SMALL);
    firn_arena_clear(&inputs.arena);
}

/* ---- what has no row ---- */

static firn_status binary(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value out;

    return args->n ? firn_jinja_binary(e, *(const jinja_token_type *)what, self, args->items[0], &out) : FIRN_OK;
}

static firn_status order(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    bool result;

    return args->n ? firn_jinja_order(e, *(const jinja_token_type *)what, self, args->items[0], &result) : FIRN_OK;
}

static firn_status equal(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    bool result;

    (void)what;
    return firn_jinja_equal(e, self, args->n ? args->items[0] : self, 0, &result);
}

static firn_status contains(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    bool result;

    (void)what;
    return firn_jinja_contains(e, self, args->n ? args->items[0] : self, &result);
}

static firn_status slice(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value out, bounds[3] = {jinja_none(), jinja_none(), jinja_none()};

    (void)what;
    if (args->n)
        memcpy(bounds, args->items, args->n * sizeof *bounds);
    return firn_jinja_slice(e, self, bounds, &out);
}

static firn_status item(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value out;

    (void)what;
    return firn_jinja_item(e, self, args->n ? args->items[0] : jinja_int(-1), &out);
}

static firn_status attribute(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value out;

    (void)what;
    return args->n && args->items[0].type == JINJA_STRING ? firn_jinja_attribute(e, self, args->items[0].string, &out)
                                                          : FIRN_OK;
}

static firn_status iterate(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_list *list;

    (void)what, (void)args;
    return firn_jinja_iterate(e, self, &list);
}

static firn_status print(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    firn_text text;

    (void)what, (void)args;
    firn_jinja_text(e, &text);
    const firn_status status = firn_jinja_repr(e, &text, self, 0);
    firn_text_free(&text);
    return status;
}

static firn_status as_key(jinja_eval *e, const void *what, jinja_value self, const jinja_args *args)
{
    jinja_value d;

    (void)what;
    FIRN_TRY(firn_jinja_dict(e, &d));
    FIRN_TRY(firn_jinja_dict_set(e, d.dict, self, jinja_none()));
    return args->n ? firn_jinja_dict_set(e, d.dict, args->items[0], jinja_none()) : FIRN_OK;
}

static void every_operator_pays(void **state)
{
    static const jinja_token_type arithmetic[] = {JINJA_T_ADD,      JINJA_T_SUB, JINJA_T_MUL, JINJA_T_DIV,
                                                  JINJA_T_FLOORDIV, JINJA_T_MOD, JINJA_T_POW};
    static const jinja_token_type orders[] = {JINJA_T_LT, JINJA_T_LE, JINJA_T_GT, JINJA_T_GE};

    (void)state;
    for (size_t n = SMALL; n <= LARGE; n *= LARGE / SMALL) {
        make_values(n);
        for (size_t i = 0; i < sizeof arithmetic / sizeof *arithmetic; i++)
            walk(binary, &arithmetic[i], "arithmetic", NULL, 1, n);
        for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
            walk(order, &orders[i], "an order", NULL, 1, n);
        walk(equal, NULL, "==", NULL, 1, n);
        walk(contains, NULL, "in", NULL, 1, n);
        walk(slice, NULL, "[::]", NULL, 3, n);
        walk(item, NULL, "[]", NULL, 1, n);
        walk(attribute, NULL, ".", NULL, 1, n);
        walk(iterate, NULL, "for", NULL, 0, n);
        walk(print, NULL, "repr", NULL, 0, n);
        walk(as_key, NULL, "{key: }", NULL, 1, n);
        firn_arena_clear(&inputs.arena);
    }
}

/* The engine as a whole: templates that made native work which no step paid for. */
static void templates_that_hung(void **state)
{
    static const char *const templates[] = {
        "{% set ns=namespace(a=(1,)) %}{% for i in range(60) %}{% set ns.a=(ns.a,ns.a) %}{% endfor %}{{ "
        "{ns.a:1}|length }}",
        "{% set s='a'*20000 %}{% set t='b'+'a'*10000 %}{% for i in range(100000) %}{{ s.rfind(t) }}{% endfor %}",
        "{% set s=' '*100000 %}{% for i in range(100000) %}{% set x=s.strip() %}{% endfor %}",
        "{% set l=range(100000)|list %}{% for i in range(100000) %}{% set x=l|sum %}{% endfor %}",
        "{% set s='0'*1000000 %}{% for i in range(100000) %}{% set x=s|int %}{% endfor %}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        const firn_jinja_limits limits = {.steps = 200000};
        firn_jinja *jinja;
        firn_text out;
        json_t *variables = json_object();
        assert_int_equal(firn_jinja_compile(ctx, templates[i], strlen(templates[i]), &limits, &jinja), FIRN_OK);
        firn_text_init(&out, ctx, 0);
        work = 0;
        assert_int_equal(firn_jinja_render(ctx, jinja, variables, NULL, &out, NULL), FIRN_ERR_MEMORY);
        assert_non_null(strstr(firn_error(ctx), "more than 200000 steps"));
        assert_true(work < BLOCKS * limits.steps);
        firn_text_free(&out);
        firn_jinja_destroy(jinja);
        json_decref(variables);
    }
}

/* ---- names and keys that somebody chose ---- */

enum { LINKS = 11, CHOSEN = 1 << LINKS, LINK = 4 };

/* 2^LINKS names whose hashes are alike in their lower 16 bits, by FNV-1a, the hash that engines without a key take:
 * from each state two words lead to one next state, and a name takes either (Joux 2004). `alike` false: names of the
 * same length that are not. */
static void choose_names(char names[CHOSEN][LINKS * LINK + 1], bool alike)
{
    char words[LINKS][2][LINK];
    uint32_t state = 2166136261u;

    for (int l = 0; l < LINKS; l++) {
        static uint32_t seen[1 << 16]; /* number + 1 of the word that led here */
        memset(seen, 0, sizeof seen);
        for (uint32_t number = 1;; number++) {
            uint32_t rest = number * 2654435761u >> 8, h = state;
            char word[LINK];
            for (int i = 0; i < LINK; i++, rest /= 26) {
                word[i] = (char)('a' + rest % 26);
                h = (h ^ (unsigned char)word[i]) * 16777619u;
            }
            uint32_t *before = &seen[h & 0xFFFF];
            if (!*before) {
                *before = number;
                continue;
            }
            uint32_t first = *before * 2654435761u >> 8;
            for (int i = 0; i < LINK; i++, first /= 26)
                words[l][0][i] = (char)('a' + first % 26);
            memcpy(words[l][1], word, LINK);
            if (memcmp(words[l][0], word, LINK) == 0)
                continue;
            state = h;
            break;
        }
        if (!alike)
            words[l][1][0] = words[l][0][0] == 'q' ? 'r' : 'q';
    }
    for (int n = 0; n < CHOSEN; n++) {
        for (int l = 0; l < LINKS; l++)
            memcpy(names[n] + l * LINK, words[l][n >> l & 1], LINK);
        names[n][LINKS * LINK] = 0;
    }
}

static size_t work_of_names(char names[CHOSEN][LINKS * LINK + 1])
{
    firn_text source;
    firn_jinja *jinja;

    firn_text_init(&source, ctx, 0);
    for (int n = 0; n < CHOSEN; n++)
        firn_text_printf(&source, "{{%s}}", names[n]);
    assert_int_equal(source.status, FIRN_OK);
    work = 0;
    assert_int_equal(firn_jinja_compile(ctx, source.data, source.size, NULL, &jinja), FIRN_OK);
    const size_t done = work;
    firn_jinja_destroy(jinja);
    firn_text_free(&source);
    return done;
}

/* Steps of a dict with these keys. */
static size_t steps_of_keys(const jinja_value *keys, size_t n)
{
    jinja_eval e;
    jinja_value d;

    begin(&e, (size_t)1 << 40);
    assert_int_equal(firn_jinja_dict(&e, &d), FIRN_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(firn_jinja_dict_set(&e, d.dict, keys[i], jinja_int(1)), FIRN_OK);
    assert_int_equal(d.dict->n, n);
    firn_arena_clear(&e.arena);
    return e.limits.steps - e.steps;
}

static void chosen_names_and_keys_cost_as_others(void **state)
{
    static char names[2][CHOSEN][LINKS * LINK + 1];
    static jinja_value keys[2][CHOSEN];

    (void)state;
    for (int alike = 0; alike < 2; alike++)
        choose_names(names[alike], alike);
    assert_in_range(work_of_names(names[1]), 1, 2 * work_of_names(names[0]));
    begin(&inputs, (size_t)1 << 40);
    for (int alike = 0; alike < 2; alike++)
        for (int n = 0; n < CHOSEN; n++)
            keys[alike][n] = text_of(names[alike][n], LINKS * LINK);
    assert_in_range(steps_of_keys(keys[1], CHOSEN), 1, 2 * steps_of_keys(keys[0], CHOSEN));
    for (int n = 0; n < 512; n++) { /* one double is nearest to all of them */
        keys[0][n] = jinja_int(n);
        keys[1][n] = jinja_int(((int64_t)1 << 62) + n);
    }
    assert_in_range(steps_of_keys(keys[1], 512), 1, 2 * steps_of_keys(keys[0], 512));
    firn_arena_clear(&inputs.arena);
}

/* What is equal is one key. */
static void equal_keys_are_one(void **state)
{
    jinja_eval e;
    jinja_value d;
    const jinja_value *found;

    (void)state;
    begin(&e, MAX_STEPS);
    assert_int_equal(firn_jinja_dict(&e, &d), FIRN_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(firn_jinja_dict_set(&e, d.dict, jinja_int(i), jinja_int(i)), FIRN_OK);
    assert_int_equal(firn_jinja_dict_set(&e, d.dict, jinja_float(0x1p62), jinja_int(62)), FIRN_OK);
    const jinja_value same[][2] = {{jinja_float(1), jinja_int(1)},
                                   {jinja_bool(true), jinja_int(1)},
                                   {jinja_float(-0.0), jinja_int(0)},
                                   {jinja_int((int64_t)1 << 62), jinja_int(62)}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(firn_jinja_dict_get(&e, d.dict, same[i][0], &found), FIRN_OK);
        assert_non_null(found);
        assert_int_equal(found->integer, same[i][1].integer);
    }
    firn_arena_clear(&e.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_filter_pays),           cmocka_unit_test(every_filter_of_sequences_pays),
        cmocka_unit_test(every_filter_of_markup_pays), cmocka_unit_test(every_test_pays),
        cmocka_unit_test(every_method_pays),           cmocka_unit_test(every_function_pays),
        cmocka_unit_test(every_filter_in_map_pays),    cmocka_unit_test(every_operator_pays),
        cmocka_unit_test(templates_that_hung),         cmocka_unit_test(chosen_names_and_keys_cost_as_others),
        cmocka_unit_test(equal_keys_are_one),
    };
    int failed;

    if (!(ctx = firn_context_create(NULL)))
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    firn_context_destroy(ctx);
    return failed;
}
