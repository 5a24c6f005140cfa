/* 8x8 matrices of a simdgroup; see metal_stdlib. Each lane holds two neighbouring elements of one row, in the layout
 * seen on Apple GPUs (from memory; a kernel that relies on it is not proven here). Products are float sums in order. */
#ifndef MSL_SIMDGROUP_MATRIX_H
#define MSL_SIMDGROUP_MATRIX_H

namespace metal
{
inline uint msl_row(uint lane) { return (lane / 4 & 4) + (lane / 2 & 3); }
inline uint msl_column(uint lane) { return (lane / 4 & 2) * 2 + (lane & 1) * 2; }
inline uint msl_owner(uint row, uint column) { return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column / 2 & 1); }

template <class T, int C, int R> struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "simdgroup matrices are 8x8");
    vec<T, 2> e;
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal)
    {
        const uint r = msl_row(mdev_lane()), c = msl_column(mdev_lane());
        e = vec<T, 2>(r == c ? diagonal : (T)0, r == c + 1 ? diagonal : (T)0);
    }
    vec<T, 2> &thread_elements() { return e; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
#ifdef MSL_HAS_BFLOAT
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
#endif

template <class T, int C, int R = C> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v)
{
    simdgroup_matrix<T, C, R> m;
    m.e = vec<T, 2>(v);
    return m;
}

#define MSL_LOAD_STORE(SPACE)                                                                                          \
    template <class T>                                                                                                 \
    inline void simdgroup_load(MSL_THREAD simdgroup_matrix<T, 8, 8> &m, const SPACE T *p, ulong stride = 8,            \
                               ulong2 origin = ulong2(0ul), bool transpose = false, int line = __builtin_LINE())       \
    {                                                                                                                  \
        const uint r = msl_row(mdev_lane()), c = msl_column(mdev_lane());                                              \
        mdev_note(MSL_LOAD, line);                                                                                     \
        p += origin.y * stride + origin.x;                                                                             \
        m.e.x = transpose ? p[c * stride + r] : p[r * stride + c];                                                     \
        m.e.y = transpose ? p[(c + 1) * stride + r] : p[r * stride + c + 1];                                           \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    inline void simdgroup_store(MSL_THREAD const simdgroup_matrix<T, 8, 8> &m, SPACE T *p, ulong stride = 8,           \
                                ulong2 origin = ulong2(0ul), bool transpose = false, int line = __builtin_LINE())      \
    {                                                                                                                  \
        const uint r = msl_row(mdev_lane()), c = msl_column(mdev_lane());                                              \
        mdev_note(MSL_STORE, line);                                                                                    \
        p += origin.y * stride + origin.x;                                                                             \
        (transpose ? p[c * stride + r] : p[r * stride + c]) = m.e.x;                                                   \
        (transpose ? p[(c + 1) * stride + r] : p[r * stride + c + 1]) = m.e.y;                                         \
    }
MSL_LOAD_STORE(MSL_DEVICE)
#if MSL_SPACES
MSL_LOAD_STORE(MSL_THREADGROUP)
#endif
#undef MSL_LOAD_STORE

/* d = a b + c */
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(MSL_THREAD simdgroup_matrix<D, 8, 8> &d,
                                          MSL_THREAD const simdgroup_matrix<A, 8, 8> &a,
                                          MSL_THREAD const simdgroup_matrix<B, 8, 8> &b,
                                          MSL_THREAD const simdgroup_matrix<C, 8, 8> &c, int line = __builtin_LINE())
{
    struct pair {
        float a0, a1, b0, b1;
    } mine = {(float)a.e.d[0], (float)a.e.d[1], (float)b.e.d[0], (float)b.e.d[1]};
    msl_exchange<pair> x(MSL_MULTIPLY, mine, line);
    if (x.active != 0xfffffffful)
        mdev_trap("a simdgroup matrix product in a partial simdgroup", line);
    const uint row = msl_row(mdev_lane()), column = msl_column(mdev_lane());
    float u = (float)c.e.d[0], v = (float)c.e.d[1];
    for (uint k = 0; k < 8; k++) {
        const pair pa = x.raw(msl_owner(row, k)), pb = x.raw(msl_owner(k, column));
        const float w = k & 1 ? pa.a1 : pa.a0;
        u += w * pb.b0;
        v += w * pb.b1;
    }
    d.e.d[0] = (D)u;
    d.e.d[1] = (D)v;
}
template <class D, class A, class B>
inline void simdgroup_multiply(MSL_THREAD simdgroup_matrix<D, 8, 8> &d, MSL_THREAD const simdgroup_matrix<A, 8, 8> &a,
                               MSL_THREAD const simdgroup_matrix<B, 8, 8> &b, int line = __builtin_LINE())
{
    simdgroup_matrix<D, 8, 8> zero;
    zero.e = vec<D, 2>((D)0);
    simdgroup_multiply_accumulate(d, a, b, zero, line);
}
} // namespace metal

#endif
