/* Lines of all formats, written anew after the samples that OpenAI, TRL, axolotl and LLaMA-Factory document, as the
 * tokens that a byte tokenizer and a plain template make of them; and the errors of each. */
#include "unit/unit.h"

#include "unit/byte_encoder.h"
#include "unit/context.h"

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

static firn_status parse_as(const char *name, const void *bytes, size_t n, const firn_data_spec *spec, firn_data **data)
{
    firn_encoder encoder = byte_encoder(&ctx, false);

    encoder.n_vocab = 258;
    return firn_data_parse(ctx, name, bytes, n, spec, &encoder, 200, data);
}

/* All samples as text, with ends of line as '/', trained ones in upper case, 'e' for EOS; a '|' between them. */
static const char *shown(const firn_data *data)
{
    static char out[4096];
    size_t n = 0;

    for (size_t i = 0; i < data->n_samples; i++) {
        const firn_sample *s = &data->samples[i];
        if (i)
            out[n++] = '|';
        for (int32_t t = 0; t < s->n && n < sizeof out - 2; t++) {
            const int32_t id = firn_data_token(data, s->begin + t);
            const char c = (char)(id == 257 ? 'e' : id == '\n' ? '/' : id);
            out[n++] = firn_data_trained(data, s->begin + t) && c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
        }
    }
    out[n] = 0;
    return out;
}

static void gives(const char *name, const char *text, const firn_data_spec *spec, firn_data_format format,
                  const char *expected)
{
    firn_data *data;

    if (parse_as(name, text, strlen(text), spec, &data) != FIRN_OK)
        fail_msg("%s: %s", text, firn_error(ctx));
    assert_string_equal(shown(data), expected);
    if (format != FIRN_FORMAT_AUTO) {
        assert_int_equal(data->counts.formats[format], data->counts.lines);
        assert_int_equal(data->samples[0].format, format);
    }
    firn_data_destroy(data);
}

static void refused(const char *name, const char *text, const firn_data_spec *spec, const char *sentence)
{
    firn_data *data;

    assert_int_not_equal(parse_as(name, text, strlen(text), spec, &data), FIRN_OK);
    assert_null(data);
    if (!strstr(firn_error(ctx), sentence))
        fail_msg("%s\n  instead of\n%s", firn_error(ctx), sentence);
}

/* ---- formats ---- */

static void conversations(void **state)
{
    (void)state;
    /* OpenAI's chat form; TRL's and axolotl's are the same */
    gives("d.jsonl",
          "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"hi\"}, "
          "{\"role\": \"assistant\", \"content\": \"yo\"}]}",
          NULL, FIRN_FORMAT_CHAT, "<system>s/<user>hi/<assistant>YO/");
    /* ShareGPT as LLaMA-Factory has it, with system and tools as JSON text, calls and observations */
    gives("d.json",
          "[\n  {\n    \"conversations\": [\n      {\"from\": \"human\", \"value\": \"a\"},\n      {\"from\": \"gpt\", "
          "\"value\": \"b\"},\n      {\"from\": \"observation\", \"value\": \"o\"},\n      {\"from\": \"bot\", "
          "\"value\": \"c\"}\n    ],\n    \"system\": \"sys\",\n    \"tools\": \"[]\"\n  },\n  {\"conversations\": "
          "[{\"from\": \"user\", \"value\": \"q\"}, {\"from\": \"assistant\", \"value\": \"r\"}]}\n]\n",
          NULL, FIRN_FORMAT_SHAREGPT, "<system>sys/<user>a/<assistant>B/<tool>o/<assistant>C/|<user>q/<assistant>R/");
    gives("d.jsonl", "{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
          NULL, FIRN_FORMAT_SHAREGPT, "<user>a/<assistant>B/");
    /* messages as JSON text, as tables keep them */
    gives("d.jsonl",
          "{\"messages\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"a\\\"}, {\\\"role\\\": "
          "\\\"assistant\\\", \\\"content\\\": \\\"b\\\"}]\"}",
          NULL, FIRN_FORMAT_CHAT, "<user>a/<assistant>B/");
    /* `train` of a message comes to the template's side as it is */
    gives("d.jsonl",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
          "\"train\": false}, {\"role\": \"assistant\", \"content\": \"c\"}]}",
          NULL, FIRN_FORMAT_CHAT, "<user>a/<assistant>b/<assistant>C/");
    refused("d.jsonl",
            "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"narrator\", "
            "\"value\": \"b\"}]}",
            NULL, "d.jsonl:1:53: expected the role system, developer, user, assistant or tool");
    refused("d.jsonl", "{\"system\": \"x\", \"messages\": [{\"role\": \"system\", \"content\": \"s\"}]}", NULL,
            "d.jsonl:1:12: the line has a system message and a \"system\" key");
    refused("d.jsonl", "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"not json\"}]}", NULL,
            "d.jsonl:1:20: expected a function call as JSON");
}

