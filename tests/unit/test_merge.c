/* firn merge: a merged model says what the model says with the adapter, in every architecture and format; what would be
 * lost is kept in a better type; nothing else changes. */
#include "format/format.h" /* before `out` */

#include "unit/command.h"

#include "core/context.h"
#include "firn/merge.h"
#include "model/model.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>

#define CASES FIRN_SOURCE_DIR "/tests/data/cases"

/* firn merge MODEL ADAPTER out.gguf ARGS --json; the reference is the caller's. */
static json_t *merged(const char *name, const char *args)
{
    char command[1024];

    snprintf(command, sizeof command,
             "merge " CASES "/%s/model.gguf " CASES "/%s/lora_start.gguf out.gguf --json --threads 2 %s", name, name,
             args);
    if (firn(command) != 0)
        fail_msg("%s: %s", command, err);
    FILE *f = fopen(path_of("out"), "rb"); /* longer than `out` perhaps */
    json_error_t error;
    json_t *json = json_loadf(f, 0, &error);
    fclose(f);
    assert_non_null(json);
    return json;
}

static double number(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

static void check_exact(const char *name)
{
    json_t *json = merged(name, "--type f32");
    const json_t *logits = json_object_get(json, "logits");

    if (!(number(logits, "kl") < 1e-10 && number(logits, "nmse") < 1e-10 && number(logits, "kl_of_update") > 1e-3))
        fail_msg("%s: KL %g of %g, NMSE %g", name, number(logits, "kl"), number(logits, "kl_of_update"),
                 number(logits, "nmse"));
    assert_true(number(logits, "same_likeliest") == 1);
    assert_true(json_integer_value(json_object_get(json, "changed")) > 0);
    json_decref(json);
}

static void merged_logits_are_the_adapters(void **state)
{
    DIR *dir = opendir(CASES);
    int n = 0;

    (void)state;
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        char path[512];
        snprintf(path, sizeof path, CASES "/%s/lora_start.gguf", e->d_name);
        if (access(path, F_OK) == 0) {
            check_exact(e->d_name);
            n++;
        }
    }
    closedir(dir);
    assert_true(n > 20);
}

static void what_would_be_lost_is_kept_in_a_better_type(void **state)
{
    json_t *lost, *kept;

    (void)state;
    lost = merged("mixtral-q4_0", "--scale 0.1 --type q4_0");
    kept = merged("mixtral-q4_0", "--scale 0.1");
    const json_t *a = json_object_get(lost, "updates"), *b = json_object_get(kept, "updates");
    assert_true(json_array_size(a) == 16 && json_array_size(b) == 16);
    for (size_t i = 0; i < 16; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        const char *from = json_string_value(json_object_get(x, "from"));
        if (strcmp(from, "q4_0") == 0) {
            assert_string_equal(json_string_value(json_object_get(x, "type")), "q4_0");
            assert_string_equal(json_string_value(json_object_get(y, "type")), "q8_0");
            assert_true(number(x, "survives") < 0.4);
        } else {
            assert_string_equal(json_string_value(json_object_get(y, "type")), from);
        }
        assert_true(number(y, "survives") > 0.9 && number(y, "survives") < 1.1);
        assert_true(fabs(number(x, "update") - number(y, "update")) < 1e-12);
    }
    const json_t *l = json_object_get(lost, "logits"), *k = json_object_get(kept, "logits");
    assert_true(number(l, "kl") > 0.5 * number(l, "kl_of_update"));
    assert_true(number(k, "kl") < 0.1 * number(k, "kl_of_update"));
    json_decref(lost);
    json_decref(kept);
    /* An update that is large beside the format's steps stays in it. */
    kept = merged("mixtral-q4_0", "");
    assert_int_equal(json_integer_value(json_object_get(kept, "retyped")), 0);
    json_decref(kept);
}

