/* GATED_DELTA, SSM_SCAN and their gradients: formulas and contract in src/op/scan.c.
 *
 *     kernel_scan_<keys>          forward: a simdgroup has a column of one head's state, its lanes the keys. For the
 *                                 gradient it keeps the state before each chunk of tokens, and e = v - S'^T k
 *     kernel_scan_adjoint_<keys>  the same backwards, which needs no states: lam behind each chunk, du and dv
 *     kernel_scan_rows            with u and de known, rows of a state do not mix either: a simdgroup has one key of a
 *                                 key head in one chunk, its lanes the values; dq, dk, and dg by key
 *     kernel_scan_sums            dbeta, and dg where a head has one decay
 *
 * So only the first two walk from token to token, and columns of heads beside each other; memory is linear in tokens.
 * One writer per element, sums in a fixed order. What a document finds is set to 0, not multiplied by it. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "gpu/kernels/pair.h"
#include "op/elementary.h"

/* A chunk's tokens, in parts whose states a row holds at once; columns that a lane of a row has. gpu/plan_scan.c has
 * CHUNK too. */
enum { SIMD = 32, PARTS = 8, PART = 8, CHUNK = PARTS * PART, COLUMNS = 4 };

static inline int key_head(constant firn_gpu_scan_args &a, int h)
{
    return a.tiled != 0 ? h % a.n_group : h / (a.n_head / a.n_group);
}

/* Whether the state is 0 before token t. */
static inline bool begins(constant firn_gpu_scan_args &a, device const int *first, int t)
{
    return first[t] >= t || (t == 0 && a.has_state == 0);
}

static inline device const float *floats_at(device const uchar *p, int64_t nb1, int64_t nb2, int head, int t)
{
    return (device const float *)(p + head * nb1 + t * nb2);
}

/* Token and head: the number of beta's element, and of rows of o, v and g. */
static inline long place_of(constant firn_gpu_scan_args &a, int h, int t)
{
    return (long)t * a.n_head + h;
}

/* e^g of key i, where `shared` is the head's. */
static inline float decay_of(constant firn_gpu_scan_args &a, device const float *g, long place, int i, float shared)
{
    return a.channels != 0 ? firn_expf(g[place * a.n_keys + i]) : shared;
}

static inline float shared_decay(constant firn_gpu_scan_args &a, device const float *g, long place)
{
    return a.channels != 0 ? 0.0f : firn_expf(g[place]);
}

/* Where the states before, or behind, chunk number `chunk` have key i and value j. */
static inline long kept_at(constant firn_gpu_scan_args &a, int chunk, int h, int i, int j)
{
    return (((long)chunk * a.n_head + h) * a.n_keys + i) * a.n_values + j;
}

/* ---- columns ---- */

template <int OWN>
kernel void scan(constant firn_gpu_scan_args &a [[buffer(0)]], device float *out [[buffer(1)]],
                 device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]],
                 device const uchar *v [[buffer(4)]], device const float *g [[buffer(5)]],
                 device const float *beta [[buffer(6)]], device const int *first [[buffer(7)]],
                 device const float *state [[buffer(8)]], device float *work [[buffer(9)]], FIRN_SIMDS)
{
    const int n = (int)((a.cut + group) * n_simd + simd);
    if (n >= a.n_head * a.n_values)
        return;
    const int j = n % a.n_values, h = n / a.n_values, head = key_head(a, h);
    const long column = ((long)h * a.n_values + j) * a.n_keys;
    float S[OWN];
    for (int m = 0; m < OWN; m++) {
        const int i = lane + SIMD * m;
        S[m] = a.has_state != 0 && i < a.n_keys ? state[column + i] : 0.0f;
    }
    for (int t = 0; t < a.n; t++) {
        device const float *key = floats_at(k, a.k1, a.k2, head, t), *query = floats_at(q, a.q1, a.q2, head, t);
        const long place = place_of(a, h, t);
        const bool fresh = begins(a, first, t);
        const float shared = shared_decay(a, g, place);
        float r = 0, sum = 0;
        for (int m = 0; m < OWN; m++) {
            const int i = lane + SIMD * m;
            if (i >= a.n_keys)
                break;
            if (a.remembers != 0 && t % CHUNK == 0)
                work[a.kept + kept_at(a, t / CHUNK, h, i, j)] = S[m];
            S[m] = fresh ? 0.0f : S[m] * decay_of(a, g, place, i, shared);
            r += key[i] * S[m];
        }
        const float recalled = simd_sum(r);
        const float e = floats_at(v, a.v1, a.v2, h, t)[j] - (a.delta != 0 && !fresh ? recalled : 0.0f);
        const float u = beta[place] * e;
        for (int m = 0; m < OWN; m++) {
            const int i = lane + SIMD * m;
            if (i >= a.n_keys)
                break;
            S[m] += key[i] * u;
            sum += query[i] * S[m];
        }
        sum = simd_sum(sum);
        if (lane != 0)
            continue;
        if (a.remembers != 0)
            work[a.error + place * a.n_values + j] = e;
        else
            out[place * a.n_values + j] = sum;
    }
    if (a.remembers != 0)
        return;
    for (int m = 0; m < OWN && lane + SIMD * m < a.n_keys; m++)
        out[(long)a.n * a.n_head * a.n_values + column + lane + SIMD * m] = S[m];
}

