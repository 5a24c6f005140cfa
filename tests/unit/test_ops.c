/* What test-backend-ops does not see: refusals in words, ids out of range, several optimizer steps against the closed
 * form, results that are alike to the bit, and that gradients of several sources share one node. */
#include "unit/unit.h"

#include "core/context.h"
#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_graph *g;
} fixture;

static const char *device_name = "CPU";

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    f->ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    if (!f->ctx || firn_device_open(f->ctx, device_name, &f->device) != FIRN_OK ||
        firn_graph_create(f->ctx, &f->g) != FIRN_OK)
        return 1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    firn_graph_destroy(f->g);
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
    free(f);
    return 0;
}

static firn_tensor *slot(fixture *f, firn_type type, int64_t a, int64_t b, int64_t c)
{
    const int64_t ne[] = {a, b, c};

    return firn_slot(f->g, type, 3, ne, "slot");
}

/* The graph has failed with that status, and its sentence contains `words`. */
static void expect_refusal(fixture *f, firn_status status, const char *words)
{
    assert_int_equal(firn_graph_status(f->g), status);
    if (!strstr(firn_error(f->ctx), words))
        fail_msg("'%s' does not say '%s'", firn_error(f->ctx), words);
}

/* ---- refusals ---- */

static void gradient_of(fixture *f, firn_tensor *y, firn_tensor *x)
{
    firn_tensor *dy = firn_slot(f->g, FIRN_F32, 4, y->ne, "dy"), *dx;

    firn_graph_grad(f->g, y, dy, &x, 1, &dx);
}

static void test_packed_weights_have_no_gradient(void **state)
{
    fixture *f = *state;
    firn_tensor *w = firn_named(slot(f, FIRN_Q4_0, 32, 4, 3), "blk.0.ffn_up_exps.weight");
    firn_tensor *x = slot(f, FIRN_F32, 32, 1, 2), *ids = slot(f, FIRN_I32, 2, 2, 1);

    gradient_of(f, firn_mul_mat_id(f->g, w, x, ids, NULL), w);
    expect_refusal(f, FIRN_ERR_UNSUPPORTED, "blk.0.ffn_up_exps.weight holds q4_0");
}

static void test_the_gather_table_is_not_differentiated(void **state)
{
    fixture *f = *state;
    firn_tensor *w = slot(f, FIRN_F32, 8, 4, 3), *x = slot(f, FIRN_F32, 8, 1, 2), *ids = slot(f, FIRN_I32, 2, 2, 1);

    gradient_of(f, firn_mul_mat_id(f->g, w, x, ids, slot(f, FIRN_I64, 3, 1, 1)), x);
    expect_refusal(f, FIRN_ERR_UNSUPPORTED, "gather table");
}

static void test_a_choice_has_no_slope(void **state)
{
    fixture *f = *state;
    firn_tensor *x = slot(f, FIRN_F32, 8, 4, 1);

    gradient_of(f, firn_add_into(f->g, slot(f, FIRN_F32, 8, 4, 1), x), x);
    expect_refusal(f, FIRN_ERR_UNSUPPORTED, "ADD_INTO");
}

