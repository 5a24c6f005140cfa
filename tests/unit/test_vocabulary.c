/* Vocabularies from files: malformed ones, memory that runs out, the commands; and, where ../shared/ref/vocab is there,
 * the ids of llama.cpp for every vocabulary and text in it. */
#define VOCAB_USER "test_vocabulary"
#include "unit/vocabulary.h"

#include "core/file.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- malformed vocabularies ---- */

static void no_tokens(firn_gguf_writer *w)
{
    firn_gguf_remove(w, "tokenizer.ggml.tokens");
}

static void number_tokens(firn_gguf_writer *w)
{
    static const int32_t numbers[3] = {1, 2, 3};
    firn_gguf_put_array(w, "tokenizer.ggml.tokens", FIRN_KV_I32, numbers, 3);
}

static void empty_tokens(firn_gguf_writer *w)
{
    put_strings(w, "tokenizer.ggml.tokens", NULL, 0);
}

static void few_types(firn_gguf_writer *w)
{
    static const int32_t types[3] = {1, 1, 1};
    firn_gguf_put_array(w, "tokenizer.ggml.token_type", FIRN_KV_I32, types, 3);
}

static void float_types(firn_gguf_writer *w)
{
    static const float types[3] = {1, 1, 1};
    firn_gguf_put_array(w, "tokenizer.ggml.token_type", FIRN_KV_F32, types, 3);
}

static void no_merges(firn_gguf_writer *w)
{
    firn_gguf_remove(w, "tokenizer.ggml.merges");
}

static void one_merge(firn_gguf_writer *w, const char *text)
{
    put_strings(w, "tokenizer.ggml.merges", (char *const *)&text, 1);
}

static void merge_of_no_token(firn_gguf_writer *w)
{
    one_merge(w, "h zz");
}

static void merge_to_no_token(firn_gguf_writer *w)
{
    one_merge(w, "h o");
}

static void merge_without_space(firn_gguf_writer *w)
{
    one_merge(w, "he");
}

static void bos_too_large(firn_gguf_writer *w)
{
    firn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 267);
}

static void bos_of_other_type(firn_gguf_writer *w)
{
    const firn_kv kv = {.key = "tokenizer.ggml.bos_token_id", .type = FIRN_KV_I32, .n = 1, .data = &(int32_t){1}};
    firn_gguf_put_kv(w, &kv);
}

static void other_model(firn_gguf_writer *w)
{
    firn_gguf_put_string(w, "tokenizer.ggml.model", "bert", 4);
}

static void no_model(firn_gguf_writer *w)
{
    firn_gguf_remove(w, "tokenizer.ggml.model");
}

static void other_pre(firn_gguf_writer *w)
{
    firn_gguf_put_string(w, "tokenizer.ggml.pre", "gpt-9", 5);
}

