/* firn/text.h and firn/data.h with what no caller may give: NULL for each pointer in turn, ids and numbers from
 * nowhere. Each call is refused with a sentence or gives what its header says of nothing (test_arguments.c does the
 * same for the other headers, and looks that every call is here or there). */
#include "unit/unit.h"

#include "firn/data.h"
#include "firn/text.h"

#include <string.h>

static firn_context *ctx;
static firn_gguf *file;
static firn_tokenizer *tok;
static firn_language *language;

#define REFUSED(call) assert_int_equal(call, FIRN_ERR_ARGUMENT)
#define NAMED(call, words)                                                                                             \
    do {                                                                                                               \
        REFUSED(call);                                                                                                 \
        if (!strstr(firn_error(ctx), words))                                                                           \
            fail_msg("'%s' in place of '%s'", firn_error(ctx), words);                                                 \
    } while (0)

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
    return !ctx || firn_gguf_open(ctx, FIRN_SOURCE_DIR "/tests/data/cases/qwen3moe/model.gguf", &file) != FIRN_OK ||
           firn_tokenizer_create(ctx, file, &tok) != FIRN_OK ||
           firn_language_create(ctx, file, NULL, &language) != FIRN_OK;
}

static int teardown(void **state)
{
    (void)state;
    firn_language_destroy(language);
    firn_tokenizer_destroy(tok);
    firn_gguf_close(file);
    firn_context_destroy(ctx);
    return 0;
}

static void tokenizers(void **state)
{
    firn_tokenizer *t = NULL;
    firn_tokens tokens = {0};
    char out[16];
    size_t n = 7;

    (void)state;
    REFUSED(firn_tokenizer_create(NULL, file, &t));
    NAMED(firn_tokenizer_create(ctx, NULL, &t), "gguf must not be null");
    NAMED(firn_tokenizer_create(ctx, file, NULL), "tokenizer must not be null");
    firn_tokenizer_destroy(NULL);
    REFUSED(firn_tokenize(NULL, tok, "a", 1, 0, &tokens));
    NAMED(firn_tokenize(ctx, NULL, "a", 1, 0, &tokens), "tok must not be null");
    NAMED(firn_tokenize(ctx, tok, "a", 1, 0, NULL), "out must not be null");
    NAMED(firn_tokenize(ctx, tok, NULL, 1, 0, &tokens), "text is NULL for no bytes only");
    assert_int_equal(firn_tokenize(ctx, tok, NULL, 0, ~0u, &tokens), FIRN_OK);
    NAMED(firn_tokenize(ctx, tok, "a", SIZE_MAX, 0, &tokens), "less than 4 GiB");
    assert_int_equal(firn_tokenize(ctx, tok, "a", 1, 0, &tokens), FIRN_OK);
    firn_tokens_free(NULL, &tokens); /* whose memory it is nobody says: it stays */
    assert_non_null(tokens.ids);
    firn_tokens_free(ctx, &tokens);
    firn_tokens_free(ctx, &tokens);
    firn_tokens_free(ctx, NULL);
    REFUSED(firn_tokens_text(NULL, tok, (int32_t[]){1}, 1, out, sizeof out, &n));
    NAMED(firn_tokens_text(ctx, NULL, (int32_t[]){1}, 1, out, sizeof out, &n), "tok must not be null");
    NAMED(firn_tokens_text(ctx, tok, NULL, 1, out, sizeof out, &n), "for no ids");
    NAMED(firn_tokens_text(ctx, tok, (int32_t[]){1}, 1, NULL, 1, &n), "no bytes only");
    NAMED(firn_tokens_text(ctx, tok, (int32_t[]){1}, 1, out, sizeof out, NULL), "size must not be null");
    NAMED(firn_tokens_text(ctx, tok, (int32_t[]){INT32_MIN}, 1, out, sizeof out, &n), "outside the vocabulary");
    NAMED(firn_tokens_text(ctx, tok, (int32_t[]){INT32_MAX}, 1, out, sizeof out, &n), "outside the vocabulary");
    assert_int_equal(firn_tokens_text(ctx, tok, NULL, 0, NULL, 0, &n), FIRN_OK);
    assert_int_equal(n, 0);
}

static void vocabularies(void **state)
{
    bool after_special = true;
    size_t n = 7;

    (void)state;
    assert_null(firn_token_piece(NULL, 1, &after_special, &n));
    assert_null(firn_token_piece(tok, 1, NULL, &n));
    assert_null(firn_token_piece(tok, 1, &after_special, NULL));
    assert_null(firn_token_piece(tok, -1, &after_special, &n));
    assert_int_equal(n, 0);
    assert_int_equal(firn_tokenizer_size(NULL), 0);
    assert_string_equal(firn_tokenizer_model(NULL), "");
    assert_string_equal(firn_tokenizer_pre(NULL), "");
    for (int i = 0; i < 3; i++) {
        const int32_t id = (int32_t[]){-1, INT32_MAX, INT32_MIN}[i];
        n = 7;
        assert_null(firn_token_text(tok, id, &n));
        assert_int_equal(n, 0);
        n = 7;
        assert_null(firn_token_bytes(tok, id, &n));
        assert_int_equal(n, 0);
        assert_int_equal(firn_token_kind(tok, id), FIRN_TOKEN_UNDEFINED);
        assert_false(firn_token_is_end(tok, id));
    }
    assert_null(firn_token_text(NULL, 1, &n));
    assert_non_null(firn_token_text(tok, 1, NULL));
    assert_null(firn_token_bytes(NULL, 1, &n));
    assert_non_null(firn_token_bytes(tok, 1, NULL));
    assert_int_equal(firn_token_kind(NULL, 1), FIRN_TOKEN_UNDEFINED);
    assert_int_equal(firn_token_find(NULL, "a", 1), -1);
    assert_int_equal(firn_token_find(tok, NULL, 1), -1);
    assert_int_equal(firn_tokenizer_bos(NULL), -1);
    assert_int_equal(firn_tokenizer_eos(NULL), -1);
    assert_int_equal(firn_tokenizer_unknown(NULL), -1);
    assert_int_equal(firn_tokenizer_padding(NULL), -1);
    assert_false(firn_tokenizer_adds_bos(NULL));
    assert_false(firn_tokenizer_adds_eos(NULL));
    assert_false(firn_token_is_end(NULL, 1));
    n = 7;
    assert_null(firn_tokenizer_ends(NULL, &n));
    assert_int_equal(n, 0);
    assert_non_null(firn_tokenizer_ends(tok, NULL));
}

