/* Adapters exported for PEFT: the names, and that B A of the written factors, folded as PEFT unfolds them, is B A of
 * the adapter, row by row in transformers' order. (That PEFT itself loads them and computes the same is in
 * docs/finetune.md.)
 */
#include "unit/model.h"

#include "core/file.h"
#include "firn/export.h"
#include "model/random_model.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct {
    fixture f;
    char *bytes;
    const float *values;
    json_t *header, *config;
} exported;

/* A small model of that shape, an adapter with random factors on `targets`, and what is written of it. */
static void export(exported *x, const char *shape, const char *targets)
{
    const char *path = in_scratch("model.gguf");
    firn_context *ctx = firn_context_create(NULL);
    int64_t n;
    size_t size;
    uint64_t length = 0;

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    open_at(&x->f, path, NULL, 1);
    ctx = x->f.ctx;
    OK(ctx, firn_adapter_create(ctx, x->f.model, targets, 3, 6, 1, &x->f.adapter));
    for (int64_t i = 0; i < x->f.adapter->n_values; i++)
        x->f.adapter->values[i] = sinf(0.7f * (float)i);
    OK(ctx, firn_adapter_export_peft(ctx, x->f.model, x->f.adapter, in_scratch("peft"), &n));
    OK(ctx, firn_file_read(ctx, in_scratch("peft/adapter_model.safetensors"), 0, &x->bytes, &size));
    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)x->bytes[i];
    assert_true(length % 8 == 0 && length < size);
    x->header = json_loadb(x->bytes + 8, length, 0, NULL);
    x->config = json_load_file(in_scratch("peft/adapter_config.json"), 0, NULL);
    assert_non_null(x->header);
    assert_non_null(x->config);
    assert_int_equal(json_object_size(x->header), n + 1);
    x->values = (const float *)(const void *)(x->bytes + 8 + length);
    /* The tensors fill the file, one behind the other. */
    const char *name;
    json_t *t;
    uint64_t at = 0;
    json_object_foreach(x->header, name, t)
    {
        const json_t *offsets = json_object_get(t, "data_offsets");
        if (!offsets)
            continue;
        assert_int_equal(json_integer_value(json_array_get(offsets, 0)), at);
        at = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    }
    assert_int_equal(at, size - 8 - length);
}

static void forget(exported *x)
{
    json_decref(x->header);
    json_decref(x->config);
    firn_free(x->f.ctx, x->bytes);
    close_fixture(&x->f);
}

static const float *factor(const exported *x, const char *module, char which, int64_t shape[2])
{
    char name[256];

    snprintf(name, sizeof name, "base_model.model.%s.lora_%c.weight", module, which);
    const json_t *t = json_object_get(x->header, name);
    if (!t)
        fail_msg("%s is missing", name);
    for (size_t i = 0; i < 2; i++)
        shape[i] = json_integer_value(json_array_get(json_object_get(t, "shape"), i));
    return x->values + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0)) / 4;
}

static const firn_adapter_entry *entry(const exported *x, const char *tensor)
{
    for (int i = 0; i < x->f.adapter->n_entries; i++)
        if (strcmp(x->f.adapter->entries[i].tensor, tensor) == 0)
            return &x->f.adapter->entries[i];
    fail_msg("%s has no adapter", tensor);
    return NULL;
}

/* Element (o, i) of expert's B A. */
static double theirs(const exported *x, const char *module, int64_t E, int64_t expert, int64_t o, int64_t i)
{
    int64_t a[2], b[2];
    const float *A = factor(x, module, 'A', a), *B = factor(x, module, 'B', b);
    const int64_t r = a[0] / E;
    double sum = 0;

    assert_int_equal(a[0], b[1]);
    assert_true(o < b[0] && i < a[1]);
    for (int64_t j = 0; j < r; j++)
        sum += (double)A[(expert * r + j) * a[1] + i] * (double)B[o * b[1] + j * E + expert];
    return sum;
}

static double ours(const exported *x, const char *tensor, int64_t expert, int64_t o, int64_t i)
{
    const firn_adapter_entry *e = entry(x, tensor);
    double sum = 0;

    for (int64_t j = 0; j < e->rank; j++)
        sum += (double)x->f.adapter->values[e->a + (expert * e->rank + j) * e->n_in + i] *
               (double)x->f.adapter->values[e->b + (expert * e->n_out + o) * e->rank + j];
    return sum;
}

/* Row o of the module is row o' of the tensor. */
static void same(const exported *x, const char *module, int64_t E, int64_t expert, int64_t o, const char *tensor,
                 int64_t row)
{
    for (int64_t i = 0; i < 64; i += 21) {
        const double a = theirs(x, module, E, expert, o, i), b = ours(x, tensor, expert, row, i);
        if (!(fabs(a - b) < 1e-5))
            fail_msg("%s row %d, %s row %d: %g and %g", module, (int)o, tensor, (int)row, a, b);
    }
}

static bool targets(const exported *x, const char *list, const char *name)
{
    size_t i;
    json_t *value;

    json_array_foreach(json_object_get(x->config, list), i,
                       value) if (strcmp(json_string_value(value), name) == 0) return true;
    return false;
}

#define L1 "model.layers.1."

