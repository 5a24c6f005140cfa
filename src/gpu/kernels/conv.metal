/* CONV_CAUSAL and CONV_CAUSAL_BACK: src/op/conv.c. A thread for each element of the result; a.p: tokens of history,
 * whether silu follows. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "op/elementary.h"

enum { HISTORY, SILU }; /* of a.p */
enum { X, W, FIRST };   /* of a.src */

/* The first row of x that token t sees. */
static inline int lowest_row(constant firn_gpu_node_args &a, device const int *first, int t)
{
    const int p = a.p[HISTORY];

    return max(max(p + min(first[t], t), p + t - a.src[W].ne[0] + 1), 0);
}

/* The tap that token t has for row i. */
static inline float tap(constant firn_gpu_node_args &a, device const float *w, int c, int t, int i)
{
    const int taps = a.src[W].ne[0];

    return w[(long)c * taps + (i - a.p[HISTORY] - t + taps - 1)];
}

/* s of token t. */
static inline float filtered(constant firn_gpu_node_args &a, device const uchar *x, device const float *w,
                             device const int *first, float bias, int c, int t)
{
    float sum = bias;

    for (int i = lowest_row(a, first, t); i <= a.p[HISTORY] + t; i++)
        sum += tap(a, w, c, t, i) * float_at(x, i * a.src[X].nb[1] + (long)c * 4);
    return sum;
}

kernel void kernel_conv_causal(FIRN_NODE, device const uchar *x [[buffer(2)]], device const float *w [[buffer(3)]],
                               device const int *first [[buffer(4)]], device const float *bias [[buffer(5)]],
                               uint n [[thread_position_in_grid]])
{
    if (n >= a.n)
        return;
    const int c = (int)(n % (uint)a.y.ne[0]), t = (int)(n / (uint)a.y.ne[0]);
    const float s = filtered(a, x, w, first, (a.has & 8) != 0 ? bias[c] : 0.0f, c, t);
    put_float(y, (long)n * 4, a.p[SILU] != 0 ? s * firn_sigmoidf(s) : s);
}

/* Row i of the result, from the tokens that see row i of x. */
kernel void kernel_conv_causal_back(FIRN_NODE, device const uchar *x [[buffer(2)]],
                                    device const float *w [[buffer(3)]], device const int *first [[buffer(4)]],
                                    device const uchar *dy [[buffer(5)]], device const float *bias [[buffer(6)]],
                                    uint n [[thread_position_in_grid]])
{
    if (n >= a.n)
        return;
    const int c = (int)(n % (uint)a.y.ne[0]), i = (int)(n / (uint)a.y.ne[0]), own = i - a.p[HISTORY];
    float sum = 0;
    for (int t = max(own, 0); t < min(own + a.src[W].ne[0], a.src[FIRST].ne[0]); t++) {
        if (lowest_row(a, first, t) > i)
            continue;
        float d = float_at(dy, t * a.src[3].nb[1] + (long)c * 4);
        if (a.p[SILU] != 0) {
            const float s = filtered(a, x, w, first, (a.has & 16) != 0 ? bias[c] : 0.0f, c, t);
            const float sigmoid = firn_sigmoidf(s);
            d *= sigmoid * (1 + s * (1 - sigmoid));
        }
        sum += tap(a, w, c, t, i) * d;
    }
    put_float(y, (long)n * 4, sum);
}