static void test_shapes_that_do_not_fit(void **state)
{
    static const struct {
        int which;
        const char *words;
    } cases[] = {
        {0, "MUL_MAT: rows of x have 7 values, w takes 8"},
        {1, "MUL_MAT_ID: 3 slots of a token cannot share 2 rows"},
        {2, "cannot be repeated over"},
        {3, "GET_ROWS: ids must be i32, not f32"},
        {4, "RESHAPE: a must be contiguous"},
        {5, "ends past its source"},
        {6, "ATTENTION: 4 heads cannot share 3"},
        {7, "TOP_K: 9 of 8 values cannot be chosen"},
        {8, "ADD needs a tensor as source 1, not NULL"},
        {9, "ROPE: 6 rotated values of a head of 4"},
        {10, "ROUTER_BALANCE: ids of [3, 2, 1, 1] and probs of [8, 8, 1, 1] differ in tokens"},
        {11, "ROUTER_Z: the weights must be [8], not [7, 1, 1, 1]"},
        {12, "CROSS_ENTROPY: the mask must be [8], not [7, 1, 1, 1]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *fresh = NULL;
        assert_int_equal(setup(&fresh), 0);
        fixture *f = fresh;
        firn_tensor *a = slot(f, FIRN_F32, 8, 4, 2), *ids = slot(f, FIRN_I32, 3, 2, 1);
        const int64_t ne[] = {8, 5, 2}, flat[] = {64};
        const firn_rope_params rope = {.n_rot = 6, .freq_base = 10000, .freq_scale = 1};
        switch (cases[i].which) {
        case 0:
            firn_mul_mat(f->g, a, slot(f, FIRN_F32, 7, 1, 2));
            break;
        case 1:
            firn_mul_mat_id(f->g, a, slot(f, FIRN_F32, 8, 2, 2), ids, NULL);
            break;
        case 2:
            firn_add(f->g, a, slot(f, FIRN_F32, 3, 1, 1));
            break;
        case 3:
            firn_get_rows(f->g, a, a);
            break;
        case 4:
            firn_reshape(f->g, firn_transpose(f->g, a), 1, flat);
            break;
        case 5:
            firn_view(f->g, a, 3, ne, a->nb, 32);
            break;
        case 6:
            firn_attention(f->g, a, slot(f, FIRN_F32, 8, 3, 5), slot(f, FIRN_F32, 8, 3, 5), slot(f, FIRN_I32, 2, 2, 1),
                           NULL, 1, 0);
            break;
        case 7:
            firn_top_k(f->g, a, 9);
            break;
        case 8:
            firn_add(f->g, a, NULL);
            break;
        case 9:
            firn_rope(f->g, slot(f, FIRN_F32, 4, 1, 2), slot(f, FIRN_I32, 2, 1, 1), NULL, &rope);
            break;
        case 10:
            firn_router_balance(f->g, slot(f, FIRN_F32, 8, 8, 1), ids, NULL);
            break;
        case 11:
            firn_router_z(f->g, slot(f, FIRN_F32, 8, 8, 1), slot(f, FIRN_F32, 7, 1, 1));
            break;
        case 12:
            firn_cross_entropy_masked(f->g, slot(f, FIRN_F32, 8, 8, 1), slot(f, FIRN_I32, 8, 1, 1),
                                      slot(f, FIRN_F32, 7, 1, 1), -1);
            break;
        }
        expect_refusal(f, FIRN_ERR_ARGUMENT, cases[i].words);
        assert_null(firn_add(f->g, a, a)); /* sticky */
        teardown(&fresh);
    }
}

/* ---- running ---- */

typedef struct {
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *arena, *work;
} session;

static void session_open(fixture *f, session *s)
{
    assert_int_equal(firn_plan_create(f->device, f->g, &s->plan), FIRN_OK);
    assert_int_equal(firn_exec_create(s->plan, &s->exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f->device, firn_plan_arena_bytes(s->plan) + 64, &s->arena), FIRN_OK);
    assert_int_equal(firn_buffer_create(f->device, firn_plan_work_bytes(s->plan) + 64, &s->work), FIRN_OK);
    assert_int_equal(firn_exec_memory(s->exec, s->arena, 0, s->work, 0), FIRN_OK);
}

static void session_close(session *s)
{
    firn_exec_destroy(s->exec);
    firn_plan_destroy(s->plan);
    firn_buffer_destroy(s->arena);
    firn_buffer_destroy(s->work);
}

static firn_buffer *bind(fixture *f, session *s, firn_tensor *t, const void *data)
{
    firn_buffer *b;

    assert_int_equal(firn_buffer_create(f->device, firn_n_bytes(t) + 64, &b), FIRN_OK);
    if (data)
        assert_int_equal(firn_buffer_write(b, 0, data, firn_n_bytes(t)), FIRN_OK);
    assert_int_equal(firn_exec_bind(s->exec, t, b, 0), FIRN_OK);
    return b;
}

/* An id out of range stops the run with a sentence, and touches nothing. */
static void check_bad_id(fixture *f, firn_tensor *y, firn_tensor *const *slots, int n, firn_tensor *ids,
                         const int32_t *values, const char *words)
{
    firn_buffer *buffers[8];
    firn_tensor *bound[8];
    session s;
    float zeros[4096] = {0};
    const int n_bound = n + (y->op->into ? 1 : 2);
    unsigned char canary[64], after[64];

    if (!y->op->into)
        y = firn_output(f->g, y->op->view ? firn_cont(f->g, y) : y);
    assert_int_equal(firn_graph_status(f->g), FIRN_OK);
    session_open(f, &s);
    for (int i = 0; i < n; i++)
        buffers[i] = bind(f, &s, bound[i] = slots[i], zeros);
    buffers[n] = bind(f, &s, bound[n] = ids, values);
    if (n_bound > n + 1)
        buffers[n + 1] = bind(f, &s, bound[n + 1] = y, NULL);
    memset(canary, 0xa5, sizeof canary);
    for (int i = 0; i < n_bound; i++)
        assert_int_equal(firn_buffer_write(buffers[i], firn_n_bytes(bound[i]), canary, sizeof canary), FIRN_OK);
    assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f->device), FIRN_ERR_DEVICE);
    if (!strstr(firn_error(f->ctx), words))
        fail_msg("'%s' does not say '%s'", firn_error(f->ctx), words);
    /* Afterwards the device is usable again. */
    const int32_t good[16] = {0};
    assert_int_equal(firn_buffer_write(buffers[n], 0, good, firn_n_bytes(ids)), FIRN_OK);
    assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f->device), FIRN_OK);
    for (int i = 0; i < n_bound; i++) {
        assert_int_equal(firn_buffer_read(buffers[i], firn_n_bytes(bound[i]), after, sizeof after), FIRN_OK);
        assert_memory_equal(after, canary, sizeof after);
        firn_buffer_destroy(buffers[i]);
    }
    session_close(&s);
}