static void test_stacked(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-qwen3moe", "all");
    for (int64_t e = 0; e < 8; e += 3) {
        for (int64_t o = 0; o < 128; o += 13) {
            same(&x, L1 "mlp.experts.base_layer", 8, e, o, "blk.1.ffn_gate_exps.weight", o);
            same(&x, L1 "mlp.experts.base_layer", 8, e, 128 + o, "blk.1.ffn_up_exps.weight", o);
        }
        for (int64_t o = 0; o < 256; o += 17)
            same(&x, L1 "mlp.experts", 8, e, o, "blk.1.ffn_down_exps.weight", o);
    }
    for (int64_t o = 0; o < 8; o++)
        same(&x, L1 "mlp.gate", 1, 0, o, "blk.1.ffn_gate_inp.weight", o);
    for (int64_t o = 0; o < 256; o += 5)
        same(&x, L1 "self_attn.q_proj", 1, 0, o, "blk.1.attn_q.weight", o);
    same(&x, "lm_head", 1, 0, 500, "output.weight", 500);
    assert_true(targets(&x, "target_modules", "q_proj") && targets(&x, "target_modules", "lm_head"));
    assert_true(targets(&x, "target_parameters", "mlp.experts.gate_up_proj"));
    assert_true(targets(&x, "target_parameters", "mlp.experts.down_proj"));
    assert_true(targets(&x, "target_parameters", "mlp.gate.weight"));
    assert_int_equal(json_array_size(json_object_get(x.config, "target_modules")), 5);
    assert_int_equal(json_array_size(json_object_get(x.config, "target_parameters")), 3);
    assert_int_equal(json_integer_value(json_object_get(x.config, "r")), 3);
    assert_true(json_number_value(json_object_get(x.config, "lora_alpha")) == 6);
    const json_t *ranks = json_object_get(x.config, "rank_pattern"),
                 *alphas = json_object_get(x.config, "alpha_pattern");
    assert_int_equal(json_object_size(ranks), 1);
    assert_int_equal(json_integer_value(json_object_get(ranks, "mlp.experts.gate_up_proj")), 6);
    assert_true(json_number_value(json_object_get(alphas, "mlp.experts.gate_up_proj")) == 12);
    forget(&x);
}

static void test_alternating(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-gpt-oss", "all");
    for (int64_t o = 0; o < 64; o += 7) {
        same(&x, L1 "mlp.experts.base_layer", 8, 5, 2 * o, "blk.1.ffn_gate_exps.weight", o);
        same(&x, L1 "mlp.experts.base_layer", 8, 5, 2 * o + 1, "blk.1.ffn_up_exps.weight", o);
    }
    same(&x, L1 "mlp.router", 1, 0, 7, "blk.1.ffn_gate_inp.weight", 7);
    assert_true(targets(&x, "target_parameters", "mlp.router.weight"));
    forget(&x);
}

/* Heads of 32: GGUF's row 2 i + half is row 16 half + i there. */
static void test_permuted(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny-llama", "tiny-granite", "tiny-granitemoe", "tiny-smollm3"};
    exported x;

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        export(&x, shapes[s], "attention");
        for (int64_t o = 0; o < 64; o++) {
            const int64_t row = o / 32 * 32 + 2 * (o % 16) + o % 32 / 16;
            same(&x, L1 "self_attn.q_proj", 1, 0, o, "blk.1.attn_q.weight", row);
            same(&x, L1 "self_attn.k_proj", 1, 0, o, "blk.1.attn_k.weight", row);
            same(&x, L1 "self_attn.v_proj", 1, 0, o, "blk.1.attn_v.weight", o);
        }
        forget(&x);
    }
}

static void test_fused(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-qwen2", "all");
    same(&x, L1 "self_attn.q_proj", 1, 0, 100, "blk.1.attn_qkv.weight", 100);
    same(&x, L1 "self_attn.k_proj", 1, 0, 33, "blk.1.attn_qkv.weight", 128 + 33);
    same(&x, L1 "self_attn.v_proj", 1, 0, 33, "blk.1.attn_qkv.weight", 192 + 33);
    assert_true(targets(&x, "target_modules", "gate_proj")); /* a dense model: no experts to be taken for */
    forget(&x);
    export(&x, "tiny-bailingmoe2", "attention,experts,shared");
    same(&x, L1 "attention.query_key_value", 1, 0, 200, "blk.1.attn_qkv.weight", 200);
    same(&x, L1 "attention.dense", 1, 0, 100, "blk.1.attn_output.weight", 100);
    int64_t shape[2];
    factor(&x, L1 "mlp.experts.11.gate_proj", 'A', shape);
    assert_true(shape[0] == 3 && shape[1] == 128);
    factor(&x, L1 "mlp.shared_experts.down_proj", 'A', shape);
    assert_true(targets(&x, "target_modules", "gate_proj")); /* all experts'; and shared ones, by no second way: */
    assert_true(targets(&x, "target_modules", "model.layers.1.mlp.shared_experts.gate_proj"));
    assert_false(targets(&x, "target_parameters", "mlp.shared_experts.gate_proj.weight"));
    forget(&x);
    export(&x, "tiny-bailingmoe2", "shared");
    assert_false(targets(&x, "target_modules", "gate_proj")); /* would mean the experts */
    forget(&x);
}