/* What the readers hand on of calls and tools, before any template. */
static void calls_and_tools(void **state)
{
    static const char line[] =
        "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": "
        "{\\\"x\\\": 1}}\"}], \"functions\": [{\"name\": \"f\"}], \"other\": 7}";
    const firn_canon_options options = {0};
    firn_jsonl lines;
    firn_example e;
    json_t *object;

    (void)state;
    firn_jsonl_parse(ctx, "d.jsonl", line, sizeof line - 1, &lines);
    assert_int_equal(firn_jsonl_next(&lines, &object), FIRN_OK);
    assert_int_equal(firn_canon(&lines, &options, object, &e), FIRN_OK);
    json_t *expected = json_loads(
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"type\": \"function\", "
        "\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}], \"tools\": [{\"type\": \"function\", "
        "\"function\": {\"name\": \"f\"}}], \"other\": 7}",
        0, NULL);
    assert_true(json_equal(e.object, expected));
    json_decref(expected);
    firn_example_clear(&e);
    json_decref(object);
}

static void instructions(void **state)
{
    (void)state;
    gives("d.jsonl",
          "{\"instruction\": \"add\", \"input\": \"1 2\", \"output\": \"three\", \"system\": \"s\", \"history\": "
          "[[\"q\", \"a\"]]}\n{\"instruction\": \"go\", \"input\": \"\", \"output\": \"ok\"}",
          NULL, FIRN_FORMAT_ALPACA,
          "<system>s/<user>q/<assistant>A/<user>add/1 2/<assistant>THREE/|<user>go/<assistant>OK/");
    refused("d.jsonl", "{\"instruction\": \"a\"}", NULL, "d.jsonl:1:1: expected \"output\" too");
    refused("d.jsonl", "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"q\"]]}", NULL,
            "d.jsonl:1:49: expected a pair [question, answer]");
}

static void completions(void **state)
{
    (void)state;
    gives("d.jsonl", "{\"prompt\": \"the sky is\", \"completion\": \" blue\"}", NULL, FIRN_FORMAT_COMPLETION,
          "the sky is BLUEE");
    /* TRL's conversational form: what the prompt's assistant says is not trained */
    gives("d.jsonl",
          "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
          "\"completion\": [{\"role\": \"assistant\", \"content\": \"c\"}]}",
          NULL, FIRN_FORMAT_COMPLETION, "<user>a/<assistant>b/<assistant>C/");
    refused("d.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}", NULL,
            "d.jsonl:1:45: answers marked good or bad (\"label\") are not trained on yet");
}

static void tokens(void **state)
{
    (void)state;
    gives("d.jsonl",
          "{\"input_ids\": [97, 98, 99, 100], \"attention_mask\": [1, 1, 1, 0], \"labels\": [-100, -100, 99, -100]}",
          NULL, FIRN_FORMAT_TOKENS, "abC");
    gives("d.jsonl", "{\"input_ids\": [97, 98, 99], \"completion_mask\": [0, 1, 0]}", NULL, FIRN_FORMAT_TOKENS, "aBc");
    gives("d.jsonl", "{\"input_ids\": [97, 98, 99]}", NULL, FIRN_FORMAT_TOKENS, "aBC");
    refused("d.jsonl", "{\"input_ids\": [97, 300, 99]}", NULL,
            "d.jsonl:1:20: expected a token id from 0 to 257, got 300");
    refused("d.jsonl", "{\"input_ids\": [97, 98], \"labels\": [97]}", NULL, "to be a list of 2 numbers");
    refused("d.jsonl", "{\"input_ids\": [97, 98], \"labels\": [97, 99]}", NULL,
            "d.jsonl:1:40: expected a label to be -100 or the token id beside it");
}

