/* firn/text.h, with that header alone: from a file's vocabulary and template to sequences and prompts. */
#include "unit/unit.h"

#include "firn/text.h"

#include <string.h>

static firn_context *ctx;
static firn_gguf *file;
static firn_language *language;

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
    return !ctx || firn_gguf_open(ctx, FIRN_SOURCE_DIR "/tests/data/cases/qwen3moe/model.gguf", &file) != FIRN_OK ||
           firn_language_create(ctx, file, NULL, &language) != FIRN_OK;
}

static int teardown(void **state)
{
    (void)state;
    firn_language_destroy(language);
    firn_gguf_close(file);
    firn_context_destroy(ctx);
    return 0;
}

/* Ids as text; what is trained (if told) between { and }. */
static const char *text_of(const int32_t *ids, const uint8_t *trained, size_t n)
{
    static char out[4096];
    size_t at = 0, size;

    for (size_t i = 0; i < n; i++) {
        if (trained && trained[i] != (i > 0 && trained[i - 1]))
            out[at++] = trained[i] ? '{' : '}';
        assert_int_equal(
            firn_tokens_text(ctx, firn_language_tokenizer(language), ids + i, 1, out + at, sizeof out - 2 - at, &size),
            FIRN_OK);
        at += size;
        assert_true(at < sizeof out - 2);
    }
    if (trained && n && trained[n - 1])
        out[at++] = '}';
    out[at] = 0;
    return out;
}

static void lines_become_sequences(void **state)
{
    static const struct {
        const char *line;
        int64_t window;
        const char *shown[2];
    } cases[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}",
         100,
         {"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{Yo<|im_end|>}"}},
        {"{\"prompt\":\"ab\",\"completion\":\"cd\"}", 100, {"ab{cd<|im_end|>}"}},
        {"{\"text\":\"zqxjkv\"}", 4, {"z{qxj}", "j{kv}"}},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 100, {NULL}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_sequences s;
        const char *line = cases[i].line;
        if (firn_language_sequences(language, line, strlen(line), cases[i].window, &s) != FIRN_OK)
            fail_msg("%s", firn_error(ctx));
        for (size_t k = 0; k < 2; k++) {
            assert_true((k < s.n) == (cases[i].shown[k] != NULL));
            if (k >= s.n)
                break;
            const firn_sequence *q = &s.items[k];
            const char *shown = text_of(q->tokens, q->trained, (size_t)q->n);
            /* a line break behind the last turn may follow: it is not trained */
            if (strncmp(shown, cases[i].shown[k], strlen(cases[i].shown[k])) != 0)
                fail_msg("%s: %s, expected %s", line, shown, cases[i].shown[k]);
        }
        firn_sequences_free(ctx, &s);
    }
}

static void asking_sees_what_was_trained(void **state)
{
    static const char ask[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
                      prompt[] = "{\"prompt\":\"ab\"}";
    static const char list[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    firn_tokens t = {0};

    (void)state;
    assert_int_equal(firn_language_prompt(language, ask, sizeof ask - 1, &t), FIRN_OK);
    assert_string_equal(text_of(t.ids, NULL, t.n), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(firn_language_prompt(language, list, sizeof list - 1, &t), FIRN_OK);
    assert_string_equal(text_of(t.ids, NULL, t.n), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(firn_language_prompt(language, prompt, sizeof prompt - 1, &t), FIRN_OK);
    assert_string_equal(text_of(t.ids, NULL, t.n), "ab");
    firn_tokens_free(ctx, &t);
}

static void what_is_wrong_is_said(void **state)
{
    static const firn_language_options odd = {.size = 1};
    firn_sequences s;
    firn_tokens t = {0};
    firn_language *other;
    size_t size;
    const int32_t wild = 1 << 30;

    (void)state;
    assert_int_equal(firn_language_sequences(language, "{\"x\":1}", 7, 8, &s), FIRN_ERR_FORMAT);
    assert_non_null(strstr(firn_error(ctx), "line:1:1: expected messages, "));
    assert_int_equal(firn_language_sequences(language, "{\"text\":\"a\"}", 12, 1, &s), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_language_prompt(language, "{", 1, &t), FIRN_ERR_FORMAT);
    assert_int_equal(firn_language_prompt(language, "7", 1, &t), FIRN_ERR_FORMAT);
    assert_int_equal(firn_language_create(ctx, file, &odd, &other), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_tokens_text(ctx, firn_language_tokenizer(language), &wild, 1, NULL, 0, &size),
                     FIRN_ERR_ARGUMENT);
    firn_tokens_free(ctx, &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_become_sequences),
        cmocka_unit_test(asking_sees_what_was_trained),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