/* Names of their own: a text model inside a larger one, gates on attention, routers in a module. */
static void test_names(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-qwen3vlmoe", "all");
    same(&x, "model.language_model.layers.1.self_attn.q_proj", 1, 0, 100, "blk.1.attn_q.weight", 100);
    same(&x, "model.language_model.layers.1.mlp.experts", 8, 5, 100, "blk.1.ffn_down_exps.weight", 100);
    same(&x, "lm_head", 1, 0, 500, "output.weight", 500);
    assert_true(targets(&x, "target_parameters", "mlp.experts.down_proj"));
    forget(&x);
    export(&x, "tiny-afmoe", "attention,router");
    same(&x, L1 "self_attn.gate_proj", 1, 0, 100, "blk.1.attn_gate.weight", 100);
    same(&x, L1 "mlp.router.gate", 1, 0, 7, "blk.1.ffn_gate_inp.weight", 7);
    assert_true(targets(&x, "target_parameters", "self_attn.gate_proj.weight"));
    assert_true(targets(&x, "target_parameters", "mlp.router.gate.weight"));
    forget(&x);
    export(&x, "tiny-hunyuan-moe", "shared,router");
    same(&x, L1 "mlp.shared_mlp.up_proj", 1, 0, 77, "blk.1.ffn_up_shexp.weight", 77);
    same(&x, L1 "mlp.gate.wg", 1, 0, 7, "blk.1.ffn_gate_inp.weight", 7);
    forget(&x);
    export(&x, "tiny-gemma4-moe", "experts,router,dense");
    same(&x, L1 "router.proj", 1, 0, 7, "blk.1.ffn_gate_inp.weight", 7);
    same(&x, L1 "mlp.up_proj", 1, 0, 77, "blk.1.ffn_up.weight", 77);
    same(&x, L1 "experts.base_layer", 8, 3, 100, "blk.1.ffn_gate_up_exps.weight", 100);
    const firn_gguf_tensor *scale = firn_gguf_find(firn_model_gguf(x.f.model), "blk.1.ffn_down_exps.scale");
    for (int64_t e = 0; e < 8; e++) /* transformers multiplies by the scale what the adapter adds */
        assert_true(
            fabs(theirs(&x, L1 "experts", 8, e, 100, 5) * (double)((const float *)(const void *)scale->data)[e] -
                 ours(&x, "blk.1.ffn_down_exps.weight", e, 100, 5)) < 1e-5);
    forget(&x);
    export(&x, "tiny-gemma4-e", "all"); /* blocks 4 and 5 have no keys: others are adapted in all that have them */
    same(&x, L1 "per_layer_input_gate", 1, 0, 31, "blk.1.inp_gate.weight", 31);
    for (int64_t i = 0; i < 32; i += 31)
        assert_true(fabs(theirs(&x, L1 "per_layer_projection", 1, 0, 77, i) - ours(&x, "blk.1.proj.weight", 0, 77, i)) <
                    1e-5);
    assert_true(targets(&x, "target_modules", "per_layer_input_gate"));
    assert_true(targets(&x, "target_modules", "k_proj"));
    forget(&x);
    export(&x, "tiny-mistral4", "experts");
    same(&x, L1 "mlp.experts.base_layer", 8, 3, 100, "blk.1.ffn_gate_up_exps.weight", 100);
    assert_int_equal(json_object_size(json_object_get(x.config, "rank_pattern")), 0); /* one tensor: no more rank */
    forget(&x);
}