static void languages(void **state)
{
    static const char line[] = "{\"text\": \"a few words\"}";
    firn_language *l = NULL;
    firn_sequences sequences = {0};
    firn_tokens prompt = {0};

    (void)state;
    REFUSED(firn_language_create(NULL, file, NULL, &l));
    NAMED(firn_language_create(ctx, NULL, NULL, &l), "gguf must not be null");
    NAMED(firn_language_create(ctx, file, NULL, NULL), "result must not be null");
    firn_language_destroy(NULL);
    assert_null(firn_language_tokenizer(NULL));
    REFUSED(firn_language_sequences(NULL, line, sizeof line - 1, 100, &sequences));
    NAMED(firn_language_sequences(language, NULL, 4, 100, &sequences), "json must not be null");
    NAMED(firn_language_sequences(language, line, sizeof line - 1, 100, NULL), "sequences must not be null");
    for (int i = 0; i < 3; i++) /* refused, or nothing fits: whatever it says, no fault */
        if (firn_language_sequences(language, line, sizeof line - 1, (int64_t[]){0, -1, INT64_MIN}[i], &sequences) ==
            FIRN_OK)
            firn_sequences_free(ctx, &sequences);
    assert_int_equal(firn_language_sequences(language, line, sizeof line - 1, 100, &sequences), FIRN_OK);
    firn_sequences_free(NULL, &sequences); /* whose memory it is nobody says: it stays */
    assert_non_null(sequences.items);
    firn_sequences_free(ctx, &sequences);
    firn_sequences_free(ctx, &sequences);
    firn_sequences_free(ctx, NULL);
    REFUSED(firn_language_prompt(NULL, line, sizeof line - 1, &prompt));
    NAMED(firn_language_prompt(language, NULL, 4, &prompt), "json must not be null");
    NAMED(firn_language_prompt(language, line, sizeof line - 1, NULL), "prompt must not be null");
    assert_int_equal(firn_language_prompt(language, line, 0, &prompt), FIRN_ERR_FORMAT);
    firn_tokens_free(ctx, &prompt);
}

static void data_sets(void **state)
{
    const char *const sources[] = {FIRN_SOURCE_DIR "/tests/data/prose.jsonl"};
    firn_dataset_options o = {.size = sizeof o, .sources = sources, .n_sources = 1, .context = 64, .cache = "none"};
    firn_dataset_sample sample = {.size = sizeof sample};
    firn_dataset *d = NULL;

    (void)state;
    REFUSED(firn_dataset_open(NULL, &o, &d));
    NAMED(firn_dataset_open(language, NULL, &d), "options must not be null");
    NAMED(firn_dataset_open(language, &o, NULL), "dataset must not be null");
    o.n_sources = -1;
    NAMED(firn_dataset_open(language, &o, &d), "a data set needs a source");
    o.n_sources = 1;
    o.sources = (const char *const[]){NULL};
    NAMED(firn_dataset_open(language, &o, &d), "source 0 of the data set is null");
    o.sources = sources;
    o.fields = (const char *const[]){"messages=dialog", NULL};
    o.n_fields = 2;
    NAMED(firn_dataset_open(language, &o, &d), "field 1 of the data set is null");
    o.fields = NULL;
    o.n_fields = 0;
    assert_int_equal(firn_dataset_open(language, &o, &d), FIRN_OK);
    firn_dataset_close(NULL);
    assert_int_equal(firn_dataset_count(NULL), 0);
    assert_true(firn_dataset_count(d) > 0);
    REFUSED(firn_dataset_at(NULL, 0, &sample));
    NAMED(firn_dataset_at(d, 0, NULL), "sample must not be null");
    NAMED(firn_dataset_at(d, -1, &sample), "there is no sample -1");
    NAMED(firn_dataset_at(d, INT64_MAX, &sample), "there is no sample");
    REFUSED(firn_dataset_tokens(NULL, 0, NULL, NULL));
    NAMED(firn_dataset_tokens(d, INT64_MIN, NULL, NULL), "there is no sample");
    assert_int_equal(firn_dataset_tokens(d, 0, NULL, NULL), FIRN_OK);
    firn_dataset_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokenizers), cmocka_unit_test(vocabularies),
                                       cmocka_unit_test(languages), cmocka_unit_test(data_sets)};

    return cmocka_run_group_tests(tests, setup, teardown);
}
