/* A made byte-level BPE vocabulary, any size from 259 on:
 *     0..255        the bytes, in the GPT-2 byte alphabet
 *     then          merges, learnt from a list of common words until the list or the vocabulary is full
 *     then          unused tokens that fill the size up
 *     the last 3    <|endoftext|> <|im_start|> <|im_end|>, control tokens of the ChatML template beside them */
#include "core/arena.h"
#include "core/buffer.h"
#include "model/random_model.h"
#include "text/vocab.h"

#include <stdio.h>
#include <string.h>

static const char *const words[] = {
    " the",     " of",      " and",   " to",      " in",    " a",       " is",     " that",     " for",     " it",
    " as",      " was",     " with",  " be",      " by",    " on",      " not",    " he",       " his",     " but",
    " at",      " are",     " this",  " have",    " from",  " or",      " had",    " an",       " they",    " which",
    " one",     " you",     " were",  " all",     " her",   " she",     " there",  " would",    " their",   " we",
    " him",     " been",    " has",   " when",    " who",   " will",    " no",     " more",     " if",      " out",
    " so",      " up",      " said",  " what",    " its",   " about",   " than",   " into",     " them",    " can",
    " only",    " other",   " time",  " new",     " some",  " could",   " these",  " two",      " may",     " first",
    " then",    " do",      " any",   " like",    " my",    " now",     " over",   " such",     " our",     " man",
    " me",      " even",    " most",  " made",    " after", " also",    " well",   " did",      " many",    " before",
    " must",    " years",   " back",  " through", " much",  " where",   " your",   " way",      " down",    " should",
    " because", " long",    " each",  " just",    " state", " those",   " people", " too",      " how",     " little",
    " good",    " world",   " make",  " very",    " year",  " still",   " see",    " work",     " life",    " being",
    " both",    " between", " never", " day",     " same",  " another", " know",   " while",    " last",    " might",
    " us",      " great",   " old",   " off",     " come",  " since",   " go",     " against",  " came",    " right",
    " used",    " take",    " three", " snow",    " ice",   " water",   " wind",   " winter",   " glacier", " mountain",
    "ing",      "ed",       "er",     "ly",       "tion",   "ment",     "user",    "assistant", "system",   "\n\n",
    "  ",       "    ",
};

enum { N_WORDS = sizeof words / sizeof *words, MAX_WORD = 32 };

/* Tokens 0..n_learnt are bytes and merges; texts are raw bytes here, and become the alphabet when they are written. */
typedef struct {
    firn_arena *arena;
    firn_string *text; /* [n_vocab] */
    int (*pair)[2];    /* of token 256 + i, its two halves */
    int n, limit;      /* tokens so far, most of them */
} learner;

/* The token that joins a and b, -1 when none does yet. */
static int joined(const learner *l, int a, int b)
{
    for (int i = 256; i < l->n; i++)
        if (l->pair[i - 256][0] == a && l->pair[i - 256][1] == b)
            return i;
    return -1;
}

static bool has_text(const learner *l, const char *text, size_t n)
{
    for (int i = 0; i < l->n; i++)
        if (l->text[i].size == n && memcmp(l->text[i].data, text, n) == 0)
            return true;
    return false;
}

/* Merges a word down to one token: by the merges that are there, then by new ones of its first two tokens. */
static firn_status learn(learner *l, const char *word)
{
    int token[MAX_WORD], n = (int)strlen(word);

    for (int i = 0; i < n; i++)
        token[i] = (unsigned char)word[i];
    while (n > 1) {
        int best = -1, at = 0;
        for (int i = 0; i + 1 < n; i++) {
            const int t = joined(l, token[i], token[i + 1]);
            if (t >= 0 && (best < 0 || t < best)) {
                best = t;
                at = i;
            }
        }
        if (best < 0) {
            const firn_string a = l->text[token[0]], b = l->text[token[1]];
            char *text = firn_arena_alloc(l->arena, a.size + b.size);
            if (!text)
                return FIRN_ERR_MEMORY;
            memcpy(text, a.data, a.size);
            memcpy(text + a.size, b.data, b.size);
            if (l->n == l->limit || has_text(l, text, a.size + b.size))
                return FIRN_OK; /* full, or that text came about by another merge: tokens are distinct */
            best = l->n++;
            l->text[best] = (firn_string){text, a.size + b.size};
            l->pair[best - 256][0] = token[0];
            l->pair[best - 256][1] = token[1];
        }
        token[at] = best;
        memmove(token + at + 1, token + at + 2, (size_t)(--n - at - 1) * sizeof *token);
    }
    return FIRN_OK;
}