static const int32_t bad_ids[] = {0, 1, 7, -3, 2, 1, 0, 2};

static void test_experts_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 4, 3), slot(f, FIRN_F32, 8, 1, 4)}, *ids = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_mul_mat_id(f->g, src[0], src[1], ids, NULL), src, 2, ids, bad_ids, "7");
}

static void test_experts_out_of_range_backward(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 4, 3), slot(f, FIRN_F32, 4, 2, 4)}, *ids = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_mul_mat_id_back(f->g, src[0], src[1], ids), src, 2, ids, bad_ids, "7");
}

static void test_slots_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 1, 4), slot(f, FIRN_F32, 4, 2, 4)}, *ids = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_out_prod_id(f->g, src[0], src[1], ids, 3), src, 2, ids, bad_ids, "7");
}

static void test_biases_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 2, 4), slot(f, FIRN_F32, 8, 3, 1)}, *ids = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_add_id(f->g, src[0], src[1], ids), src, 2, ids, bad_ids, "7");
}

static void test_rows_out_of_range_backward(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 5, 8, 1)}, *ids = slot(f, FIRN_I32, 8, 1, 1);

    check_bad_id(f, firn_get_rows_back(f->g, src[0], ids, 6), src, 1, ids, bad_ids, "7");
}

static void test_set_rows_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 5, 6, 1), slot(f, FIRN_F32, 5, 8, 1)}, *ids = slot(f, FIRN_I32, 8, 1, 1);

    check_bad_id(f, firn_set_rows(f->g, src[0], src[1], ids), src, 2, ids, bad_ids, "7");
}