template <int OWN>
kernel void scan_adjoint(constant firn_gpu_scan_args &a [[buffer(0)]], device float *out [[buffer(1)]],
                         device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]],
                         device const float *g [[buffer(4)]], device const float *beta [[buffer(5)]],
                         device const int *first [[buffer(6)]], device const float *dy [[buffer(7)]],
                         device float *work [[buffer(8)]], FIRN_SIMDS)
{
    const int n = (int)((a.cut + group) * n_simd + simd);
    if (n >= a.n_head * a.n_values)
        return;
    const int j = n % a.n_values, h = n / a.n_values, head = key_head(a, h);
    float lam[OWN];
    for (int m = 0; m < OWN; m++)
        lam[m] = 0;
    for (int t = a.n - 1; t >= 0; t--) {
        device const float *key = floats_at(k, a.k1, a.k2, head, t), *query = floats_at(q, a.q1, a.q2, head, t);
        const long place = place_of(a, h, t);
        const float dyj = dy[place * a.n_values + j], shared = shared_decay(a, g, place);
        const bool fresh = begins(a, first, t);
        float sum = 0;
        for (int m = 0; m < OWN; m++) {
            const int i = lane + SIMD * m;
            if (i >= a.n_keys)
                break;
            if (t % CHUNK == CHUNK - 1 || t == a.n - 1)
                work[a.behind + kept_at(a, t / CHUNK, h, i, j)] = lam[m];
            lam[m] += query[i] * dyj;
            sum += lam[m] * key[i];
        }
        const float du = simd_sum(sum), de = beta[place] * du;
        for (int m = 0; m < OWN; m++) {
            const int i = lane + SIMD * m;
            if (i >= a.n_keys)
                break;
            const float d = a.delta != 0 ? lam[m] - key[i] * de : lam[m];
            lam[m] = fresh ? 0.0f : d * decay_of(a, g, place, i, shared);
        }
        if (lane == 0) {
            work[a.along + place * a.n_values + j] = du;
            out[a.dv + place * a.n_values + j] = de;
        }
    }
}

typedef decltype(scan<4>) scan_t;
typedef decltype(scan_adjoint<4>) scan_adjoint_t;
template [[host_name("kernel_scan_128")]] kernel scan_t scan<4>;
template [[host_name("kernel_scan_1024")]] kernel scan_t scan<32>;
template [[host_name("kernel_scan_adjoint_128")]] kernel scan_adjoint_t scan_adjoint<4>;
template [[host_name("kernel_scan_adjoint_1024")]] kernel scan_adjoint_t scan_adjoint<32>;

/* ---- rows ---- */

static inline void put_or_add(device float *at, float value, bool adds)
{
    *at = adds ? *at + value : value;
}

/* What a row of key i and head h has at token t. */
typedef struct {
    long values; /* where this token and head have values */
    float decay, key, query, beta;
    bool fresh;
} firn_row;

static inline firn_row row_at(constant firn_gpu_scan_args &a, device const uchar *q, device const uchar *k,
                              device const float *g, device const float *beta, device const int *first, int h, int i,
                              int t)
{
    const int head = key_head(a, h);
    const long place = place_of(a, h, t);
    firn_row r;

    r.values = place * a.n_values;
    r.decay = decay_of(a, g, place, i, shared_decay(a, g, place));
    r.key = floats_at(k, a.k1, a.k2, head, t)[i];
    r.query = floats_at(q, a.q1, a.q2, head, t)[i];
    r.beta = beta[place];
    r.fresh = begins(a, first, t);
    return r;
}

/* The lane's columns from j on, over token t. */
static inline void advance(constant firn_gpu_scan_args &a, firn_row r, device const float *error, int j,
                           thread float *S)
{
    for (int m = 0; m < COLUMNS && j + SIMD * m < a.n_values; m++)
        S[m] = (r.fresh ? 0.0f : S[m] * r.decay) + r.key * (r.beta * error[r.values + j + SIMD * m]);
}