/* What the numbers say, from the two files. */
static void what_is_told_is_true(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_model *model;
    firn_adapter *ad;
    firn_gguf *g;

    (void)state;
    json_t *json = merged("qwen3moe", "--type q8_0 --no-check");
    assert_null(json_object_get(json, "logits"));
    assert_int_equal(firn_model_open(ctx, CASES "/qwen3moe/model.gguf", &model), FIRN_OK);
    assert_int_equal(firn_adapter_load(ctx, model, CASES "/qwen3moe/lora_start.gguf", &ad), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, path_of("out.gguf"), &g), FIRN_OK);
    const firn_adapter_entry *e = &ad->entries[0];
    const firn_gguf_tensor *t = firn_gguf_find(firn_model_gguf(model), e->tensor), *u = firn_gguf_find(g, e->tensor);
    assert_true(t->type == FIRN_F32 && u->type == FIRN_Q8_0);
    double w = 0, d = 0, product = 0, error = 0, sum = 0;
    float x[4096], y[4096];
    for (int64_t o = 0; o < e->n_out; o++) {
        memcpy(x, t->data + (size_t)(o * e->n_in) * sizeof *x, (size_t)e->n_in * sizeof *x);
        firn_decode_row(u->type, u->data + (size_t)o * firn_row_bytes(u->type, e->n_in), e->n_in, y);
        for (int64_t k = 0; k < e->n_in; k++) {
            double update = 0;
            for (int64_t r = 0; r < e->rank; r++)
                update += (double)e->scale * (double)ad->values[e->b + o * e->rank + r] *
                          (double)ad->values[e->a + r * e->n_in + k];
            const double wanted = (double)x[k] + update;
            w += (double)x[k] * (double)x[k];
            d += update * update;
            sum += wanted * wanted;
            product += ((double)y[k] - (double)x[k]) * update;
            error += ((double)y[k] - wanted) * ((double)y[k] - wanted);
        }
    }
    const json_t *told = json_array_get(json_object_get(json, "updates"), 0);
    assert_string_equal(json_string_value(json_object_get(told, "tensor")), e->tensor);
    assert_true(fabs(number(told, "update") - sqrt(d / w)) < 1e-6);
    assert_true(fabs(number(told, "survives") - product / d) < 1e-5);
    assert_true(fabs(number(told, "error") - sqrt(error / sum)) < 1e-5);
    /* What the adapter does not change is the same bytes. */
    int same = 0;
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *is = firn_gguf_tensor_at(g, i), *was = firn_gguf_tensor_at(firn_model_gguf(model), i);
        assert_string_equal(is->name, was->name);
        if (strstr(is->name, "norm") || strstr(is->name, "embd")) {
            assert_memory_equal(is->data, was->data, was->size);
            same++;
        }
    }
    assert_true(same > 5);
    json_decref(json);
    firn_gguf_close(g);
    firn_adapter_destroy(ad);
    firn_model_close(model);
    firn_context_destroy(ctx);
}

static void threads_change_no_bit(void **state)
{
    const char *line = "merge " CASES "/mixtral-q4_0/model.gguf " CASES
                       "/mixtral-q4_0/lora_start.gguf %s --scale 0.05 --no-check --threads %d";
    char command[1024];

    (void)state;
    for (int n = 1; n <= 3; n += 2) {
        snprintf(command, sizeof command, line, n == 1 ? "one.gguf" : "three.gguf", n);
        assert_int_equal(firn(command), 0);
    }
    snprintf(command, sizeof command, "cmp %s/one.gguf %s/three.gguf", folder, folder);
    assert_int_equal(system(command), 0);
}

static void a_merged_model_is_another(void **state)
{
    (void)state;
    json_decref(merged("qwen3moe", "--no-check"));
    write_text("t.json", "[1, 2, 3]");
    char command[1024];
    /* Of the case's adapter nothing is known; of one that was made here it is. */
    snprintf(command, sizeof command, "adapter scale " CASES "/qwen3moe/lora_start.gguf 1 a.gguf");
    assert_int_equal(firn(command), 0);
    write_text("d.jsonl", "{\"text\": \"snow and ice\"}\n{\"text\": \"ice and snow\"}\n");
    assert_int_equal(firn("init --like tiny-qwen3moe --type f32 base.gguf"), 0);
    assert_int_equal(
        firn("finetune --model base.gguf --data d.jsonl --steps 1 --context 16 --eval-split 0 --output run"), 0);
    assert_int_equal(firn("merge base.gguf run/adapter.gguf run.gguf"), 0);
    assert_non_null(strstr(out, "of the update 100.0 % survives"));
    assert_int_equal(firn("logits run.gguf --tokens t.json -o l.f32"), 0);
    assert_int_equal(firn("merge run.gguf run/adapter.gguf twice.gguf"), 1);
    assert_non_null(strstr(err, "the adapter was made for"));
    assert_false(is_there("twice.gguf"));
    assert_int_equal(firn("merge base.gguf run/adapter.gguf base.gguf --no-check"), 0); /* onto itself */
    assert_int_equal(firn("merge base.gguf run/adapter.gguf twice.gguf"), 1);
}

static void refusals(void **state)
{
    const refusal cases[] = {
        {"merge base.gguf run/adapter.gguf x.gguf --type iq1_s", 2,
         "firn: --type is keep or a type that can be written, not 'iq1_s' (firn merge --help)\n"},
        {"merge base.gguf run/adapter.gguf x.gguf --scale 0", 2,
         "firn: with --scale 0 there is nothing to merge (firn merge --help)\n"},
        {"merge base.gguf base.gguf x.gguf --force", 1, "firn: base.gguf: the file has no key 'general.type'\n"},
        {"merge base.gguf run/adapter.gguf no/x.gguf --force", 1,
         "firn: cannot write no/x.gguf: No such file or directory\n"},
    };

    (void)state;
    check_refusals(cases, sizeof cases / sizeof *cases);
    /* A weight that becomes infinite. */
    assert_int_equal(firn("adapter scale run/adapter.gguf 1e30 huge.gguf"), 0);
    assert_int_equal(firn("merge base.gguf huge.gguf huge.gguf x.gguf --scale 1e6 --force --type f16"), 1);
    assert_false(is_there("x.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_logits_are_the_adapters), cmocka_unit_test(what_would_be_lost_is_kept_in_a_better_type),
        cmocka_unit_test(what_is_told_is_true),           cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_merged_model_is_another),      cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
