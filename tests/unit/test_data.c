/* Data sets: lines to samples, errors that point, the evaluation split, packing, passes; schedules, clipping, options.
 */
#include "unit/unit.h"

#include "train/jsonl.h"
#include "train/options.h"
#include "train/schedule.h"
#include "unit/byte_encoder.h"
#include "unit/context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static firn_status parse_n(const char *text, size_t n, int64_t context, bool add_bos, firn_data **data)
{
    const firn_encoder encoder = byte_encoder(&ctx, add_bos);
    return firn_data_parse(ctx, "d.jsonl", text, n, NULL, &encoder, context, data);
}

static firn_data *parse(const char *text, int64_t context, bool add_bos)
{
    firn_data *data;

    if (parse_n(text, strlen(text), context, add_bos, &data) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    return data;
}

/* The tokens of sample i as text, trained ones in upper case, B for BOS and E for EOS. */
static const char *shown(const firn_data *data, size_t i)
{
    static char out[256];
    const firn_sample *s = &data->samples[i];

    for (int32_t t = 0; t < s->n; t++) {
        const int32_t id = firn_data_token(data, s->begin + t);
        const char c = (char)(id == 256 ? 'b' : id == 257 ? 'e' : id == '\n' ? 'n' : id);
        out[t] = firn_data_trained(data, s->begin + t) && c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
    }
    out[s->n] = 0;
    return out;
}

static void chat_trains_what_the_assistant_says(void **state)
{
    (void)state;
    firn_data *d = parse("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":"
                         "\"yo\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
                         100, true);
    assert_int_equal(d->n_samples, 1);
    assert_string_equal(shown(d, 0), "b<user>hin<assistant>YON<user>an<assistant>BN");
    assert_int_equal(d->samples[0].n_targets, 5);
    firn_data_destroy(d);
}

static void completions_and_texts(void **state)
{
    (void)state;
    firn_data *d = parse("{\"prompt\":\"ab\",\"completion\":\"cd\"}\r\n\n  \n{\"text\":\"xyz\"}\n", 100, false);
    assert_int_equal(d->n_samples, 2);
    assert_string_equal(shown(d, 0), "abCDE");
    assert_string_equal(shown(d, 1), "xYZ");
    assert_int_equal(d->samples[1].line, 4);
    firn_data_destroy(d);
}

static void long_text_is_spread_and_long_chat_cut(void **state)
{
    (void)state;
    firn_data *d = parse("{\"text\":\"abcdefghij\"}\n{\"prompt\":\"ab\",\"completion\":\"cdefgh\"}\n", 4, false);
    assert_string_equal(shown(d, 0), "aBCD");
    assert_string_equal(shown(d, 1), "dEFG");
    assert_string_equal(shown(d, 2), "gHIJ");
    assert_string_equal(shown(d, 3), "abCD");
    assert_int_equal(d->n_samples, 4);
    assert_int_equal(d->counts.split, 1);
    assert_int_equal(d->counts.cut, 1);
    firn_data_destroy(d);
}

static void what_cannot_be_trained_is_counted(void **state)
{
    (void)state;
    firn_data *d = parse("{\"text\":\"\"}\n{\"text\":\"a\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n"
                         "{\"prompt\":\"abcd\",\"completion\":\"e\"}\n{\"text\":\"ok\"}",
                         4, false);
    firn_text text;
    assert_int_equal(d->n_samples, 1);
    assert_int_equal(d->counts.empty, 1);
    assert_int_equal(d->counts.untrained, 3);
    assert_int_equal(d->counts.cut, 0);
    firn_text_init(&text, ctx, 0);
    firn_data_describe(d, &text);
    assert_string_equal(text.data,
                        "5 lines (1 chat, 1 completion, 3 text), 1 sample, 2 tokens, 1 of them trained; 1 empty line "
                        "dropped; 3 lines without anything to train dropped; 1 line with an answer of one word at "
                        "most");
    firn_text_free(&text);
    firn_data_destroy(d);
}

static void bad_lines_are_pointed_at(void **state)
{
    static const struct {
        const char *text, *error;
        size_t n;
    } cases[] = {
        {"", "d.jsonl is empty: expected a JSON object on each line", 0},
        {"\n \n", "d.jsonl is empty: expected a JSON object on each line", 0},
        {"{\"text\":\"\"}\n", "nothing is left to train on in d.jsonl: every line is empty", 0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]}\n",
         "nothing is left to train on in d.jsonl: d.jsonl:1 has no assistant message (roles: user, tool)", 0},
        {"{\"prompt\":\"abcdefghijklmnopqrst\",\"completion\":\"z\"}",
         "nothing is left to train on in d.jsonl: d.jsonl:1 has nothing to train on within 16 tokens", 0},
        {"{\"prompt\":\"ab\",\"completion\":\"\"}",
         "nothing is left to train on in d.jsonl: d.jsonl:1 has nothing to train on: what is to be said is empty", 0},
        {"{\"text\":\"ok\"}\n{\"text\": 3}", "d.jsonl:2:10: expected \"text\" to be a string", 0},
        {"[1]", "d.jsonl:1:2: expected a JSON object { ... } with messages, prompt and completion, or text", 0},
        {"{\"text\":\"a\"", "d.jsonl:1:11: expected one JSON object: '}' expected near end of file", 0},
        {"{\"x\":1}",
         "d.jsonl:1:1: expected messages, conversations, prompt and completion, instruction and output, text, "
         "input_ids, or chosen and rejected among the keys, got x (--field messages=NAME says that messages are called "
         "so here)",
         0},
        {" {\"prompt\":\"a\"}", "d.jsonl:1:2: expected \"completion\" too", 0},
        {"{\"messages\":[]}", "d.jsonl:1:13: expected messages to be a list of at least one message", 0},
        {"{\"k\":\"[{\\\"\", \"messages\":[{\"role\":\"user\",\"content\":\"\xC3\xA9\"}, 7]}",
         "d.jsonl:1:57: expected a message {\"role\": ..., \"content\": ...}", 0},
        {"{\"messages\":[{\"content\":\"a\",\"role\": null}]}",
         "d.jsonl:1:37: expected the message to have a role, such as \"user\" or \"assistant\"", 0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}",
         "d.jsonl:1:39: expected content to be a string or a list of parts", 0},
        {"{\"messages\":[{\"role\":\"user\"}]}", "d.jsonl:1:14: expected the message to have content", 0},
        {"{\"messages\":[{\"role\":\"bad\",\"content\":\"\"}]}",
         "d.jsonl:1:22: expected the role system, developer, user, assistant or tool (or human, gpt, bot, function), "
         "got "
         "\"bad\"",
         0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"bad\"}]}",
         "d.jsonl:1:13: the model's chat template refuses it: there is a bad word", 0},
        {"{\"text\":\"a\0b\"}", "d.jsonl:1:11: expected JSON text, got a NUL byte", 14},
        {"{\"text\":\"\xFF\xFE\"}", "d.jsonl:1:10: expected one JSON object: unable to decode byte 0xff near '\"'", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_data *d;
        const size_t n = cases[i].n ? cases[i].n : strlen(cases[i].text);
        assert_int_equal(parse_n(cases[i].text, n, 16, false, &d), FIRN_ERR_FORMAT);
        assert_string_equal(firn_error(ctx), cases[i].error);
        assert_null(d);
    }
}

