/* One threadgroup per row: sums, norms, softmax and their gradients, places in sorted order. Formulas and contracts:
 * src/op/<family>.c. What the CPU sums in double is summed in pairs of floats (pair.h). A thread reads and writes the
 * same elements in every pass, so that a result may lie in a source's memory. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "gpu/kernels/pair.h"
#include "op/elementary.h"

static inline device const float *floats_of(device const uchar *p, constant firn_gpu_view &v, firn_element at)
{
    return (device const float *)(p + offset_of(v, at));
}

/* ---- sums (reduce.c) ---- */

enum { SUM_CHUNK = 16384 };

/* Threadgroup `row` has SUM_CHUNK elements; its sum goes to parts[row]. */
kernel void kernel_sum_parts(constant firn_gpu_node_args &a [[buffer(0)]], device firn_pair *parts [[buffer(1)]],
                             device const uchar *x [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    const uint first = row * SUM_CHUNK, last = min(first + SUM_CHUNK, a.n);
    firn_pair sum = pair_of(0);
    for (uint i = first + index; i < last; i += n_threads)
        sum = sum + pair_of(float_at(x, offset_of(a.src[0], element_of(a.src[0], i))));
    sum = group_sum(sum, part, me);
    if (index == 0)
        parts[row] = sum;
}

/* a.n parts to one number. */
kernel void kernel_sum_total(FIRN_NODE, device const firn_pair *parts [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, (int)a.n) {
        firn_pair next;
        next.hi = parts[i].hi;
        next.lo = parts[i].lo;
        sum = sum + next;
    }
    sum = group_sum(sum, part, me);
    if (index == 0 && row == 0)
        put_float(y, 0, float_of(sum));
}

/* ---- norms for clipping (clip.c); a.p: element of the state, limit ---- */

kernel void kernel_clip_parts(constant firn_gpu_node_args &a [[buffer(0)]], device firn_pair *parts [[buffer(1)]],
                              device const float *x [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    const uint first = row * SUM_CHUNK, last = min(first + SUM_CHUNK, a.n);
    firn_pair sum = pair_of(0);
    for (uint i = first + index; i < last; i += n_threads)
        sum = sum + two_product(x[i], x[i]);
    sum = group_sum(sum, part, me);
    if (index == 0)
        parts[row] = sum;
}

kernel void kernel_clip_norm(constant firn_gpu_node_args &a [[buffer(0)]], device float *state [[buffer(1)]],
                             device const firn_pair *parts [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, (int)a.n) {
        firn_pair next;
        next.hi = parts[i].hi;
        next.lo = parts[i].lo;
        sum = sum + next;
    }
    sum = group_sum(sum, part, me);
    if (index != 0 || row != 0)
        return;
    const firn_pair norm = pair_sqrt(sum), limit = pair_of(firn_float_of_bits((uint32_t)a.p[1]));
    const bool clips = limit.hi > 0 && (norm.hi > limit.hi || (norm.hi == limit.hi && norm.lo > 0));
    device float *out = state + a.p[0];
    out[0] = !isfinite(norm.hi) ? NAN : clips ? float_of(limit / norm) : 1.0f;
    out[1] = norm.hi;
    out[2] = norm.lo;
}

template <bool MEAN> kernel void sum_rows(FIRN_NODE, device const uchar *x [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    const int n = a.src[0].ne[0];
    device const uchar *in = x + offset_of(a.src[0], row_of(a.y, row));
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, n)
        sum = sum + pair_of(float_at(in, i * a.src[0].nb[0]));
    sum = group_sum(sum, part, me);
    if (MEAN)
        sum = sum / pair_of((float)n);
    if (index == 0)
        put_float(y, (long)row * 4, float_of(sum));
}

typedef decltype(sum_rows<false>) sum_rows_t;
template [[host_name("kernel_sum_rows")]] kernel sum_rows_t sum_rows<false>;
template [[host_name("kernel_mean")]] kernel sum_rows_t sum_rows<true>;

/* A row of the result per slot: dw[s,t] = x[:,s,t] . dy[:,t]. */
kernel void kernel_mix_slots_back_w(FIRN_NODE, device const uchar *x [[buffer(2)]],
                                    device const uchar *dy [[buffer(3)]], FIRN_GROUP)
{
    FIRN_ME;
    const int s = (int)(row % (uint)a.y.ne[0]), t = (int)(row / (uint)a.y.ne[0]);
    device const float *slot = (device const float *)(x + s * a.src[0].nb[1] + t * a.src[0].nb[2]);
    device const float *d = (device const float *)(dy + t * a.src[1].nb[1]);
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, a.src[0].ne[0])
        sum = sum + two_product(slot[i], d[i]);
    sum = group_sum(sum, part, me);
    if (index == 0)
        put_float(y, (long)row * 4, float_of(sum));
}

/* ---- norms (norm.c); eps is parameter 0 ---- */

static inline firn_pair square_sum(device const float *x, int n, threadgroup firn_pair *part, firn_member me)
{
    firn_pair sum = pair_of(0);

    for (int i = (int)me.index; i < n; i += (int)me.n_threads)
        sum = sum + two_product(x[i], x[i]);
    return group_sum(sum, part, me);
}

static inline firn_pair rms_scale(device const float *x, int n, float eps, threadgroup firn_pair *part, firn_member me)
{
    const firn_pair mean = square_sum(x, n, part, me) / pair_of((float)n);

    return pair_of(1) / pair_sqrt(mean + pair_of(eps));
}

kernel void kernel_rms_norm(FIRN_NODE, device const uchar *px [[buffer(2)]], device const float *w [[buffer(3)]],
                            FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    const int n = a.y.ne[0];
    device const float *x = floats_of(px, a.src[0], at);
    device float *out = (device float *)(y + offset_of(a.y, at));
    const float r = float_of(rms_scale(x, n, param_float(a, 0), part, me));
    const bool weighted = (a.has & 2) != 0;
    FIRN_EACH (i, n)
        out[i] = weighted ? x[i] * r * w[i] : x[i] * r;
}

kernel void kernel_rms_norm_back(FIRN_NODE, device const uchar *px [[buffer(2)]], device const uchar *pdy [[buffer(3)]],
                                 device const float *w [[buffer(4)]], FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    const int n = a.y.ne[0];
    device const float *x = floats_of(px, a.src[0], at), *dy = floats_of(pdy, a.src[1], at);
    device float *dx = (device float *)(y + offset_of(a.y, at));
    const firn_pair scale = rms_scale(x, n, param_float(a, 0), part, me);
    const bool weighted = (a.has & 4) != 0;
    firn_pair along = pair_of(0);
    FIRN_EACH (i, n)
        along = along + two_product(dy[i], weighted ? w[i] : 1.0f) * pair_of(x[i]);
    along = group_sum(along, part, me);
    const firn_pair c = scale * scale * scale * along / pair_of((float)n);
    FIRN_EACH (i, n)
        dx[i] = float_of(scale * two_product(dy[i], weighted ? w[i] : 1.0f) - c * pair_of(x[i]));
}

typedef struct {
    firn_pair mean, r;
} firn_moments;

static inline firn_moments moments_of(device const float *x, int n, float eps, threadgroup firn_pair *part,
                                      firn_member me)
{
    firn_moments m;
    firn_pair sum = pair_of(0);

    for (int i = (int)me.index; i < n; i += (int)me.n_threads)
        sum = sum + pair_of(x[i]);
    m.mean = group_sum(sum, part, me) / pair_of((float)n);
    sum = pair_of(0);
    for (int i = (int)me.index; i < n; i += (int)me.n_threads) {
        const firn_pair d = pair_of(x[i]) - m.mean;
        sum = sum + d * d;
    }
    m.r = pair_of(1) / pair_sqrt(group_sum(sum, part, me) / pair_of((float)n) + pair_of(eps));
    return m;
}

kernel void kernel_norm(FIRN_NODE, device const uchar *px [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    device const float *x = floats_of(px, a.src[0], at);
    device float *out = (device float *)(y + offset_of(a.y, at));
    const firn_moments m = moments_of(x, a.y.ne[0], param_float(a, 0), part, me);
    FIRN_EACH (i, a.y.ne[0])
        out[i] = float_of((pair_of(x[i]) - m.mean) * m.r);
}

kernel void kernel_norm_back(FIRN_NODE, device const uchar *px [[buffer(2)]], device const uchar *pdy [[buffer(3)]],
                             FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    const int n = a.y.ne[0];
    device const float *x = floats_of(px, a.src[0], at), *dy = floats_of(pdy, a.src[1], at);
    device float *dx = (device float *)(y + offset_of(a.y, at));
    const firn_moments m = moments_of(x, n, param_float(a, 0), part, me);
    firn_pair sum = pair_of(0), along = pair_of(0);
    FIRN_EACH (i, n) {
        sum = sum + pair_of(dy[i]);
        along = along + pair_of(dy[i]) * ((pair_of(x[i]) - m.mean) * m.r);
    }
    const firn_pair mean_dy = group_sum(sum, part, me) / pair_of((float)n);
    along = group_sum(along, part, me) / pair_of((float)n);
    FIRN_EACH (i, n)
        dx[i] = float_of(m.r * (pair_of(dy[i]) - mean_dy - (pair_of(x[i]) - m.mean) * m.r * along));
}

kernel void kernel_l2_norm(FIRN_NODE, device const uchar *px [[buffer(2)]], FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    device const float *x = floats_of(px, a.src[0], at);
    device float *out = (device float *)(y + offset_of(a.y, at));
    const float length = float_of(pair_sqrt(square_sum(x, a.y.ne[0], part, me)));
    const float s = 1 / (length < param_float(a, 0) ? param_float(a, 0) : length);
    FIRN_EACH (i, a.y.ne[0])
        out[i] = x[i] * s;
}

kernel void kernel_l2_norm_back(FIRN_NODE, device const uchar *px [[buffer(2)]], device const uchar *pdy [[buffer(3)]],
                                FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    const int n = a.y.ne[0];
    device const float *x = floats_of(px, a.src[0], at), *dy = floats_of(pdy, a.src[1], at);
    device float *dx = (device float *)(y + offset_of(a.y, at));
    const firn_pair length = pair_sqrt(square_sum(x, n, part, me));
    const bool free = float_of(length) > param_float(a, 0);
    firn_pair along = pair_of(0);
    FIRN_EACH (i, n)
        along = along + two_product(dy[i], x[i]);
    along = group_sum(along, part, me);
    firn_pair s = pair_of(param_float(a, 0));
    if (free)
        s = length;
    s = pair_of(1) / s;
    firn_pair c = pair_of(0);
    if (free)
        c = s * s * s * along;
    FIRN_EACH (i, n)
        dx[i] = float_of(s * pair_of(dy[i]) - c * pair_of(x[i]));
}

/* ---- softmax (soft_max.c) ---- */

kernel void kernel_soft_max(FIRN_NODE, device const uchar *px [[buffer(2)]], device const uchar *mask [[buffer(3)]],
                            device const float *sinks [[buffer(4)]], FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    const int n = a.y.ne[0];
    const float scale = param_float(a, 0);
    device const float *x = floats_of(px, a.src[0], at);
    device float *out = (device float *)(y + offset_of(a.y, at));
    float top = -INFINITY;
    FIRN_EACH (i, n) {
        float v = scale * x[i];
        if (a.has & 2)
            v += ((device const float *)(mask + offset_repeated(a.src[1], at)))[i];
        top = v > top ? v : top;
        out[i] = v;
    }
    top = group_max(top, part, me);
    const bool sunk = (a.has & 4) != 0;
    const float sink = sunk ? sinks[at.i[2]] : -INFINITY;
    top = sink > top ? sink : top;
    if (top == -INFINITY) { /* all hidden; a NaN among them is not */
        float bad = 0;
        FIRN_EACH (i, n)
            bad = isnan(out[i]) ? 1.0f : bad;
        bad = group_max(bad, part, me);
        FIRN_EACH (i, n)
            out[i] = bad > 0 ? NAN : 0.0f;
        return;
    }
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, n) {
        out[i] = firn_expf(out[i] - top);
        sum = sum + pair_of(out[i]);
    }
    sum = group_sum(sum, part, me);
    if (sunk)
        sum = sum + pair_of(firn_expf(sink - top));
    const float inverse = float_of(pair_of(1) / sum);
    FIRN_EACH (i, n)
        out[i] *= inverse;
}

kernel void kernel_soft_max_back(FIRN_NODE, device const uchar *py [[buffer(2)]], device const uchar *pdy [[buffer(3)]],
                                 FIRN_GROUP)
{
    FIRN_ME;
    const firn_element at = row_of(a.y, row);
    device const float *p = floats_of(py, a.src[0], at), *dy = floats_of(pdy, a.src[1], at);
    device float *dx = (device float *)(y + offset_of(a.y, at));
    firn_pair sum = pair_of(0);
    FIRN_EACH (i, a.y.ne[0])
        sum = sum + two_product(p[i], dy[i]);
    const float along = float_of(group_sum(sum, part, me));
    FIRN_EACH (i, a.y.ne[0])
        dx[i] = param_float(a, 0) * (p[i] * (dy[i] - along));
}

/* ---- places in sorted order (sort.c): how many stand before a value, itself a reading of the whole row ---- */

static inline bool stands_before(float p, float q, bool falling)
{
    if (isnan(p) || isnan(q))
        return !isnan(p) && isnan(q);
    return falling ? p > q : p < q;
}

template <bool TOP> kernel void sort_row(FIRN_NODE, device const uchar *x [[buffer(2)]], FIRN_GROUP)
{
    const firn_element at = row_of(a.y, a.cut + row);
    const int n = a.src[0].ne[0];
    const bool falling = TOP || a.p[0] != 0;
    device const uchar *in = x + offset_of(a.src[0], at);
    device int *out = (device int *)(y + offset_of(a.y, at));
    (void)lane, (void)simd, (void)n_simd;
    FIRN_EACH (i, n) {
        const float v = float_at(in, i * a.src[0].nb[0]);
        int place = 0;
        for (int j = 0; j < n; j++) {
            const float other = float_at(in, j * a.src[0].nb[0]);
            place += stands_before(other, v, falling) || (j < i && !stands_before(v, other, falling)) ? 1 : 0;
        }
        if (place < a.y.ne[0])
            out[place] = i;
    }
}

typedef decltype(sort_row<false>) sort_row_t;
template [[host_name("kernel_argsort")]] kernel sort_row_t sort_row<false>;
template [[host_name("kernel_top_k")]] kernel sort_row_t sort_row<true>;