/* Delta nets, filters, Mamba: value heads in another order, or two products as one. */
static void test_mixers(void **state)
{
    (void)state;
    exported x;
    int64_t shape[2];

    export(&x, "tiny-qwen35", "all"); /* 2 key heads, 6 value heads of 32: head 2 r + i is head 3 i + r there */
    for (int64_t head = 0; head < 6; head++) {
        const int64_t there = head / 2 + 3 * (head % 2);
        same(&x, L1 "linear_attn.in_proj_qkv", 1, 0, 128 + 32 * there + 5, "blk.1.attn_qkv.weight",
             128 + 32 * head + 5);
        same(&x, L1 "linear_attn.in_proj_z", 1, 0, 32 * there + 31, "blk.1.attn_gate.weight", 32 * head + 31);
        same(&x, L1 "linear_attn.in_proj_b", 1, 0, there, "blk.1.ssm_beta.weight", head);
        same(&x, L1 "linear_attn.in_proj_a", 1, 0, there, "blk.1.ssm_alpha.weight", head);
        for (int64_t i = 0; i < 32; i += 31)
            assert_true(fabs(theirs(&x, L1 "linear_attn.out_proj", 1, 0, 77, 32 * there + i) -
                             ours(&x, "blk.1.ssm_out.weight", 0, 77, 32 * head + i)) < 1e-5);
    }
    same(&x, L1 "linear_attn.in_proj_qkv", 1, 0, 127, "blk.1.attn_qkv.weight", 127); /* q and k stay */
    same(&x, "model.layers.3.self_attn.q_proj", 1, 0, 200, "blk.3.attn_q.weight", 200);
    assert_true(targets(&x, "target_modules", "model.layers.1.linear_attn.out_proj"));
    forget(&x);
    export(&x, "tiny-qwen3next",
           "attention"); /* 2 key heads of 16, 4 value heads: per key head q, k, v, z of 96 rows */
    factor(&x, L1 "linear_attn.in_proj_qkvz", 'A', shape);
    assert_true(shape[0] == 6);
    for (int64_t i = 0; i < 2; i++) {
        same(&x, L1 "linear_attn.in_proj_qkvz", 1, 0, 96 * i + 3, "blk.1.attn_qkv.weight", 16 * i + 3);
        same(&x, L1 "linear_attn.in_proj_qkvz", 1, 0, 96 * i + 16 + 3, "blk.1.attn_qkv.weight", 32 + 16 * i + 3);
        same(&x, L1 "linear_attn.in_proj_qkvz", 1, 0, 96 * i + 32 + 30, "blk.1.attn_qkv.weight", 64 + 32 * i + 30);
        same(&x, L1 "linear_attn.in_proj_qkvz", 1, 0, 96 * i + 64 + 30, "blk.1.attn_gate.weight", 32 * i + 30);
    }
    same(&x, L1 "linear_attn.in_proj_ba", 1, 0, 5, "blk.1.ssm_ba.weight", 5);
    forget(&x);
    export(&x, "tiny-qwen3next-in", "attention");
    same(&x, L1 "linear_attn.in_proj_qkvz", 1, 0, 100, "blk.1.ssm_in.weight", 100);
    forget(&x);
    export(&x, "tiny-lfm2moe", "all");
    same(&x, L1 "conv.in_proj", 1, 0, 300, "blk.1.shortconv.in_proj.weight", 300);
    same(&x, "model.layers.2.self_attn.out_proj", 1, 0, 100, "blk.2.attn_output.weight", 100);
    same(&x, "model.layers.0.feed_forward.w3", 1, 0, 77, "blk.0.ffn_up.weight", 77);
    same(&x, L1 "feed_forward.experts", 8, 3, 100, "blk.1.ffn_down_exps.weight", 100);
    assert_true(targets(&x, "target_modules", "model.layers.1.conv.out_proj"));
    forget(&x);
    export(&x, "tiny-nemotron-h-moe-latent", "all");
    same(&x, "model.layers.0.mixer.in_proj", 1, 0, 100, "blk.0.ssm_in.weight", 100);
    same(&x, L1 "mixer.experts.base_layer", 8, 3, 50, "blk.1.ffn_up_exps.weight", 50);
    same(&x, L1 "mixer.experts", 8, 3, 50, "blk.1.ffn_down_exps.weight", 50);
    same(&x, L1 "mixer.shared_experts.up_proj", 1, 0, 50, "blk.1.ffn_up_shexp.weight", 50);
    forget(&x);
    export(&x, "tiny-granitehybrid-dense", "all");
    same(&x, "model.layers.0.mamba.out_proj", 1, 0, 100, "blk.0.ssm_out.weight", 100);
    same(&x, L1 "shared_mlp.input_linear", 1, 0, 192 + 7, "blk.1.ffn_up.weight", 7);
    forget(&x);
    export(&x, "tiny-kimi-linear", "blk.0.ssm_f_a.weight,blk.0.attn_q.weight");
    same(&x, "model.layers.0.self_attn.forget_gate.f_a_proj", 1, 0, 11, "blk.0.ssm_f_a.weight", 11);
    same(&x, "model.layers.0.self_attn.q_proj", 1, 0, 50, "blk.0.attn_q.weight", 50);
    forget(&x);
}

static void test_shared(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-qwen2moe", "shared");
    same(&x, L1 "mlp.shared_expert_gate", 1, 0, 0, "blk.1.ffn_gate_inp_shexp.weight", 0);
    same(&x, L1 "mlp.shared_expert.up_proj", 1, 0, 77, "blk.1.ffn_up_shexp.weight", 77);
    assert_true(targets(&x, "target_parameters", "mlp.shared_expert.up_proj.weight"));
    assert_true(targets(&x, "target_modules", "shared_expert_gate"));
    forget(&x);
    export(&x, "tiny-granitemoe", "shared,router");
    for (int64_t o = 0; o < 96; o += 7) {
        same(&x, L1 "shared_mlp.input_linear", 1, 0, o, "blk.1.ffn_gate_shexp.weight", o);
        same(&x, L1 "shared_mlp.input_linear", 1, 0, 96 + o, "blk.1.ffn_up_shexp.weight", o);
        same(&x, L1 "shared_mlp.output_linear", 1, 0, o, "blk.1.ffn_down_shexp.weight", o);
    }
    same(&x, L1 "block_sparse_moe.router", 1, 0, 3, "blk.1.ffn_gate_inp.weight", 3);
    forget(&x);
    export(&x, "tiny-glm4moe", "dense,shared");
    same(&x, "model.layers.0.mlp.gate_proj", 1, 0, 77, "blk.0.ffn_gate.weight", 77);
    assert_true(targets(&x, "target_parameters", "mlp.gate_proj.weight"));
    assert_true(targets(&x, "target_parameters", "mlp.shared_experts.gate_proj.weight"));
    forget(&x);
}

/* Only some blocks, only one of the two parameters, only half of one. */
static void test_parts(void **state)
{
    (void)state;
    exported x;

    export(&x, "tiny-qwen3moe", "blk.1.ffn_up_exps.weight,blk.*.attn_k.weight");
    same(&x, L1 "mlp.experts", 8, 5, 128 + 9, "blk.1.ffn_up_exps.weight", 9);
    assert_true(theirs(&x, L1 "mlp.experts", 8, 5, 9, 3) == 0);
    assert_true(targets(&x, "target_parameters", "model.layers.1.mlp.experts.gate_up_proj"));
    assert_int_equal(json_array_size(json_object_get(x.config, "target_parameters")), 1);
    assert_true(targets(&x, "target_modules", "k_proj"));
    assert_int_equal(json_object_size(json_object_get(x.config, "rank_pattern")), 0);
    forget(&x);
    export(&x, "tiny-qwen3moe", "experts,blk.0.attn_k.weight");
    assert_true(targets(&x, "target_modules", "model.layers.0.self_attn.k_proj"));
    forget(&x);
}

