/* Tokenizers against strangers: the first byte chooses, the rest is
 *     0      a GGUF file, whose vocabulary then tokenizes its own bytes
 *     else   a text, for one of three small vocabularies or a pre-tokenizer alone
 * Ids must be in range, spans in order, and the text must come back. */
#include "text/pretokenize.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

/* Any flags give sound tokens; `exact`: without special tokens in front and behind the text comes back. */
static void tokenize(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, unsigned flags,
                     bool exact)
{
    firn_tokens tokens = {0};
    uint32_t at = 0;

    CHECK(firn_tokenize(ctx, tok, text, n, flags, &tokens) == FIRN_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        CHECK(tokens.ids[i] >= 0 && tokens.ids[i] < firn_tokenizer_size(tok));
        CHECK(tokens.spans[i].begin >= at && tokens.spans[i].end >= tokens.spans[i].begin && tokens.spans[i].end <= n);
        at = tokens.spans[i].end;
    }
    firn_text back;
    firn_text_init(&back, ctx, 0);
    CHECK(firn_detokenize(ctx, tok, tokens.ids, tokens.n, &back) == FIRN_OK);
    if (exact)
        CHECK(back.size == n && (n == 0 || memcmp(back.data, text, n) == 0));
    firn_text_free(&back);
    firn_tokens_free(ctx, &tokens);
}

/* ---- a small vocabulary, as the bytes of a GGUF file ---- */

static void put_u32(firn_text *t, uint32_t x)
{
    firn_text_append(t, &x, 4);
}

static void put_u64(firn_text *t, uint64_t x)
{
    firn_text_append(t, &x, 8);
}

static void put_string(firn_text *t, const char *s)
{
    put_u64(t, strlen(s));
    firn_text_puts(t, s);
}

static void put_array(firn_text *t, const char *key, uint32_t type, uint64_t n)
{
    put_string(t, key);
    put_u32(t, FIRN_KV_ARRAY);
    put_u32(t, type);
    put_u64(t, n);
}

static const char *const more_tokens[] = {"ab", "abc", "<s>", "<tool>", "<tool><tool>", "  ", "\n\n"};
static const int32_t more_types[] = {1, 1, 3, 4, 4, 4, 4};
enum { N_MORE = 7 };

static firn_tokenizer *small(firn_context *ctx, const char *model, const char *pre)
{
    const bool gpt2 = strcmp(model, "gpt2") == 0;
    const int n = 256 + N_MORE + (gpt2 ? 0 : 4);
    firn_tokenizer *tok;
    firn_gguf *gguf;
    firn_text t;

    firn_text_init(&t, ctx, 0);
    firn_text_puts(&t, "GGUF");
    put_u32(&t, 3);
    put_u64(&t, 0);
    put_u64(&t, 6);
    put_string(&t, "general.architecture");
    put_u32(&t, FIRN_KV_STRING);
    put_string(&t, "llama");
    put_string(&t, "tokenizer.ggml.model");
    put_u32(&t, FIRN_KV_STRING);
    put_string(&t, model);
    put_string(&t, "tokenizer.ggml.pre");
    put_u32(&t, FIRN_KV_STRING);
    put_string(&t, pre);
    put_array(&t, "tokenizer.ggml.tokens", FIRN_KV_STRING, (uint64_t)n);
    for (int i = 0; i < 256; i++) {
        char text[8] = {0};
        if (gpt2)
            firn_vocab_alphabet((uint8_t)i, text);
        else
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        put_string(&t, text);
    }
    for (int i = 0; i < N_MORE; i++)
        put_string(&t, more_tokens[i]);
    if (!gpt2) {
        put_string(&t, "a");
        put_string(&t, "b");
        put_string(&t, "c");
        put_string(&t, FIRN_SPACE_MARK);
    }
    put_array(&t, "tokenizer.ggml.token_type", FIRN_KV_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_u32(&t, i < 256 ? (gpt2 ? 1u : 6u) : i < 256 + N_MORE ? (uint32_t)more_types[i - 256] : 1u);
    put_array(&t, "tokenizer.ggml.merges", FIRN_KV_STRING, 2);
    put_string(&t, "a b");
    put_string(&t, "ab c");
    for (int i = 0; i < 64; i++)
        firn_text_putc(&t, 0);
    CHECK(firn_gguf_parse(ctx, t.data, t.size, &gguf) == FIRN_OK);
    CHECK(firn_tokenizer_create(ctx, gguf, &tok) == FIRN_OK);
    firn_gguf_close(gguf);
    firn_text_free(&t);
    return tok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static firn_tokenizer *tokens[64];
    static int n;

    if (!ctx) {
        ctx = firn_context_create(NULL);
        tokens[n++] = small(ctx, "llama", "");
        tokens[n++] = small(ctx, "gemma4", "");
        for (int i = 0; firn_pre_known(i) && n < 64; i++)
            tokens[n++] = small(ctx, "gpt2", firn_pre_known(i));
    }
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    if (data[0]) {
        const firn_tokenizer *tok = tokens[(data[0] - 1) % n];
        bool mark = false; /* U+2581, which two of the models cannot tell from a space */
        for (size_t i = 0; i + 3 <= size - 1 && !tok->pre; i++)
            mark |= memcmp(text + i, FIRN_SPACE_MARK, 3) == 0;
        tokenize(ctx, tok, text, size - 1, 0, !mark);
        tokenize(ctx, tok, text, size - 1, FIRN_PARSE_SPECIAL, !mark);
        tokenize(ctx, tok, text, size - 1, FIRN_ADD_SPECIAL | FIRN_PARSE_SPECIAL | FIRN_BOS_ONCE, false);
        return 0;
    }
    firn_gguf *gguf;
    firn_tokenizer *tok;
    if (firn_gguf_parse(ctx, text, size - 1, &gguf) != FIRN_OK)
        return 0;
    if (firn_tokenizer_create(ctx, gguf, &tok) == FIRN_OK) {
        tokenize(ctx, tok, text, size - 1, FIRN_ADD_SPECIAL, false);
        tokenize(ctx, tok, text, size - 1, FIRN_PARSE_SPECIAL, false);
        firn_tokenizer_destroy(tok);
    }
    firn_gguf_close(gguf);
    return 0;
}
