/* Which model an adapter belongs to: its fingerprint holds for every weight format of a model and for no other model,
 * stands in what is saved, and refuses another one in each command that takes an adapter. And what adapters are among
 * each other: sums, multiples, distances, against the updates multiplied out in double. */
#include "unit/command.h"

#include "core/context.h"
#include "firn/quantize.h"
#include "model/random_model.h"
#include "train/adapters.h"
#include "train/origin.h"

#include <math.h>

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
    /* What else lies there. */
    char page[8192], where[256];
    slurp("run-b/Modelfile", page, sizeof page);
    snprintf(where, sizeof where, "FROM %s\nADAPTER ./adapter.gguf\nPARAMETER num_ctx ", path_of("other.gguf"));
    assert_memory_equal(page, where, strlen(where));
    slurp("run-b/README.md", page, sizeof page);
    assert_memory_equal(page, "---\nlibrary_name: gguf\n", 22);
    assert_non_null(strstr(page, "| steps | 1 |"));
    assert_non_null(strstr(page, "| SHA-256 of the data | `"));
    assert_int_equal(firn("info run-b/adapter.gguf"), 0);
    assert_non_null(strstr(out, "data           SHA-256"));
}

/* ---- adapters among each other ---- */

/* Value [k, o] of expert x's update. */
static double update_at(const firn_adapter *ad, const firn_adapter_entry *e, int64_t x, int64_t o, int64_t k)
{
    double sum = 0;

    for (int64_t r = 0; r < e->rank; r++)
        sum += (double)ad->values[e->b + (x * e->n_out + o) * e->rank + r] *
               (double)ad->values[e->a + (x * e->rank + r) * e->n_in + k];
    return (double)e->scale * sum;
}

static void make_adapter(fixture *f, const char *targets, int64_t rank, float alpha, float phase, const char *name)
{
    firn_adapter_destroy(f->adapter);
    OK(f->ctx, firn_adapter_create(f->ctx, f->model, targets, rank, alpha, 1, &f->adapter));
    for (int i = 0; i < f->adapter->n_entries; i++) {
        const firn_adapter_entry *e = &f->adapter->entries[i];
        for (int64_t k = 0; k < e->rank * e->n_out * e->n_expert; k++)
            f->adapter->values[e->b + k] = 0.1f * sinf(phase * (float)k + (float)i);
    }
    OK(f->ctx, firn_adapter_save(f->ctx, f->adapter, NULL, path_of(name)));
}

static firn_adapter *opened(fixture *f, const char *name)
{
    firn_adapter *ad;

    OK(f->ctx, firn_adapter_open(f->ctx, path_of(name), &ad));
    return ad;
}

/* sum = x one + y two, value by value */
static void check_sum(fixture *f, const char *sum, double x, const char *one, double y, const char *two)
{
    firn_adapter *s = opened(f, sum), *a = opened(f, one), *b = two ? opened(f, two) : NULL;
    int seen = 0;

    for (int i = 0; i < s->n_entries; i++) {
        const firn_adapter_entry *e = &s->entries[i], *ea = firn_adapter_find(a, e->tensor),
                                 *eb = b ? firn_adapter_find(b, e->tensor) : NULL;
        double square = 0;
        assert_true(ea || eb);
        assert_int_equal(e->class_, (ea ? ea : eb)->class_);
        seen += (ea != NULL) + (eb != NULL);
        for (int64_t q = 0; q < e->n_expert; q++)
            for (int64_t o = 0; o < e->n_out; o++)
                for (int64_t k = 0; k < e->n_in; k++) {
                    const double is = update_at(s, e, q, o, k);
                    const double wanted =
                        (ea ? x * update_at(a, ea, q, o, k) : 0) + (eb ? y * update_at(b, eb, q, o, k) : 0);
                    if (!(fabs(is - wanted) < 1e-6))
                        fail_msg("%s: %g in place of %g", e->tensor, is, wanted);
                    square += is * is;
                }
        const double product = firn_updates_product(s, e, s, e);
        assert_true(square > 0 && fabs(product - square) < 1e-5 * square);
    }
    assert_int_equal(seen, a->n_entries + (b ? b->n_entries : 0));
    firn_adapter_destroy(s);
    firn_adapter_destroy(a);
    firn_adapter_destroy(b);
}

