/* Losses and their gradients: formulas and contracts in src/op/cross_entropy.c and src/op/router_loss.c. One
 * threadgroup per token, or one for all where a single number comes out. Sums in pairs of floats (pair.h), in an order
 * that the shape fixes. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "gpu/kernels/pair.h"
#include "op/elementary.h"

/* Weight of token t: from a source that may be absent. */
static inline float weight_at(constant firn_gpu_node_args &a, int s, device const uchar *w, int t)
{
    return (a.has >> s & 1) != 0 ? float_at(w, t * a.src[s].nb[0]) : 1.0f;
}

static inline float row_max(device const float *x, int n, threadgroup firn_pair *part, firn_member me)
{
    float top = -INFINITY;

    for (int i = (int)me.index; i < n; i += (int)me.n_threads)
        top = x[i] > top ? x[i] : top;
    return group_max(top, part, me);
}

static inline firn_pair row_exp_sum(device const float *x, int n, float top, threadgroup firn_pair *part,
                                    firn_member me)
{
    firn_pair sum = pair_of(0);

    for (int i = (int)me.index; i < n; i += (int)me.n_threads)
        sum = sum + pair_of(firn_expf(x[i] - top));
    return group_sum(sum, part, me);
}

/* ---- cross-entropy; the ignore value is parameter 0 ---- */

/* Below 0: the token counts for nothing. */
static inline int target_at(constant firn_gpu_node_args &a, device const uchar *targets, float weight, int t)
{
    const int target = int_at(targets, t * a.src[1].nb[0]);

    return target == a.p[0] || weight == 0 || target >= a.src[0].ne[0] ? -1 : target;
}

kernel void kernel_cross_entropy(FIRN_NODE, device const uchar *logits [[buffer(2)]],
                                 device const uchar *targets [[buffer(3)]], device const uchar *mask [[buffer(4)]],
                                 FIRN_GROUP)
{
    FIRN_ME;
    const float weight = weight_at(a, 2, mask, (int)row);
    const int target = target_at(a, targets, weight, (int)row);
    device const float *x = (device const float *)(logits + (int)row * a.src[0].nb[1]);
    float loss = 0;
    if (target >= 0) {
        const float top = row_max(x, a.src[0].ne[0], part, me);
        const firn_pair sum = row_exp_sum(x, a.src[0].ne[0], top, part, me);
        loss = weight * float_of(log_of(sum) + (pair_of(top) - pair_of(x[target])));
    }
    if (index == 0)
        put_float(y, (long)row * 4, loss);
}

kernel void kernel_cross_entropy_back(FIRN_NODE, device const uchar *logits [[buffer(2)]],
                                      device const uchar *targets [[buffer(3)]], device const uchar *dy [[buffer(4)]],
                                      device const uchar *mask [[buffer(5)]], FIRN_GROUP)
{
    FIRN_ME;
    const int n = a.src[0].ne[0];
    const float weight = weight_at(a, 3, mask, (int)row);
    const int target = target_at(a, targets, weight, (int)row);
    device const float *x = (device const float *)(logits + (int)row * a.src[0].nb[1]);
    device float *out = (device float *)(y + (int)row * a.y.nb[1]);
    if (target < 0) {
        FIRN_EACH (i, n)
            out[i] = 0;
        return;
    }
    const float top = row_max(x, n, part, me);
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, n) {
        out[i] = firn_expf(x[i] - top);
        sum = sum + pair_of(out[i]);
    }
    sum = group_sum(sum, part, me);
    const firn_pair d = two_product(weight, float_at(dy, (int)row * a.src[2].nb[0]));
    const float factor = float_of(d / sum);
    /* p - 1 of a confident target loses digits unless taken in pairs. */
    FIRN_EACH (i, n)
        out[i] = i == target ? float_of(d * ((pair_of(out[i]) - sum) / sum)) : out[i] * factor;
}

/* ---- the router's balance ---- */

static inline firn_pair weight_sum(constant firn_gpu_node_args &a, int s, device const uchar *w, int n_tokens,
                                   threadgroup firn_pair *part, firn_member me)
{
    firn_pair sum = pair_of(0);

    for (int t = (int)me.index; t < n_tokens; t += (int)me.n_threads)
        sum = sum + pair_of(weight_at(a, s, w, t));
    return group_sum(sum, part, me);
}

/* Weights of the slots that expert e received; ids is source s. */
static inline firn_pair slots_of(constant firn_gpu_node_args &a, int s, device const uchar *ids, device const uchar *w,
                                 int e)
{
    firn_pair sum = pair_of(0);

    for (int t = 0; t < a.src[s].ne[1]; t++) {
        int n = 0;
        for (int i = 0; i < a.src[s].ne[0]; i++)
            n += int_at(ids, i * a.src[s].nb[0] + t * a.src[s].nb[1]) == e ? 1 : 0;
        if (n > 0)
            sum = sum + two_product((float)n, weight_at(a, 2, w, t));
    }
    return sum;
}

