/* firn init: a model of random weights. */
#include "cmd.h"
#include "model/random_model.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static int print_shapes(bool json)
{
    json_t *list = json_array();

    for (int i = 0; firn_random_shape_at(i); i++) {
        const firn_random_shape *s = firn_random_shape_at(i);
        json_array_append_new(list, json_pack("{ss ss sI sI sI}", "name", s->name, "architecture", s->arch, "blocks",
                                              (json_int_t)s->n_layer, "width", (json_int_t)s->n_embd, "experts",
                                              (json_int_t)s->n_expert));
        if (!json)
            printf("%-24s %s, %" PRId64 " blocks of %" PRId64 "\n", s->name, s->arch, s->n_layer, s->n_embd);
    }
    if (json) {
        json_dumpf(list, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(list);
    return 0;
}

/* Everything that is as wide as the embedding, divided by what makes that n; heads keep their size. */
static bool narrow(firn_random_shape *s, int64_t n)
{
    const int64_t by = s->n_embd / n;

    if (by < 1 || s->n_embd % n || s->n_head % by || s->n_ff % by || s->n_ff_expert % by)
        return false;
    s->n_embd = n;
    s->n_head /= by;
    s->n_head_kv = s->n_head_kv % by ? 1 : s->n_head_kv / by;
    s->n_ff /= by;
    s->n_ff_expert /= by;
    s->n_ff_shared /= by;
    return true;
}

int cmd_init(int argc, char **argv)
{
    const char *like = NULL, *type_name = "q4_K";
    int64_t seed = 0, n_layer = 0, n_width = 0, n_expert = 0, n_used = 0, n_vocab = 0, n_ctx = 0;
    bool list = false, json = false;
    const cmd_option options[] = {
        {"--like", 's', &like, "NAME", "the model whose shape is taken (needed; --list shows them)", 0, 0},
        {"--type", 's', &type_name, "TYPE", "type of the matrices (default q4_K)", 0, 0},
        {"--layers", 'i', &n_layer, "N", "blocks (this and the next five: default as that model has)", 1, 512},
        {"--width", 'i', &n_width, "N", "of the embedding; heads and feed-forwards shrink alike", 1, 1 << 20},
        {"--experts", 'i', &n_expert, "N", "experts of a block", 1, 1024},
        {"--used", 'i', &n_used, "N", "experts that a token uses", 1, 1024},
        {"--vocabulary", 'i', &n_vocab, "N", "tokens of the vocabulary", FIRN_RANDOM_VOCAB_MIN, 1 << 24},
        {"--context", 'i', &n_ctx, "N", "tokens of the longest context", 1, 1 << 24},
        {"--seed", 'i', &seed, "S", "of the random weights (default 0)", 0, 9e18},
        {"--list", 'b', &list, NULL, "list the shapes instead", 0, 0},
        {"--json", 'b', &json, NULL, "with --list: for programs", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        "firn init --like NAME [--type TYPE] [--layers N] [--seed S] OUT.gguf | firn init --list",
        "Writes a model of random weights in the shape of a real one, for tests and benchmarks: norms and routers\n"
        "F32, matrices in TYPE where it divides their rows, else in the type that llama.cpp falls back to.",
        options,
        0,
        1,
    };
    firn_random_report r;
    firn_type type;
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (list)
        return print_shapes(json);
    if (n == 0)
        return cmd_usage(argv[0], "an argument is missing: %s", spec.usage);
    if (!like)
        return cmd_usage(argv[0], "--like is missing");
    const firn_random_shape *found = firn_random_shape_find(like);
    if (!found)
        return cmd_usage(argv[0], "there is no shape '%s' (firn init --list shows them)", like);
    firn_random_shape shape = *found;
    if (n_width && !narrow(&shape, n_width))
        return cmd_usage(argv[0], "a width of %" PRId64 " must divide %s's %" PRId64 " as its %" PRId64 " heads divide",
                         n_width, like, shape.n_embd, shape.n_head);
    if ((n_expert || n_used) && shape.n_expert == 0)
        return cmd_usage(argv[0], "%s has no experts", like);
    shape.n_expert = n_expert ? n_expert : shape.n_expert;
    shape.n_expert_used = n_used ? n_used : shape.n_expert_used;
    shape.n_vocab = n_vocab ? n_vocab : shape.n_vocab;
    shape.n_ctx = n_ctx ? n_ctx : shape.n_ctx;
    if (shape.n_expert_used > shape.n_expert)
        return cmd_usage(argv[0], "a token cannot use %" PRId64 " of %" PRId64 " experts (--used, --experts)",
                         shape.n_expert_used, shape.n_expert);
    const int64_t n_group = shape.n_group, in_group = n_group > 1 ? shape.n_expert / n_group : 0;
    if (n_group > 1 && (shape.n_expert % n_group != 0 || in_group < 2))
        return cmd_usage(argv[0], "%" PRId64 " experts cannot be in %" PRId64 " equal groups of at least 2",
                         shape.n_expert, n_group);
    if (n_group > 1 && shape.n_expert_used > shape.n_group_used * in_group)
        return cmd_usage(argv[0], "a token cannot use %" PRId64 " experts: it chooses %" PRId64 " groups of %" PRId64,
                         shape.n_expert_used, shape.n_group_used, in_group);
    if (!firn_type_from_name(type_name, &type))
        return cmd_usage(argv[0], "there is no type '%s'", type_name);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    const firn_status s = firn_random_model_write(ctx, &shape, n_layer, type, (uint64_t)seed, argv[1], &r);
    if (s == FIRN_OK) {
        printf("%s: %d tensors, %" PRId64 " weights, %" PRIu64 " bytes\n", argv[1], r.n_tensors, r.n_weights, r.bytes);
        if (r.n_fallbacks)
            printf("%d tensors are %s: blocks of %s do not divide their rows\n", r.n_fallbacks,
                   firn_type_name(r.fallback), firn_type_name(type));
    }
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_context_destroy(ctx);
    return status;
}
