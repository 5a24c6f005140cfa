/* Latent attention: reference cases; the two file forms of one model against each other; gradients against differences;
 * generation against whole passes; what metadata makes of the rotation and the scale. Models are drawn here. */
#include "unit/model.h"

#include "format/format.h"
#include "model/random_model.h"

#include <stdlib.h>
#include <sys/wait.h>

static const char *const shapes[] = {"tiny-deepseek2", "tiny-deepseek2-lite", "tiny-deepseek2-old"};
enum { N_SHAPES = 3, VOCAB = 512 };

static const char *draw(const char *shape, firn_type type, int64_t n_layer)
{
    firn_context *ctx = firn_context_create(NULL);
    static char path[256];

    snprintf(path, sizeof path, "%s", in_scratch("drawn.gguf"));
    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), n_layer, type, 7, path, NULL));
    firn_context_destroy(ctx);
    return path;
}

static void test_cases(void **state)
{
    (void)state;
    assert_int_equal(verify(CASES "/deepseek2-v3-attn"), 0);
}

static void test_shared_cases(void **state)
{
    (void)state;
    if (access(SHARED "/deepseek2-v3/case.json", R_OK) != 0)
        skip();
    assert_int_equal(verify(SHARED "/deepseek2-lite"), 0);
    assert_int_equal(verify(SHARED "/deepseek2-lite-kvb"), 0);
    assert_int_equal(verify(SHARED "/deepseek2-v3"), 0);
}

static void logits_of(fixture *f, int64_t n, float *logits)
{
    firn_session *session;
    const firn_batch batch = batch_of(f, n);

    OK(f->ctx,
       firn_session_create(f->ctx, f->device, f->model, f->adapter, &(firn_session_params){.n_tokens = n}, &session));
    OK(f->ctx, firn_session_logits(session, &batch, logits));
    firn_session_destroy(session);
}

/* A fresh adapter whose B is not zero. */
static void adapt(fixture *f, const char *targets)
{
    OK(f->ctx, firn_adapter_create(f->ctx, f->model, targets, 3, 6, 1, &f->adapter));
    for (int i = 0; i < f->adapter->n_entries; i++) {
        const firn_adapter_entry *e = &f->adapter->entries[i];
        for (int64_t j = 0; j < e->rank * e->n_out * e->n_expert; j++)
            f->adapter->values[e->b + j] = 0.05f * sinf((float)(e->b + j));
    }
}

/* ---- the old form of a file as the new one ---- */

enum { NOPE = 32, HV = 64, RANK = 64, HEADS = 4, ROT = 16 };

/* attn_k_b [nope, r, H] (values false) or attn_v_b [r, hv, H] from attn_kv_b [r, H (nope + hv)]. */
static void half_of(const float *kv, bool values, float *out)
{
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < (values ? HV : NOPE); i++)
            for (int j = 0; j < RANK; j++) {
                const float x = kv[(size_t)(h * (NOPE + HV) + (values ? NOPE : 0) + i) * RANK + (size_t)j];
                out[values ? (h * HV + i) * RANK + j : (h * RANK + j) * NOPE + i] = x;
            }
}