kernel void kernel_router_balance(FIRN_NODE, device const uchar *probs [[buffer(2)]],
                                  device const uchar *ids [[buffer(3)]], device const uchar *w [[buffer(4)]],
                                  FIRN_GROUP)
{
    FIRN_ME;
    const int n_expert = a.src[0].ne[0], n_tokens = a.src[0].ne[1];
    const firn_pair total = weight_sum(a, 2, w, n_tokens, part, me);
    firn_pair sum = pair_of(0);
    FIRN_EACH (e, n_expert) {
        firn_pair p = pair_of(0);
        for (int t = 0; t < n_tokens; t++) {
            const float weight = weight_at(a, 2, w, t);
            if (weight != 0)
                p = p + two_product(weight, float_at(probs, e * 4L + t * a.src[0].nb[1]));
        }
        sum = sum + slots_of(a, 1, ids, w, e) * p;
    }
    sum = group_sum(sum, part, me);
    if (index == 0 && row == 0)
        put_float(y, 0,
                  total.hi > 0
                      ? float_of(sum * pair_of((float)n_expert) / (pair_of((float)a.src[1].ne[0]) * total * total))
                      : 0.0f);
}

/* f of each expert times what all tokens share; kernel_router_balance_back multiplies by a token's weight. */
kernel void kernel_router_shares(constant firn_gpu_node_args &a [[buffer(0)]], device firn_pair *shares [[buffer(1)]],
                                 device const uchar *ids [[buffer(2)]], device const float *dl [[buffer(3)]],
                                 device const uchar *w [[buffer(4)]], FIRN_GROUP)
{
    FIRN_ME;
    const int n_expert = a.y.ne[0];
    const firn_pair total = weight_sum(a, 2, w, a.y.ne[1], part, me);
    firn_pair factor = pair_of(0);
    (void)row;
    if (total.hi > 0)
        factor = two_product(dl[0], (float)n_expert) / (pair_of((float)a.src[0].ne[0]) * total * total);
    FIRN_EACH (e, n_expert)
        shares[e] = factor * slots_of(a, 0, ids, w, e);
}

kernel void kernel_router_balance_back(FIRN_NODE, device const firn_pair *shares [[buffer(2)]],
                                       device const uchar *w [[buffer(3)]], uint n [[thread_position_in_grid]])
{
    if (n >= a.n)
        return;
    const uint n_expert = (uint)a.y.ne[0];
    firn_pair share;
    share.hi = shares[n % n_expert].hi;
    share.lo = shares[n % n_expert].lo;
    put_float(y, (long)n * 4, float_of(pair_of(weight_at(a, 2, w, (int)(n / n_expert))) * share));
}

/* ---- the router's z ---- */

/* w z^2 of each token. */
kernel void kernel_router_z_parts(constant firn_gpu_node_args &a [[buffer(0)]], device firn_pair *parts [[buffer(1)]],
                                  device const uchar *logits [[buffer(2)]], device const uchar *w [[buffer(3)]],
                                  FIRN_GROUP)
{
    FIRN_ME;
    const int n = a.src[0].ne[0];
    device const float *x = (device const float *)(logits + (int)row * a.src[0].nb[1]);
    const float weight = weight_at(a, 1, w, (int)row);
    firn_pair loss = pair_of(0);
    if (weight != 0) {
        const float top = row_max(x, n, part, me);
        const firn_pair z = pair_of(top) + log_of(row_exp_sum(x, n, top, part, me));
        loss = pair_of(weight) * (z * z);
    }
    if (index == 0)
        parts[row] = loss;
}

kernel void kernel_router_z(FIRN_NODE, device const firn_pair *parts [[buffer(2)]], device const uchar *w [[buffer(3)]],
                            FIRN_GROUP)
{
    FIRN_ME;
    const int n = a.src[0].ne[1];
    const firn_pair total = weight_sum(a, 1, w, n, part, me);
    firn_pair sum = pair_of(0);
    FIRN_EACH (t, n) {
        firn_pair next;
        next.hi = parts[t].hi;
        next.lo = parts[t].lo;
        sum = sum + next;
    }
    sum = group_sum(sum, part, me);
    if (index == 0 && row == 0)
        put_float(y, 0, total.hi > 0 ? float_of(sum / total) : 0.0f);
}

kernel void kernel_router_z_back(FIRN_NODE, device const uchar *logits [[buffer(2)]],
                                 device const float *dl [[buffer(3)]], device const uchar *w [[buffer(4)]], FIRN_GROUP)
{
    FIRN_ME;
    const int n = a.src[0].ne[0];
    device const float *x = (device const float *)(logits + (int)row * a.src[0].nb[1]);
    device float *out = (device float *)(y + (int)row * a.y.nb[1]);
    const firn_pair total = weight_sum(a, 2, w, a.src[0].ne[1], part, me);
    const float weight = weight_at(a, 2, w, (int)row);
    if (weight == 0 || !(total.hi > 0)) {
        FIRN_EACH (i, n)
            out[i] = 0;
        return;
    }
    const float top = row_max(x, n, part, me);
    const firn_pair sum = row_exp_sum(x, n, top, part, me);
    const firn_pair z = pair_of(top) + log_of(sum);
    const float factor = float_of(two_product(dl[0], 2 * weight) * z / (total * sum));
    FIRN_EACH (i, n)
        out[i] = factor * firn_expf(x[i] - top);
}
