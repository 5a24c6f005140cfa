/* bench-tokenizer MODEL FILE [SECONDS]: megabytes a second of processor time on one thread, best of the runs that fit
 * in SECONDS (3). */
#include "text/tokenizer.h"
#include "core/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* of one thread: what a core does, on a shared machine too */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *gguf;
    firn_tokenizer *tok;
    firn_tokens tokens = {0};
    char *text;
    size_t n;

    if (argc < 3) {
        fprintf(stderr, "usage: bench-tokenizer MODEL FILE [SECONDS]\n");
        return 2;
    }
    if (firn_gguf_open(ctx, argv[1], &gguf) != FIRN_OK || firn_tokenizer_create(ctx, gguf, &tok) != FIRN_OK ||
        firn_file_read(ctx, argv[2], 0, &text, &n) != FIRN_OK) {
        fprintf(stderr, "bench-tokenizer: %s\n", firn_error(ctx));
        return 1;
    }
    const double limit = argc > 3 ? atof(argv[3]) : 3, start = now();
    double best = 0;
    do {
        const double begin = now();
        if (firn_tokenize(ctx, tok, text, n, 0, &tokens) != FIRN_OK) {
            fprintf(stderr, "bench-tokenizer: %s\n", firn_error(ctx));
            return 1;
        }
        const double rate = (double)n / 1e6 / (now() - begin);
        best = rate > best ? rate : best;
    } while (now() - start < limit);
    printf("%-10s %-14s %8.2f MB %9zu tokens %8.1f MB/s\n", firn_tokenizer_model(tok), firn_tokenizer_pre(tok),
           (double)n / 1e6, tokens.n, best);
    firn_tokens_free(ctx, &tokens);
    firn_free(ctx, text);
    firn_tokenizer_destroy(tok);
    firn_gguf_close(gguf);
    firn_context_destroy(ctx);
    return 0;
}