static void test_keys_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 2, 4), slot(f, FIRN_F32, 8, 1, 5), slot(f, FIRN_F32, 8, 1, 5)};
    firn_tensor *range = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_attention(f->g, src[0], src[1], src[2], range, NULL, 1, 0), src, 3, range, bad_ids, "7");
}

static void test_rows_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 5, 1)}, *ids = slot(f, FIRN_I32, 8, 1, 1);

    check_bad_id(f, firn_get_rows(f->g, src[0], ids), src, 1, ids, bad_ids, "7");
}

static void test_targets_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 5, 8, 1)}, *ids = slot(f, FIRN_I32, 8, 1, 1);

    check_bad_id(f, firn_cross_entropy(f->g, src[0], ids), src, 1, ids, bad_ids, "7");
}

/* Keys and values that no query sees may be anything: a cache is not cleared before it is used. */
static void test_attention_leaves_unseen_keys_alone(void **state)
{
    enum { HEAD = 8, N_Q = 3, N_KV = 100, SEEN = 40 };
    fixture *f = *state;
    firn_tensor *q = slot(f, FIRN_F32, HEAD, 2, N_Q), *kv = slot(f, FIRN_F32, HEAD, 1, N_KV),
                *range = slot(f, FIRN_I32, 2, N_Q, 1);
    firn_tensor *y = firn_output(f->g, firn_cont(f->g, firn_attention(f->g, q, kv, kv, range, NULL, 0.5f, 0)));
    float values[HEAD * N_KV], result[HEAD * 2 * N_Q];
    const int32_t ranges[] = {0, SEEN - 2, 1, SEEN - 1, 0, SEEN};
    session s;

    for (int i = 0; i < HEAD * N_KV; i++)
        values[i] = i < HEAD * SEEN ? sinf((float)i) : NAN;
    session_open(f, &s);
    firn_buffer *buffers[] = {bind(f, &s, q, values), bind(f, &s, kv, values), bind(f, &s, range, ranges),
                              bind(f, &s, y, NULL)};
    assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f->device), FIRN_OK);
    assert_int_equal(firn_buffer_read(buffers[3], 0, result, sizeof result), FIRN_OK);
    for (int i = 0; i < HEAD * 2 * N_Q; i++)
        assert_true(isfinite(result[i]));
    for (int i = 0; i < 4; i++)
        firn_buffer_destroy(buffers[i]);
    session_close(&s);
}

static void test_choices_out_of_range(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 3, 4, 1)}, *ids = slot(f, FIRN_I32, 2, 4, 1);

    check_bad_id(f, firn_router_balance(f->g, src[0], ids, NULL), src, 1, ids, bad_ids, "7");
}

/* ---- gradients that share a node ---- */

static int count(const fixture *f, const char *op)
{
    int n = 0;

    for (int i = 0; i < firn_graph_n_tensors(f->g); i++) {
        const firn_tensor *t = firn_graph_tensor(f->g, i);
        n += t->op && strcmp(t->op->name, op) == 0;
    }
    return n;
}

static void test_attention_is_differentiated_once(void **state)
{
    fixture *f = *state;
    firn_tensor *qkv[] = {slot(f, FIRN_F32, 8, 4, 6), slot(f, FIRN_F32, 8, 2, 6), slot(f, FIRN_F32, 8, 2, 6)},
                *grads[3];
    firn_tensor *y = firn_attention(f->g, qkv[0], qkv[1], qkv[2], slot(f, FIRN_I32, 2, 6, 1), NULL, 0.5f, 0);
    firn_tensor *dy = firn_slot(f->g, FIRN_F32, 4, y->ne, "dy");

    assert_int_equal(firn_graph_grad(f->g, y, dy, qkv, 3, grads), FIRN_OK);
    assert_int_equal(count(f, "ATTENTION_BACK"), 1);
    for (int i = 0; i < 3; i++)
        assert_true(firn_same_shape(grads[i], qkv[i]));
}