kernel void kernel_scan_rows(constant firn_gpu_scan_args &a [[buffer(0)]], device float *out [[buffer(1)]],
                             device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]],
                             device const float *g [[buffer(4)]], device const float *beta [[buffer(5)]],
                             device const int *first [[buffer(6)]], device const float *dy [[buffer(7)]],
                             device float *work [[buffer(8)]], FIRN_SIMDS)
{
    const uint n = (a.cut + group) * n_simd + simd;
    const int i = (int)(n % (uint)a.n_keys), head = (int)(n / (uint)a.n_keys % (uint)a.n_group);
    const int chunk = (int)(n / (uint)a.n_keys / (uint)a.n_group), t0 = chunk * CHUNK, t1 = min(t0 + CHUNK, a.n);
    if (t0 >= a.n)
        return;
    device const float *error = work + a.error, *along = work + a.along;
    device float *dg = a.channels != 0 ? out + a.dg : work + a.parts;
    float S[COLUMNS], lam[COLUMNS], before[PARTS][COLUMNS], within[PART][COLUMNS];
    for (int number = 0; number < a.n_head / a.n_group; number++) {
        const int h = a.tiled != 0 ? head + number * a.n_group : head * (a.n_head / a.n_group) + number;
        for (int j0 = 0; j0 < a.n_values; j0 += SIMD * COLUMNS) {
            const int j = j0 + lane;
            for (int m = 0; m < COLUMNS; m++) {
                const bool mine = j + SIMD * m < a.n_values;
                const long at = kept_at(a, chunk, h, i, j + SIMD * m);
                S[m] = mine ? work[a.kept + at] : 0.0f;
                lam[m] = mine ? work[a.behind + at] : 0.0f;
            }
            for (int t = t0; t < t1; t++) {
                for (int m = 0; m < COLUMNS && t % PART == 0; m++)
                    before[(t - t0) / PART][m] = S[m];
                advance(a, row_at(a, q, k, g, beta, first, h, i, t), error, j, S);
            }
            for (int part = (t1 - 1 - t0) / PART; part >= 0; part--) {
                const int begin = t0 + part * PART, end = min(begin + PART, t1);
                for (int m = 0; m < COLUMNS; m++)
                    S[m] = before[part][m];
                for (int t = begin; t < end; t++) {
                    for (int m = 0; m < COLUMNS; m++)
                        within[t - begin][m] = S[m];
                    advance(a, row_at(a, q, k, g, beta, first, h, i, t), error, j, S);
                }
                for (int t = end - 1; t >= begin; t--) {
                    const firn_row r = row_at(a, q, k, g, beta, first, h, i, t);
                    float dq = 0, dk = 0, slope = 0;
                    for (int m = 0; m < COLUMNS && j + SIMD * m < a.n_values; m++) {
                        const long at = r.values + j + SIMD * m;
                        const float u = r.beta * error[at], de = r.beta * along[at];
                        const float decayed = r.fresh ? 0.0f : within[t - begin][m] * r.decay;
                        lam[m] += r.query * dy[at];
                        const float d = a.delta != 0 ? lam[m] - r.key * de : lam[m];
                        dq += (decayed + r.key * u) * dy[at];
                        dk += a.delta != 0 && !r.fresh ? lam[m] * u - decayed * de : lam[m] * u;
                        slope += decayed * d;
                        lam[m] = r.fresh ? 0.0f : d * r.decay;
                    }
                    dq = simd_sum(dq);
                    dk = simd_sum(dk);
                    slope = simd_sum(slope);
                    if (lane != 0)
                        continue;
                    const long row = ((long)t * a.n_group + head) * a.n_keys + i;
                    put_or_add(out + row, dq, number > 0 || j0 > 0);
                    put_or_add(out + a.dk + row, dk, number > 0 || j0 > 0);
                    put_or_add(dg + place_of(a, h, t) * a.n_keys + i, r.fresh ? 0.0f : slope, j0 > 0);
                }
            }
        }
    }
}

/* A simdgroup for each token and head. */
kernel void kernel_scan_sums(constant firn_gpu_scan_args &a [[buffer(0)]], device float *out [[buffer(1)]],
                             device const float *work [[buffer(2)]], FIRN_SIMDS)
{
    const long place = (long)group * n_simd + simd;
    if (place >= (long)a.n * a.n_head)
        return;
    firn_pair dbeta = pair_of(0), dg = pair_of(0);
    for (int j = lane; j < a.n_values; j += SIMD)
        dbeta = dbeta + two_product(work[a.along + place * a.n_values + j], work[a.error + place * a.n_values + j]);
    for (int i = lane; i < a.n_keys && a.channels == 0; i += SIMD)
        dg = dg + pair_of(work[a.parts + place * a.n_keys + i]);
    dbeta = simd_pair_sum(dbeta);
    dg = simd_pair_sum(dg);
    if (lane != 0)
        return;
    out[a.dbeta + place] = float_of(dbeta);
    if (a.channels == 0)
        out[a.dg + place] = float_of(dg);
}