static void sums_and_multiples_are_exact(void **state)
{
    fixture f;

    (void)state;
    open_model(&f, "one.gguf");
    make_adapter(&f, "attention,experts", 3, 5, 0.7f, "x.gguf");
    make_adapter(&f, "experts,router", 2, 0, 0.3f, "y.gguf");
    assert_int_equal(firn("adapter merge sum.gguf x.gguf:-0.5 y.gguf:2"), 0);
    assert_string_equal(out, "sum.gguf: the sum of 2 adapters on 16 tensors, of rank 5 at most\n");
    check_sum(&f, "sum.gguf", -0.5, "x.gguf", 2, "y.gguf");
    assert_int_equal(firn("adapter scale x.gguf 0.25 scaled.gguf"), 0);
    check_sum(&f, "scaled.gguf", 0.25, "x.gguf", 0, NULL);
    assert_int_equal(firn("adapter scale -- y.gguf -3 scaled.gguf"), 0); /* no alpha: by B */
    check_sum(&f, "scaled.gguf", -3, "y.gguf", 0, NULL);
    /* What comes out is an adapter of the model. */
    assert_int_equal(firn("logits one.gguf --tokens t.json -o l.f32 --adapter sum.gguf"), 0);
    assert_int_equal(firn("logits other.gguf --tokens t.json -o l.f32 --adapter sum.gguf"), 1);
    close_fixture(&f);
}

static void differences_are_told(void **state)
{
    (void)state;
    assert_int_equal(firn("adapter diff x.gguf x.gguf --json"), 0);
    assert_non_null(strstr(out, "\"cosine\": 1"));
    assert_int_equal(firn("adapter scale -- x.gguf -1 minus.gguf"), 0);
    assert_int_equal(firn("adapter diff x.gguf minus.gguf"), 0);
    assert_non_null(strstr(out, "  -1.0000 "));
    assert_int_equal(firn("adapter diff x.gguf y.gguf"), 0);
    assert_non_null(strstr(out, "blk.0.ffn_gate_inp.weight "));
    assert_int_equal(firn("adapter info x.gguf"), 0);
    assert_non_null(strstr(out, "|update|"));
    assert_int_equal(firn("adapter info x.gguf --json"), 0);
    assert_non_null(strstr(out, "\"updates\": ["));
}

static void what_does_not_belong_together_is_refused(void **state)
{
    const refusal cases[] = {
        {"adapter foo x.gguf", 2,
         "firn: there is no 'adapter foo': expected info, diff, merge or scale (firn adapter --help)\n"},
        {"adapter diff x.gguf", 2, "firn: 'adapter diff' takes two adapters (firn adapter --help)\n"},
        {"adapter scale x.gguf a out.gguf", 2, "firn: the factor is a number, not 'a' (firn adapter --help)\n"},
        {"adapter scale x.gguf 0 out.gguf", 1, "firn: the factor is a finite number other than 0, not 0\n"},
        {"adapter info one.gguf", 1,
         "firn: one.gguf is neither an adapter nor a checkpoint (firn info shows models)\n"},
        {"adapter merge out.gguf x.gguf:y", 1,
         "firn: x.gguf:y: expected a number behind the colon, as in a.gguf:0.5\n"},
    };
    fixture f;

    (void)state;
    check_refusals(cases, sizeof cases / sizeof *cases);
    open_model(&f, "other.gguf");
    make_adapter(&f, "attention", 3, 5, 0.7f, "z.gguf");
    close_fixture(&f);
    assert_int_equal(firn("adapter merge out.gguf x.gguf z.gguf"), 1);
    assert_non_null(strstr(err, "updates of two models do not belong together"));
    assert_int_equal(firn("adapter diff x.gguf z.gguf"), 1);
    assert_false(is_there("out.gguf"));
    assert_int_equal(firn("adapter merge out.gguf x.gguf z.gguf --force"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fingerprint_holds_for_every_format_and_no_other_model),
        cmocka_unit_test(an_adapter_says_where_it_comes_from),
        cmocka_unit_test(every_command_refuses_another_model),
        cmocka_unit_test(sums_and_multiples_are_exact),
        cmocka_unit_test(differences_are_told),
        cmocka_unit_test(what_does_not_belong_together_is_refused),
    };

    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