static void test_gated_units_are_differentiated_once(void **state)
{
    fixture *f = *state;
    firn_tensor *src[] = {slot(f, FIRN_F32, 8, 4, 1), slot(f, FIRN_F32, 8, 4, 1)}, *grads[2];
    firn_tensor *y = firn_swiglu(f->g, src[0], src[1]), *dy = slot(f, FIRN_F32, 4, 8, 1);

    assert_int_equal(firn_graph_grad(f->g, y, firn_transpose(f->g, dy), src, 2, grads), FIRN_OK);
    assert_int_equal(count(f, "GLU_BACK"), 1);
}

/* ---- optimizers ---- */

/* A constant gradient g: m_t / (1 - b1^t) = g and v_t / (1 - b2^t) = g^2, so that each step of AdamW moves p by
 * lr (g / (|g| + eps) + decay p), whatever the betas. Two gradients are added up first. */
static void test_adamw_closed_form(void **state)
{
    enum { N = 9, STEPS = 7 };
    fixture *f = *state;
    firn_tensor *p = slot(f, FIRN_F32, N, 1, 1), *m = slot(f, FIRN_F32, N, 1, 1), *v = slot(f, FIRN_F32, N, 1, 1);
    firn_tensor *sum = slot(f, FIRN_F32, N, 1, 1), *g1 = slot(f, FIRN_F32, N, 1, 1),
                *hyper = slot(f, FIRN_F32, 8, 1, 1);
    float values[N], gradient[N], zeros[N] = {0};
    double want[N];
    session s;

    firn_add_into(f->g, sum, g1);
    firn_graph_cut(f->g);
    firn_opt_step_adamw(f->g, p, sum, m, v, hyper);
    assert_int_equal(firn_graph_status(f->g), FIRN_OK);
    session_open(f, &s);
    for (int i = 0; i < N; i++) {
        values[i] = 0.1f * (float)i - 0.3f;
        want[i] = (double)values[i];
        gradient[i] = (i % 2 ? -1.0f : 1.0f) * (0.01f + 0.2f * (float)i);
    }
    firn_buffer *bp = bind(f, &s, p, values), *bm = bind(f, &s, m, zeros), *bv = bind(f, &s, v, zeros);
    firn_buffer *bs = bind(f, &s, sum, zeros), *bg = bind(f, &s, g1, gradient), *bh = bind(f, &s, hyper, NULL);
    for (int t = 1; t <= STEPS; t++) {
        const double b1 = 0.9, b2 = 0.999, lr = 0.01 * t, decay = 0.1, eps = 1e-8;
        const float h[8] = {(float)lr,
                            (float)b1,
                            (float)b2,
                            (float)eps,
                            (float)decay,
                            (float)(1 / (1 - pow(b1, t))),
                            (float)(1 / (1 - pow(b2, t))),
                            0.5f};
        assert_int_equal(firn_buffer_write(bs, 0, zeros, sizeof zeros), FIRN_OK);
        assert_int_equal(firn_buffer_write(bh, 0, h, sizeof h), FIRN_OK);
        assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
        assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK); /* 2 g, scaled by 0.5 */
        assert_int_equal(firn_exec_run(s.exec, 1, 0), FIRN_OK);
        assert_int_equal(firn_device_wait(f->device), FIRN_OK);
        for (int i = 0; i < N; i++) {
            const double g = (double)gradient[i];
            want[i] -= lr * (g / (fabs(g) + eps) + decay * want[i]);
        }
    }
    assert_int_equal(firn_buffer_read(bp, 0, values, sizeof values), FIRN_OK);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)values[i] - want[i]) < 2e-6);
    firn_buffer *all[] = {bp, bm, bv, bs, bg, bh};
    for (int i = 0; i < 6; i++)
        firn_buffer_destroy(all[i]);
    session_close(&s);
}