/* Ranks and scales that differ. */
static void test_scales(void **state)
{
    (void)state;
    exported x;
    int64_t shape[2];

    export(&x, "tiny-qwen3moe", "experts");
    firn_adapter *ad = x.f.adapter;
    for (int i = 0; i < ad->n_entries; i++)
        if (strstr(ad->entries[i].tensor, "blk.1.ffn_up_exps"))
            ad->entries[i].scale = 5; /* of gate: 2 */
    const double before = ours(&x, "blk.1.ffn_up_exps.weight", 2, 9, 3);
    OK(x.f.ctx, firn_adapter_export_peft(x.f.ctx, x.f.model, ad, in_scratch("peft"), NULL));
    firn_free(x.f.ctx, x.bytes);
    size_t size;
    OK(x.f.ctx, firn_file_read(x.f.ctx, in_scratch("peft/adapter_model.safetensors"), 0, &x.bytes, &size));
    x.values = (const float *)(const void *)(x.bytes + 8 + (unsigned char)x.bytes[0] + 256 * (unsigned char)x.bytes[1]);
    factor(&x, L1 "mlp.experts.base_layer", 'B', shape);
    assert_true(fabs(2 * theirs(&x, L1 "mlp.experts.base_layer", 8, 2, 128 + 9, 3) - 5 * before) < 1e-4);
    forget(&x);
}

static void test_refused(void **state)
{
    (void)state;
    exported x;
    firn_adapter *ad;

    export(&x, "tiny-deepseek2", "experts,router,shared,dense");
    OK(x.f.ctx,
       firn_adapter_describe(
           x.f.ctx, x.f.model,
           &(firn_adapter_spec){.targets = "blk.1.attn_k_b.weight", .unserved = true, .rank = 3, .alpha = 6}, &ad));
    assert_int_equal(firn_adapter_export_peft(x.f.ctx, x.f.model, ad, in_scratch("peft"), NULL), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(x.f.ctx), "blk.1.attn_k_b.weight cannot go to PEFT"));
    firn_adapter_destroy(ad);
    forget(&x);
}

static void test_both_or_none(void **state)
{
    (void)state;
    exported x;
    char *bytes;
    size_t size;

    export(&x, "tiny-olmoe", "experts");
    OK(x.f.ctx, firn_make_folder(x.f.ctx, in_scratch("taken/adapter_config.json"), NULL));
    assert_int_equal(firn_adapter_export_peft(x.f.ctx, x.f.model, x.f.adapter, in_scratch("taken"), NULL), FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(x.f.ctx), "adapter_config.json"));
    assert_int_equal(firn_file_read(x.f.ctx, in_scratch("taken/adapter_model.safetensors"), 0, &bytes, &size),
                     FIRN_ERR_IO);
    forget(&x);
}

/* The command says what PEFT will not load. */
static void test_note(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny-nemotron-h", "tiny-granitehybrid"};

    for (int i = 0; i < 2; i++) {
        exported x;
        char command[1024], note[512] = "";
        export(&x, shapes[i], "attention");
        OK(x.f.ctx, firn_adapter_save(x.f.ctx, x.f.adapter, NULL, in_scratch("adapter.gguf")));
        snprintf(command, sizeof command, "cd %s && %s/firn export model.gguf adapter.gguf noted 2>note.txt >out.txt",
                 scratch, FIRN_BIN_DIR);
        assert_int_equal(system(command), 0);
        FILE *f = fopen(in_scratch("note.txt"), "r");
        assert_non_null(f);
        note[fread(note, 1, sizeof note - 1, f)] = 0;
        fclose(f);
        assert_int_equal(i == 0, strstr(note, "refuses adapters on ssm_out of nemotron_h models") != NULL);
        forget(&x);
    }
}

static void base_is(const char *base)
{
    json_t *config = json_load_file(in_scratch("named/adapter_config.json"), 0, NULL);
    const char *is = json_string_value(json_object_get(config, "base_model_name_or_path"));

    if (base)
        assert_string_equal(is ? is : "null", base);
    else
        assert_true(json_is_null(json_object_get(config, "base_model_name_or_path")));
    json_decref(config);
}

/* The model's file with one more key. */
static void with_key(firn_context *ctx, const firn_gguf *g, const char *key, const char *text, const char *path)
{
    firn_gguf_writer *w;

    OK(ctx, firn_gguf_writer_create(ctx, &w));
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        OK(ctx, firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)));
    OK(ctx, firn_gguf_put_string(w, key, text, strlen(text)));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        OK(ctx, firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne));
    }
    OK(ctx, firn_gguf_writer_begin(w, path));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++)
        OK(ctx, firn_gguf_writer_data(w, firn_gguf_tensor_at(g, i)->data, firn_gguf_tensor_at(g, i)->size));
    OK(ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
}