static void preferences(void **state)
{
    const firn_data_spec both = {.preferences = true};
    static const char *const chosen[] = {"completion=chosen"};
    const firn_data_spec alone = {.format = FIRN_FORMAT_COMPLETION, .fields = chosen, .n_fields = 1};
    static const char text[] = "{\"prompt\": \"p \", \"chosen\": \"good\", \"rejected\": \"bad\"}";

    (void)state;
    gives("d.jsonl", text, &both, FIRN_FORMAT_PREFERENCE, "p GOODE|p BADE");
    /* an implicit prompt: what both sides begin with */
    gives("d.jsonl",
          "{\"chosen\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"y\"}], "
          "\"rejected\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"n\"}]}",
          &both, FIRN_FORMAT_PREFERENCE, "<user>q/<assistant>Y/|<user>q/<assistant>N/");
    /* OpenAI's names */
    gives(
        "d.jsonl",
        "{\"input\": {\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": []}, \"preferred_output\": "
        "[{\"role\": \"assistant\", \"content\": \"y\"}], \"non_preferred_output\": [{\"role\": \"assistant\", "
        "\"content\": \"n\"}]}",
        &both, FIRN_FORMAT_PREFERENCE, "<user>q/<assistant>Y/|<user>q/<assistant>N/");
    /* LLaMA-Factory's */
    gives("d.jsonl",
          "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}], \"chosen\": {\"from\": \"gpt\", \"value\": "
          "\"y\"}, \"rejected\": {\"from\": \"gpt\", \"value\": \"n\"}}\n{\"instruction\": \"q\", \"input\": \"\", "
          "\"chosen\": \"y\", \"rejected\": \"n\"}",
          &both, FIRN_FORMAT_PREFERENCE,
          "<user>q/<assistant>Y/|<user>q/<assistant>N/|<user>q/<assistant>Y/|<user>q/<assistant>N/");
    refused("d.jsonl", text, NULL,
            "d.jsonl:1:28: a preference pair is not trained on yet (firn data show shows it); --format completion "
            "--field completion=chosen trains on the chosen answers alone");
    gives("d.jsonl", text, &alone, FIRN_FORMAT_COMPLETION, "p GOODE"); /* and what the sentence says is true */
}

static void fields_and_forced_formats(void **state)
{
    static const char *const fields[] = {"messages=dialog", "role=speaker", "content=said"};
    static const char *const wrong[] = {"bogus=x"};
    const firn_data_spec mapped = {.fields = fields, .n_fields = 3}, chat = {.format = FIRN_FORMAT_CHAT},
                         bad = {.fields = wrong, .n_fields = 1}, text = {.format = FIRN_FORMAT_TEXT};

    (void)state;
    gives("d.jsonl",
          "{\"dialog\": [{\"speaker\": \"human\", \"said\": \"a\"}, {\"speaker\": \"gpt\", \"said\": \"b\"}]}", &mapped,
          FIRN_FORMAT_CHAT, "<user>a/<assistant>B/");
    refused("d.jsonl", "{\"dialog\": [{\"speaker\": \"human\", \"said\": 3}]}", &mapped,
            "d.jsonl:1:42: expected content to be a string or a list of parts");
    refused("d.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}", &chat, "expected messages to be a list");
    refused("d.jsonl", "{\"text\": \"a\"}", &bad, "'bogus=x' maps no field: expected NAME=THEIRS");
    gives("noname", "plain words", &text, FIRN_FORMAT_TEXT, "pLAIN WORDS");
    gives("d.jsonl", "{\"text\": \"xyz\"}", &text, FIRN_FORMAT_TEXT, "xYZ");
    refused("noname", "plain words", NULL, "noname is neither JSON lines nor a JSON array");
}

/* ---- records ---- */

static void csv(void **state)
{
    (void)state;
    gives("d.csv", "prompt,completion,id\r\n\"say \"\"x\"\", then\n\",yes,1\r\n\r\nb,\"c,d\",2", NULL,
          FIRN_FORMAT_COMPLETION, "say \"x\", then/YESE|bC,DE");
    gives("d.tsv", "instruction\toutput\nq\ta\n", NULL, FIRN_FORMAT_ALPACA, "<user>q/<assistant>A/");
    refused("d.csv", "prompt,completion\na,b\nc\n", NULL, "d.csv:3: expected 2 fields, as the header has, got 1");
    refused("d.csv", "prompt,completion\n\"a,b\n", NULL,
            "d.csv:2: a quoted field that begins in this row does not end");
    refused("d.csv", "prompt,completion\n\"a\"x,b\n", NULL, "d.csv:2: expected a separator behind a quoted field");
    refused("d.csv", "a\xFF,b\nc,d\n", NULL, "expected UTF-8");
}