/* The same for SGD, in one formula over all steps: p_t + g/decay shrinks by 1 - lr decay at each. */
static void test_sgd_closed_form(void **state)
{
    enum { N = 5, STEPS = 9 };
    fixture *f = *state;
    firn_tensor *p = slot(f, FIRN_F32, N, 1, 1), *sum = slot(f, FIRN_F32, N, 1, 1), *g1 = slot(f, FIRN_F32, N, 1, 1),
                *hyper = slot(f, FIRN_F32, 3, 1, 1);
    const float h[3] = {0.05f, 0.2f, 1.0f / 3}, zeros[N] = {0};
    float start[N], values[N], gradient[N];
    session s;

    firn_add_into(f->g, sum, g1);
    firn_graph_cut(f->g);
    firn_opt_step_sgd(f->g, p, sum, hyper);
    assert_int_equal(firn_graph_status(f->g), FIRN_OK);
    session_open(f, &s);
    for (int i = 0; i < N; i++) {
        start[i] = 0.4f * (float)i - 0.7f;
        gradient[i] = 0.3f - 0.2f * (float)i;
    }
    firn_buffer *bp = bind(f, &s, p, start), *bs = bind(f, &s, sum, zeros), *bg = bind(f, &s, g1, gradient);
    firn_buffer *bh = bind(f, &s, hyper, h), *all[] = {bp, bs, bg, bh};
    for (int t = 0; t < STEPS; t++) {
        assert_int_equal(firn_buffer_write(bs, 0, zeros, sizeof zeros), FIRN_OK);
        for (int i = 0; i < 3; i++) /* 3 g, scaled by 1/3 */
            assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
        assert_int_equal(firn_exec_run(s.exec, 1, 0), FIRN_OK);
        assert_int_equal(firn_device_wait(f->device), FIRN_OK);
    }
    assert_int_equal(firn_buffer_read(bp, 0, values, sizeof values), FIRN_OK);
    for (int i = 0; i < N; i++) {
        const double g = (double)gradient[i], rest = g / 0.2;
        const double want = ((double)start[i] + rest) * pow(1 - 0.05 * 0.2, STEPS) - rest;
        assert_true(fabs((double)values[i] - want) < 2e-6);
    }
    for (int i = 0; i < 4; i++)
        firn_buffer_destroy(all[i]);
    session_close(&s);
}

/* ---- bits that do not change ---- */

/* Runs the graph, whose slots and two outputs are given; the outputs' bytes must be alike. */
static void expect_same_bits(fixture *f, firn_tensor *const *slots, void *const *data, int n, firn_tensor *a,
                             firn_tensor *b)
{
    firn_buffer *buffers[8];
    session s;

    assert_int_equal(firn_graph_status(f->g), FIRN_OK);
    session_open(f, &s);
    for (int i = 0; i < n; i++)
        buffers[i] = bind(f, &s, slots[i], data[i]);
    buffers[n] = bind(f, &s, a, NULL);
    buffers[n + 1] = bind(f, &s, b, NULL);
    assert_int_equal(firn_exec_run(s.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f->device), FIRN_OK);
    assert_int_equal(firn_n_bytes(a), firn_n_bytes(b));
    unsigned char *bytes = malloc(2 * firn_n_bytes(a));
    assert_int_equal(firn_buffer_read(buffers[n], 0, bytes, firn_n_bytes(a)), FIRN_OK);
    assert_int_equal(firn_buffer_read(buffers[n + 1], 0, bytes + firn_n_bytes(a), firn_n_bytes(b)), FIRN_OK);
    assert_memory_equal(bytes, bytes + firn_n_bytes(a), firn_n_bytes(a));
    float largest = 0;
    for (int64_t i = 0; i < firn_n_elements(a); i++) {
        assert_true(isfinite(((float *)bytes)[i]));
        largest = fmaxf(largest, fabsf(((float *)bytes)[i]));
    }
    assert_true(largest > 0);
    free(bytes);
    for (int i = 0; i < n + 2; i++)
        firn_buffer_destroy(buffers[i]);
    session_close(&s);
}