static void to_new_form(const char *from, const char *to)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;
    firn_gguf_writer *w;
    char name[128];
    static float half[HEADS * HV * RANK];

    OK(ctx, firn_gguf_open(ctx, from, &g));
    OK(ctx, firn_gguf_writer_create(ctx, &w));
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        OK(ctx, firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)));
    OK(ctx, firn_gguf_put_u32(w, "deepseek2.attention.head_count_kv", 1));
    OK(ctx, firn_gguf_put_u32(w, "deepseek2.attention.key_length", RANK + ROT));
    OK(ctx, firn_gguf_put_u32(w, "deepseek2.attention.value_length", RANK));
    OK(ctx, firn_gguf_put_u32(w, "deepseek2.attention.key_length_mla", NOPE + ROT));
    OK(ctx, firn_gguf_put_u32(w, "deepseek2.attention.value_length_mla", HV));
    for (int writing = 0; writing < 2; writing++) {
        for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
            const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
            const char *at = strstr(t->name, "attn_kv_b");
            if (!at && !writing)
                OK(ctx, firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne));
            if (!at && writing)
                OK(ctx, firn_gguf_writer_data(w, t->data, t->size));
            for (int v = 0; at && v < 2; v++) {
                snprintf(name, sizeof name, "%.*sattn_%c_b.weight", (int)(at - t->name), t->name, v ? 'v' : 'k');
                half_of((const float *)(const void *)t->data, v, half);
                if (!writing)
                    OK(ctx, firn_gguf_add_tensor(w, name, FIRN_F32, 3,
                                                 v ? (int64_t[]){RANK, HV, HEADS} : (int64_t[]){NOPE, RANK, HEADS}));
                else
                    OK(ctx, firn_gguf_writer_data(w, half, sizeof(float) * RANK * HEADS * (v ? HV : NOPE)));
            }
        }
        if (!writing)
            OK(ctx, firn_gguf_writer_begin(w, to));
    }
    OK(ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

/* The same weights in both forms, and the same adapter on what both have, give the same logits; so do gradients. */
static void test_forms(void **state)
{
    (void)state;
    fixture old, new;
    static float a[N * VOCAB], b[N * VOCAB];
    const char *targets = "*.attn_q.weight,*.attn_kv_a_mqa.weight,*.attn_output.weight,experts";
    double loss;
    int64_t n;

    const char *path = draw("tiny-deepseek2-old", FIRN_F32, 0);
    to_new_form(path, in_scratch("new.gguf"));
    open_at(&old, path, NULL, 2);
    open_at(&new, in_scratch("new.gguf"), NULL, 2);
    logits_of(&old, N, a);
    logits_of(&new, N, b);
    assert_true(nmse(b, a, N * VOCAB) < 1e-11);
    float *gradient[2];
    for (int i = 0; i < 2; i++) {
        fixture *f = i ? &new : &old;
        firn_session *session;
        adapt(f, targets);
        const firn_batch batch = batch_of(f, 2 * N);
        const firn_session_params params = {.n_tokens = 2 * N, .train = true};
        OK(f->ctx, firn_session_create(f->ctx, f->device, f->model, f->adapter, &params, &session));
        OK(f->ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
        gradient[i] = malloc((size_t)f->adapter->n_values * sizeof(float));
        memcpy(gradient[i], firn_session_gradients(session), (size_t)f->adapter->n_values * sizeof(float));
        firn_session_destroy(session);
    }
    assert_int_equal(old.adapter->n_values, new.adapter->n_values);
    assert_true(nmse(gradient[1], gradient[0], old.adapter->n_values) < 1e-10);
    free(gradient[0]);
    free(gradient[1]);
    close_fixture(&old);
    close_fixture(&new);
}

/* ---- gradients ---- */

/* Along the gradient of one factor the loss rises by the gradient's square. */
static void check_slope(fixture *f, firn_session *session, const firn_adapter_entry *e, bool b)
{
    const int64_t count = e->rank * (b ? e->n_out : e->n_in) * e->n_expert;
    const firn_batch batch = batch_of(f, 2 * N);
    float *values = f->adapter->values + (b ? e->b : e->a), *g = malloc((size_t)count * sizeof(float));
    double slope = 0, up, down;
    int64_t n;

    memcpy(g, firn_session_gradients(session) + (b ? e->b : e->a), (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        slope += (double)g[i] * (double)g[i];
    if (!(slope > 0))
        fail_msg("%s.lora_%c has no gradient", e->tensor, b ? 'b' : 'a');
    const float h = 0.02f / (float)sqrt(slope);
    for (int64_t i = 0; i < count; i++)
        values[i] += h * g[i];
    OK(f->ctx, firn_session_loss(session, &batch, &up, &n));
    for (int64_t i = 0; i < count; i++)
        values[i] -= 2 * h * g[i];
    OK(f->ctx, firn_session_loss(session, &batch, &down, &n));
    for (int64_t i = 0; i < count; i++)
        values[i] += h * g[i];
    const double found = (up - down) / (2 * (double)h);
    if (!(fabs(found / slope - 1) < 2e-2))
        fail_msg("%s.lora_%c: slope %g, differences say %g", e->tensor, b ? 'b' : 'a', slope, found);
    free(g);
}

/* One block, which is dense: where a router chooses, the loss has steps that no slope knows of. */
static void test_slopes(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        fixture f;
        firn_session *session;
        double loss;
        int64_t n;
        int per_block = i == 0 ? 6 : i == 1 ? 5 : 4;
        open_at(&f, draw(shapes[i], FIRN_F32, 1), NULL, 2);
        adapt(&f, "attention");
        assert_int_equal(f.adapter->n_entries, per_block);
        const firn_session_params params = {.n_tokens = 2 * N, .train = true};
        OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
        const firn_batch batch = batch_of(&f, 2 * N);
        OK(f.ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
        for (int j = 0; j < f.adapter->n_entries; j++) {
            check_slope(&f, session, &f.adapter->entries[j], false);
            check_slope(&f, session, &f.adapter->entries[j], true);
        }
        firn_session_destroy(session);
        close_fixture(&f);
    }
}

/* ---- generation ---- */

/* Token by token through the cache of latent rows as in one pass, adapters on everything, packed weights too: an old
 * file runs its pass expanded and its generation absorbed. */
static void test_generation(void **state)
{
    (void)state;
    static float logits[N * VOCAB];

    for (int i = 0; i < 2 * N_SHAPES; i++) {
        fixture f;
        firn_generator *generator;
        const float *last;
        open_at(&f, draw(shapes[i / 2], i % 2 ? FIRN_Q8_0 : FIRN_F32, 2), NULL, 2);
        adapt(&f, "all");
        logits_of(&f, N, logits);
        OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, N, &generator));
        OK(f.ctx, firn_generator_feed(generator, f.tokens, 10, &last));
        if (!(nmse(last, logits + 9 * VOCAB, VOCAB) < 1e-10))
            fail_msg("%s %d, prompt: %g", shapes[i / 2], i, nmse(last, logits + 9 * VOCAB, VOCAB));
        for (int t = 10; t < N; t++) {
            OK(f.ctx, firn_generator_feed(generator, f.tokens + t, 1, &last));
            if (!(nmse(last, logits + t * VOCAB, VOCAB) < 1e-10))
                fail_msg("%s, token %d: %g", shapes[i / 2], t, nmse(last, logits + t * VOCAB, VOCAB));
        }
        firn_generator_destroy(generator);
        close_fixture(&f);
    }
}

/* ---- adapters in files ---- */

static void test_adapter_file(void **state)
{
    (void)state;
    fixture f;
    firn_adapter *again;

    open_at(&f, draw("tiny-deepseek2", FIRN_F32, 2), NULL, 1);
    adapt(&f, "attention");
    OK(f.ctx, firn_adapter_save(f.ctx, f.adapter, NULL, in_scratch("a.gguf")));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, in_scratch("a.gguf"), &again));
    assert_int_equal(again->n_values, f.adapter->n_values);
    assert_memory_equal(again->values, f.adapter->values, (size_t)again->n_values * sizeof(float));
    for (int i = 0; i < again->n_entries; i++)
        assert_int_equal(
            again->entries[i].n_expert,
            strstr(again->entries[i].tensor, "attn_k_b") || strstr(again->entries[i].tensor, "attn_v_b") ? 16 : 1);
    firn_adapter_destroy(again);
    close_fixture(&f);
}