static void test_base(void **state)
{
    static const struct {
        const char *key, *text, *base;
    } keys[] = {
        {"general.base_model.0.repo_url", "https://huggingface.co/Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"},
        {"general.source.huggingface.repository", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"},
        {"general.base_model.0.repo_url", "https://example.org/Qwen3", NULL},
        {"general.source.huggingface.repository", "\377", NULL},
    };
    exported x;
    fixture f;

    (void)state;
    export(&x, "tiny-llama", "attention");
    firn_context *ctx = x.f.ctx;
    OK(ctx, firn_adapter_export_peft_named(ctx, x.f.model, x.f.adapter, in_scratch("named"), "here/model", NULL));
    base_is("here/model");
    OK(ctx, firn_adapter_export_peft_named(ctx, x.f.model, x.f.adapter, in_scratch("named"), NULL, NULL));
    base_is(NULL);
    assert_int_equal(firn_adapter_export_peft_named(ctx, x.f.model, x.f.adapter, in_scratch("named"), "\377", NULL),
                     FIRN_ERR_ARGUMENT);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        with_key(ctx, x.f.model->gguf, keys[i].key, keys[i].text, in_scratch("keyed.gguf"));
        open_at(&f, in_scratch("keyed.gguf"), NULL, 1);
        OK(f.ctx, firn_adapter_export_peft(f.ctx, f.model, x.f.adapter, in_scratch("named"), NULL));
        base_is(keys[i].base);
        close_fixture(&f);
    }
    forget(&x);
}

/* ---- the other way ---- */

/* What was written comes back, as it is loaded from a file: every value the same bits. */
static void came_back(exported *x, const firn_adapter *is, const char *shape)
{
    firn_context *ctx = x->f.ctx;
    firn_adapter *was;

    OK(ctx, firn_adapter_save(ctx, x->f.adapter, NULL, in_scratch("was.gguf")));
    OK(ctx, firn_adapter_save(ctx, is, NULL, in_scratch("is.gguf")));
    OK(ctx, firn_adapter_load(ctx, x->f.model, in_scratch("was.gguf"), &was));
    if (!firn_adapter_is_saved_as(is, was))
        fail_msg("%s: another adapter came back: %d tensors of %d, %lld values of %lld, alpha %g of %g", shape,
                 is->n_entries, was->n_entries, (long long)is->n_values, (long long)was->n_values, (double)is->alpha,
                 (double)was->alpha);
    firn_adapter_destroy(was);
}

/* Latent attention's products by head have no form in PEFT; gemma4 divides by a factor, which rounds. */
static bool goes_to_and_fro(const char *shape)
{
    static const char *const not [] = {"deepseek2", "glm-dsa", "mistral4", "kimi", "gemma4"};

    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (strstr(shape, not [i]))
            return false;
    return strncmp(shape, "tiny", 4) == 0;
}

static void test_round_trip(void **state)
{
    int tried = 0;

    (void)state;
    for (int i = 0; firn_random_shape_at(i); i++) {
        const char *shape = firn_random_shape_at(i)->name;
        exported x;
        firn_adapter *ad;
        if (!goes_to_and_fro(shape))
            continue;
        tried++;
        export(&x, shape, NULL);
        if (firn_adapter_import_peft(x.f.ctx, x.f.model, in_scratch("peft"), &ad) != FIRN_OK)
            fail_msg("%s: %s", shape, firn_error(x.f.ctx));
        came_back(&x, ad, shape);
        firn_adapter_destroy(ad);
        forget(&x);
    }
    assert_true(tried > 20);
}

/* A safetensors file of these tensors, F32 but for `half`: their values are those of value(). */
typedef struct {
    const char *name;
    int64_t rows, columns, stack; /* stack 0: two dimensions */
} written;

static float value(int tensor, int64_t i)
{
    return 0.25f * (float)((i * 7 + tensor) % 9 - 4); /* exact in every type */
}

static void write_folder(const char *folder, const char *file, const char *config, const written *t, int n, bool bf16)
{
    char header[8192] = "{", path[512];
    const size_t bytes = bf16 ? 2 : 4;
    size_t used = 1, at = 0;
    FILE *f;

    for (int i = 0; i < n; i++) {
        const size_t size = (size_t)(t[i].rows * t[i].columns * (t[i].stack ? t[i].stack : 1)) * bytes;
        used += (size_t)snprintf(header + used, sizeof header - used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                 i ? "," : "", t[i].name, bf16 ? "BF16" : "F32");
        if (t[i].stack)
            used += (size_t)snprintf(header + used, sizeof header - used, "%d,", (int)t[i].stack);
        used += (size_t)snprintf(header + used, sizeof header - used, "%d,%d],\"data_offsets\":[%zu,%zu]}",
                                 (int)t[i].rows, (int)t[i].columns, at, at + size);
        at += size;
    }
    header[used++] = '}';
    firn_context *ctx = firn_context_create(NULL);
    OK(ctx, firn_make_folder(ctx, in_scratch(folder), NULL));
    firn_context_destroy(ctx);
    snprintf(path, sizeof path, "%s/%s", in_scratch(folder), file);
    f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        putc((int)(used >> (8 * i) & 255), f);
    fwrite(header, 1, used, f);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < t[i].rows * t[i].columns * (t[i].stack ? t[i].stack : 1); k++) {
            const float v = value(i, k);
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            if (bf16)
                bits >>= 16;
            fwrite(&bits, 1, bytes, f);
        }
    fclose(f);
    snprintf(path, sizeof path, "%s/adapter_config.json", in_scratch(folder));
    f = fopen(path, "wb");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
}

static const firn_adapter_entry *entry_of(const firn_adapter *ad, const char *tensor)
{
    for (int i = 0; i < ad->n_entries; i++)
        if (strcmp(ad->entries[i].tensor, tensor) == 0)
            return &ad->entries[i];
    fail_msg("%s is not adapted", tensor);
    return NULL;
}

static void open_shape(fixture *f, const char *shape)
{
    const char *path = in_scratch("model.gguf");
    firn_context *ctx = firn_context_create(NULL);

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    open_at(f, path, NULL, 1);
}

#define PEFT_CONFIG(more) "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":8,\"bias\":\"none\"" more "}"
#define Q                 "base_model.model.model.layers.1.self_attn.o_proj."