/* Bytes that are small numbers in every format. */
static void *some_bytes(const firn_tensor *t, int seed)
{
    unsigned char *bytes = malloc(firn_n_bytes(t) + 4);

    for (size_t i = 0; i < firn_n_bytes(t); i++)
        bytes[i] = (unsigned char)((i * 37 + (size_t)seed * 11) % 0x3c);
    for (size_t i = 3; t->type == FIRN_F32 && i < firn_n_bytes(t); i += 4)
        bytes[i] = i % 8 == 3 ? 0x3d : 0xbd;
    return bytes;
}

static void test_the_identity_table_changes_no_bit(void **state)
{
    static const firn_type types[] = {FIRN_F32,  FIRN_F16,  FIRN_Q4_0,  FIRN_Q8_0,
                                      FIRN_Q4_K, FIRN_Q6_K, FIRN_MXFP4, FIRN_IQ4_XS};
    static const int n_tokens[] = {1, 3, 40};

    (void)state;
    for (size_t i = 0; i < 3 * sizeof types / sizeof *types; i++) {
        void *fresh = NULL;
        assert_int_equal(setup(&fresh), 0);
        fixture *f = fresh;
        const int n = n_tokens[i % 3];
        firn_tensor *slots[] = {slot(f, types[i / 3], 256, 37, 4), slot(f, FIRN_F32, 256, 1, n),
                                slot(f, FIRN_I32, 2, n, 1), slot(f, FIRN_I64, 4, 1, 1)};
        int32_t ids[80];
        int64_t table[4];
        void *data[] = {some_bytes(slots[0], 1), some_bytes(slots[1], 2), ids, table};
        for (int k = 0; k < 2 * n; k++)
            ids[k] = (k * 7 + k / 5) % 4;
        for (int e = 0; e < 4; e++)
            table[e] = e * slots[0]->nb[2];
        firn_tensor *plain = firn_output(f->g, firn_mul_mat_id(f->g, slots[0], slots[1], slots[2], NULL));
        firn_tensor *placed = firn_output(f->g, firn_mul_mat_id(f->g, slots[0], slots[1], slots[2], slots[3]));
        expect_same_bits(f, slots, data, 4, plain, placed);
        free(data[0]);
        free(data[1]);
        teardown(&fresh);
    }
}

/* The loss of 20 tokens and its gradient, whole and in chunks of 7. */
static void test_chunks_of_tokens_change_no_bit(void **state)
{
    enum { V = 301, N = 20, CHUNK = 7 };

    (void)state;
    for (int of_gradient = 0; of_gradient < 2; of_gradient++) {
        void *fresh = NULL;
        assert_int_equal(setup(&fresh), 0);
        fixture *f = fresh;
        firn_tensor *slots[] = {slot(f, FIRN_F32, V, N, 1), slot(f, FIRN_I32, N, 1, 1), slot(f, FIRN_F32, N, 1, 1),
                                slot(f, FIRN_F32, N, 1, 1)};
        int32_t targets[N];
        for (int i = 0; i < N; i++)
            targets[i] = i % 6 == 2 ? -100 : (i * 31) % V;
        void *data[] = {some_bytes(slots[0], 1), targets, some_bytes(slots[2], 2), some_bytes(slots[3], 3)};
        firn_tensor *whole = firn_cross_entropy_masked(f->g, slots[0], slots[1], slots[2], 5), *parts = NULL;
        if (of_gradient)
            assert_int_equal(firn_graph_grad(f->g, whole, slots[3], &slots[0], 1, &whole), FIRN_OK);
        for (int from = 0; from < N; from += CHUNK) {
            const int64_t n = from + CHUNK < N ? CHUNK : N - from, ne[] = {V, n};
            firn_tensor *cut[4];
            for (int i = 1; i < 4; i++)
                cut[i] = firn_view(f->g, slots[i], 1, &n, slots[i]->nb, 4 * from);
            cut[0] = firn_view(f->g, slots[0], 2, ne, slots[0]->nb, from * slots[0]->nb[1]);
            firn_tensor *part = firn_cross_entropy_masked(f->g, cut[0], cut[1], cut[2], 5);
            if (of_gradient)
                assert_int_equal(firn_graph_grad(f->g, part, cut[3], &cut[0], 1, &part), FIRN_OK);
            parts = parts ? firn_concat(f->g, parts, part, of_gradient) : part;
        }
        expect_same_bits(f, slots, data, of_gradient ? 4 : 3, firn_output(f->g, whole), firn_output(f->g, parts));
        free(data[0]);
        free(data[2]);
        free(data[3]);
        teardown(&fresh);
    }
}