static void deep_and_huge_lines_are_refused(void **state)
{
    const size_t n = (size_t)FIRN_LINE_BYTES;
    char *text = malloc(n + 32);
    firn_data *d;

    (void)state;
    assert_non_null(text);
    memset(text, '[', 100000);
    assert_int_equal(parse_n(text, 100000, 16, false, &d), FIRN_ERR_FORMAT);
    assert_non_null(strstr(firn_error(ctx), "depth"));
    memset(text, ' ', n + 32);
    memcpy(text, "{\"text\":\"a\"", 11);
    text[n + 31] = '}';
    assert_int_equal(parse_n(text, n + 32, 16, false, &d), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx),
                        "d.jsonl:1:1: the line has more than 67108864 bytes; expected a JSON object of "
                        "fewer");
    free(text);
}

/* ---- split and packing ---- */

static firn_data *numbered(int n)
{
    char *text = malloc((size_t)n * 64), *at = text;

    for (int i = 0; i < n; i++)
        at += sprintf(at, "{\"text\":\"%.*s\"}\n", 2 + i * 7 % 19, "abcdefghijklmnopqrstuvwxyz");
    firn_data *d = parse(text, 32, false);
    free(text);
    return d;
}

static void split_holds_back_by_seed(void **state)
{
    firn_data *d = numbered(40);
    firn_sample_list train, held, train2, held2;

    (void)state;
    assert_int_equal(firn_data_split(d, 0.1, 1, &train, &held), FIRN_OK);
    assert_int_equal(held.n, 4);
    assert_int_equal(train.n, 36);
    assert_int_equal(firn_data_split(d, 0.1, 1, &train2, &held2), FIRN_OK);
    assert_memory_equal(held.items, held2.items, held.n * sizeof *held.items);
    firn_sample_list_free(ctx, &train2);
    firn_sample_list_free(ctx, &held2);
    assert_int_equal(firn_data_split(d, 0.1, 2, &train2, &held2), FIRN_OK);
    assert_memory_not_equal(held.items, held2.items, held.n * sizeof *held.items);
    firn_sample_list *all[] = {&train, &held, &train2, &held2};
    for (int i = 0; i < 4; i++)
        firn_sample_list_free(ctx, all[i]);
    static const struct {
        int lines;
        double fraction;
        size_t held;
    } edges[] = {{1, 0.5, 0}, {2, 0.01, 1}, {2, 0.9, 1}, {40, 0, 0}};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        firn_data *e = numbered(edges[i].lines);
        assert_int_equal(firn_data_split(e, edges[i].fraction, 1, &train, &held), FIRN_OK);
        assert_int_equal(held.n, edges[i].held);
        assert_int_equal(train.n + held.n, e->n_samples);
        firn_sample_list_free(ctx, &train);
        firn_sample_list_free(ctx, &held);
        firn_data_destroy(e);
    }
    firn_data_destroy(d);
}