/* rslora, alpha_pattern, bf16 and the name that an adapter has in memory. */
static void test_import_scales(void **state)
{
    static const struct {
        const char *config;
        double scale;
    } cases[] = {
        {PEFT_CONFIG(""), 4},
        {PEFT_CONFIG(",\"use_rslora\":true"), 8 / 1.4142135623730951},
        {PEFT_CONFIG(",\"alpha_pattern\":{\"v_proj\":1,\"layers.1.self_attn.o_proj\":3}"), 1.5},
    };
    fixture f;

    (void)state;
    open_shape(&f, "tiny-qwen3moe");
    const firn_gguf_tensor *o = firn_gguf_find(f.model->gguf, "blk.1.attn_output.weight");
    const written t[] = {{Q "lora_A.weight", 2, o->ne[0], 0}, {Q "lora_B.weight", o->ne[1], 2, 0}},
                  d[] = {{Q "lora_A.default.weight", 2, o->ne[0], 0}, {Q "lora_B.default.weight", o->ne[1], 2, 0}};
    for (int i = 0; i < 3; i++) {
        firn_adapter *ad;
        write_folder("from", "adapter_model.safetensors", cases[i].config, i ? d : t, 2, i == 1);
        OK(f.ctx, firn_adapter_import_peft(f.ctx, f.model, in_scratch("from"), &ad));
        const firn_adapter_entry *e = entry_of(ad, "blk.1.attn_output.weight");
        assert_int_equal(ad->n_entries, 1);
        assert_int_equal(e->rank, 2);
        assert_true(fabs((double)e->scale - cases[i].scale) < 1e-6);
        for (int64_t k = 0; k < 2 * e->n_in; k++)
            assert_true(ad->values[e->a + k] == value(0, k));
        for (int64_t k = 0; k < 2 * e->n_out; k++)
            assert_true(ad->values[e->b + k] == value(1, k));
        firn_adapter_destroy(ad);
    }
    close_fixture(&f);
}

/* Experts one by one, as transformers 4 had them; those that are not there stay as they are. */
static void test_experts_apart(void **state)
{
    fixture f;
    firn_adapter *ad;

    (void)state;
    open_shape(&f, "tiny-qwen3moe");
    const firn_gguf_tensor *up = firn_gguf_find(f.model->gguf, "blk.0.ffn_up_exps.weight");
    const written t[] = {
        {"base_model.model.model.layers.0.mlp.experts.1.up_proj.lora_A.weight", 2, up->ne[0], 0},
        {"base_model.model.model.layers.0.mlp.experts.1.up_proj.lora_B.weight", up->ne[1], 2, 0},
        {"base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight", 2, up->ne[0], 0},
        {"base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_B.weight", up->ne[1], 2, 0},
    };
    write_folder("from", "adapter_model.safetensors", PEFT_CONFIG(""), t, 4, false);
    OK(f.ctx, firn_adapter_import_peft(f.ctx, f.model, in_scratch("from"), &ad));
    const firn_adapter_entry *e = entry_of(ad, "blk.0.ffn_up_exps.weight");
    assert_int_equal(ad->n_entries, 1);
    assert_int_equal(e->rank, 2);
    for (int64_t x = 0; x < e->n_expert; x++)
        for (int64_t k = 0; k < 2 * e->n_in; k++)
            assert_true(ad->values[e->a + x * 2 * e->n_in + k] == (x == 1 ? value(0, k) : x == 3 ? value(2, k) : 0));
    for (int64_t x = 0; x < e->n_expert; x++)
        for (int64_t k = 0; k < 2 * e->n_out; k++)
            assert_true(ad->values[e->b + x * 2 * e->n_out + k] == (x == 1 ? value(1, k) : x == 3 ? value(3, k) : 0));
    firn_adapter_destroy(ad);
    close_fixture(&f);
}

static void test_mlx(void **state)
{
    fixture f;
    firn_adapter *ad;

    (void)state;
    open_shape(&f, "tiny-qwen3moe");
    const firn_gguf_tensor *o = firn_gguf_find(f.model->gguf, "blk.1.attn_output.weight"),
                           *down = firn_gguf_find(f.model->gguf, "blk.0.ffn_down_exps.weight");
    const written t[] = {
        {"model.layers.1.self_attn.o_proj.lora_a", o->ne[0], 3, 0},
        {"model.layers.1.self_attn.o_proj.lora_b", 3, o->ne[1], 0},
        {"model.layers.0.mlp.switch_mlp.down_proj.lora_a", 3, down->ne[0], down->ne[2]},
        {"model.layers.0.mlp.switch_mlp.down_proj.lora_b", down->ne[1], 3, down->ne[2]},
    };
    write_folder("mlx", "adapters.safetensors",
                 "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":3,\"scale\":20.0,\"dropout\":0.0}}", t, 4,
                 false);
    OK(f.ctx, firn_adapter_import_peft(f.ctx, f.model, in_scratch("mlx"), &ad));
    assert_int_equal(ad->n_entries, 2);
    const firn_adapter_entry *e = entry_of(ad, "blk.1.attn_output.weight");
    assert_true(e->rank == 3 && e->scale == 20);
    for (int64_t j = 0; j < 3; j++)
        for (int64_t i = 0; i < e->n_in; i++)
            assert_true(ad->values[e->a + j * e->n_in + i] == value(0, i * 3 + j));
    for (int64_t i = 0; i < e->n_out; i++)
        for (int64_t j = 0; j < 3; j++)
            assert_true(ad->values[e->b + i * 3 + j] == value(1, j * e->n_out + i));
    e = entry_of(ad, "blk.0.ffn_down_exps.weight");
    assert_true(e->rank == 3 && e->scale == 20);
    for (int64_t i = 0; i < 3 * e->n_in * e->n_expert; i++)
        assert_true(ad->values[e->a + i] == value(2, i));
    for (int64_t i = 0; i < 3 * e->n_out * e->n_expert; i++)
        assert_true(ad->values[e->b + i] == value(3, i));
    firn_adapter_destroy(ad);
    close_fixture(&f);
}