static void malformed_vocabularies_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*change)(firn_gguf_writer *w);
        firn_status status;
        const char *sentence;
    } cases[] = {
        {no_tokens, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens is absent, expected an array of strings"},
        {number_tokens, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens is something else, expected an array of strings"},
        {empty_tokens, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens has 0 tokens, expected 1 to 16777216"},
        {few_types, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type has 3 elements for 267 tokens"},
        {float_types, FIRN_ERR_FORMAT, "tokenizer.ggml.token_type is not an array of 32-bit numbers"},
        {no_merges, FIRN_ERR_FORMAT, "tokenizer.ggml.merges is absent, expected an array of strings"},
        {merge_of_no_token, FIRN_ERR_FORMAT,
         "merge 0 is 'h zz', expected two tokens with a space between that join to a token"},
        {merge_to_no_token, FIRN_ERR_FORMAT,
         "merge 0 is 'h o', expected two tokens with a space between that join to a token"},
        {merge_without_space, FIRN_ERR_FORMAT,
         "merge 0 is 'he', expected two tokens with a space between that join to a token"},
        {bos_too_large, FIRN_ERR_FORMAT, "tokenizer.ggml.bos_token_id is 267, expected an id below 267"},
        {bos_of_other_type, FIRN_ERR_FORMAT, NULL},
        {other_model, FIRN_ERR_UNSUPPORTED,
         "tokenizer model 'bert' (tokenizer.ggml.model) is not supported, expected gpt2, llama or gemma4"},
        {no_model, FIRN_ERR_FORMAT, NULL},
        {other_pre, FIRN_ERR_UNSUPPORTED, "pre-tokenizer 'gpt-9' (tokenizer.ggml.pre) is not supported"},
    };
    firn_context *ctx = firn_context_create(NULL);
    vocabulary *v = small_bpe("gpt-2");
    firn_tokenizer *tok;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(load(ctx, v, cases[i].change, &tok), cases[i].status);
        assert_null(tok);
        if (cases[i].sentence)
            assert_string_equal(firn_error(ctx), cases[i].sentence);
        else
            assert_non_null(strstr(firn_error(ctx), "tokenizer.ggml."));
    }
    add(v, "hello", FIRN_TOKEN_NORMAL, 0);
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "tokens 259 and 267 have the same text 'hello'");
    free(v->tokens[--v->n]);
    add(v, "odd", (firn_token_type)7, 0);
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "token 267 has type 7, expected 0 to 6");
    free(v->tokens[--v->n]);
    char *huge = malloc(1000001);
    memset(huge, 'x', 1000000);
    huge[1000000] = 0;
    add(v, huge, FIRN_TOKEN_CONTROL, 0);
    free(huge);
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "token 267 has 1000000 bytes, expected at most 16384");
    free(v->tokens[--v->n]);
    add(v, "", FIRN_TOKEN_NORMAL, 0); /* gets a name, as in llama.cpp */
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_OK);
    assert_int_equal(firn_token_find(tok, "[EMPTY_267]", 11), 267);
    firn_tokenizer_destroy(tok);
    vocabulary_free(v);

    v = small_spm();
    v->scores[5] = (float)NAN;
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "the score of token 5 is not a number");
    v->scores[5] = 0;
    add(v, "<0xZZ>", FIRN_TOKEN_BYTE, 0);
    assert_int_equal(load(ctx, v, NULL, &tok), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "byte token 269 is '<0xZZ>', expected <0x00> to <0xFF>");
    vocabulary_free(v);
    firn_context_destroy(ctx);
}

/* ---- memory and threads ---- */

typedef struct {
    long left; /* allocations until one fails */
    long live;
} meter;

static void *metered_realloc(void *user, void *old, size_t size)
{
    meter *m = user;
    if (m->left-- <= 0)
        return NULL;
    m->live += !old;
    return realloc(old, size);
}

static void *metered_alloc(void *user, size_t size)
{
    return metered_realloc(user, NULL, size);
}

static void metered_free(void *user, void *memory)
{
    meter *m = user;
    m->live -= memory != NULL;
    free(memory);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const char text[] = "hello <tool><|im_end|> unreachable \xC3\xA9\xFF 12345, and on and on and on";
    firn_context *outside = firn_context_create(NULL);
    vocabulary *v = small_bpe("deepseek-v3");
    vocabulary_write(outside, v, VOCAB_FILE, NULL);
    vocabulary_free(v);
    meter m = {.left = LONG_MAX};
    bool done = false;

    for (long k = 0; !done; k++) {
        firn_gguf *gguf;
        firn_tokenizer *tok = NULL;
        firn_tokens tokens = {0};
        m = (meter){.left = LONG_MAX};
        const firn_context_params params = {.allocator = {metered_alloc, metered_realloc, metered_free, &m}};
        firn_context *ctx = firn_context_create(&params);
        assert_int_equal(firn_gguf_open(ctx, VOCAB_FILE, &gguf), FIRN_OK);
        m.left = k;
        firn_status status = firn_tokenizer_create(ctx, gguf, &tok);
        if (status == FIRN_OK)
            status = firn_tokenize(ctx, tok, text, sizeof text - 1, FIRN_PARSE_SPECIAL, &tokens);
        done = status == FIRN_OK;
        if (!done)
            assert_int_equal(status, FIRN_ERR_MEMORY);
        firn_tokens_free(ctx, &tokens);
        firn_tokenizer_destroy(tok);
        firn_gguf_close(gguf);
        firn_context_destroy(ctx);
        assert_int_equal(m.live, 0);
        assert_true(k < 10000);
    }
    firn_context_destroy(outside);
}