/* ---- what llama.cpp serves ---- */

/* How many tensors these targets make; where they are refused, -1 and the sentence holds `words`. */
static int described(fixture *f, const char *targets, bool unserved, const char *words)
{
    firn_adapter *ad;

    const firn_adapter_spec spec = {.targets = targets, .unserved = unserved, .rank = 4, .alpha = 8};
    if (firn_adapter_describe(f->ctx, f->model, &spec, &ad) != FIRN_OK) {
        if (!strstr(firn_error(f->ctx), words))
            fail_msg("%s: expected '%s' in: %s", targets, words, firn_error(f->ctx));
        return -1;
    }
    const int n = ad->n_entries;
    for (int i = 0; i < n; i++)
        assert_true(unserved || firn_model_serves(f->model, ad->entries[i].tensor));
    firn_adapter_destroy(ad);
    return n;
}

static void test_served(void **state)
{
    (void)state;
    fixture f;

    open_at(&f, draw("tiny-deepseek2", FIRN_F32, 2), NULL, 1); /* a dense block, a routed one */
    assert_true(firn_model_serves(f.model, "blk.0.attn_output.weight"));
    assert_true(firn_model_serves(f.model, "blk.1.ffn_gate_inp.weight"));
    assert_false(firn_model_serves(f.model, "blk.0.attn_q_b.weight"));
    assert_false(firn_model_serves(f.model, "output.weight"));
    assert_false(firn_model_serves(f.model, "blk.0.attn_norm.weight"));
    assert_false(firn_model_serves(f.model, "blk.9.attn_output.weight"));
    assert_int_equal(described(&f, NULL, false, ""), 2 + 3);
    assert_int_equal(described(&f, NULL, true, ""), 2 * 6 + 3);
    assert_int_equal(described(&f, "all", false, ""), 2 + 3 + 3 + 3 + 1);
    assert_int_equal(described(&f, "all", true, ""), 2 * 6 + 3 + 3 + 3 + 1 + 1);
    assert_int_equal(described(&f, "experts,*.attn_output.weight", false, ""), 2 + 3);
    assert_int_equal(described(&f, "attention", true, ""), 2 * 6);
    assert_int_equal(
        described(&f, "attention", false,
                  "target 'attention' includes blk.0.attn_q_a.weight, and llama.cpp does not apply an adapter on "
                  "that tensor; it does apply *.attn_output.weight (--unserved"),
        -1);
    assert_int_equal(described(&f, "experts,blk.1.attn_v_b.weight", false, "includes blk.1.attn_v_b.weight"), -1);
    assert_int_equal(described(&f, "output", false, "'output' includes output.weight"), -1);
    close_fixture(&f);
}