static void spell(firn_text *out, firn_string s)
{
    for (size_t i = 0; i < s.size; i++) {
        char letter[2];
        firn_text_append(out, letter, firn_vocab_alphabet((uint8_t)s.data[i], letter));
    }
}

static firn_status keep(firn_arena *arena, firn_text *text, firn_string *result)
{
    if (text->status != FIRN_OK)
        return text->status;
    const char *copy = firn_arena_text(arena, firn_text_cstr(text), text->size);
    if (!copy)
        return FIRN_ERR_MEMORY;
    *result = (firn_string){copy, text->size};
    text->size = 0;
    return FIRN_OK;
}

static firn_status put_tokens(firn_gguf_writer *w, learner *l, firn_text *text, int64_t n_vocab, const char *pre)
{
    static const char *const special[3] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char template[] =
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
        "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 };
    const int n_merges = l->n - 256;
    firn_string *merges = firn_arena_zeroed(l->arena, (size_t)n_merges, sizeof *merges);
    int32_t *types = firn_arena_zeroed(l->arena, (size_t)n_vocab, sizeof *types);

    if (!merges || !types)
        return FIRN_ERR_MEMORY;
    for (int i = 0; i < n_merges; i++) {
        spell(text, l->text[l->pair[i][0]]);
        firn_text_putc(text, ' ');
        spell(text, l->text[l->pair[i][1]]);
        FIRN_TRY(keep(l->arena, text, &merges[i]));
    }
    for (int64_t i = 0; i < n_vocab; i++) {
        if (i < l->n)
            spell(text, l->text[i]);
        else if (i < n_vocab - 3)
            firn_text_printf(text, "<|unused_%d|>", (int)(i - l->n));
        else
            firn_text_puts(text, special[i - (n_vocab - 3)]);
        types[i] = i < l->n ? NORMAL : i < n_vocab - 3 ? UNUSED : CONTROL;
        FIRN_TRY(keep(l->arena, text, &l->text[i]));
    }
    FIRN_TRY(firn_gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4));
    FIRN_TRY(firn_gguf_put_string(w, "tokenizer.ggml.pre", pre, strlen(pre)));
    FIRN_TRY(firn_gguf_put_strings(w, "tokenizer.ggml.tokens", l->text, (uint64_t)n_vocab));
    FIRN_TRY(firn_gguf_put_array(w, "tokenizer.ggml.token_type", FIRN_KV_I32, types, (uint64_t)n_vocab));
    FIRN_TRY(firn_gguf_put_strings(w, "tokenizer.ggml.merges", merges, (uint64_t)n_merges));
    FIRN_TRY(firn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)n_vocab - 3));
    FIRN_TRY(firn_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)n_vocab - 1));
    FIRN_TRY(firn_gguf_put_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t)n_vocab - 3));
    FIRN_TRY(firn_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false));
    return firn_gguf_put_string(w, "tokenizer.chat_template", template, sizeof template - 1);
}

firn_status firn_random_vocab_put(firn_context *ctx, firn_gguf_writer *w, int64_t n_vocab, const char *pre)
{
    firn_arena arena;
    firn_text text;

    FIRN_EXPECT(ctx, n_vocab >= FIRN_RANDOM_VOCAB_MIN && n_vocab <= INT32_MAX,
                "a made vocabulary has at least %d tokens, not %lld", FIRN_RANDOM_VOCAB_MIN, (long long)n_vocab);
    firn_arena_init(&arena, ctx, 0);
    firn_text_init(&text, ctx, 0);
    learner l = {.arena = &arena, .n = 256, .limit = (int)n_vocab - 3};
    l.text = firn_arena_zeroed(&arena, (size_t)n_vocab, sizeof *l.text);
    l.pair = firn_arena_zeroed(&arena, (size_t)n_vocab, sizeof *l.pair);
    uint8_t *bytes = firn_arena_alloc(&arena, 256);
    firn_status s = l.text && l.pair && bytes ? FIRN_OK : FIRN_ERR_MEMORY;
    for (int i = 0; s == FIRN_OK && i < 256; i++) {
        bytes[i] = (uint8_t)i;
        l.text[i] = (firn_string){(const char *)&bytes[i], 1};
    }
    for (int i = 0; s == FIRN_OK && i < N_WORDS; i++)
        s = learn(&l, words[i]);
    if (s == FIRN_OK)
        s = put_tokens(w, &l, &text, n_vocab, pre);
    firn_text_free(&text);
    firn_arena_clear(&arena);
    return s;
}
