/* Defects planted on purpose: `test-backend-ops bugs` runs an operation's cases with one of them at a time and wants
 * each caught. A defect replaces the operation in the node under test alone, so that nothing of it is in the library:
 * it calls the true reference with something changed, or spoils what came out, or gives a wrong gradient rule. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const firn_op *right; /* the operation whose place the defect takes */
static firn_op wrong;

/* Runs the true reference on a call whose node, or one source of it, has been changed. */
typedef struct {
    firn_call call;
    firn_tensor node, src;
} changed;

static changed change(const firn_call *call, int s)
{
    changed c = {.call = *call, .node = *call->node};

    if (s >= 0)
        c.src = *call->node->src[s];
    return c;
}

static void run_changed(changed *c, int s, int64_t begin, int64_t end)
{
    c->call.node = &c->node;
    if (s >= 0)
        c->node.src[s] = &c->src;
    right->reference(&c->call, begin, end);
}

/* With source s's integers (contiguous or not) replaced by f of them. */
static void with_ints(const firn_call *call, int64_t begin, int64_t end, int s,
                      int32_t (*f)(const firn_call *, int32_t, int64_t i0, int64_t i1))
{
    changed c = change(call, s);
    const firn_tensor *t = call->node->src[s];
    int32_t *values = malloc((size_t)(firn_n_elements(t) + 1) * sizeof *values);

    if (!values)
        abort();
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i0 = 0; i0 < t->ne[0]; i0++)
            values[i0 + i1 * t->ne[0]] = f(call, *(const int32_t *)firn_at(t, call->src[s], i0, i1, 0, 0), i0, i1);
    c.src.nb[0] = 4;
    for (int i = 1; i < FIRN_MAX_DIMS; i++)
        c.src.nb[i] = c.src.nb[i - 1] * t->ne[i - 1];
    c.call.src[s] = values;
    run_changed(&c, s, begin, end);
    free(values);
}

static float *row(const firn_call *call, int64_t r)
{
    return (float *)firn_row_at(call->node, call->dst, r);
}

#define DEFECT(name) static void name(const firn_call *call, int64_t begin, int64_t end)

/* ---- the routed product ---- */

static int32_t next_expert(const firn_call *call, int32_t e, int64_t i0, int64_t i1)
{
    (void)i0, (void)i1;
    return (int32_t)((e + 1) % call->node->src[0]->ne[2]);
}

DEFECT(wrong_expert)
{
    with_ints(call, begin, end, 2, next_expert);
}

static int32_t turned_ids(const firn_call *call, int32_t e, int64_t i0, int64_t i1)
{
    const firn_tensor *ids = call->node->src[2];

    (void)e; /* as if ids were contiguous */
    return ((const int32_t *)call->src[2])[i0 + i1 * ids->ne[0]];
}

DEFECT(ids_strides)
{
    with_ints(call, begin, end, 2, turned_ids);
}

DEFECT(shared_row)
{
    changed c = change(call, 1);

    c.src.ne[1] = 1; /* s mod 1 where s mod s' is meant */
    run_changed(&c, 1, begin, end);
}

/* What an item of the result is, is the operation's affair; spoiled when the last item has been done. */
DEFECT(dropped_slot)
{
    const firn_tensor *y = call->node;

    right->reference(call, begin, end);
    if (y->ne[1] > 1 && end == (right->items ? right->items(y) : firn_n_rows(y)))
        for (int64_t t = 0; t < y->ne[2]; t++)
            memset(firn_at(y, call->dst, 0, y->ne[1] - 1, t, 0), 0, (size_t)y->ne[0] * sizeof(float));
}

DEFECT(transposed_expert)
{
    changed c = change(call, 0);

    if (c.src.type == FIRN_F32 && c.src.ne[1] <= c.src.ne[0]) /* else it would read past the end */
        c.src.nb[1] = c.src.ne[1] * (int64_t)sizeof(float);
    run_changed(&c, 0, begin, end);
}

DEFECT(missing_tail)
{
    changed c = change(call, 0);

    if (c.src.type == FIRN_F32 && c.src.ne[0] % 16 == 1)
        c.src.ne[0]--;
    run_changed(&c, 0, begin, end);
}

DEFECT(table_ignored)
{
    changed c = change(call, -1);

    c.node.src[3] = NULL;
    c.call.src[3] = NULL;
    run_changed(&c, -1, begin, end);
}

