/* Where each pre-tokenizer cuts. The expected cuts were checked against llama.cpp b11549 (docs/text.md); '|' is a cut.
 */
#include "unit/unit.h"

#include "text/pretokenize.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *names; /* with equal cuts, a space between */
    const char *cuts[3];
} expected[] = {
    {"llama-bpe llama3 llama-v3 lfm2 pixtral falcon3 falcon-h1 midm-2.0 jina-v5-nano glm4 glm5 chatglm-bpe dbrx "
     "smaug-bpe",
     {"I|'m| parseHTTP|'s| | DON|'T| |123|45½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣٤٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|123|456|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 llada-moe",
     {"I|'m| parseHTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"qwen35",
     {"I|'m| parseHTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"gpt-2 olmo mpt phi-2 exaone4 gigachat mellum jais trillion granite-docling",
     {"I|'m| parseHTTP|'s| | DON|'|T| 12345½|x|~~|y", " | été|́| 中国は한글กแ| ٣٤٥٦|.| (|a|)!?|\n\n \t| b|/|\r|\n|c|   ",
      "x|_|y| <|a|>|\v|\343\200\200|“|q|”、…|\n  |\n|1234567| $|5|,|don|'t|\302\240|\302\240|ЯяǅʰÉa|\342\200\215😀| "
      "2|\302\205"}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     {"I|'m| parseHTTP|'s| | DON|'|T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?|\n\n \t| b|/|\r|\n|c|   ",
      "x|_|y| <|a|>|\v|\343\200\200|“|q|”、…|\n  \n|1|2|3|4|5|6|7| "
      "$|5|,|don|'t|\302\240|\302\240|ЯяǅʰÉa|\342\200\215😀| |2|\302\205"}},
    {"deepseek-llm",
     {"I|'|m| parseHTTP|'|s| | DON|'|T| |12345½|x|~~|y",
      " | é|t|é|́ |中国は한글กแ| |٣٤٥٦|.| (|a|)!?|\n|\n| \t| b|/|\r|\n|c|   ",
      "x|_|y| <|a|>|\v|\343\200\200|“|q|”、|…|\n|  |\n|1234567| "
      "$|5|,|don|'|t|\302\240|\302\240Яяǅ|ʰ|É|a|\342\200\215|😀 |2|\302\205"}},
    {"deepseek-coder",
     {"I|'|m| parseHTTP|'|s| | DON|'|T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| |中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?|\n|\n| \t| b|/|\r|\n|c|   ",
      "x|_|y| <|a|>\v|\343\200\200|“|q|”、…|\n|  |\n|1|2|3|4|5|6|7| "
      "$|5|,|don|'|t|\302\240|\302\240ЯяǅʰÉa|\342\200\215|😀 |2|\302\205"}},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     {"I|'m| parseHTTP|'s| | DON|'T| |123|45½|x|~~|y",
      " | été́| |中国は|한글กแ| |٣٤٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“|q|”、…\n|  \n|123|456|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215|😀| "
      "|2|\302\205"}},
    {"kimi-k2",
     {"I'm| parseHTTP's| | DON'T| |123|45½|x|~~|y", " | été|́| |中国|は한글กแ| |٣٤٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|123|456|7| $|5|,don't|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"gpt-4o llama4 kanana2 minimax-m2",
     {"I'm| parse|HTTP's| | DON'T| |123|45½|x|~~|y", " | été|́| 中国は한글กแ| |٣٤٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|123|456|7| $|5|,don't|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"tekken",
     {"I|'m| parse|HTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"falcon",
     {"I|'|m| parseHTTP|'|s| | DON|'|T| |123|45½|x|~~|y",
      " | été|́| 中国は한글กแ| ٣٤٥٦|.| |(|a|)!?|\n\n \t| b|/|\r|\n|c|   ",
      "x|_|y| |<|a|>|\v\343\200\200|“|q|”、…|\n  |\n|123|456|7| |$|5|,|don|'|t|\302\240|\302\240|ЯяǅʰÉa|\342\200\215😀| "
      "2|\302\205"}},
    {"seed-coder",
     {"I|'m| parseHTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?|\n\n| \t| b|/|\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…|\n  \n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"laguna",
     {"I|'m| parseHTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?|\n\n| \t| b|/\r|\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…|\n|  |\n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"exaone-moe",
     {"I|'m| parseHTTP|'s| | DON|'T| |1|2|3|4|5|½|x|~~|y",
      " | été́ 中国は한글กแ| |٣|٤|٥|٦|.| (|a|)!?\n|\n| \t| b|/\r|\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“q|”、…\n|  \n|1|2|3|4|5|6|7| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
    {"afmoe",
     {"I|'m| parseHTTP|'s| | DON|'T| |123|45½|x|~~|y",
      " | été́| |中国は한글|ก|แ| |٣|٤٥٦|.| (|a|)!?\n\n| \t| b|/\r\n|c|   ",
      "x|_y| <|a|>|\v|\343\200\200|“|q|”、…\n|  \n|1|234|567| $|5|,don|'t|\302\240|\302\240ЯяǅʰÉa|\342\200\215|😀| "
      "|2|\302\205"}},
    {"default",
     {"I|'|m| parseHTTP|'|s| | DON|'|T| |123|45½|x|~~|y",
      " | été|́| 中国は한글กแ| |٣٤٥٦|.| |(|a|)!?|\n\n \t| b|/|\r|\n|c|   ",
      "x|_|y| |<|a|>|\v\343\200\200|“|q|”、…|\n  |\n|123|456|7| |$|5|,|don|'|t|\302\240|\302\240|ЯяǅʰÉa|\342\200\215😀| "
      "|2|\302\205"}},
};

typedef struct {
    const char *text;
    char *out;
    size_t n, at;
} pieces;

static firn_status collect(void *argument, size_t begin, size_t end)
{
    pieces *p = argument;

    assert_int_equal(begin, p->at);
    assert_true(end > begin);
    if (begin > 0)
        p->out[p->n++] = '|';
    memcpy(p->out + p->n, p->text + begin, end - begin);
    p->n += end - begin;
    p->at = end;
    return FIRN_OK;
}

/* The text with its cuts; to be freed. */
static char *cut(firn_context *ctx, const char *name, const char *text, size_t n)
{
    firn_pre *pre;
    firn_cutter *cutter;
    pieces p = {.text = text, .out = malloc(2 * n + 1)};

    assert_int_equal(firn_pre_create(ctx, name, strlen(name), &pre), FIRN_OK);
    assert_int_equal(firn_cutter_create(ctx, pre, &cutter), FIRN_OK);
    assert_int_equal(firn_cut(cutter, text, n, collect, &p), FIRN_OK);
    assert_int_equal(p.at, n);
    p.out[p.n] = 0;
    firn_cutter_destroy(cutter);
    firn_pre_destroy(ctx, pre);
    return p.out;
}

static void cuts_are_those_of_llama_cpp(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    int tested = 0, known = 0;

    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        for (const char *s = expected[i].names; *s; s += strspn(s, " ")) {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(s, " "), s);
            s += strcspn(s, " ");
            tested++;
            for (int j = 0; j < 3; j++) {
                const char *want = expected[i].cuts[j];
                char text[256];
                size_t n = 0;
                for (const char *c = want; *c; c++)
                    if (*c != '|')
                        text[n++] = *c;
                char *got = cut(ctx, name, text, n);
                if (strcmp(got, want) != 0)
                    fail_msg("%s\n expected %s\n got      %s", name, want, got);
                free(got);
            }
        }
    while (firn_pre_known(known))
        known++;
    assert_int_equal(tested, known);
    firn_context_destroy(ctx);
}

static void unknown_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", "qwen", "qwen22", "QWEN2", "gpt2", "bert-bge"};
    firn_context *ctx = firn_context_create(NULL);
    firn_pre *pre;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char want[128];
        assert_int_equal(firn_pre_create(ctx, names[i], strlen(names[i]), &pre), FIRN_ERR_UNSUPPORTED);
        snprintf(want, sizeof want, "pre-tokenizer '%s' (tokenizer.ggml.pre) is not supported", names[i]);
        assert_string_equal(firn_error(ctx), want);
    }
    firn_context_destroy(ctx);
}

/* A megabyte in one word, for every pre-tokenizer. Anything but linear would run into the test's time limit. */
static void long_words_are_linear(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a", "A", " ", "\n", "7", "!", " \n", "\xF0\x9F\x98\x80", "a\xCC\x81", "l a ", "\xE4\xB8\xAD", "'", "\xFF"};
    enum { N = 1 << 20 };
    firn_context *ctx = firn_context_create(NULL);
    char *text = malloc(N + 4);

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t length = strlen(units[i]), n = N / length * length;
        for (size_t at = 0; at < n; at += length)
            memcpy(text + at, units[i], length);
        text[n] = 'x'; /* so that a run of blanks does not end the text */
        for (size_t j = 0; j < sizeof expected / sizeof expected[0]; j++) {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(expected[j].names, " "), expected[j].names);
            free(cut(ctx, name, text, n + 1));
        }
    }
    free(text);
    firn_context_destroy(ctx);
}

static void utf8_is_strict(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        uint32_t code; /* UINT32_MAX: not UTF-8 */
    } cases[] = {
        {"a", 1, 'a'},
        {"\xC3\xA9", 2, 0xE9},
        {"\xE2\x96\x81", 3, 0x2581},
        {"\xF4\x8F\xBF\xBF", 4, 0x10FFFF},
        {"\xF4\x90\x80\x80", 1, UINT32_MAX}, /* past U+10FFFF */
        {"\xC0\x80", 1, UINT32_MAX},         /* overlong */
        {"\xE0\x9F\xBF", 1, UINT32_MAX},
        {"\xF0\x8F\xBF\xBF", 1, UINT32_MAX},
        {"\xED\xA0\x80", 1, UINT32_MAX}, /* surrogate */
        {"\xC3", 1, UINT32_MAX},         /* cut off */
        {"\xE2\x96", 1, UINT32_MAX},
        {"\x80", 1, UINT32_MAX},
        {"\xFF", 1, UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t code;
        assert_int_equal(firn_utf8_decode(cases[i].bytes, strlen(cases[i].bytes), &code), cases[i].length);
        assert_int_equal(code, cases[i].code);
    }
    assert_int_equal(firn_unicode_classify(0x10FFFF), FIRN_UNICODE_OTHER);
    assert_int_equal(firn_unicode_classify(0x110000), FIRN_UNICODE_OTHER);
    assert_int_equal(firn_unicode_classify(0x2EBF0), FIRN_UNICODE_LETTER); /* since 15.1 */
    assert_int_equal(firn_unicode_classify(0x0897), FIRN_UNICODE_OTHER);   /* a mark only since 16.0 */
    assert_int_equal(firn_unicode_classify(0x3000), FIRN_UNICODE_SPACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_are_those_of_llama_cpp),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(long_words_are_linear),
        cmocka_unit_test(utf8_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