static void pieces_of_a_line_are_split_together(void **state)
{
    firn_data *d = parse("{\"text\":\"abcdefghij\"}\n{\"text\":\"abcdefghij\"}\n", 4, false);
    firn_sample_list train, held;

    (void)state;
    assert_int_equal(firn_data_split(d, 0.5, 3, &train, &held), FIRN_OK);
    assert_int_equal(train.n, 3);
    for (size_t i = 1; i < 3; i++)
        assert_int_equal(d->samples[train.items[i]].line, d->samples[train.items[0]].line);
    firn_sample_list_free(ctx, &train);
    firn_sample_list_free(ctx, &held);
    firn_data_destroy(d);
}

static void packing_keeps_every_sample_once_and_fills_windows(void **state)
{
    firn_data *d = numbered(500);
    firn_sample_list all;
    firn_packing p, q;
    int64_t tokens = 0;
    int *seen = calloc(500, sizeof *seen);

    (void)state;
    assert_int_equal(firn_data_all(d, &all), FIRN_OK);
    assert_int_equal(firn_pack(d, &all, 32, true, 1, 0, &p), FIRN_OK);
    for (int64_t w = 0; w < p.n_windows; w++) {
        int64_t n = 0;
        for (int64_t i = p.window[w]; i < p.window[w + 1]; i++) {
            n += d->samples[p.order[i]].n;
            seen[p.order[i]]++;
        }
        assert_in_range(n, 1, 32);
        tokens += n;
    }
    for (int i = 0; i < 500; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
    assert_int_equal(tokens, d->n_tokens);
    assert_true((double)tokens > 0.97 * 32 * (double)p.n_windows);
    assert_int_equal(firn_pack(d, &all, 32, true, 1, 0, &q), FIRN_OK);
    assert_memory_equal(p.order, q.order, 500 * sizeof *p.order);
    firn_packing_clear(&q);
    assert_int_equal(firn_pack(d, &all, 32, true, 1, 1, &q), FIRN_OK);
    assert_memory_not_equal(p.order, q.order, 500 * sizeof *p.order);
    firn_packing_clear(&q);
    firn_packing_clear(&p);
    firn_sample_list_free(ctx, &all);
    firn_data_destroy(d);
}

static void passes_isolate_documents(void **state)
{
    firn_data *d = parse("{\"prompt\":\"ab\",\"completion\":\"c\"}\n{\"text\":\"xy\"}\n", 8, false);
    static const int32_t tokens[] = {'a', 'b', 'c', 257, 'x', 'y'}, targets[] = {-1, 'c', 257, -1, 'y', -1};
    static const int32_t position[] = {0, 1, 2, 3, 0, 1}, first[] = {0, 0, 0, 0, 4, 4};
    firn_sample_list all;
    firn_packing p;
    firn_pass pass;

    (void)state;
    assert_int_equal(firn_data_all(d, &all), FIRN_OK);
    assert_int_equal(firn_pack(d, &all, 8, false, 1, 0, &p), FIRN_OK);
    assert_int_equal(p.n_windows, 1);
    assert_int_equal(firn_pass_create(ctx, 8, &pass), FIRN_OK);
    assert_int_equal(firn_pass_add_window(&pass, d, &p, 0), FIRN_OK);
    const firn_batch b = firn_pass_batch(&pass);
    assert_int_equal(b.n_tokens, 6);
    assert_int_equal(pass.n_targets, 3);
    assert_memory_equal(b.tokens, tokens, sizeof tokens);
    assert_memory_equal(b.targets, targets, sizeof targets);
    assert_memory_equal(b.position, position, sizeof position);
    assert_memory_equal(b.first, first, sizeof first);
    assert_int_equal(firn_pass_add_window(&pass, d, &p, 0), FIRN_ERR_ARGUMENT);
    firn_pass_destroy(&pass);
    firn_packing_clear(&p);
    firn_sample_list_free(ctx, &all);
    firn_data_destroy(d);
}

/* ---- schedule, clipping, options ---- */

static firn_schedule scheduled(const char *name)
{
    firn_schedule s = {.learning_rate = 1.0, .warmup = 4, .steps = 12};

    assert_int_equal(firn_schedule_from_name(ctx, name, &s.rule), FIRN_OK);
    return s;
}

static void schedules(void **state)
{
    firn_schedule s = scheduled("constant");

    (void)state;
    assert_true(firn_schedule_rate(&s, 1) == 0.25 && firn_schedule_rate(&s, 4) == 1.0);
    assert_true(firn_schedule_rate(&s, 12) == 1.0);
    s = scheduled("linear");
    assert_true(firn_schedule_rate(&s, 5) == 1.0 && firn_schedule_rate(&s, 9) == 0.5);
    assert_true(firn_schedule_rate(&s, 12) == 0.125);
    s = scheduled("cosine");
    assert_true(firn_schedule_rate(&s, 2) == 0.5 && firn_schedule_rate(&s, 5) == 1.0);
    assert_true(fabs(firn_schedule_rate(&s, 9) - 0.5) < 1e-15);
    assert_true(firn_schedule_rate(&s, 12) > 0 && firn_schedule_rate(&s, 12) < 0.05);
    s.warmup = 20;
    assert_true(firn_schedule_rate(&s, 12) == 0.6);
    s = scheduled("inverse-sqrt");
    assert_true(firn_schedule_rate(&s, 4) == 1.0 && firn_schedule_rate(&s, 9) == 2.0 / 3);
    s.warmup = 0;
    assert_true(firn_schedule_rate(&s, 1) == 1.0 && firn_schedule_rate(&s, 4) == 0.5);
    s = scheduled("wsd"); /* the last fifth of 12 steps is two */
    assert_true(firn_schedule_rate(&s, 2) == 0.5 && firn_schedule_rate(&s, 10) == 1.0);
    assert_true(firn_schedule_rate(&s, 11) == 1.0 && fabs(firn_schedule_rate(&s, 12) - (1 - sqrt(0.5))) < 1e-15);
    s.steps = 4;
    assert_true(firn_schedule_rate(&s, 4) == 1.0);
    assert_int_equal(firn_schedule_from_name(ctx, "sine", &s.rule), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx),
                        "there is no schedule 'sine': expected cosine, linear, constant, inverse-sqrt or wsd");
    assert_true(firn_clip_factor(4, 1) == 0.25f && firn_clip_factor(0.5, 1) == 1 && firn_clip_factor(9, 0) == 1);
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"6G", 6ull << 30}, {"1.5k", 1536},       {"800M", 800ull << 20},
                {"77", 77},         {"2GiB", 2ull << 30}, {"3GB", 3ull << 30}};
    static const char *const bad[] = {"", "G", "-1G", "6X", "6Gx", "nan", "inf", "0", "1e300", " 6G"};
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(firn_parse_bytes(ctx, good[i].text, &bytes), FIRN_OK);
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(firn_parse_bytes(ctx, bad[i], &bytes), FIRN_ERR_ARGUMENT);
    firn_parse_bytes(ctx, "6X", &bytes);
    assert_string_equal(firn_error(ctx), "'6X' is no size: expected one like 6G, 800M or a number of bytes");
}