/* ---- the commands ---- */

/* Runs `firn ARGUMENTS`; what it prints, errors too, and its exit status. */
static void command(const char *arguments, int want_status, const char *want)
{
    char line[4096], got[4096];

    snprintf(line, sizeof line, FIRN_BIN_DIR "/firn %s 2>&1", arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    got[fread(got, 1, sizeof got - 1, pipe)] = 0;
    const int status = pclose(pipe);
    assert_string_equal(got, want);
    assert_int_equal(WEXITSTATUS(status), want_status);
}

static void commands_print_and_refuse(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    vocabulary *v = small_bpe("llama-bpe");
    v->add_eos = 1;
    vocabulary_write(ctx, v, VOCAB_FILE, NULL);
    assert_int_equal(firn_file_write(ctx, FIRN_BIN_DIR "/test-tokenizer.txt", "hello\n", 6), FIRN_OK);
    assert_int_equal(firn_file_write(ctx, FIRN_BIN_DIR "/test-tokenizer.ids", "[259, 260,\n10]", 14), FIRN_OK);
#define WITH(command_, rest) command_ " " VOCAB_FILE " " rest
    command(WITH("tokenize", "'hello hello<|im_end|>' --parse-special"), 0, "[261, 259, 260, 262, 262]\n");
    command(WITH("tokenize", "hello --no-bos"), 0, "[259]\n");
    command(WITH("tokenize", "'' --no-bos"), 0, "[]\n");
    command(WITH("tokenize", "--no-bos --file " FIRN_BIN_DIR "/test-tokenizer.txt"), 0, "[259, 10]\n");
    command(WITH("detokenize", "'[261, 259, 260, 262]'"), 0, "<|begin|>hello hello<|im_end|>");
    command(WITH("detokenize", "--file " FIRN_BIN_DIR "/test-tokenizer.ids"), 0, "hello hello\n");
    command(WITH("detokenize", "'[]'"), 0, "");
    command(WITH("detokenize", "'[259, 267]'"), 1, "firn: token id 267 is outside the vocabulary of 267 tokens\n");
    command(WITH("detokenize", "'[259, 1.5]'"), 1, "firn: element 1 of the array is not a token id\n");
    command(WITH("detokenize", "'{}'"), 1, "firn: expected a JSON array of token ids\n");
    command(WITH("tokenize", ""), 2, "firn: expected a text or --file F, got neither (firn tokenize --help)\n");
    command(WITH("tokenize", "x --file y"), 2, "firn: expected a text or --file F, not both (firn tokenize --help)\n");
    v->pre = "gpt-9";
    vocabulary_write(ctx, v, VOCAB_FILE, NULL);
    command(WITH("tokenize", "x"), 1,
            "firn: " VOCAB_FILE ": pre-tokenizer 'gpt-9' (tokenizer.ggml.pre) is not supported\n");
    vocabulary_free(v);
    firn_context_destroy(ctx);
}

/* ---- the shared references ---- */

#define SHARED FIRN_SOURCE_DIR "/../shared/ref/vocab"

/* Unpacks NAME.gguf.xz into the build folder, once. */
static bool unpack(const char *name, char *path, size_t size)
{
    struct stat st;
    char command[8192];

    snprintf(path, size, FIRN_BIN_DIR "/vocab-%s.gguf", name);
    if (stat(path, &st) == 0 && st.st_size > 0)
        return true;
    snprintf(command, sizeof command, "xz -dc '%s/%s.gguf.xz' >'%s.part' 2>/dev/null && mv '%s.part' '%s'", SHARED,
             name, path, path, path);
    return system(command) == 0;
}

static int wrong; /* of one vocabulary: told apart on standard error, asserted at its end */

static void ids_equal(json_t *expected, const firn_tokens *got, const char *what, const char *text)
{
    bool same = json_array_size(expected) == got->n;

    for (size_t i = 0; same && i < got->n; i++)
        same = json_integer_value(json_array_get(expected, i)) == got->ids[i];
    if (same || ++wrong > 3)
        return;
    fprintf(stderr, "%s: '%s'\n  expected", what, text);
    for (size_t i = 0; i < json_array_size(expected); i++)
        fprintf(stderr, " %d", (int)json_integer_value(json_array_get(expected, i)));
    fprintf(stderr, "\n  got     ");
    for (size_t i = 0; i < got->n; i++)
        fprintf(stderr, " %d", (int)got->ids[i]);
    fprintf(stderr, "\n");
}

static void reference(const char *name)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *gguf;
    firn_tokenizer *tok;
    firn_tokens tokens = {0};
    char path[2048];
    json_t *entry;
    size_t i, came_back = 0;

    assert_true(unpack(name, path, sizeof path));
    if (firn_gguf_open(ctx, path, &gguf) != FIRN_OK || firn_tokenizer_create(ctx, gguf, &tok) != FIRN_OK)
        fail_msg("%s: %s", name, firn_error(ctx));
    firn_gguf_close(gguf);
    snprintf(path, sizeof path, "%s/%s.json", SHARED, name);
    json_t *list = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(list) > 100);
    wrong = 0;
    json_array_foreach(list, i, entry)
    {
        json_t *text = json_object_get(entry, "text");
        const char *s = json_string_value(text);
        const size_t n = json_string_length(text);
        assert_int_equal(firn_tokenize(ctx, tok, s, n, FIRN_ADD_SPECIAL | FIRN_PARSE_SPECIAL, &tokens), FIRN_OK);
        ids_equal(json_object_get(entry, "ids_special"), &tokens, name, s);
        spans_are_sound(&tokens, n, false);
        assert_int_equal(firn_tokenize(ctx, tok, s, n, 0, &tokens), FIRN_OK);
        ids_equal(json_object_get(entry, "ids_plain"), &tokens, name, s);
        if (!has_bytes(tok, s, n))
            continue;
        round_trip(ctx, tok, s, n, 0, &tokens);
        came_back++;
        if (strcmp(name, "phi-3") != 0) /* its special tokens swallow the whitespace behind them */
            round_trip(ctx, tok, s, n, FIRN_PARSE_SPECIAL, &tokens);
    }
    if (wrong)
        fail_msg("%s: %d of %zu texts gave other ids", name, wrong, json_array_size(list));
    unit_record("vocabulary %s %s %s %d %zu %zu\n", name, firn_tokenizer_model(tok),
                firn_tokenizer_pre(tok) && firn_tokenizer_pre(tok)[0] ? firn_tokenizer_pre(tok) : "-",
                (int)firn_tokenizer_size(tok), json_array_size(list), came_back);
    json_decref(list);
    firn_tokens_free(ctx, &tokens);
    firn_tokenizer_destroy(tok);
    firn_context_destroy(ctx);
}

static void ids_are_those_of_llama_cpp(void **state)
{
    (void)state;
    DIR *dir = opendir(SHARED);
    int n = 0;

    if (!dir || system("xz --version >/dev/null 2>&1") != 0) {
        if (dir)
            closedir(dir);
        skip();
    }
    for (struct dirent *e; (e = readdir(dir));) {
        char name[256];
        const size_t length = strlen(e->d_name);
        if (length < 9 || strcmp(e->d_name + length - 8, ".gguf.xz") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length - 8, e->d_name);
        reference(name);
        n++;
    }
    closedir(dir);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_vocabularies_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(commands_print_and_refuse),
        cmocka_unit_test(ids_are_those_of_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