DEFECT(empty_expert_left)
{
    const firn_tensor *y = call->node, *ids = y->src[2];

    for (int64_t item = begin; item < end; item++) {
        bool any = false;
        for (int64_t i1 = 0; i1 < ids->ne[1]; i1++)
            for (int64_t i0 = 0; i0 < ids->ne[0]; i0++)
                any |= *(const int32_t *)firn_at(ids, call->src[2], i0, i1, 0, 0) == item / y->ne[1];
        if (any)
            right->reference(call, item, item + 1);
    }
}

/* Slots that shared a row: the first ones' gradient instead of the sum. */
static firn_tensor *no_sum_over_slots(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *dx = of == 1 ? firn_mul_mat_id_back(g, y->src[0], dy, y->src[2]) : NULL;

    if (!dx)
        return right->gradient(g, y, dy, of);
    return firn_cont(g, firn_view(g, dx, 4, y->src[1]->ne, dx->nb, 0));
}

/* ---- sums and precision ---- */

static void round_results(const firn_call *call, float unit)
{
    for (int64_t r = 0; r < firn_n_rows(call->node); r++)
        for (int64_t i = 0; i < call->node->ne[0]; i++)
            row(call, r)[i] = roundf(row(call, r)[i] * unit) / unit;
}

DEFECT(half_accumulator)
{
    right->reference(call, begin, end);
    if (end == (right->items ? right->items(call->node) : firn_n_rows(call->node)))
        round_results(call, 1024);
}

DEFECT(stale_workspace)
{
    const double before = *(const double *)call->work;

    right->reference(call, begin, end);
    if (begin < end && call->node->ne[0] > 0)
        row(call, begin)[0] += (float)(before * 1e-30);
}

DEFECT(thread_order)
{
    right->reference(call, begin, end);
    if (begin > 0 && begin < end)
        row(call, begin)[0] = nextafterf(row(call, begin)[0], INFINITY);
}

DEFECT(broadcast_ignored)
{
    changed c = change(call, 1);

    c.src.nb[1] = 0;
    run_changed(&c, 1, begin, end);
}

static firn_tensor *wrong_sign(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_scale(g, right->gradient(g, y, dy, of), of == 1 ? -1.0f : 1.0f);
}

static firn_tensor *passes_all(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    (void)g, (void)y, (void)of;
    return dy;
}

/* ---- memory ---- */

DEFECT(past_the_end)
{
    right->reference(call, begin, end);
    if (end == firn_n_rows(call->node))
        *(float *)((char *)call->dst + firn_n_bytes(call->node)) = 0;
}

DEFECT(last_unwritten)
{
    right->reference(call, begin, end == firn_n_rows(call->node) ? end - 1 : end);
}

DEFECT(writes_input)
{
    right->reference(call, begin, end);
    if (begin < end)
        *(float *)call->src[0] += 1;
}

/* ---- gathers ---- */

DEFECT(last_row_wins)
{
    const firn_tensor *y = call->node, *dy = y->src[0], *ids = y->src[1];

    right->reference(call, begin, end);
    if (begin != 0)
        return;
    for (int64_t i = 0; i < ids->ne[0]; i++) {
        const int32_t id = *(const int32_t *)firn_at(ids, call->src[1], i, 0, 0, 0);
        for (int64_t c = 0; c < y->ne[0]; c++)
            *(float *)firn_at(y, call->dst, c, id, 0, 0) = *(const float *)firn_at(dy, call->src[0], c, i, 0, 0);
    }
}

DEFECT(first_plane_only)
{
    changed c = change(call, 0);

    c.src.nb[2] = 0;
    run_changed(&c, 0, begin, end);
}

DEFECT(ties_reversed)
{
    const firn_tensor *y = call->node, *a = y->src[0];

    right->reference(call, begin, end);
    for (int64_t r = begin; r < end; r++) {
        int32_t *ids = (int32_t *)firn_row_at(y, call->dst, r);
        const char *values = firn_row_at(a, call->src[0], r);
        for (int64_t i = 0; i + 1 < y->ne[0]; i++) {
            const float u = *(const float *)(values + ids[i] * a->nb[0]);
            const float v = *(const float *)(values + ids[i + 1] * a->nb[0]);
            if (u == v) {
                const int32_t t = ids[i];
                ids[i] = ids[i + 1];
                ids[i + 1] = t;
            }
        }
    }
}

