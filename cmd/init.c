/* firn init: a model of random weights. */
#include "cmd.h"
#include "model/random_model.h"

#include <inttypes.h>
#include <string.h>

static void list_shapes(char *text, size_t size)
{
    text[0] = 0;
    for (int i = 0; firn_random_shape_at(i); i++) {
        const size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", i ? ", " : "", firn_random_shape_at(i)->name);
    }
}

int cmd_init(int argc, char **argv)
{
    const char *like = NULL, *type_name = "q4_K";
    int64_t seed = 0, n_layer = 0;
    const cmd_option options[] = {
        {"--like", 's', &like, "NAME", "the model whose shape is taken (needed)", 0, 0},
        {"--type", 's', &type_name, "TYPE", "type of the matrices (default q4_K)", 0, 0},
        {"--layers", 'i', &n_layer, "N", "blocks (default: as that model has)", 1, 512},
        {"--seed", 'i', &seed, "S", "of the random weights (default 0)", 0, 9e18},
        {0},
    };
    char names[1024], about[2048];
    list_shapes(names, sizeof names);
    snprintf(
        about, sizeof about,
        "Writes a model of random weights in the shape of a real one, for tests and benchmarks: norms and routers\n"
        "F32, matrices in TYPE where it divides their rows, else in the type that llama.cpp falls back to.\n"
        "NAME is one of %s.",
        names);
    const cmd_spec spec = {"firn init --like NAME [--type TYPE] [--layers N] [--seed S] OUT.gguf", about, options, 1,
                           1};
    firn_random_report r;
    firn_type type;
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!like)
        return cmd_usage(argv[0], "--like is missing");
    const firn_random_shape *shape = firn_random_shape_find(like);
    if (!shape)
        return cmd_usage(argv[0], "there is no shape '%s'; there are %s", like, names);
    if (!firn_type_from_name(type_name, &type))
        return cmd_usage(argv[0], "there is no type '%s'", type_name);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    const firn_status s = firn_random_model_write(ctx, shape, n_layer, type, (uint64_t)seed, argv[1], &r);
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