static void import_refused(fixture *f, const char *sentence)
{
    firn_adapter *ad;

    assert_int_not_equal(firn_adapter_import_peft(f->ctx, f->model, in_scratch("from"), &ad), FIRN_OK);
    assert_null(ad);
    if (!strstr(firn_error(f->ctx), sentence))
        fail_msg("expected '%s' in: %s", sentence, firn_error(f->ctx));
}

static void test_import_refusals(void **state)
{
    static const struct {
        const char *config, *sentence;
    } configs[] = {
        {"{\"peft_type\":\"IA3\"}", "peft_type in adapter_config.json is not LORA"},
        {PEFT_CONFIG(",\"use_dora\":true"), "asks for DoRA"},
        {PEFT_CONFIG(",\"fan_in_fan_out\":true"), "the other way round"},
        {PEFT_CONFIG(",\"modules_to_save\":[\"lm_head\"]"), "modules that were trained whole"},
        {"{\"peft_type\":\"LORA\",\"bias\":\"all\"}", "biases were trained"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":\"x\"}", "should be a number"},
        {PEFT_CONFIG(",\"alpha_pattern\":{\".*o_proj\":3}"), "is a regular expression"},
        {"{\"lora_parameters\":{},\"fine_tune_type\":\"dora\"}", "fine_tune_type in adapter_config.json is not lora"},
    };
    static const struct {
        const char *header;
        size_t data;
        const char *sentence;
    } files[] = {
        {"[]", 0, "is no JSON object"},
        {"{\"a\":1}", 0, "'a' should be an object"},
        {"{\"a\":{\"dtype\":\"F31\"}}", 0, "has dtype 'F31'"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "should have a shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1]}}", 0, "a shape that no file holds"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296]}}", 0, "a shape that no file holds"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4, "within the file's 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "within the file's 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "lies in 4 bytes, and its shape takes 8"},
        {"{\"a\":{},\"a\":{}}", 0, "is no JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "a is no factor of a low-rank update"},
        {"{\"x.lora_magnitude_vector\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "is DoRA's"},
        {"{\"" Q "lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}", 4,
         "lora_B.weight is missing"},
        {"{\"" Q "lora_A.weight\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
         "are F32, F16 or BF16"},
        {"{}", 0, "the adapter is empty"},
    };
    fixture f;

    (void)state;
    open_shape(&f, "tiny-qwen3moe");
    const firn_gguf_tensor *o = firn_gguf_find(f.model->gguf, "blk.1.attn_output.weight");
    const written t[] = {{Q "lora_A.weight", 2, o->ne[0], 0}, {Q "lora_B.weight", o->ne[1], 2, 0}},
                  wrong[] = {{Q "lora_A.weight", 2, o->ne[0] + 1, 0}, {Q "lora_B.weight", o->ne[1], 2, 0}},
                  more[] = {t[0], t[1], {"base_model.model.model.layers.9.self_attn.o_proj.lora_A.weight", 2, 2, 0}};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        write_folder("from", "adapter_model.safetensors", configs[i].config, t, 2, false);
        import_refused(&f, configs[i].sentence);
    }
    write_folder("from", "adapter_model.safetensors", PEFT_CONFIG(""), wrong, 2, false);
    import_refused(&f, "have other shapes than a module of");
    write_folder("from", "adapter_model.safetensors", PEFT_CONFIG(""), more, 3, false);
    import_refused(&f, "layers.9.self_attn.o_proj.lora_A.weight belongs to no tensor of this model");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *file = fopen(in_scratch("from/adapter_model.safetensors"), "wb");
        assert_non_null(file);
        for (int k = 0; k < 8; k++)
            putc((int)(strlen(files[i].header) >> (8 * k) & 255), file);
        fputs(files[i].header, file);
        for (size_t k = 0; k < files[i].data; k++)
            putc(0, file);
        fclose(file);
        import_refused(&f, files[i].sentence);
    }
    FILE *file = fopen(in_scratch("from/adapter_model.safetensors"), "wb");
    fputs("\377\377\377\377\377\377\377\377{}", file);
    fclose(file);
    import_refused(&f, "that was cut");
    file = fopen(in_scratch("from/adapter_model.safetensors"), "wb");
    fclose(file);
    import_refused(&f, "it has 0");
    unlink(in_scratch("from/adapter_model.safetensors"));
    import_refused(&f, "holds neither adapter_model.safetensors");
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_mixers),
        cmocka_unit_test(test_stacked),         cmocka_unit_test(test_alternating),
        cmocka_unit_test(test_permuted),        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_shared),          cmocka_unit_test(test_parts),
        cmocka_unit_test(test_scales),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_both_or_none),    cmocka_unit_test(test_note),
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_import_scales),
        cmocka_unit_test(test_experts_apart),   cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_import_refusals), cmocka_unit_test(test_base),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
