/* Tokenizers: where each pre-tokenizer cuts, merging, special tokens, round trips, malformed vocabularies, long words;
 * and, where ../shared/ref/vocab is there, the ids of llama.cpp for every vocabulary and text in it. */
#include "unit/unit.h"

#include "core/file.h"
#include "core/random.h"
#include "text/pretokenize.h"
#include "text/unicode.h"
#include "text/vocab.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- checks that hold for every tokenization ---- */

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

/* Spans go from left to right without overlap; where nothing was dropped or stripped they cover the text. */
static void spans_are_sound(const firn_tokens *t, size_t n, bool cover)
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
static size_t spaced(const char *text, size_t n, char *out)
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
static bool has_bytes(const firn_tokenizer *tok, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tok->byte_ids[(uint8_t)text[i]] < 0)
            return false;
    return true;
}

static void round_trip(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, unsigned flags,
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

static void reference(const char *name)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *gguf;
    firn_tokenizer *tok;
    firn_tokens tokens = {0};
    char path[2048];
    json_t *entry;
    size_t i;

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
        if (strcmp(name, "phi-3") != 0) /* its special tokens swallow the whitespace behind them */
            round_trip(ctx, tok, s, n, FIRN_PARSE_SPECIAL, &tokens);
    }
    if (wrong)
        fail_msg("%s: %d of %zu texts gave other ids", name, wrong, json_array_size(list));
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
        cmocka_unit_test(ids_are_those_of_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
