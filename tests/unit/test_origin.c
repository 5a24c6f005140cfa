/* Which model an adapter belongs to: its fingerprint holds for every weight format of a model and for no other model,
 * stands in what is saved, and refuses another one in each command that takes an adapter. */
#include "unit/command.h"

#include "core/context.h"
#include "firn/quantize.h"
#include "model/random_model.h"
#include "train/origin.h"

#define OK(ctx, call)                                                                                                  \
    do {                                                                                                               \
        if ((call) != FIRN_OK)                                                                                         \
            fail_msg("%s: %s", #call, firn_error(ctx));                                                                \
    } while (0)

typedef struct {
    firn_context *ctx;
    firn_model *model;
    firn_adapter *adapter;
} fixture;

static void open_model(fixture *f, const char *name)
{
    *f = (fixture){.ctx = firn_context_create(&(firn_context_params){.n_threads = 1})};
    assert_non_null(f->ctx);
    OK(f->ctx, firn_model_open(f->ctx, path_of(name), &f->model));
}

static void close_fixture(fixture *f)
{
    firn_adapter_destroy(f->adapter);
    firn_model_close(f->model);
    firn_context_destroy(f->ctx);
}

static void write_model(firn_context *ctx, const char *name, uint64_t seed)
{
    OK(ctx,
       firn_random_model_write(ctx, firn_random_shape_find("tiny-qwen3moe"), 0, FIRN_F32, seed, path_of(name), NULL));
}

static int make_files(void **state)
{
    const char *const types[] = {"q8_0", "q4_0", "q4_K", "q2_K"};
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    char name[64];

    if (!ctx || make_folder(state) != 0)
        return -1;
    write_model(ctx, "one.gguf", 3);
    write_model(ctx, "other.gguf", 4);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        firn_quantize_options o = {0};
        assert_true(firn_type_from_name(types[i], &o.type));
        snprintf(name, sizeof name, "one-%s.gguf", types[i]);
        char from[128];
        snprintf(from, sizeof from, "%s", path_of("one.gguf"));
        OK(ctx, firn_quantize(ctx, from, path_of(name), &o, NULL));
    }
    firn_context_destroy(ctx);
    return 0;
}

static void fingerprint_of(const char *name, char *text)
{
    fixture f;

    open_model(&f, name);
    OK(f.ctx, firn_model_fingerprint(f.ctx, f.model, text));
    assert_int_equal(strlen(text), FIRN_FINGERPRINT_BYTES - 1);
    close_fixture(&f);
}

static void a_fingerprint_holds_for_every_format_and_no_other_model(void **state)
{
    const char *const same[] = {"one.gguf", "one-q8_0.gguf", "one-q4_0.gguf", "one-q4_K.gguf", "one-q2_K.gguf"};
    char one[FIRN_FINGERPRINT_BYTES], is[FIRN_FINGERPRINT_BYTES];

    (void)state;
    fingerprint_of("one.gguf", one);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        fingerprint_of(same[i], is);
        if (!firn_fingerprints_agree(one, is))
            fail_msg("%s: %s is not %s", same[i], is, one);
    }
    fingerprint_of("other.gguf", is);
    assert_false(firn_fingerprints_agree(one, is));
    assert_true(firn_fingerprints_agree("", is)); /* adapters of other programs do not say */
    assert_false(firn_fingerprints_agree("12", one));
    memset(is, 'x', FIRN_FINGERPRINT_BYTES - 1);
    assert_false(firn_fingerprints_agree(is, is));
}

static void an_adapter_says_where_it_comes_from(void **state)
{
    char fingerprint[FIRN_FINGERPRINT_BYTES];
    firn_adapter *again;
    fixture f;

    (void)state;
    open_model(&f, "one-q4_0.gguf");
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, NULL, 2, 4, 1, &f.adapter));
    strcpy(f.adapter->origin.data, "cafe");
    OK(f.ctx, firn_adapter_save(f.ctx, f.adapter, NULL, path_of("a.gguf")));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, path_of("a.gguf"), &again));
    OK(f.ctx, firn_model_fingerprint(f.ctx, f.model, fingerprint));
    assert_string_equal(again->origin.base_fingerprint, fingerprint);
    assert_string_equal(again->origin.base_name, firn_model_get_info(f.model)->name);
    assert_string_equal(again->origin.version, firn_version());
    assert_string_equal(again->origin.data, "cafe");
    firn_adapter_destroy(again);
    close_fixture(&f);
    assert_int_equal(firn("info a.gguf"), 0);
    assert_non_null(strstr(out, "made for"));
    assert_non_null(strstr(out, "SHA-256 cafe"));
    assert_int_equal(firn("info a.gguf --json"), 0);
    assert_non_null(strstr(out, fingerprint));
}

static void every_command_refuses_another_model(void **state)
{
    static const char *const commands[] = {
        "logits %s --tokens t.json -o l.f32 --adapter a.gguf",
        "eval %s --data d.jsonl --adapter a.gguf --context 32",
        "export %s a.gguf peft",
        "finetune --model %s --data d.jsonl --adapter a.gguf --steps 1 --context 32 --eval-split 0 --output run-%s",
    };
    char command[512];

    (void)state;
    write_text("t.json", "[1, 2, 3]");
    write_text("d.jsonl", "{\"text\": \"snow and ice\"}\n{\"text\": \"ice and snow\"}\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(command, sizeof command, commands[i], "one-q8_0.gguf", "a"); /* another format is the same model */
        if (firn(command) != 0)
            fail_msg("%s: %s", command, err);
        snprintf(command, sizeof command, commands[i], "other.gguf", "b");
        assert_int_equal(firn(command), 1);
        if (!strstr(err, "the adapter was made for") || !strstr(err, "--force"))
            fail_msg("%s: %s", command, err);
        strcat(command, " --force");
        if (firn(command) != 0)
            fail_msg("%s: %s", command, err);
    }
    assert_int_equal(firn("generate other.gguf -p snow -n 1 --adapter a.gguf"), 1);
    assert_non_null(strstr(err, "the adapter was made for"));
    /* Trained on, it is that model's. */
    assert_int_equal(firn("logits other.gguf --tokens t.json -o l.f32 --adapter run-b/adapter.gguf"), 0);
    assert_int_equal(firn("logits one.gguf --tokens t.json -o l.f32 --adapter run-b/adapter.gguf"), 1);
    assert_int_equal(firn("info run-b/adapter.gguf"), 0);
    assert_non_null(strstr(out, "data           SHA-256"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fingerprint_holds_for_every_format_and_no_other_model),
        cmocka_unit_test(an_adapter_says_where_it_comes_from),
        cmocka_unit_test(every_command_refuses_another_model),
    };

    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