static void options_survive_json(void **state)
{
    firn_train_options a, b;
    firn_arena arena;

    (void)state;
    firn_train_options_init(&a);
    a.model = "m.gguf";
    a.data = FIRN_STRINGS("d.jsonl", "e.jsonl:0.5");
    a.steps = 7;
    a.learning_rate = 0.1;
    json_t *json = firn_train_options_to_json(ctx, &a);
    firn_arena_init(&arena, ctx, 0);
    assert_int_equal(firn_train_options_from_json(&arena, "run.json", json, &b), FIRN_OK);
    assert_string_equal(b.model, "m.gguf");
    assert_int_equal(b.steps, 7);
    assert_true(b.learning_rate == 0.1);
    assert_int_equal(b.batch, FIRN_UNSET);
    assert_true(isnan(b.clip) && !b.eval_data);
    assert_int_equal(b.data.n, 2);
    assert_string_equal(b.data.items[1], "e.jsonl:0.5");
    firn_train_options_defaults(&b);
    assert_true(b.rank == 16 && b.alpha == 32 && b.steps == 7);
    json_object_set_new(json, "rank", json_string("x"));
    assert_int_equal(firn_train_options_from_json(&arena, "run.json", json, &b), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "run.json: expected \"rank\" to be a whole number");
    json_object_set_new(json, "rank", json_integer(0));
    assert_int_equal(firn_train_options_from_json(&arena, "run.json", json, &b), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "run.json: rank is a number from 1 to 4096, not 0");
    json_object_del(json, "rank");
    json_object_set_new(json, "bogus", json_null());
    assert_int_equal(firn_train_options_from_json(&arena, "run.json", json, &b), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "run.json: there is no option \"bogus\"");
    json_decref(json);
    firn_arena_clear(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_trains_what_the_assistant_says),
        cmocka_unit_test(completions_and_texts),
        cmocka_unit_test(long_text_is_spread_and_long_chat_cut),
        cmocka_unit_test(what_cannot_be_trained_is_counted),
        cmocka_unit_test(bad_lines_are_pointed_at),
        cmocka_unit_test(deep_and_huge_lines_are_refused),
        cmocka_unit_test(split_holds_back_by_seed),
        cmocka_unit_test(pieces_of_a_line_are_split_together),
        cmocka_unit_test(packing_keeps_every_sample_once_and_fills_windows),
        cmocka_unit_test(passes_isolate_documents),
        cmocka_unit_test(schedules),
        cmocka_unit_test(sizes),
        cmocka_unit_test(options_survive_json),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