static void arrays(void **state)
{
    (void)state;
    gives("d.json", "\xEF\xBB\xBF [ {\"text\": \"ab\"} , {\"text\": \"c\\\"]d\"}\n] \n", NULL, FIRN_FORMAT_TEXT,
          "aB|c\"]D");
    gives("d.json", "{\n  \"text\": \"ab\"\n}\n{\n  \"text\": \"cd\"\n}\n", NULL, FIRN_FORMAT_TEXT, "aB|cD");
    refused("d.json", "[\n {\"text\": \"ab\"},\n {\"text\":\n  3}\n]", NULL,
            "d.json:4:3: expected \"text\" to be a string");
    refused("d.json", "[{\"text\": \"ab\"}", NULL, "d.json:1:16: expected the array to be closed by ]");
    refused("d.json", "[{\"text\": \"ab\"} {\"text\": \"cd\"}]", NULL,
            "d.json:1:17: expected a comma or ] behind the object");
    refused("d.json", "[{\"text\": \"ab\"},]", NULL, "d.json:1:17: expected a JSON object behind the comma");
    refused("d.json", "[{\"text\": \"ab\"}] x", NULL, "expected nothing behind the array");
    refused("d.json", "[{\"text\": \"ab\", \"x\": [}", NULL, "d.json:1:");
    refused("d.json", "[]", NULL, "d.json is empty");
    refused("d.txt", "a\xFF", NULL, "d.txt:1: expected UTF-8, got the byte 0xff at byte 2 of this stretch");
}

static void json_as_python_writes_it(void **state)
{
    (void)state;
    gives("d.jsonl",
          "{\"text\": \"ab\", \"score\": NaN, \"x\": {\"deep\": [-Infinity, 1.5]}, \"id\": 123456789012345678901, "
          "\"big\": 1e999}",
          NULL, FIRN_FORMAT_TEXT, "aB");
    refused("d.jsonl", "{\"input_ids\": [97, 123456789012345678901]}", NULL,
            "d.jsonl:1:20: expected a number that JSON and 64 bits hold under \"input_ids\"");
    refused("d.jsonl", "{\"text\": \"ab\", \"score\": nan}", NULL, "expected one JSON object");
    refused("d.jsonl", "{\"text\": \"NaN\", \"x\": NaN, }", NULL, "expected one JSON object");
}

static void long_texts_come_in_pieces(void **state)
{
    const size_t n = (size_t)FIRN_TEXT_BYTES * 5 / 2;
    char *text = malloc(n);
    firn_data *data;
    int64_t tokens = 0;

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 50 == 49 ? '\n' : 'a';
    assert_int_equal(parse_as("d.txt", text, n, NULL, &data), FIRN_OK);
    assert_int_equal(data->counts.lines, 3);
    for (size_t i = 0; i < data->n_samples; i++)
        tokens += data->samples[i].n_targets;
    assert_int_equal(tokens, n - 3); /* all but the first of each piece */
    assert_int_equal(data->samples[data->n_samples - 1].line, 1 + 2 * (FIRN_TEXT_BYTES / 50));
    firn_data_destroy(data);
    free(text);
}

/* ---- packed ---- */

static void packed(void **state)
{
    static const char text[] = "{\"text\": \"abc\"}\n", columns[] = "PAR1....";
    uint8_t gzip[512], zstd[512];
    z_stream z = {0};
    firn_data *data;

    (void)state;
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = sizeof text - 1;
    z.next_out = gzip;
    z.avail_out = sizeof gzip;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const size_t n = z.total_out, m = ZSTD_compress(zstd, sizeof zstd, text, sizeof text - 1, 3);
    deflateEnd(&z);
    memcpy(gzip + n, gzip, n); /* two members, one after the other */
    memcpy(zstd + m, zstd, m);
    for (int k = 0; k < 2; k++) {
        const uint8_t *bytes = k ? zstd : gzip;
        const size_t size = k ? m : n;
        assert_int_equal(parse_as("d", bytes, 2 * size, NULL, &data), FIRN_OK);
        assert_string_equal(shown(data), "aBC|aBC");
        assert_int_equal(data->counts.duplicates, 1);
        firn_data_destroy(data);
        assert_int_equal(parse_as("d", bytes, 2 * size - 3, NULL, &data), FIRN_ERR_FORMAT);
        assert_non_null(strstr(firn_error(ctx), k ? "d is no whole zstd file: it ends too early"
                                                  : "d is no whole gzip file: it ends too early"));
    }
    gzip[n / 2] ^= 0x55;
    assert_int_equal(parse_as("d", gzip, n, NULL, &data), FIRN_ERR_FORMAT);
    assert_int_equal(parse_as("d.parquet", columns, sizeof columns, NULL, &data), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "pandas.read_parquet(\"d.parquet\").to_json(\"data.jsonl\", "
                                            "orient=\"records\", lines=True)"));
    assert_int_equal(parse_as("d", "\xFF\xFE{\0", 4, NULL, &data), FIRN_ERR_FORMAT);
    assert_non_null(strstr(firn_error(ctx), "UTF-16"));
}

