/* ROPE and ROPE_BACK: src/op/rope.c. A thread turns one pair of a token's values in all heads, or passes one value.
 *
 * Angles are made in pairs of floats (pair.h), as turns: whole ones drop out exactly, so that positions of a million
 * keep their digits. base^(-2i/n) is a product of the host's base^(-2 2^k / n) over the bits k of i. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "gpu/kernels/pair.h"

static inline firn_pair given(constant firn_gpu_pair &p)
{
    firn_pair r;

    r.hi = p.hi;
    r.lo = p.lo;
    return r;
}

/* Turns per position of pair i. */
static inline firn_pair frequency(constant firn_gpu_rope_args &a, device const float *factors, int i)
{
    firn_pair f = given(a.turn), stretch = given(a.scale);

    for (int k = 0; i >> k != 0; k++)
        if (i >> k & 1)
            f = f * given(a.powers[k]);
    if (a.has_factors)
        f = f / pair_of(factors[i]);
    if (a.mix.hi != 0) {
        firn_pair ramp = pair_of((float)i - a.low) / given(a.span);
        if (ramp.hi < 0)
            ramp = pair_of(0);
        if (ramp.hi > 1)
            ramp = pair_of(1);
        const firn_pair mix = (pair_of(1) - ramp) * given(a.mix);
        stretch = stretch * (pair_of(1) - mix) + mix;
    }
    return f * stretch;
}

kernel void kernel_rope(constant firn_gpu_rope_args &a [[buffer(0)]], device uchar *y [[buffer(1)]],
                        device const uchar *x [[buffer(2)]], device const uchar *pos [[buffer(3)]],
                        device const float *factors [[buffer(4)]], uint n [[thread_position_in_grid]])
{
    if (n >= a.n)
        return;
    const int pairs = a.n_rot / 2, per_token = a.y.ne[0] - pairs;
    const int j = (int)(n % (uint)per_token), t = (int)(n / (uint)per_token);
    device const uchar *in = x + t * a.x.nb[2];
    device uchar *out = y + t * a.y.nb[2];
    if (j >= pairs) {
        for (int h = 0; h < a.y.ne[1]; h++)
            put_float(out, (pairs + j) * a.y.nb[0] + h * a.y.nb[1],
                      float_at(in, (pairs + j) * a.x.nb[0] + h * a.x.nb[1]));
        return;
    }
    const int at = int_at(pos, t * a.pos_token), whole = at / 4096 * 4096; /* each half a float */
    firn_pair turns = (pair_of((float)whole) + pair_of((float)(at - whole))) * frequency(a, factors, j);
    turns = turns - pair_of(rint(turns.hi));
    const firn_pair angle = turns * given(a.circle);
    const float c0 = cos(angle.hi), s0 = sin(angle.hi);
    const float c = a.magnitude * (c0 - angle.lo * s0), s = a.magnitude * a.direction * (s0 + angle.lo * c0);
    const long first = a.neox ? j : 2 * j, second = a.neox ? j + pairs : 2 * j + 1;
    for (int h = 0; h < a.y.ne[1]; h++) {
        const float p = float_at(in, first * a.x.nb[0] + h * a.x.nb[1]);
        const float q = float_at(in, second * a.x.nb[0] + h * a.x.nb[1]);
        put_float(out, first * a.y.nb[0] + h * a.y.nb[1], p * c - q * s);
        put_float(out, second * a.y.nb[0] + h * a.y.nb[1], p * s + q * c);
    }
}
