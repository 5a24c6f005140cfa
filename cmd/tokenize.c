/* firn tokenize: text to a JSON array of ids. */
#include "cmd.h"
#include "spoken.h"

int cmd_tokenize(int argc, char **argv)
{
    const char *file = NULL;
    bool no_bos = false, parse_special = false;
    const cmd_option options[] = {
        {"--file", 's', &file, "F", "tokenize the bytes of this file instead, its last newline included", 0, 0},
        {"--no-bos", 'b', &no_bos, NULL, "neither BOS nor EOS, whatever the vocabulary asks for", 0, 0},
        {"--parse-special", 'b', &parse_special, NULL, "take the text of a control token for that token", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        .usage = "firn tokenize MODEL TEXT|--file F [--no-bos] [--parse-special]",
        .about = "Prints the ids of a text as a JSON array, with BOS and EOS as the vocabulary asks.\n"
                 "MODEL is a GGUF file; one that holds only a vocabulary will do.",
        .options = options,
        .min_args = 1,
        .max_args = 2,
    };
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if ((n == 2) == (file != NULL))
        return cmd_usage("tokenize", "expected a text or --file F, %s", file ? "not both" : "got neither");

    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    cmd_spoken in;
    firn_tokens tokens = {0};
    firn_status done = cmd_spoken_open(ctx, argv[1], argv[2], file, &in);
    if (done == FIRN_OK)
        done = firn_tokenize(ctx, in.tok, in.text, in.size,
                             (no_bos ? 0 : FIRN_ADD_SPECIAL) | (parse_special ? FIRN_PARSE_SPECIAL : 0), &tokens);
    if (done == FIRN_OK) {
        putchar('[');
        for (size_t i = 0; i < tokens.n; i++)
            printf("%s%d", i ? ", " : "", (int)tokens.ids[i]);
        puts("]");
    }
    status = done == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_tokens_free(ctx, &tokens);
    cmd_spoken_close(ctx, &in);
    firn_context_destroy(ctx);
    return status;
}