DEFECT(truncates)
{
    const firn_tensor *y = call->node;

    right->reference(call, begin, end);
    for (int64_t r = begin; r < end && y->type == FIRN_BF16; r++)
        for (int64_t i = 0; i < y->ne[0]; i++) {
            const firn_tensor *a = y->src[0];
            uint32_t bits;
            if (a->type != FIRN_F32)
                return;
            memcpy(&bits, firn_row_at(a, call->src[0], r) + i * a->nb[0], sizeof bits);
            ((uint16_t *)firn_row_at(y, call->dst, r))[i] = (uint16_t)(bits >> 16);
        }
}

DEFECT(weights_turned)
{
    changed c = change(call, 1);

    c.src.nb[1] = 0;
    run_changed(&c, 1, begin, end);
}

/* ---- the model's operations ---- */

DEFECT(sinks_ignored)
{
    changed c = change(call, -1);

    c.call.src[2] = NULL;
    run_changed(&c, -1, begin, end);
}

DEFECT(mask_of_first_head)
{
    if (call->node->src[1]) {
        changed c = change(call, 1);
        c.src.nb[2] = 0;
        run_changed(&c, 1, begin, end);
    } else {
        right->reference(call, begin, end);
    }
}

DEFECT(eps_forgotten)
{
    changed c = change(call, -1);

    c.node.params.f[0] = 0;
    run_changed(&c, -1, begin, end);
}

DEFECT(pairs_confused)
{
    changed c = change(call, -1);
    firn_rope_params p;

    memcpy(&p, &c.node.params, sizeof p);
    p.neox = !p.neox;
    memcpy(&c.node.params, &p, sizeof p);
    run_changed(&c, -1, begin, end);
}

static firn_tensor *turns_on(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_rope_params p;

    (void)of;
    memcpy(&p, &y->params, sizeof p);
    return firn_rope(g, dy, y->src[1], y->src[2], &p);
}

static int32_t sees_one_less(const firn_call *call, int32_t at, int64_t i0, int64_t i1)
{
    (void)call, (void)i1;
    return i0 == 1 && at > 1 ? at - 1 : at;
}

DEFECT(range_off_by_one)
{
    with_ints(call, begin, end, 3, sees_one_less);
}

DEFECT(one_key_head)
{
    changed c = change(call, 1);

    c.src.nb[1] = 0;
    run_changed(&c, 1, begin, end);
}

/* Harmless forward; only the gradient reads lse. */
DEFECT(lse_off)
{
    const firn_tensor *y = call->node;

    right->reference(call, begin, end);
    if (end == right->items(y))
        for (int64_t i = y->src[2]->ne[0] * y->src[0]->ne[1] * y->src[0]->ne[2]; i < y->ne[0]; i++)
            ((float *)call->dst)[i] += 0.01f;
}

static int32_t counts_everything(const firn_call *call, int32_t id, int64_t i0, int64_t i1)
{
    (void)call, (void)i0, (void)i1;
    return id < 0 ? 0 : id;
}

DEFECT(masked_token_counts)
{
    with_ints(call, begin, end, 1, counts_everything);
}

DEFECT(no_bias_correction)
{
    changed c = change(call, -1);
    float h[8];

    memcpy(h, call->src[4], sizeof h);
    h[6] = 1;
    c.call.src[4] = h;
    run_changed(&c, -1, begin, end);
}

DEFECT(momentum_kept)
{
    const size_t size = firn_n_bytes(call->node);
    void *m = malloc(size + 1);

    if (!m)
        abort();
    memcpy(m, call->src[2], size);
    right->reference(call, begin, end);
    memcpy(call->src[2], m, size);
    free(m);
}

DEFECT(decay_forgotten)
{
    changed c = change(call, -1);
    float h[3];

    memcpy(h, call->src[2], sizeof h);
    h[1] = 0;
    c.call.src[2] = h;
    run_changed(&c, -1, begin, end);
}

/* ---- optional sources and parameters left out ---- */

static void without(const firn_call *call, int64_t begin, int64_t end, int s)
{
    changed c = change(call, -1);

    c.node.src[s] = NULL;
    c.call.src[s] = NULL;
    run_changed(&c, -1, begin, end);
}