/* Of two results at once, the second on the way to the first: their gradients add up where they meet. */
static void test_results_are_differentiated_together(void **state)
{
    fixture *f = *state;
    firn_tensor *a = slot(f, FIRN_F32, 9, 4, 1), *dy = slot(f, FIRN_F32, 9, 4, 1), *dz = slot(f, FIRN_F32, 9, 4, 1),
                *da;
    firn_tensor *y = firn_scale(f->g, a, 3), *z = firn_scale(f->g, y, 5), *slots[] = {a, dy, dz};
    void *data[] = {some_bytes(a, 1), some_bytes(dy, 2), some_bytes(dz, 3)};

    assert_int_equal(
        firn_graph_grad_all(f->g, (firn_tensor *[]){z, y}, (firn_tensor *[]){dz, dy}, 2, (firn_tensor *[]){a}, 1, &da),
        FIRN_OK);
    firn_tensor *want = firn_scale(f->g, firn_add(f->g, dy, firn_scale(f->g, dz, 5)), 3);
    expect_same_bits(f, slots, data, 3, firn_output(f->g, da), firn_output(f->g, want));
    for (int i = 0; i < 3; i++)
        free(data[i]);
    assert_int_equal(firn_graph_grad_all(f->g, &z, &dz, 0, &a, 1, &da), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_graph_grad_all(f->g, &z, &a, 1, (firn_tensor *[]){NULL}, 1, &da), FIRN_ERR_ARGUMENT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_packed_weights_have_no_gradient),
        TEST(test_the_gather_table_is_not_differentiated),
        TEST(test_a_choice_has_no_slope),
        cmocka_unit_test(test_shapes_that_do_not_fit),
        TEST(test_experts_out_of_range),
        TEST(test_experts_out_of_range_backward),
        TEST(test_slots_out_of_range),
        TEST(test_biases_out_of_range),
        TEST(test_rows_out_of_range),
        TEST(test_rows_out_of_range_backward),
        TEST(test_set_rows_out_of_range),
        TEST(test_keys_out_of_range),
        TEST(test_targets_out_of_range),
        TEST(test_choices_out_of_range),
        TEST(test_attention_leaves_unseen_keys_alone),
        TEST(test_attention_is_differentiated_once),
        TEST(test_gated_units_are_differentiated_once),
        TEST(test_adamw_closed_form),
        TEST(test_sgd_closed_form),
        cmocka_unit_test(test_the_identity_table_changes_no_bit),
        cmocka_unit_test(test_chunks_of_tokens_change_no_bit),
        TEST(test_results_are_differentiated_together),
    };
    int failed = cmocka_run_group_tests_name("on the CPU", tests, NULL, NULL);
    firn_context *ctx = firn_context_create(NULL);
    for (int i = 1; ctx && i < firn_device_count(); i++) {
        firn_device_info info = {.size = sizeof info};
        if (firn_device_describe(ctx, i, &info) != FIRN_OK || info.error[0])
            continue;
        device_name = info.name;
        failed += cmocka_run_group_tests_name(info.name, tests, NULL, NULL);
    }
    firn_context_destroy(ctx);
    return failed;
}
