/* A tokenizer and a chat template together: the tokens that a line is trained on are those that it is asked with. */
#define VOCAB_USER "test_language"
#include "unit/vocabulary.h"

#include "unit/context.h"

#include "firn/text.h"

static const char *template;

static void put_template(firn_gguf_writer *w)
{
    firn_gguf_put_string(w, "tokenizer.chat_template", template, strlen(template));
}

static firn_language *language(vocabulary *v, const char *source, firn_gguf **file)
{
    firn_language *l;

    template = source;
    vocabulary_write(ctx, v, VOCAB_FILE, put_template);
    vocabulary_free(v);
    assert_int_equal(firn_gguf_open(ctx, VOCAB_FILE, file), FIRN_OK);
    if (firn_language_create(ctx, *file, NULL, &l) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    return l;
}

/* Sequences as text: ids, trained ones marked with +, sequences apart by " / ". */
static const char *sequences(firn_language *l, const char *line)
{
    static char out[4096];
    size_t at = 0;
    firn_sequences s;

    if (firn_language_sequences(l, line, strlen(line), 1000, &s) != FIRN_OK)
        return firn_error(ctx);
    out[0] = 0;
    for (size_t k = 0; k < s.n; k++) {
        at += (size_t)sprintf(out + at, "%s", k ? " / " : "");
        for (int64_t i = 0; i < s.items[k].n; i++)
            at += (size_t)sprintf(out + at, "%s%s%d", i ? " " : "", s.items[k].trained[i] ? "+" : "",
                                  (int)s.items[k].tokens[i]);
    }
    firn_sequences_free(ctx, &s);
    return out;
}

static const char *asked(firn_language *l, const char *line)
{
    static char out[4096];
    size_t at = 0;
    firn_tokens t = {0};

    if (firn_language_prompt(l, line, strlen(line), &t) != FIRN_OK)
        return firn_error(ctx);
    out[0] = 0;
    for (size_t i = 0; i < t.n; i++)
        at += (size_t)sprintf(out + at, "%s%d", i ? " " : "", (int)t.ids[i]);
    firn_tokens_free(ctx, &t);
    return out;
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define LINE(messages)  "{\"messages\":[" messages "]}"

/* The header ends in "he": with "llo" behind it that is one token, which the model is never asked with. */
static void turns_that_join_with_their_header(void **state)
{
    static const char joins[] =
        "{% for m in messages %}{{ '<tool>' ~ ('he' if m.role == 'assistant' else '') ~ m.content "
        "~ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}<tool>he{% endif %}";
    firn_gguf *file;

    (void)state;
    firn_language *l = language(small_bpe("gpt-2"), joins, &file);
    assert_string_equal(asked(l, LINE(USER("q"))), "263 113 262 263 256");
    assert_string_equal(sequences(l, LINE(USER("q") "," ASSISTANT("x"))), "263 113 262 263 256 +120 +262");
    assert_string_equal(sequences(l, LINE(USER("q") "," ASSISTANT("llo"))), "263 113 262 263 256 +257 +111 +262");
    /* later, that turn is seen as one token */
    assert_string_equal(asked(l, LINE(USER("q") "," ASSISTANT("llo") "," USER("r"))),
                        "263 113 262 263 259 262 263 114 262 263 256");
    assert_string_equal(sequences(l, LINE(USER("q") "," ASSISTANT("llo") "," USER("r") "," ASSISTANT("x"))),
                        "263 113 262 263 256 +257 +111 +262 / "
                        "263 113 262 263 259 262 263 114 262 263 256 +120 +262");
    firn_language_destroy(l);
    firn_gguf_close(file);

    /* SPM puts a space in front of a text, but not of one that goes on */
    vocabulary *v = small_spm();
    v->eos = 2;
    l = language(v,
                 "{% for m in messages %}{{ '<|user|>' ~ ('a' if m.role == 'assistant' else '') ~ m.content ~ '</s>' }}"
                 "{% endfor %}{% if add_generation_prompt %}<|user|>a{% endif %}",
                 &file);
    assert_string_equal(asked(l, LINE(USER("b"))), "1 268 259 261 2 268 265");
    assert_string_equal(sequences(l, LINE(USER("b") "," ASSISTANT("bc"))), "1 268 259 261 2 268 265 +264 +2");
    firn_language_destroy(l);
    firn_gguf_close(file);
}

/* One BOS, whoever writes it, trained and asked. */
static void one_bos(void **state)
{
    static const char writes[] = "{{ bos_token }}{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}"
                                 "{{ m.content ~ '<|im_end|>' }}{% endfor %}";
    vocabulary *v = small_bpe("gpt-2");
    firn_gguf *file;

    (void)state;
    v->add_bos = 1;
    firn_language *l = language(v, writes, &file);
    assert_string_equal(asked(l, "{\"prompt\":\"<|begin|>hello\"}"), "261 259");
    assert_string_equal(asked(l, "{\"prompt\":\"hello\",\"completion\":\"q\"}"), "261 259");
    assert_string_equal(sequences(l, "{\"prompt\":\"<|begin|>hello\",\"completion\":\"q\"}"), "261 259 +113 +262");
    assert_string_equal(asked(l, LINE(USER("hello"))), "261 259 262");
    assert_string_equal(sequences(l, LINE(USER("hello") "," ASSISTANT("q"))), "261 259 262 +113 +262");
    /* what else a line holds is asked with too */
    assert_string_equal(asked(l, "{\"tools\":[{\"name\":\"f\"}],\"messages\":[" USER("hello") "]}"), "261 49 259 262");
    assert_string_equal(
        sequences(l, "{\"tools\":[{\"name\":\"f\"}],\"messages\":[" USER("hello") "," ASSISTANT("q") "]}"),
        "261 49 259 262 +113 +262");
    firn_language_destroy(l);
    firn_gguf_close(file);
}

/* A template that cannot be compiled is in nobody's way until messages come. */
static void templates_are_compiled_for_messages(void **state)
{
    firn_gguf *file;

    (void)state;
    firn_language *l = language(small_bpe("gpt-2"), "{% for %}", &file);
    assert_string_equal(sequences(l, "{\"text\":\"hello hello\"}"), "259 +260");
    assert_string_equal(sequences(l, "{\"prompt\":\"hello\",\"completion\":\"q\"}"), "259 +113 +262");
    assert_string_equal(asked(l, "{\"prompt\":\"hello\"}"), "259");
    assert_non_null(strstr(sequences(l, LINE(USER("q") "," ASSISTANT("x"))), "line:1:13: "));
    assert_non_null(strstr(firn_error(ctx), "the chat template of the model: "));
    firn_language_destroy(l);
    firn_gguf_close(file);
}

static void options(void **state)
{
    static const char source[] = "{% for m in messages %}{{ m.content ~ '<|im_end|>' }}{% endfor %}";
    static const firn_language_options all = {.size = sizeof all, .loss = "all"},
                                       odd = {.size = sizeof odd, .loss = "x"};
    firn_gguf *file;
    firn_language *l = language(small_bpe("gpt-2"), source, &file), *other;

    (void)state;
    firn_language_destroy(l);
    assert_int_equal(firn_language_create(ctx, file, &all, &l), FIRN_OK);
    assert_string_equal(sequences(l, LINE(USER("hello") "," ASSISTANT("q"))), "259 +262 +113 +262");
    firn_language_destroy(l);
    assert_int_equal(firn_language_create(ctx, file, &odd, &other), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "loss is assistant, all or last, not 'x'");
    firn_gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_that_join_with_their_header),
        cmocka_unit_test(one_bos),
        cmocka_unit_test(templates_are_compiled_for_messages),
        cmocka_unit_test(options),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