static void with_float(const firn_call *call, int64_t begin, int64_t end, int word, float value)
{
    changed c = change(call, -1);

    c.node.params.f[word] = value;
    run_changed(&c, -1, begin, end);
}

DEFECT(first_optional_left)
{
    without(call, begin, end, right->n_src);
}

DEFECT(cap_forgotten)
{
    with_float(call, begin, end, 1, 0);
}

DEFECT(scale_forgotten)
{
    with_float(call, begin, end, 0, 1);
}

DEFECT(clip_forgotten)
{
    with_float(call, begin, end, 1, 0);
}

DEFECT(limit_forgotten)
{
    with_float(call, begin, end, 2, INFINITY);
}

DEFECT(alpha_forgotten)
{
    with_float(call, begin, end, 1, 1);
}

DEFECT(yarn_forgotten)
{
    changed c = change(call, -1);
    firn_rope_params p;

    memcpy(&p, &c.node.params, sizeof p);
    p.ext_factor = 0;
    memcpy(&c.node.params, &p, sizeof p);
    run_changed(&c, -1, begin, end);
}

DEFECT(kinds_confused)
{
    changed c = change(call, -1);

    c.node.params.i[0] ^= 1;
    run_changed(&c, -1, begin, end);
}

/* ---- another operation in its place ---- */

DEFECT(turned_forward)
{
    firn_op_rope.reference(call, begin, end);
}

DEFECT(mean_left_in)
{
    firn_op_l2_norm_back.reference(call, begin, end);
}

DEFECT(sum_for_mean)
{
    firn_op_sum_rows.reference(call, begin, end);
}

DEFECT(operands_swapped)
{
    changed c = change(call, -1);

    c.node.src[0] = call->node->src[1];
    c.node.src[1] = call->node->src[0];
    c.call.src[0] = call->src[1];
    c.call.src[1] = call->src[0];
    run_changed(&c, -1, begin, end);
}

DEFECT(length_held)
{
    const firn_tensor *y = call->node;

    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)firn_row_at(y->src[0], call->src[0], r);
        const float *dy = (const float *)firn_row_at(y->src[1], call->src[1], r);
        float sum = 0;
        for (int64_t i = 0; i < y->ne[0]; i++)
            sum += x[i] * x[i];
        for (int64_t i = 0; i < y->ne[0]; i++)
            row(call, r)[i] = dy[i] / sqrtf(sum);
    }
}

/* ---- strides of a source ---- */

static void with_stride(const firn_call *call, int64_t begin, int64_t end, int s, int axis, int64_t stride)
{
    changed c = change(call, s);

    c.src.nb[axis] = stride;
    run_changed(&c, s, begin, end);
}

DEFECT(dy_of_first_slot)
{
    with_stride(call, begin, end, 1, 1, 0);
}

DEFECT(first_choice_only)
{
    const int ids = right == &firn_op_router_balance ? 1 : 0;

    with_stride(call, begin, end, ids, 0, 0);
}

DEFECT(weights_of_first_token)
{
    with_stride(call, begin, end, 0, 1, 0);
}

DEFECT(fourth_axis_ignored)
{
    with_stride(call, begin, end, 0, 3, 0);
}

DEFECT(taken_for_contiguous)
{
    changed c = change(call, 1);

    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        c.src.nb[i] = i ? c.src.nb[i - 1] * c.src.ne[i - 1] : (int64_t)sizeof(float);
    run_changed(&c, 1, begin, end);
}

DEFECT(neighbours_shared)
{
    changed c = change(call, 0);

    c.src.ne[1] = call->node->ne[1]; /* the slots past s' are never added */
    run_changed(&c, 0, begin, end);
}

DEFECT(one_row_shared)
{
    changed c = change(call, 0);

    c.src.ne[1] = 1;
    run_changed(&c, 0, begin, end);
}

/* ---- ids and ranges ---- */

static int32_t sees_from_zero(const firn_call *call, int32_t at, int64_t i0, int64_t i1)
{
    (void)call, (void)i1;
    return i0 == 0 ? 0 : at;
}

DEFECT(window_ignored)
{
    with_ints(call, begin, end, 3, sees_from_zero);
}

