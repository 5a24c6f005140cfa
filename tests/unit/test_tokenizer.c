/* Tokenizing and detokenizing: merging, special tokens, round trips, ends, bytes without tokens, threads. */
#define VOCAB_USER "test_tokenizer"
#include "unit/vocabulary.h"

#include "core/random.h"

#include <pthread.h>

static void bpe_merges_and_special_tokens(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    const unsigned both = FIRN_ADD_SPECIAL | FIRN_PARSE_SPECIAL;
    firn_tokenizer *tok = loaded(ctx, small_bpe("gpt-2"));

    gives(ctx, tok, "", both, "");
    gives(ctx, tok, "hello hello", 0, "259 260");
    gives(ctx, tok, "hellhe", 0, "258 256");
    gives(ctx, tok, "unreachable", 0, "117 110 114 101 97 99 104 97 98 108 101");
    gives(ctx, tok, "hello<|im_end|>", FIRN_PARSE_SPECIAL, "259 262");
    gives(ctx, tok, "he<|im_end|>", 0, "256 60 124 105 109 95 101 110 100 124 62");
    gives(ctx, tok, "a<tool>b", 0, "97 263 98"); /* user defined: matched without asking */
    /* The longest wins, even where a shorter one begins before it. */
    gives(ctx, tok, "<tool><tool><tool>!", 0, "263 264");
    gives(ctx, tok, "<tool><tool>", 0, "263 263");
    gives(ctx, tok, "   hello", 0, "265 260");
    gives(ctx, tok, "<|begin|>hello", both, "261 259"); /* no default BOS for gpt-2 */
    assert_false(firn_tokenizer_adds_bos(tok));
    assert_true(firn_token_is_end(tok, 262));
    assert_int_equal(firn_token_kind(tok, 262), FIRN_TOKEN_CONTROL);
    assert_false(firn_token_is_end(tok, 263) || firn_token_is_end(tok, -1) || firn_token_is_end(tok, 267));
    firn_tokenizer_destroy(tok);

    vocabulary *v = small_bpe("llama-bpe"); /* whole words first, BOS by default */
    v->add_eos = 1;
    tok = loaded(ctx, v);
    gives(ctx, tok, "unreachable", 0, "266");
    gives(ctx, tok, "hello", both, "261 259 262");
    gives(ctx, tok, "<|begin|>hello", both, "261 261 259 262");
    gives(ctx, tok, "<|begin|>hello", both | FIRN_BOS_ONCE, "261 259 262");
    gives(ctx, tok, "hello<|begin|>", both | FIRN_BOS_ONCE, "261 259 261 262");
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

static void spm_merges_spaces_and_bytes(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_tokenizer *tok = loaded(ctx, small_spm());

    gives(ctx, tok, "", 0, "");
    gives(ctx, tok, "", FIRN_ADD_SPECIAL, "1");
    gives(ctx, tok, "a", 0, "265");
    gives(ctx, tok, "abc", 0, "259 266"); /* bc, then abc; U+2581 a would have come after */
    gives(ctx, tok, "ab", 0, "259 263");
    gives(ctx, tok, " a", 0, "259 265");
    gives(ctx, tok, "b  b", 0, "259 261 267 261"); /* spaces join where a token joins them */
    gives(ctx, tok, "x", 0, "259 123");
    gives(ctx, tok, "\xC3\xA9", 0, "259 198 172");
    gives(ctx, tok, "<s>a", 0, "259 63 118 65 260");
    gives(ctx, tok, "<s>a", FIRN_PARSE_SPECIAL, "1 265"); /* the space comes again behind a special token */
    gives(ctx, tok, "a<|user|>a", 0, "265 268 265");
    gives(ctx, tok, "\xFF", 0, "259 258");
    firn_tokenizer_destroy(tok);

    vocabulary *v = small_spm();
    v->add_space_prefix = 0;
    v->add_bos = 0;
    tok = loaded(ctx, v);
    gives(ctx, tok, "a a", FIRN_ADD_SPECIAL, "260 265");
    firn_tokenizer_destroy(tok);

    v = small_spm();
    v->name = "My Phi-3 mini";
    tok = loaded(ctx, v);
    gives(ctx, tok, "a<|user|> \n a<s> a", FIRN_PARSE_SPECIAL, "265 268 265 1 259 265");
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

/* Merging by its definition: look at all pairs, join the best, begin again. */
static size_t merge_slowly(const firn_tokenizer *tok, const char *word, firn_symbol *s, size_t n)
{
    for (;;) {
        size_t best = n;
        double best_cost = 0;
        int32_t product = -1;
        for (size_t i = 0; i + 1 < n; i++) {
            double cost;
            int32_t id = -1;
            if (tok->model == FIRN_VOCAB_SPM) {
                id = firn_vocab_text(tok, word + s[i].begin, s[i].n + s[i + 1].n);
                cost = id < 0 ? 0 : -(double)tok->tokens[id].score;
            } else {
                const firn_merge *m =
                    s[i].id < 0 || s[i + 1].id < 0 ? NULL : firn_vocab_merge(tok, s[i].id, s[i + 1].id);
                id = m ? m->product : -1;
                cost = m ? m->rank : 0;
            }
            if (id >= 0 && (best == n || cost < best_cost)) {
                best = i;
                best_cost = cost;
                product = id;
            }
        }
        if (best == n)
            return n;
        s[best].n += s[best + 1].n;
        s[best].id = product;
        memmove(&s[best + 1], &s[best + 2], (n - best - 2) * sizeof *s);
        n--;
    }
}

/* Random vocabularies over two letters, where merges overlap in every way. */
static void merging_equals_its_definition(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    enum { LONGEST = 200 };

    for (uint64_t seed = 0; seed < 24; seed++) {
        const bool spm = seed % 2;
        vocabulary *v = vocabulary_new(spm ? "llama" : "gpt2", spm ? NULL : "gpt-2");
        uint64_t r = 0;
        add(v, "a", FIRN_TOKEN_NORMAL, -50);
        add(v, "b", FIRN_TOKEN_NORMAL, -50);
        while (v->n < 60) {
            const char *left = v->tokens[firn_random_below(seed, 1, r++, (uint64_t)v->n)];
            const char *right = v->tokens[firn_random_below(seed, 1, r++, (uint64_t)v->n)];
            char joined[512];
            bool known = false;
            snprintf(joined, sizeof joined, "%s%s", left, right);
            for (int i = 0; i < v->n; i++)
                known |= strcmp(v->tokens[i], joined) == 0;
            if (known || strlen(joined) > 12)
                continue;
            add_merge(v, left, right);
            add(v, joined, FIRN_TOKEN_NORMAL, -(float)firn_random_below(seed, 2, r++, 20));
        }
        v->bos = v->eos = 0;
        firn_tokenizer *tok = loaded(ctx, v);
        for (int round = 0; round < 200; round++) {
            char word[LONGEST];
            firn_symbol fast[LONGEST], slow[LONGEST];
            uint64_t heap[3 * LONGEST];
            const size_t n = 1 + firn_random_below(seed, 3, r++, LONGEST);
            for (size_t i = 0; i < n; i++) {
                word[i] = "abc"[firn_random_below(seed, 4, r++, 41) * 2 / 40]; /* c, rare, is no token */
                fast[i] =
                    (firn_symbol){.begin = (uint32_t)i, .n = 1, .width = 1, .id = firn_vocab_text(tok, word + i, 1)};
            }
            memcpy(slow, fast, sizeof slow);
            firn_merge_symbols(tok, word, fast, n, heap);
            const size_t left = merge_slowly(tok, word, slow, n);
            size_t i = 0;
            for (uint32_t at = 0; at != FIRN_NO_SYMBOL; at = fast[at].next, i++) {
                assert_true(i < left);
                assert_int_equal(fast[at].begin, slow[i].begin);
                assert_int_equal(fast[at].n, slow[i].n);
                assert_int_equal(fast[at].width, slow[i].n);
                assert_int_equal(fast[at].id, slow[i].id);
            }
            assert_int_equal(i, left);
        }
        firn_tokenizer_destroy(tok);
    }
    firn_context_destroy(ctx);
}

/* Special tokens by the definition: token after token, longest first, cut out of what is left. */
static void special_tokens_equal_their_definition(void **state)
{
    (void)state;
    static const char *const texts[] = {"<a>", "<a><a>", "a><", "><a", "<a><b>", "b>", "<", "aa", "aaa", "aab", "<a>b"};
    enum { N = sizeof texts / sizeof texts[0], LENGTH = 60 };
    firn_context *ctx = firn_context_create(NULL);
    vocabulary *v = small_bpe("gpt-2");
    const int first = v->n;

    for (int i = 0; i < N; i++) {
        bool known = false;
        for (int j = 0; j < v->n; j++)
            known |= strcmp(v->tokens[j], texts[i]) == 0;
        if (!known)
            add(v, texts[i], i % 3 ? FIRN_TOKEN_USER_DEFINED : FIRN_TOKEN_CONTROL, 0);
    }
    firn_tokenizer *tok = loaded(ctx, v);
    for (uint64_t round = 0; round < 3000; round++) {
        const bool control = round % 2;
        char text[LENGTH + 1] = {0};
        int32_t owner[LENGTH], start[LENGTH]; /* -1: raw */
        const size_t n = firn_random_below(7, 0, round, LENGTH);
        for (size_t i = 0; i < n; i++) {
            text[i] = "<a>b"[firn_random_below(7, 1, round * LENGTH + i, 4)];
            owner[i] = start[i] = -1;
        }
        for (size_t length = LENGTH; length > 0; length--)
            for (int32_t id = first; id < firn_tokenizer_size(tok); id++) {
                const firn_token *t = &tok->tokens[id];
                if (t->n_text != length || (t->control && !control))
                    continue;
                for (size_t i = 0; i + length <= n; i++) {
                    bool free_here = memcmp(text + i, t->text, length) == 0;
                    for (size_t j = 0; free_here && j < length; j++)
                        free_here = owner[i + j] < 0;
                    for (size_t j = 0; free_here && j < length; j++) {
                        owner[i + j] = id;
                        start[i + j] = (int32_t)i;
                    }
                }
            }
        firn_special_match *matches;
        size_t count, at = 0;
        assert_int_equal(firn_specials_find(ctx, tok, text, n, control, &matches, &count), FIRN_OK);
        for (size_t i = 0; i < n; i++) {
            if (owner[i] < 0 || start[i] != (int32_t)i)
                continue;
            assert_true(at < count);
            assert_int_equal(matches[at].begin, i);
            assert_int_equal(matches[at].id, owner[i]);
            at++;
        }
        assert_int_equal(at, count);
        firn_free(ctx, matches);
    }
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

/* ---- round trips ---- */

/* Characters of every kind and length, bytes that are none, and special tokens' texts. */
static size_t random_text(uint64_t seed, char *text, size_t limit)
{
    static const char *const special[] = {"<tool>", "<|im_end|>", "<s>",  "<|user|>",    "hello",
                                          "a a",    "  ",         "\n\n", "\xEF\xBF\xBD"};
    size_t n = 0;

    for (uint64_t i = 0; n + 16 < limit; i++) {
        const uint64_t kind = firn_random_below(seed, 0, i, 12), r = firn_random(seed, 1, i);
        if (kind < 4) {
            text[n++] = " abhelo\n\t\r'1<"[r % 13];
        } else if (kind < 6) {
            text[n++] = (char)(r & 0xFF);
        } else if (kind < 7) {
            const char *s = special[r % (sizeof special / sizeof special[0])];
            memcpy(text + n, s, strlen(s));
            n += strlen(s);
        } else {
            const uint32_t code = kind < 10 ? 0x80 + r % 0x3000 : 0x80 + r % 0x10FF80;
            if (code == 0x2581 || (code >= 0xD800 && code < 0xE000))
                continue;
            const int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
            text[n] = (char)(length == 2 ? 0xC0 | code >> 6 : length == 3 ? 0xE0 | code >> 12 : 0xF0 | code >> 18);
            for (int j = 1; j < length; j++)
                text[n + (size_t)j] = (char)(0x80 | (code >> 6 * (length - 1 - j) & 0x3F));
            n += (size_t)length;
        }
    }
    return n;
}

static void texts_come_back(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_tokens tokens = {0};
    vocabulary *(*const models[])(void) = {small_spm, small_gemma4};

    /* the two models without pre-tokenizers, then every pre-tokenizer */
    for (int which = 0; which < 2 || firn_pre_known(which - 2); which++) {
        firn_tokenizer *tok = loaded(ctx, which < 2 ? models[which]() : small_bpe(firn_pre_known(which - 2)));
        for (uint64_t seed = 0; seed < 40; seed++) {
            char text[2048];
            const size_t n = random_text(seed + 100 * (uint64_t)which, text, 1 + 50 * seed);
            round_trip(ctx, tok, text, n, 0, &tokens);
            round_trip(ctx, tok, text, n, FIRN_PARSE_SPECIAL, &tokens);
        }
        firn_tokenizer_destroy(tok);
    }
    firn_tokens_free(ctx, &tokens);
    firn_context_destroy(ctx);
}

/* ---- what ends generation ---- */

static void ends_follow_llama_cpp(void **state)
{
    (void)state;
    static const char *const harmony[] = {"<|end|>",     "<|return|>",     "<|call|>",      "<|start|>", "<|message|>",
                                          "<|fim_pad|>", "<|fim_prefix|>", "<|endoftext|>", "turn ends"};
    firn_context *ctx = firn_context_create(NULL);
    vocabulary *v = small_bpe("gpt-4o");
    size_t n;

    for (int i = 0; i < 9; i++)
        add(v, harmony[i], FIRN_TOKEN_CONTROL, 0);
    v->eot = 275;
    firn_tokenizer *tok = loaded(ctx, v);
    /* <|end|> ends a message only, where <|return|> and <|call|> are there too. */
    const int32_t *ends = firn_tokenizer_ends(tok, &n);
    static const int32_t want[] = {262, 268, 269, 272, 274, 275};
    assert_int_equal(n, 6);
    assert_memory_equal(ends, want, sizeof want);
    assert_int_equal(firn_token_kind(tok, 267), FIRN_TOKEN_USER_DEFINED);
    assert_int_equal(firn_token_kind(tok, 270), FIRN_TOKEN_USER_DEFINED);
    assert_int_equal(firn_token_kind(tok, 273), FIRN_TOKEN_CONTROL);
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

static void detokenizing_one_by_one(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_tokenizer *tok = loaded(ctx, small_spm());
    static const int32_t ids[] = {1, 265, 266, 265, 268, 265, 3 + 0xC3, 3 + 0xA9};
    bool after = true;
    size_t n;
    firn_text text;

    firn_text_init(&text, ctx, 0);
    assert_int_equal(firn_detokenize(ctx, tok, ids, 8, &text), FIRN_OK);
    assert_string_equal(firn_text_cstr(&text), "<s>aabc a<|user|>a\xC3\xA9");
    assert_string_equal(firn_token_piece(tok, 265, &after, &n), "a");
    assert_string_equal(firn_token_piece(tok, 265, &after, &n), " a");
    assert_null(firn_token_piece(tok, 269, &after, &n));
    assert_int_equal(firn_detokenize(ctx, tok, &(int32_t){269}, 1, &text), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "token id 269 is outside the vocabulary of 269 tokens");
    assert_int_equal(firn_detokenize(ctx, tok, &(int32_t){-1}, 1, &text), FIRN_ERR_ARGUMENT);
    firn_text_free(&text);
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

/* ---- bytes without tokens ---- */

static void bytes_without_tokens(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    vocabulary *v = vocabulary_new("gpt2", "gpt-2");
    add(v, "a", FIRN_TOKEN_NORMAL, 0);
    for (int i = 0; i < 3; i++) { /* the bytes of U+FFFD */
        char text[3] = {0};
        firn_vocab_alphabet((uint8_t) "\xEF\xBF\xBD"[i], text);
        add(v, text, FIRN_TOKEN_NORMAL, 0);
    }
    firn_tokenizer *tok = loaded(ctx, v);
    gives(ctx, tok, "abca", 0, "0 0");      /* dropped, as in llama.cpp */
    gives(ctx, tok, "a\xFF", 0, "0 1 2 3"); /* not UTF-8: U+FFFD */
    gives(ctx, tok, "a\xC3\xA9", 0, "0");   /* UTF-8: dropped */
    firn_tokenizer_destroy(tok);

    v = vocabulary_new("llama", NULL);
    add(v, "<unk>", FIRN_TOKEN_UNKNOWN, 0);
    add(v, "a", FIRN_TOKEN_NORMAL, 0);
    add(v, "\xE2\x96\x81", FIRN_TOKEN_NORMAL, 0);
    add(v, "\xEF\xBF\xBD", FIRN_TOKEN_NORMAL, 0);
    tok = loaded(ctx, v);
    gives(ctx, tok, "a\xC3\xA9\xFF", 0, "2 1 0 3");
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

typedef struct {
    const firn_tokenizer *tok;
    int wrong;
} shared_use;

static void *use(void *argument)
{
    shared_use *u = argument;
    firn_context *ctx = firn_context_create(NULL);
    firn_tokens tokens = {0};

    for (int i = 0; i < 200; i++)
        u->wrong += firn_tokenize(ctx, u->tok, "hello hello<tool> 12", 20, 0, &tokens) != FIRN_OK || tokens.n != 6;
    firn_tokens_free(ctx, &tokens);
    firn_context_destroy(ctx);
    return NULL;
}

static void threads_share_one(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_tokenizer *tok = loaded(ctx, small_bpe("tekken"));
    shared_use uses[4];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) {
        uses[i] = (shared_use){tok, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &uses[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(uses[i].wrong, 0);
    }
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_merges_and_special_tokens),
        cmocka_unit_test(spm_merges_spaces_and_bytes),
        cmocka_unit_test(merging_equals_its_definition),
        cmocka_unit_test(special_tokens_equal_their_definition),
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(ends_follow_llama_cpp),
        cmocka_unit_test(detokenizing_one_by_one),
        cmocka_unit_test(bytes_without_tokens),
        cmocka_unit_test(threads_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