/* ---- counts ---- */

static void bad_lines_are_passed_over(void **state)
{
    static const char text[] = "{\"text\": \"ab\"}\n{\"text\": 3}\n{\"text\": \"cd\"\n{\"text\": \"ef\"}\n";
    const firn_data_spec two = {.skip_bad = 2}, one = {.skip_bad = 1};
    firn_data *data;

    (void)state;
    assert_int_equal(parse_as("d.jsonl", text, sizeof text - 1, &two, &data), FIRN_OK);
    assert_string_equal(shown(data), "aB|eF");
    assert_int_equal(data->counts.bad, 2);
    assert_int_equal(data->samples[1].line, 4);
    assert_string_equal(firn_text_cstr(&data->notes),
                        "passed over: d.jsonl:2:10: expected \"text\" to be a string\n"
                        "passed over: d.jsonl:3:13: expected one JSON object: '}' expected near end of file\n");
    firn_data_destroy(data);
    assert_int_equal(parse_as("d.jsonl", text, sizeof text - 1, &one, &data), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "more than 1 bad lines: d.jsonl:3:13: expected one JSON object: '}' expected "
                                         "near end of file");
}

static firn_status joining(void *user, const char *text, size_t size, firn_token_list *list)
{
    for (size_t i = 0; i < size; i += 2) /* two bytes a token */
        FIRN_TRY(firn_token_list_add(*(firn_context **)user, list, text[i], i, i + 2 < size ? i + 2 : size));
    return FIRN_OK;
}

static void what_is_odd_is_counted(void **state)
{
    static const char text[] = "{\"prompt\": \"abc\", \"completion\": \"def\"}\n{\"prompt\": \"ab\", \"completion\": "
                               "\"x\"}\n{\"prompt\": \"ab\", \"completion\": \"x\"}\n";
    firn_encoder encoder = byte_encoder(&ctx, false);
    firn_data *data;

    (void)state;
    encoder.encode = joining;
    assert_int_equal(firn_data_parse(ctx, "d.jsonl", text, sizeof text - 1, NULL, &encoder, 100, &data), FIRN_OK);
    assert_int_equal(data->counts.joined, 1);
    assert_int_equal(data->counts.duplicates, 1);
    assert_int_equal(data->counts.short_answers, 2);
    firn_data_destroy(data);
}

static void lengths(void **state)
{
    int64_t histogram[FIRN_LENGTH_BUCKETS] = {0};
    firn_text text;

    (void)state;
    for (int64_t n = 0; n < 1 << 24; n += 1 + n / 50) {
        const int b = firn_length_bucket(n);
        assert_in_range(b, 0, FIRN_LENGTH_BUCKETS - 1);
        assert_true(n <= firn_length_limit(b) && (b == 0 || n > firn_length_limit(b - 1)));
        assert_true((double)firn_length_limit(b) <= (double)n * 1.033);
    }
    for (int64_t n = 1; n <= 100; n++)
        histogram[firn_length_bucket(n)]++;
    assert_int_equal(firn_lengths_quantile(histogram, 0.5), 50);
    assert_in_range(firn_lengths_quantile(histogram, 0.95), 95, 97);
    assert_int_equal(firn_lengths_count(histogram), 100);
    firn_text_init(&text, ctx, 0);
    firn_lengths_draw(histogram, &text);
    assert_non_null(strstr(text.data, "       65 to       128 tokens"));
    firn_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations),
        cmocka_unit_test(calls_and_tools),
        cmocka_unit_test(instructions),
        cmocka_unit_test(completions),
        cmocka_unit_test(tokens),
        cmocka_unit_test(preferences),
        cmocka_unit_test(fields_and_forced_formats),
        cmocka_unit_test(csv),
        cmocka_unit_test(arrays),
        cmocka_unit_test(json_as_python_writes_it),
        cmocka_unit_test(long_texts_come_in_pieces),
        cmocka_unit_test(packed),
        cmocka_unit_test(bad_lines_are_passed_over),
        cmocka_unit_test(what_is_odd_is_counted),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
