/* Blocks that attend to the keys and values of earlier ones (Gemma 4 E2B, E4B): the gradients that reach those through
 * the borrowers, whatever else is adapted and however little memory there is; keys in a borrower's file are idle. */
#include "unit/model.h"

#include "model/random_model.h"

#include <stdlib.h>

static char path[256];

/* Six blocks, every other with a window; 4 attends to the keys of 2, and 5 to those of 3. */
static int draw(void **state)
{
    if (set_up(state))
        return -1;
    firn_context *ctx = firn_context_create(NULL);
    snprintf(path, sizeof path, "%s/model.gguf", scratch);
    const firn_status s =
        firn_random_model_write(ctx, firn_random_shape_find("tiny-gemma4-e"), 0, FIRN_F32, 3, path, NULL);
    firn_context_destroy(ctx);
    return s == FIRN_OK ? 0 : -1;
}

typedef struct {
    fixture f;
    firn_session *session;
    double loss;
    const float *gradients;
} setup;

/* The gradient of a fresh adapter, which does nothing yet: that of its B depends on no other tensor of it. */
static void differentiate(setup *s, const char *targets, uint64_t limit)
{
    const firn_session_params params = {.n_tokens = 2 * N, .train = true, .memory_limit = limit};
    int64_t n;

    open_at(&s->f, path, NULL, 2);
    firn_context *ctx = s->f.ctx;
    OK(ctx, firn_adapter_create(ctx, s->f.model, targets, 3, 6, 1, &s->f.adapter));
    OK(ctx, firn_session_create(ctx, s->f.device, s->f.model, s->f.adapter, &params, &s->session));
    const firn_batch batch = batch_of(&s->f, 2 * N);
    OK(ctx, firn_session_gradient(s->session, &batch, 1, &s->loss, &n));
    s->gradients = firn_session_gradients(s->session);
    assert_non_null(s->gradients);
}

static void undo(setup *s)
{
    firn_session_destroy(s->session);
    close_fixture(&s->f);
}

static const firn_adapter_entry *entry(const setup *s, const char *tensor)
{
    for (int i = 0; i < s->f.adapter->n_entries; i++)
        if (strcmp(s->f.adapter->entries[i].tensor, tensor) == 0)
            return &s->f.adapter->entries[i];
    fail_msg("no adapter on %s", tensor);
    return NULL;
}

/* A second pass adds the same again: what borrowers added to the lenders' gradients in the first is gone. */
static void passes_begin_without_gradients_of_keys(void **state)
{
    setup s;
    double loss;
    int64_t n;

    (void)state;
    differentiate(&s, "all", 0);
    const int64_t values = s.f.adapter->n_values;
    float *once = malloc(sizeof(float) * (size_t)values);
    memcpy(once, s.gradients, sizeof(float) * (size_t)values);
    const firn_batch batch = batch_of(&s.f, 2 * N);
    OK(s.f.ctx, firn_session_gradient(s.session, &batch, 1, &loss, &n));
    const float *twice = firn_session_gradients(s.session);
    for (int64_t i = 0; i < values; i++)
        once[i] *= 2;
    assert_true(nmse(twice, once, values) < 1e-12);
    free(once);
    undo(&s);
}

/* Lenders that are the lowest adapted block, that lie below it, or above; with and without adapted borrowers. */
static void parts_have_the_gradient_of_the_whole(void **state)
{
    static const char *const tensors[] = {"blk.0.ffn_up", "blk.1.attn_v",      "blk.2.attn_k", "blk.2.attn_v",
                                          "blk.2.ffn_up", "blk.3.attn_k",      "blk.3.attn_v", "blk.3.proj",
                                          "blk.4.attn_q", "blk.4.attn_output", "blk.5.attn_q", "blk.5.inp_gate"};
    setup all;

    (void)state;
    differentiate(&all, "all", 0);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        setup part;
        snprintf(name, sizeof name, "%s.weight", tensors[i]);
        differentiate(&part, name, 0);
        assert_true(part.loss == all.loss);
        const firn_adapter_entry *a = entry(&all, name), *p = entry(&part, name);
        const double error = nmse(part.gradients + p->b, all.gradients + a->b, a->rank * a->n_out);
        if (!(error < 1e-12))
            fail_msg("%s alone has another gradient: %.1e", name, error);
        undo(&part);
    }
    undo(&all);
}