static int32_t bias_of_slot(const firn_call *call, int32_t id, int64_t i0, int64_t i1)
{
    (void)id, (void)i1;
    return (int32_t)(i0 % call->node->src[1]->ne[1]);
}

DEFECT(slot_for_expert)
{
    with_ints(call, begin, end, 2, bias_of_slot);
}

static int32_t next_row(const firn_call *call, int32_t id, int64_t i0, int64_t i1)
{
    (void)i0, (void)i1;
    return (int32_t)((id + 1) % call->node->ne[1]);
}

DEFECT(row_below)
{
    with_ints(call, begin, end, 2, next_row);
}

DEFECT(sinks_without_gradient)
{
    const firn_tensor *y = call->node, *sinks = y->src[6];

    right->reference(call, begin, end);
    if (sinks && end == right->items(y))
        memset((float *)call->dst + y->ne[0] - sinks->ne[0], 0, (size_t)sinks->ne[0] * sizeof(float));
}

/* ---- gradient rules ---- */

static firn_tensor *half_of_it(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_scale(g, right->gradient(g, y, dy, of), 0.5f);
}

/* ---- states along the tokens ---- */

static int32_t first_of_all(const firn_call *call, int32_t first, int64_t i0, int64_t i1)
{
    (void)call, (void)i0, (void)i1;
    return first < 0 ? first : 0;
}

DEFECT(one_document)
{
    with_ints(call, begin, end, 2, first_of_all);
}

DEFECT(one_document_of_states)
{
    with_ints(call, begin, end, 5, first_of_all);
}

static void with_int(const firn_call *call, int64_t begin, int64_t end, int word, int32_t value)
{
    changed c = change(call, -1);

    c.node.params.i[word] = value;
    run_changed(&c, -1, begin, end);
}

DEFECT(silu_forgotten)
{
    with_int(call, begin, end, 1, 0);
}

DEFECT(other_key_heads)
{
    with_int(call, begin, end, 0, !call->node->params.i[0]);
}

DEFECT(a_state_from_nowhere)
{
    without(call, begin, end, 6);
}

/* ---- the list ---- */

