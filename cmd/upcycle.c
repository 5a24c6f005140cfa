/* firn upcycle: a dense model becomes a mixture of experts. */
#include "model/upcycle.h"
#include "cmd.h"

int cmd_upcycle(int argc, char **argv)
{
    int64_t n_expert = 0, n_used = 0, seed = 0;
    const cmd_option options[] = {
        {"--experts", 'i', &n_expert, "N", "experts of each block (needed)", 2, FIRN_MAX_EXPERTS},
        {"--used", 'i', &n_used, "K", "experts that a token uses (needed)", 1, FIRN_MAX_EXPERTS},
        {"--seed", 'i', &seed, "S", "of the random routers (default 0)", 0, 9e18},
        {0},
    };
    const cmd_spec spec = {
        "firn upcycle DENSE.gguf OUT.gguf --experts N --used K [--seed S]",
        "Copies the dense feed-forward of every block, still packed, into N experts and draws a small random router. "
        "The\n"
        "result computes what the dense model did, until it is trained. llama stays llama, qwen3 becomes qwen3moe, "
        "granite\n"
        "granitemoe, lfm2 lfm2moe, and granitehybrid keeps its name. Other architectures cannot be upcycled: no MoE\n"
        "version computes the same.",
        options,
        2,
        2,
    };
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (n_expert == 0 || n_used == 0)
        return cmd_usage(argv[0], "%s is missing", n_expert ? "--used" : "--experts");
    if (n_used > n_expert)
        return cmd_usage(argv[0], "--used takes at most the number of experts, %d, not %d", (int)n_expert, (int)n_used);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    const firn_status s = firn_upcycle(ctx, argv[1], argv[2], n_expert, n_used, (uint64_t)seed);
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_context_destroy(ctx);
    return status;
}
