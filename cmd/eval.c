/* firn eval: loss and perplexity of a data set. */
#include "cmd.h"
#include "data_options.h"
#include "train/options.h"

#include <math.h>

static void say(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

int cmd_eval(int argc, char **argv)
{
    firn_train_options o;
    cmd_compute compute = {0};
    bool json = false;
    int n, status;

    firn_train_options_init(&o);
    const cmd_option list[] = {
        {"--data", 'l', &o.data, "FILE", "the data: a file, a folder or - (standard input); repeatable", 0, 0},
        CMD_FORMAT_OPTIONS(o),
        {"--adapter", 's', &o.adapter, "A.gguf", "with this adapter", 0, 0},
        {"--force", 'b', &o.force, NULL, "also where it was made for another model", 0, 0},
        {"--context", 'i', &o.context, "N", "tokens of a window (default 512, or the model's if less)", 2, 1 << 24},
        {"--batch", 'i', &o.batch, "N", "windows of a pass (default 1)", 1, 65536},
        {"--memory-limit", 's', &o.memory_limit, "6G", "most anonymous memory for the computation", 0, 0},
        {"--json", 'b', &json, NULL, "print a JSON object", 0, 0},
        CMD_COMPUTE_OPTIONS(compute),
        {NULL, 0, NULL, NULL, NULL, 0, 0},
    };
    const cmd_spec spec = {"firn eval MODEL --data F.jsonl [--adapter A.gguf]",
                           "Prints loss (mean over the tokens that training would learn) and perplexity of a data set.",
                           list, 1, 1};
    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!o.data.n)
        return cmd_usage(argv[0], "--data F.jsonl is missing");
    o.model = argv[1];
    o.device = compute.device;
    o.precision = compute.precision;
    firn_context *ctx = cmd_compute_context(&compute);
    if (!ctx)
        return 1;
    const firn_watch watch = {.size = sizeof watch, .say = json ? NULL : say};
    firn_eval_result r = {.size = sizeof r};
    if (firn_eval(ctx, &o, &watch, &r) != FIRN_OK)
        status = cmd_fail_ctx(ctx);
    else if (json) {
        char perplexity[32] = "null"; /* JSON has no infinity */
        if (isfinite(r.perplexity))
            snprintf(perplexity, sizeof perplexity, "%.17g", r.perplexity);
        printf("{\"loss\": %.17g, \"perplexity\": %s, \"samples\": %lld, \"tokens\": %lld, \"target_tokens\": %lld}\n",
               r.loss, perplexity, (long long)r.samples, (long long)r.tokens, (long long)r.target_tokens);
    } else
        printf("loss %.6f  perplexity %.4f  (%lld token%s of %lld sample%s)\n", r.loss, r.perplexity,
               (long long)r.target_tokens, firn_plural(r.target_tokens), (long long)r.samples, firn_plural(r.samples));
    firn_context_destroy(ctx);
    return status;
}
