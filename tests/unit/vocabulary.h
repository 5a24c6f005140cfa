/* Small vocabularies made by tests, and what holds for every tokenization. */
#ifndef FIRN_TEST_VOCABULARY_H
#define FIRN_TEST_VOCABULARY_H

#include "unit/unit.h"

#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks that hold for every tokenization ---- */

/* Spans go from left to right without overlap; where nothing was dropped or stripped they cover the text. */
static inline void spans_are_sound(const firn_tokens *t, size_t n, bool cover)
{
    uint32_t at = 0;

    for (size_t i = 0; i < t->n; i++) {
        assert_true(t->spans[i].begin >= at && t->spans[i].end >= t->spans[i].begin && t->spans[i].end <= n);
        if (cover)
            assert_int_equal(t->spans[i].begin, at);
        at = t->spans[i].end;
    }
    if (cover)
        assert_int_equal(at, n);
}

/* U+2581 is a space to SPM and gemma4. */
static inline size_t spaced(const char *text, size_t n, char *out)
{
    size_t m = 0;

    for (size_t i = 0; i < n;) {
        const bool mark = n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        out[m++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return m;
}

/* Some vocabularies have no token for some bytes (falcon: U+0003); they are dropped, as in llama.cpp. */
static inline bool has_bytes(const firn_tokenizer *tok, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tok->byte_ids[(uint8_t)text[i]] < 0)
            return false;
    return true;
}

static inline void round_trip(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, unsigned flags,
                              firn_tokens *scratch)
{
    firn_text back;
    char *want = malloc(n + 1);
    const bool gpt2 = strcmp(firn_tokenizer_model(tok), "gpt2") == 0;
    size_t m = n;

    memcpy(want, text, n);
    firn_text_init(&back, ctx, 0);
    assert_int_equal(firn_tokenize(ctx, tok, text, n, flags, scratch), FIRN_OK);
    spans_are_sound(scratch, n, true);
    assert_int_equal(firn_detokenize(ctx, tok, scratch->ids, scratch->n, &back), FIRN_OK);
    if (!gpt2)
        m = spaced(text, n, want);
    char *got = malloc(back.size + 1);
    size_t k = gpt2 ? back.size : spaced(firn_text_cstr(&back), back.size, got);
    if (gpt2)
        memcpy(got, firn_text_cstr(&back), back.size);
    if (k != m || memcmp(got, want, m) != 0) {
        fprintf(stderr, "%zu bytes went in, %zu came out: '%.*s' '%.*s'\n", m, k, (int)m, want, (int)k, got);
        fail();
    }
    free(want);
    free(got);
    firn_text_free(&back);
}

/* ---- vocabularies of our own ---- */

enum { MAX_TOKENS = 2048, MAX_MERGES = 2048 };

/* A vocabulary to be; what is NULL or negative is left out of the file. */
typedef struct {
    const char *model, *pre, *name;
    char *tokens[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    int n;
    char *merges[MAX_MERGES];
    int n_merges;
    int64_t bos, eos, unknown, eot;
    int add_bos, add_eos, add_space_prefix; /* -1: no key */
} vocabulary;

static inline vocabulary *vocabulary_new(const char *model, const char *pre)
{
    vocabulary *v = calloc(1, sizeof *v);

    v->model = model;
    v->pre = pre;
    v->bos = v->eos = v->unknown = v->eot = v->add_bos = v->add_eos = v->add_space_prefix = -1;
    return v;
}

static inline int add(vocabulary *v, const char *text, firn_token_type type, float score)
{
    v->tokens[v->n] = strdup(text);
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return v->n++;
}

static inline void add_merge(vocabulary *v, const char *left, const char *right)
{
    char text[512];

    snprintf(text, sizeof text, "%s %s", left, right);
    v->merges[v->n_merges++] = strdup(text);
}

/* The bytes of the GPT-2 alphabet, or <0x00> to <0xFF>. */
static inline void add_bytes(vocabulary *v)
{
    for (int i = 0; i < 256; i++) {
        char text[8] = {0};
        if (strcmp(v->model, "gpt2") == 0)
            firn_vocab_alphabet((uint8_t)i, text);
        else
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        add(v, text, text[0] == '<' && text[1] ? FIRN_TOKEN_BYTE : FIRN_TOKEN_NORMAL, 0);
    }
}

static inline void vocabulary_free(vocabulary *v)
{
    for (int i = 0; i < v->n; i++)
        free(v->tokens[i]);
    for (int i = 0; i < v->n_merges; i++)
        free(v->merges[i]);
    free(v);
}

static inline void put_strings(firn_gguf_writer *w, const char *key, char *const *strings, int n)
{
    firn_string list[MAX_TOKENS] = {{0}};

    for (int i = 0; i < n; i++)
        list[i] = (firn_string){strings[i], strlen(strings[i])};
    assert_int_equal(firn_gguf_put_strings(w, key, list, (uint64_t)n), FIRN_OK);
}

/* Writes what v describes; `change` may put more, or otherwise, before the file is closed. */
static inline void vocabulary_write(firn_context *ctx, const vocabulary *v, const char *path,
                                    void (*change)(firn_gguf_writer *w))
{
    const struct {
        const char *key;
        int64_t value;
    } ids[] = {{"tokenizer.ggml.bos_token_id", v->bos},
               {"tokenizer.ggml.eos_token_id", v->eos},
               {"tokenizer.ggml.unknown_token_id", v->unknown},
               {"tokenizer.ggml.eot_token_id", v->eot}};
    const struct {
        const char *key;
        int value;
    } flags[] = {{"tokenizer.ggml.add_bos_token", v->add_bos},
                 {"tokenizer.ggml.add_eos_token", v->add_eos},
                 {"tokenizer.ggml.add_space_prefix", v->add_space_prefix}};
    firn_gguf_writer *w;

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    firn_gguf_put_string(w, "general.architecture", "llama", 5);
    if (v->name)
        firn_gguf_put_string(w, "general.name", v->name, strlen(v->name));
    firn_gguf_put_string(w, "tokenizer.ggml.model", v->model, strlen(v->model));
    if (v->pre)
        firn_gguf_put_string(w, "tokenizer.ggml.pre", v->pre, strlen(v->pre));
    put_strings(w, "tokenizer.ggml.tokens", v->tokens, v->n);
    firn_gguf_put_array(w, "tokenizer.ggml.token_type", FIRN_KV_I32, v->types, (uint64_t)v->n);
    if (strcmp(v->model, "llama") == 0)
        firn_gguf_put_array(w, "tokenizer.ggml.scores", FIRN_KV_F32, v->scores, (uint64_t)v->n);
    else
        put_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    for (size_t i = 0; i < 4; i++)
        if (ids[i].value >= 0)
            firn_gguf_put_u32(w, ids[i].key, (uint32_t)ids[i].value);
    for (size_t i = 0; i < 3; i++)
        if (flags[i].value >= 0)
            firn_gguf_put_bool(w, flags[i].key, flags[i].value);
    if (change)
        change(w);
    assert_int_equal(firn_gguf_writer_begin(w, path), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
}

/* One a program: they may run side by side. */
#define VOCAB_FILE FIRN_BIN_DIR "/vocabulary-of-" VOCAB_USER ".gguf"

/* FIRN_OK, or what went wrong (its sentence is in ctx). */
static inline firn_status load(firn_context *ctx, const vocabulary *v, void (*change)(firn_gguf_writer *w),
                               firn_tokenizer **tok)
{
    firn_gguf *gguf;

    vocabulary_write(ctx, v, VOCAB_FILE, change);
    assert_int_equal(firn_gguf_open(ctx, VOCAB_FILE, &gguf), FIRN_OK);
    const firn_status status = firn_tokenizer_create(ctx, gguf, tok);
    firn_gguf_close(gguf);
    return status;
}

static inline firn_tokenizer *loaded(firn_context *ctx, vocabulary *v)
{
    firn_tokenizer *tok;

    if (load(ctx, v, NULL, &tok) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    vocabulary_free(v);
    return tok;
}

/* Byte-level BPE with special tokens: "he", "ll", "hell", "hello", " hello"; 256.. in this order. */
static inline vocabulary *small_bpe(const char *pre)
{
    vocabulary *v = vocabulary_new("gpt2", pre);

    add_bytes(v);
    add_merge(v, "h", "e");
    add_merge(v, "l", "l");
    add_merge(v, "he", "ll");
    add_merge(v, "hell", "o");
    add_merge(v, "\xC4\xA0", "hello");
    add(v, "he", FIRN_TOKEN_NORMAL, 0);
    add(v, "ll", FIRN_TOKEN_NORMAL, 0);
    add(v, "hell", FIRN_TOKEN_NORMAL, 0);
    add(v, "hello", FIRN_TOKEN_NORMAL, 0);
    add(v, "\xC4\xA0hello", FIRN_TOKEN_NORMAL, 0);
    v->bos = add(v, "<|begin|>", FIRN_TOKEN_CONTROL, 0); /* 261 */
    v->eos = add(v, "<|im_end|>", FIRN_TOKEN_NORMAL, 0); /* 262: control by its text */
    add(v, "<tool>", FIRN_TOKEN_USER_DEFINED, 0);        /* 263 */
    add(v, "<tool><tool>!", FIRN_TOKEN_USER_DEFINED, 0); /* 264 */
    add(v, "  ", FIRN_TOKEN_USER_DEFINED, 0);            /* 265 */
    add(v, "unreachable", FIRN_TOKEN_NORMAL, 0);         /* 266 */
    return v;
}

/* SPM: bytes from 3, then letters and what they merge to. */
static inline vocabulary *small_spm(void)
{
#define MARK "\xE2\x96\x81"
    static const char *const pieces[] = {MARK, "a", "b", "c", "ab", "bc", (MARK "a"), "abc", (MARK MARK)};
#undef MARK
    static const float scores[] = {-9, -10, -11, -12, -3, -2, -4, -1, -5};
    vocabulary *v = vocabulary_new("llama", NULL);

    add(v, "<unk>", FIRN_TOKEN_UNKNOWN, 0);
    add(v, "<s>", FIRN_TOKEN_CONTROL, 0);
    add(v, "</s>", FIRN_TOKEN_CONTROL, 0);
    add_bytes(v);
    for (int i = 0; i < 9; i++) /* 259 U+2581, 260 a, b, c, 263 ab, bc, 265 U+2581 a, 266 abc, 267 two U+2581 */
        add(v, pieces[i], FIRN_TOKEN_NORMAL, scores[i]);
    add(v, "<|user|>", FIRN_TOKEN_USER_DEFINED, 0); /* 268 */
    return v;
}

/* ids as text: "1 2 3" */
static inline void gives(firn_context *ctx, const firn_tokenizer *tok, const char *text, unsigned flags,
                         const char *want)
{
    firn_tokens tokens = {0};
    firn_text got;

    assert_int_equal(firn_tokenize(ctx, tok, text, strlen(text), flags, &tokens), FIRN_OK);
    firn_text_init(&got, ctx, 0);
    for (size_t i = 0; i < tokens.n; i++)
        firn_text_printf(&got, "%s%d", i ? " " : "", (int)tokens.ids[i]);
    if (strcmp(firn_text_cstr(&got), want) != 0)
        fail_msg("'%s' gave %s, expected %s", text, firn_text_cstr(&got), want);
    spans_are_sound(&tokens, strlen(text), false);
    firn_text_free(&got);
    firn_tokens_free(ctx, &tokens);
}

static inline vocabulary *small_gemma4(void)
{
    vocabulary *v = vocabulary_new("gemma4", NULL);

    add(v, "<bos>", FIRN_TOKEN_CONTROL, 0);
    add(v, "<eos>", FIRN_TOKEN_CONTROL, 0);
    add_bytes(v);
    add(v, "\xE2\x96\x81", FIRN_TOKEN_NORMAL, 0);
    add(v, "\n", FIRN_TOKEN_NORMAL, 0);
    add(v, "\n\n", FIRN_TOKEN_NORMAL, 0);
    add(v, "a", FIRN_TOKEN_NORMAL, 0);
    add(v,
        "\xE2\x96\x81"
        "a",
        FIRN_TOKEN_NORMAL, 0);
    add(v,
        "a\xE2\x96\x81"
        "a",
        FIRN_TOKEN_NORMAL, 0);
    add_merge(v, "\xE2\x96\x81", "a");
    add_merge(v, "\n", "\n");
    add_merge(v, "a",
              "\xE2\x96\x81"
              "a");
    v->bos = 0;
    v->eos = 1;
    return v;
}

#endif
