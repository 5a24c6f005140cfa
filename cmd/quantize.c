/* firn quantize: a model in another weight format. */
#include "firn/quantize.h"
#include "cmd.h"
#include "firn/kernels.h"
#include "said.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* Fallbacks go to standard output, progress to a terminal's standard error. */
static void begin(void *user, const firn_quantize_step *s)
{
    const bool *progress = user;

    if (*progress)
        fprintf(stderr, "\r\033[K");
    if (s->wanted != s->type) {
        cmd_said_printf(stdout, "%s: %s instead of %s, whose blocks of %" PRId64 " do not divide rows of %" PRId64 "\n",
                        s->tensor->name, firn_type_name(s->type), firn_type_name(s->wanted), firn_type_block(s->wanted),
                        s->tensor->ne[0]);
        fflush(stdout);
    }
    if (*progress)
        cmd_said_printf(stderr, "%3d %%  [%" PRId64 "/%" PRId64 "] %s",
                        (int)(s->bytes ? 100 * (double)s->done / (double)s->bytes : 0), s->index + 1, s->count,
                        s->tensor->name);
}

/* 0, or the exit status after a printed sentence. */
static int read_type(const char *command, const char *name, firn_type *type)
{
    char known[512] = "";

    if (firn_type_from_name(name, type) && firn_type_can_encode(*type))
        return 0;
    for (int t = 0; t < FIRN_TYPE_LIMIT; t++) {
        const size_t n = strlen(known);
        if (firn_type_can_encode((firn_type)t))
            snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", firn_type_name((firn_type)t));
    }
    return cmd_usage(command, "'%s' is no type that can be written; these can: %s", name, known);
}

int cmd_quantize(int argc, char **argv)
{
    const char *experts_name = NULL, *output_name = NULL;
    int64_t threads = 0;
    const cmd_option options[] = {
        {"--experts", 's', &experts_name, "TYPE", "type of the experts' tensors (default: TYPE)", 0, 0},
        {"--output-type", 's', &output_name, "TYPE", "of output.weight, or of a tied embedding (default: TYPE)", 0, 0},
        {"--threads", 'i', &threads, "N", "threads (default: all processors; no more than these)", 1, 1024},
        {0},
    };
    const cmd_spec spec = {
        "firn quantize IN.gguf OUT.gguf TYPE [--experts TYPE] [--output-type TYPE] [--threads N]",
        "Writes a model's matrices in TYPE (q4_K, q8_0, bf16, f32...; any letter case). One-dimensional tensors, "
        "biases,\n"
        "norms and routers stay f32. Where a type's block does not divide the rows, the type that llama.cpp falls back "
        "to\n"
        "is taken, and said. f32 writes every weight exactly as it stands in the file.",
        options,
        3,
        3,
    };
    firn_type experts, output;
    firn_quantize_options o = {.begin = begin};
    firn_quantize_report r = {.size = sizeof r};
    bool progress = isatty(STDERR_FILENO);
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if ((status = read_type(argv[0], argv[3], &o.type)))
        return status;
    if (experts_name && (status = read_type(argv[0], experts_name, &experts)))
        return status;
    if (output_name && (status = read_type(argv[0], output_name, &output)))
        return status;
    o.experts = experts_name ? &experts : NULL;
    o.output = output_name ? &output : NULL;
    o.user = &progress;

    firn_context *ctx = cmd_context(threads);
    if (!ctx)
        return 1;
    const firn_status s = firn_quantize(ctx, argv[1], argv[2], &o, &r);
    if (progress)
        fprintf(stderr, "\r\033[K");
    if (s == FIRN_OK)
        printf("%s: %" PRId64 " tensors, %" PRId64 " of them converted, %.1f MB of weights became %.1f MB\n", argv[2],
               r.n_tensors, r.n_changed, (double)r.bytes_in * 1e-6, (double)r.bytes_out * 1e-6);
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_context_destroy(ctx);
    return status;
}