static int finetune(const char *output, const char *options)
{
    char command[2048];

    snprintf(command, sizeof command,
             "cd %s && %s/firn finetune --model drawn.gguf --data d.jsonl --output %s --steps 1 --eval-split 0 %s >out "
             "2>err",
             scratch, FIRN_BIN_DIR, output, options);
    return WEXITSTATUS(system(command));
}

static bool said(const char *words)
{
    static char text[1 << 16];
    FILE *file = fopen(in_scratch("err"), "r");
    const size_t n = fread(text, 1, sizeof text - 1, file);

    fclose(file);
    text[n] = 0;
    return strstr(text, words) != NULL;
}

static void test_finetune(void **state)
{
    (void)state;
    FILE *data = fopen(in_scratch("d.jsonl"), "w");

    fputs("{\"prompt\": \"snow packs\", \"completion\": \" toward ice\"}\n", data);
    fclose(data);
    draw("tiny-deepseek2", FIRN_F32, 2);
    assert_int_equal(finetune("a", "--targets attention"), 1);
    assert_true(said("--unserved trains it all the same"));
    assert_int_equal(finetune("b", "--targets all"), 0);
    assert_true(said(
        "left out, because llama.cpp does not apply adapters on them (--unserved trains them): attn_q_a, attn_q_b, "
        "attn_kv_a_mqa, attn_k_b, attn_v_b, output\n"));
    assert_false(said("warning"));
    /* So do a list with "all" in it, and the classes of the defaults. */
    assert_int_equal(finetune("list", "--targets router,all,experts"), 0);
    assert_true(
        said("on them (--unserved trains them): attn_q_a, attn_q_b, attn_kv_a_mqa, attn_k_b, attn_v_b, output\n"));
    assert_int_equal(finetune("defaults", ""), 0);
    assert_true(said("on them (--unserved trains them): attn_q_a, attn_q_b, attn_kv_a_mqa, attn_k_b, attn_v_b\n"));
    /* What nobody asked for is not left out. */
    assert_int_equal(finetune("some", "--targets blk.*.attn_output.weight,experts"), 0);
    assert_false(said("left out"));
    assert_int_equal(finetune("one", "--targets blk.0.attn_q_b.weight,blk.1.attn_q_b.weight --unserved"), 0);
    assert_true(said("warning  llama.cpp will not apply 2 of the adapter's tensors: attn_q_b\n"));
    assert_false(said("left out"));
    assert_int_equal(finetune("c", "--targets attention --unserved"), 0);
    assert_true(said("warning  llama.cpp will not apply 10 of the adapter's tensors: attn_q_a, attn_q_b, "
                     "attn_kv_a_mqa, attn_k_b, attn_v_b\n"));
    assert_int_equal(finetune("d", "--adapter c/adapter.gguf"), 1);
    assert_true(said("c/adapter.gguf changes blk.0.attn_q_a.weight, to which llama.cpp would not apply it"));
    assert_int_equal(finetune("e", "--adapter c/adapter.gguf --unserved"), 0);
    assert_int_equal(finetune("f", "--adapter b/adapter.gguf"), 0);
    assert_false(said("left out"));
}