static const struct {
    const char *name, *op;
    void (*reference)(const firn_call *, int64_t, int64_t);
    firn_tensor *(*gradient)(firn_graph *, firn_tensor *, firn_tensor *, int);
    bool grad;     /* to be caught by grad */
    bool declined; /* the device says that it has no kernel */
} defects[] = {
    {"the next expert", "MUL_MAT_ID", wrong_expert, NULL, false, false},
    {"the next expert", "MUL_MAT_ID_BACK", wrong_expert, NULL, false, false},
    {"ids taken for contiguous", "MUL_MAT_ID", ids_strides, NULL, false, false},
    {"ids taken for contiguous", "OUT_PROD_ID", ids_strides, NULL, false, false},
    {"one row shared by all slots", "MUL_MAT_ID", shared_row, NULL, false, false},
    {"the last slot dropped", "MUL_MAT_ID", dropped_slot, NULL, false, false},
    {"the last slot dropped", "MUL_MAT_ID_BACK", dropped_slot, NULL, false, false},
    {"an expert read as its transpose", "MUL_MAT_ID_BACK", transposed_expert, NULL, false, false},
    {"the tail of a row left out", "MUL_MAT_ID", missing_tail, NULL, false, false},
    {"the gather table ignored", "MUL_MAT_ID", table_ignored, NULL, false, false},
    {"no sum over the slots that share a row", "MUL_MAT_ID", NULL, no_sum_over_slots, true, false},
    {"an expert without rows left as it was", "OUT_PROD_ID", empty_expert_left, NULL, false, false},
    {"half-precision sums", "MUL_MAT", half_accumulator, NULL, false, false},
    {"half-precision sums", "MUL_MAT_ID_BACK", half_accumulator, NULL, false, false},
    {"stale workspace", "OUT_PROD", stale_workspace, NULL, false, false},
    {"stale workspace", "REPEAT_BACK", stale_workspace, NULL, false, false},
    {"bits that depend on the threads", "ADD", thread_order, NULL, false, false},
    {"the second operand's rows not stepped", "MUL", broadcast_ignored, NULL, false, false},
    {"the sign of a gradient", "SUB", NULL, wrong_sign, true, false},
    {"a clamp that passes every gradient", "CLAMP", NULL, passes_all, true, false},
    {"a write past the end", "CONT", past_the_end, NULL, false, false},
    {"the last row not written", "FILL", last_unwritten, NULL, false, false},
    {"a write into the input", "SILU", writes_input, NULL, false, false},
    {"repeated rows overwrite each other", "GET_ROWS_BACK", last_row_wins, NULL, false, false},
    {"every plane read from the first", "GET_ROWS", first_plane_only, NULL, false, false},
    {"ties in the wrong order", "TOP_K", ties_reversed, NULL, false, false},
    {"truncation instead of rounding", "CAST", truncates, NULL, false, false},
    {"a token's weights not stepped", "MIX_SLOTS", weights_turned, NULL, false, false},
    {"sinks ignored", "SOFT_MAX", sinks_ignored, NULL, false, false},
    {"the first head's mask for all", "SOFT_MAX", mask_of_first_head, NULL, false, false},
    {"eps forgotten", "RMS_NORM", eps_forgotten, NULL, false, false},
    {"neox and interleaved pairs confused", "ROPE", pairs_confused, NULL, false, false},
    {"the gradient turned further instead of back", "ROPE", NULL, turns_on, true, false},
    {"a range one key short", "ATTENTION", range_off_by_one, NULL, false, false},
    {"one key head for all", "ATTENTION", one_key_head, NULL, false, false},
    {"a wrong log-sum-exp", "ATTENTION", lse_off, NULL, true, false},
    {"a masked token counted", "CROSS_ENTROPY", masked_token_counts, NULL, false, false},
    {"no bias correction", "OPT_STEP_ADAMW", no_bias_correction, NULL, false, false},
    {"first moments not written", "OPT_STEP_ADAMW", momentum_kept, NULL, false, false},
    {"the dy of a token's first slot for all", "MUL_MAT_ID_BACK", dy_of_first_slot, NULL, false, false},
    {"one row shared by all slots", "OUT_PROD_ID", one_row_shared, NULL, false, false},
    {"the fourth axis not stepped", "MUL_MAT", fourth_axis_ignored, NULL, false, false},
    {"the second operand taken for contiguous", "OUT_PROD", taken_for_contiguous, NULL, false, false},
    {"slots past the shared ones left out", "SUM_SLOTS", neighbours_shared, NULL, false, false},
    {"a token's weights not stepped", "MIX_SLOTS_BACK_X", weights_of_first_token, NULL, false, false},
    {"half-precision sums", "MIX_SLOTS_BACK_W", half_accumulator, NULL, false, false},
    {"the slot's bias for the expert's", "ADD_ID", slot_for_expert, NULL, false, false},
    {"rows written one below", "SET_ROWS", row_below, NULL, false, false},
    {"falling order for rising", "ARGSORT", kinds_confused, NULL, false, false},
    {"the sum for the mean", "MEAN", sum_for_mean, NULL, false, false},
    {"the sign of a gradient", "DIV", NULL, wrong_sign, true, false},
    {"a corner that passes every gradient", "RELU", NULL, passes_all, true, false},
    {"one function's slope for another's", "UNARY_BACK", kinds_confused, NULL, false, false},
    {"one unit's slope for another's", "GLU_BACK", kinds_confused, NULL, false, false},
    {"gate and up exchanged", "GEGLU", operands_swapped, NULL, false, false},
    {"gate and up exchanged", "GLU_BACK", operands_swapped, NULL, false, false},
    {"the limit forgotten", "SWIGLU_OAI", limit_forgotten, NULL, false, false},
    {"alpha forgotten", "SWIGLU_OAI", alpha_forgotten, NULL, false, false},
    {"a clamp that passes every gradient", "GLU_BACK", limit_forgotten, NULL, false, false},
    {"the weight ignored", "RMS_NORM_BACK", first_optional_left, NULL, false, false},
    {"eps forgotten", "NORM", eps_forgotten, NULL, false, false},
    {"eps forgotten", "L2_NORM", eps_forgotten, NULL, false, false},
    {"the mean left in", "NORM_BACK", mean_left_in, NULL, false, false},
    {"the length held constant", "L2_NORM_BACK", length_held, NULL, false, false},
    {"the scale forgotten", "SOFT_MAX", scale_forgotten, NULL, false, false},
    {"the scale forgotten", "SOFT_MAX_BACK", scale_forgotten, NULL, false, false},
    {"YaRN forgotten", "ROPE", yarn_forgotten, NULL, false, false},
    {"frequency factors ignored", "ROPE", first_optional_left, NULL, false, false},
    {"turned forward", "ROPE_BACK", turned_forward, NULL, false, false},
    {"sinks ignored", "ATTENTION", first_optional_left, NULL, false, false},
    {"the window's lower end ignored", "ATTENTION", window_ignored, NULL, false, false},
    {"the soft-cap forgotten", "ATTENTION", cap_forgotten, NULL, false, false},
    {"the window's lower end ignored", "ATTENTION_BACK", window_ignored, NULL, false, false},
    {"the soft-cap forgotten", "ATTENTION_BACK", cap_forgotten, NULL, false, false},
    {"one key head for all", "ATTENTION_BACK", one_key_head, NULL, false, false},
    {"sinks without a gradient", "ATTENTION_BACK", sinks_without_gradient, NULL, false, false},
    {"the mask ignored", "CROSS_ENTROPY", first_optional_left, NULL, false, false},
    {"a masked token counted", "CROSS_ENTROPY_BACK", masked_token_counts, NULL, false, false},
    {"the mask ignored", "CROSS_ENTROPY_BACK", first_optional_left, NULL, false, false},
    {"padding counted", "ROUTER_BALANCE", first_optional_left, NULL, false, false},
    {"a token's first choice only", "ROUTER_BALANCE", first_choice_only, NULL, false, false},
    {"padding counted", "ROUTER_BALANCE_BACK", first_optional_left, NULL, false, false},
    {"a token's first choice only", "ROUTER_BALANCE_BACK", first_choice_only, NULL, false, false},
    {"padding counted", "ROUTER_Z", first_optional_left, NULL, false, false},
    {"half of a square's gradient", "ROUTER_Z", NULL, half_of_it, true, false},
    {"padding counted", "ROUTER_Z_BACK", first_optional_left, NULL, false, false},
    {"one document for all", "CONV_CAUSAL", one_document, NULL, false, false},
    {"one document for all", "CONV_CAUSAL_BACK", one_document, NULL, false, false},
    {"silu forgotten", "CONV_CAUSAL", silu_forgotten, NULL, false, false},
    {"silu forgotten", "CONV_CAUSAL_BACK", silu_forgotten, NULL, false, false},
    {"one document for all", "GATED_DELTA", one_document_of_states, NULL, false, false},
    {"one document for all", "GATED_DELTA_BACK", one_document_of_states, NULL, false, false},
    {"the state from before ignored", "GATED_DELTA", a_state_from_nowhere, NULL, false, false},
    {"the state from before ignored", "SSM_SCAN", a_state_from_nowhere, NULL, false, false},
    {"key heads in the other order", "GATED_DELTA", other_key_heads, NULL, false, false},
    {"key heads in the other order", "GATED_DELTA_BACK", other_key_heads, NULL, false, false},
    {"one document for all", "SSM_SCAN", one_document_of_states, NULL, false, false},
    {"one document for all", "SSM_SCAN_BACK", one_document_of_states, NULL, false, false},
    {"the limit forgotten", "CLIP_NORM", clip_forgotten, NULL, false, false},
    {"decay forgotten", "OPT_STEP_SGD", decay_forgotten, NULL, false, false},
    {"a promised cell that the device declines", "GET_ROWS", NULL, NULL, false, true},
};

static int planted = -1;

int bug_count(void)
{
    return (int)(sizeof defects / sizeof *defects);
}

const char *bug_plant(int i, const char **op, bool *grad)
{
    planted = i;
    if (i < 0)
        return NULL;
    *op = defects[i].op;
    *grad = defects[i].grad;
    return defects[i].name;
}

void bug_infect(firn_tensor *node)
{
    if (planted < 0 || !node || !node->op || strcmp(node->op->name, defects[planted].op) != 0)
        return;
    right = node->op;
    wrong = *right;
    if (defects[planted].reference) {
        wrong.reference = defects[planted].reference;
        wrong.gather = NULL;
    }
    if (defects[planted].declined)
        wrong.reference = NULL;
    if (defects[planted].gradient)
        wrong.gradient = defects[planted].gradient;
    node->op = &wrong;
}