/* A lender whose activations were not kept runs forward again behind those who borrowed from it. */
static void memory_changes_no_bit(void **state)
{
    firn_session_memory memory = {.size = sizeof memory};
    setup all, tight;

    (void)state;
    differentiate(&all, "all", 0);
    OK(all.f.ctx, firn_session_plan(all.f.ctx, all.f.device, all.f.model, all.f.adapter,
                                    &(firn_session_params){.n_tokens = 2 * N, .train = true}, &memory));
    assert_int_equal(memory.blocks_kept, 6);
    differentiate(&tight, "all", memory.least);
    assert_true(tight.loss == all.loss);
    assert_memory_equal(tight.gradients, all.gradients, sizeof(float) * (size_t)all.f.adapter->n_values);
    /* Own inputs of six blocks, keys and values of two with their gradients: 32 * 6 and 2 * (128 + 256) floats. */
    const uint64_t handed = sizeof(float) * 2 * N * (32 * 6 + 2 * 2 * (64 + 128));
    assert_true(memory.inputs > handed + sizeof(float) * 2 * N * 128 * 9);
    undo(&tight);
    undo(&all);
}

/* The file again, with a vector and a matrix more. */
static const char *with_keys(const char *norm, const char *keys)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *to = in_scratch("keys.gguf");
    const int64_t of_norm = 32, of_keys[] = {128, 64};
    float *values = calloc(128 * 64, sizeof *values);
    firn_gguf *gguf;
    firn_gguf_writer *out;

    OK(ctx, firn_gguf_open(ctx, path, &gguf));
    OK(ctx, firn_gguf_writer_create(ctx, &out));
    for (size_t i = 0; i < firn_gguf_n_kv(gguf); i++)
        OK(ctx, firn_gguf_put_kv(out, firn_gguf_kv_at(gguf, i)));
    for (size_t i = 0; i < firn_gguf_n_tensors(gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(gguf, i);
        OK(ctx, firn_gguf_add_tensor(out, t->name, t->type, t->n_dims, t->ne));
    }
    OK(ctx, firn_gguf_add_tensor(out, norm, FIRN_F32, 1, &of_norm));
    OK(ctx, firn_gguf_add_tensor(out, keys, FIRN_F32, 2, of_keys));
    OK(ctx, firn_gguf_writer_begin(out, to));
    for (size_t i = 0; i < firn_gguf_n_tensors(gguf); i++)
        OK(ctx, firn_gguf_writer_data(out, firn_gguf_tensor_at(gguf, i)->data, firn_gguf_tensor_at(gguf, i)->size));
    OK(ctx, firn_gguf_writer_data(out, values, sizeof(float) * 32));
    OK(ctx, firn_gguf_writer_data(out, values, sizeof(float) * 128 * 64));
    OK(ctx, firn_gguf_writer_finish(out));
    firn_gguf_writer_destroy(out);
    firn_gguf_close(gguf);
    firn_context_destroy(ctx);
    free(values);
    return to;
}

static void keys_of_a_borrower_are_idle(void **state)
{
    setup own, more;
    char kept[256];

    (void)state;
    differentiate(&own, "all", 0);
    snprintf(kept, sizeof kept, "%s", path);
    snprintf(path, sizeof path, "%s", with_keys("blk.4.attn_k_norm.weight", "blk.4.attn_k.weight"));
    differentiate(&more, "all", 0);
    assert_true(own.loss == more.loss);
    assert_int_equal(own.f.adapter->n_values, more.f.adapter->n_values);
    undo(&more);
    snprintf(path, sizeof path, "%s", kept);
    model_refused(with_keys("blk.4.attn_v_norm.weight", "blk.4.attn_k.weight"),
                  "blk.4.attn_v_norm.weight has no place");
    undo(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_gradient_of_the_whole),
        cmocka_unit_test(passes_begin_without_gradients_of_keys),
        cmocka_unit_test(memory_changes_no_bit),
        cmocka_unit_test(keys_of_a_borrower_are_idle),
    };
    return cmocka_run_group_tests(tests, draw, tear_down);
}