/* ---- metadata ---- */

typedef struct {
    const char *drop;  /* a key */
    const char *key;   /* or one set */
    uint32_t u32;      /* ... to this */
    const char *text;  /* ... or this */
    float f32;         /* ... or this */
    const char *drop2; /* another that goes */
} edit;

static void edited(const char *from, const edit *e, const char *to)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;
    firn_gguf_writer *w;
    char key[128];

    OK(ctx, firn_gguf_open(ctx, from, &g));
    OK(ctx, firn_gguf_writer_create(ctx, &w));
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        OK(ctx, firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)));
    const char *dropped[] = {e->drop, e->drop2};
    for (int i = 0; i < 2; i++)
        if (dropped[i]) {
            snprintf(key, sizeof key, "deepseek2.%s", dropped[i]);
            firn_gguf_remove(w, key);
        }
    if (e->key) {
        snprintf(key, sizeof key, "deepseek2.%s", e->key);
        if (e->text)
            OK(ctx, firn_gguf_put_string(w, key, e->text, strlen(e->text)));
        else if (e->f32 != 0)
            OK(ctx, firn_gguf_put_f32(w, key, e->f32));
        else
            OK(ctx, firn_gguf_put_u32(w, key, e->u32));
    }
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        OK(ctx, firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne));
    }
    OK(ctx, firn_gguf_writer_begin(w, to));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++)
        OK(ctx, firn_gguf_writer_data(w, firn_gguf_tensor_at(g, i)->data, firn_gguf_tensor_at(g, i)->size));
    OK(ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

/* cos and sin are multiplied by `magnitude`, q . k by scale sqrt(64). */
static void stretched(const edit *e, double magnitude, double scale)
{
    fixture f;

    edited(in_scratch("base.gguf"), e, in_scratch("edited.gguf"));
    open_at(&f, in_scratch("edited.gguf"), NULL, 1);
    const firn_rope_params *r = &f.model->hp.rope;
    const double yarn = r->ext_factor != 0 ? 1 + 0.1 * log(1 / (double)r->freq_scale) : 1;
    assert_true(fabs((double)r->attn_factor * yarn / magnitude - 1) < 1e-5);
    assert_true(fabs((double)f.model->hp.attention_scale * 8 / scale - 1) < 1e-5);
    close_fixture(&f);
}

/* tiny-deepseek2: YaRN by 16, log multiplier 0.1, heads of 64. */
static void test_scale(void **state)
{
    (void)state;
    const double m = 1 + 0.1 * log(16), half = 1 + 0.05 * log(16);

    assert_int_equal(rename(draw("tiny-deepseek2", FIRN_F32, 1), in_scratch("base.gguf")), 0);
    stretched(&(edit){0}, 1, m * m);
    stretched(&(edit){.key = "rope.scaling.yarn_log_multiplier", .f32 = 0.05f}, 1, half * half);
    stretched(&(edit){.drop = "rope.scaling.yarn_log_multiplier"}, m, m * m);
    stretched(&(edit){.key = "rope.scaling.attn_factor", .f32 = 0.5f}, 0.5, 0.25 * m * m);
    stretched(&(edit){.key = "rope.scaling.type", .text = "linear"}, 1, m * m * m * m);
    stretched(&(edit){.key = "rope.scaling.type", .text = "linear", .drop = "rope.scaling.yarn_log_multiplier"}, 1,
              m * m);
    stretched(&(edit){.key = "rope.scaling.type", .text = "none"}, 1, 1);
    stretched(&(edit){.drop = "rope.scaling.factor"}, 1, 1);
}

static void refused(const char *shape, const edit *e, const char *sentence)
{
    edited(draw(shape, FIRN_F32, 1), e, in_scratch("edited.gguf"));
    model_refused(in_scratch("edited.gguf"), sentence);
}

static void test_refused(void **state)
{
    (void)state;
    refused("tiny-deepseek2", &(edit){.drop = "attention.q_lora_rank"}, "attention.q_lora_rank");
    refused("tiny-deepseek2", &(edit){.drop = "attention.kv_lora_rank"}, "attention.kv_lora_rank");
    refused("tiny-deepseek2", &(edit){.key = "attention.kv_lora_rank", .u32 = 0}, "nothing is left of keys and values");
    refused("tiny-deepseek2", &(edit){.drop = "attention.key_length_mla"}, "come together; they are 0 and 32");
    refused("tiny-deepseek2", &(edit){.key = "attention.head_count_kv", .u32 = 2}, "of block 0 is 2, not 1");
    refused("tiny-deepseek2-old", &(edit){.key = "attention.head_count_kv", .u32 = 2}, "of block 0 is 2, not 4");
    refused("tiny-deepseek2", &(edit){.key = "rope.dimension_count", .u32 = 64}, "leave none for latent attention");
    refused("tiny-deepseek2", &(edit){.key = "rope.dimension_count", .u32 = 66}, "heads have 64 values");
    refused("tiny-deepseek2", &(edit){.key = "attention.temperature_scale", .f32 = 0.1f},
            "attention.temperature_length");
    refused("tiny-deepseek2", &(edit){.key = "attention.kv_lora_rank", .u32 = 32}, "attn_kv_a_mqa.weight should be");
    refused("tiny-deepseek2-lite", &(edit){.key = "attention.q_lora_rank", .u32 = 8}, "attn_q_a.weight is missing");
    refused("tiny-deepseek2-lite", &(edit){.drop = "attention.key_length_mla", .drop2 = "attention.value_length_mla"},
            "head_count_kv of block 0 is 1, not 4");
}

/* 27 blocks mean DeepSeek-V2-Lite: q_lora_rank is not even read. */
static void test_lite(void **state)
{
    (void)state;
    fixture f;

    edited(draw("tiny-deepseek2-lite", FIRN_Q4_0, 27), &(edit){.key = "attention.q_lora_rank", .u32 = 8},
           in_scratch("edited.gguf"));
    open_at(&f, in_scratch("edited.gguf"), NULL, 1);
    assert_int_equal(f.model->hp.mla.q_rank, 0);
    close_fixture(&f);
    edited(draw("tiny-deepseek2-lite", FIRN_Q4_0, 26), &(edit){.drop = "attention.q_lora_rank"},
           in_scratch("edited.gguf"));
    open_at(&f, in_scratch("edited.gguf"), NULL, 1);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_shared_cases), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_slopes),  cmocka_unit_test(test_generation),   cmocka_unit_test(test_adapter_file),
        cmocka_unit_test(test_served),  cmocka_unit_test(test_finetune),     cmocka_unit_test(test_scale),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_lite),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
