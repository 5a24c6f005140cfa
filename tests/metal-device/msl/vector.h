/* Vectors, packed vectors and small matrices; see metal_stdlib.
 *
 * A vector is a class, because swizzles are union members that convert to and from vectors; operators and functions are
 * hidden friends, so that swizzles and scalars convert where they are arguments. */
#ifndef MSL_VECTOR_H
#define MSL_VECTOR_H

namespace metal
{
/* A swizzle. V, the vector that it stands for, is a parameter for argument-dependent look-up. */
template <class V, class T, int N, int... I> struct msl_swizzle {
    T d[N];
    operator V() const
    {
        V r;
        int k = 0;
        ((r.d[k++] = d[I]), ...);
        return r;
    }
    msl_swizzle &operator=(const V &v)
    {
        int k = 0;
        ((d[I] = v.d[k++]), ...);
        return *this;
    }
    msl_swizzle &operator=(const msl_swizzle &o)
    {
        V v = o;
        return *this = v;
    }
    msl_swizzle &operator+=(const V &v) { return *this = this->operator V() + v; }
    msl_swizzle &operator-=(const V &v) { return *this = this->operator V() - v; }
    msl_swizzle &operator*=(const V &v) { return *this = this->operator V() * v; }
    msl_swizzle &operator/=(const V &v) { return *this = this->operator V() / v; }
};

#define MSL_S2(N, a, A, b, B)       msl_swizzle<vec<T, 2>, T, N, A, B> a##b;
#define MSL_S3(N, a, A, b, B, c, C) msl_swizzle<vec<T, 3>, T, N, A, B, C> a##b##c;
#define MSL_R3(N, a, A)             MSL_S2(N, a, A, x, 0) MSL_S2(N, a, A, y, 1) MSL_S2(N, a, A, z, 2)
#define MSL_R33(N, a, A, b, B)                                                                                         \
    MSL_S3(N, a, A, b, B, x, 0) MSL_S3(N, a, A, b, B, y, 1) MSL_S3(N, a, A, b, B, z, 2)
#define MSL_R333(N, a, A)      MSL_R33(N, a, A, x, 0) MSL_R33(N, a, A, y, 1) MSL_R33(N, a, A, z, 2)
#define MSL_R4(N, a, A)        MSL_R3(N, a, A) MSL_S2(N, a, A, w, 3)
#define MSL_R44(N, a, A, b, B) MSL_R33(N, a, A, b, B) MSL_S3(N, a, A, b, B, w, 3)
#define MSL_R444(N, a, A)                                                                                              \
    MSL_R44(N, a, A, x, 0) MSL_R44(N, a, A, y, 1) MSL_R44(N, a, A, z, 2) MSL_R44(N, a, A, w, 3)

template <class T, int N> struct msl_lanes;
template <class T> struct msl_lanes<T, 2> {
    union {
        T d[2];
        struct {
            T x, y;
        };
        struct {
            T r, g;
        };
        MSL_S2(2, x, 0, x, 0) MSL_S2(2, x, 0, y, 1) MSL_S2(2, y, 1, x, 0) MSL_S2(2, y, 1, y, 1)
    };
};
template <class T> struct msl_lanes<T, 3> {
    union {
        T d[4];
        struct {
            T x, y, z;
        };
        struct {
            T r, g, b;
        };
        MSL_R3(4, x, 0) MSL_R3(4, y, 1) MSL_R3(4, z, 2) MSL_R333(4, x, 0) MSL_R333(4, y, 1) MSL_R333(4, z, 2)
    };
};
template <class T> struct msl_lanes<T, 4> {
    union {
        T d[4];
        struct {
            T x, y, z, w;
        };
        struct {
            T r, g, b, a;
        };
        MSL_R4(4, x, 0) MSL_R4(4, y, 1) MSL_R4(4, z, 2) MSL_R4(4, w, 3)
        MSL_R444(4, x, 0) MSL_R444(4, y, 1) MSL_R444(4, z, 2) MSL_R444(4, w, 3)
        msl_swizzle<vec<T, 4>, T, 4, 0, 1, 2, 3> xyzw;
        msl_swizzle<vec<T, 4>, T, 4, 3, 2, 1, 0> wzyx;
    };
};

template <class T, int N> struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : msl_lanes<T, N> {
    typedef msl_lanes<T, N> L;
    using L::d;
    vec() = default;
    vec(const vec &o) { for (int i = 0; i < N; i++) d[i] = o.d[i]; }
    vec &operator=(const vec &o)
    {
        for (int i = 0; i < N; i++)
            d[i] = o.d[i];
        return *this;
    }
    vec(T s) { for (int i = 0; i < N; i++) d[i] = s; }
    vec(const packed_vec<T, N> &o) { for (int i = 0; i < N; i++) d[i] = o.d[i]; }
    template <class U> explicit vec(const vec<U, N> &o) { for (int i = 0; i < N; i++) d[i] = msl_cast<T>(o.d[i]); }
    template <class U> explicit vec(const packed_vec<U, N> &o) { for (int i = 0; i < N; i++) d[i] = msl_cast<T>(o.d[i]); }
    template <class V, class U, int M, int... I>
    explicit vec(const msl_swizzle<V, U, M, I...> &o) : vec(o.operator V()) {}
    template <class A, class B, class... C> vec(const A &a, const B &b, const C &...c)
    {
        int k = 0;
        put(k, a);
        put(k, b);
        (put(k, c), ...);
        if (k != N)
            mdev_trap("a vector is built from the wrong number of values", 0);
    }
#if MSL_SPACES
    vec(const MSL_CONSTANT vec &o) { for (int i = 0; i < N; i++) d[i] = o.d[i]; }
    template <class U> explicit vec(const MSL_CONSTANT vec<U, N> &o)
    {
        for (int i = 0; i < N; i++)
            d[i] = msl_cast<T>(o.d[i]);
    }
    T operator[](int i) const MSL_CONSTANT { return d[i]; }
#endif
    T &operator[](int i) { return d[i]; }
    const T &operator[](int i) const { return d[i]; }

private:
    template <class A> typename msl_if<msl_scalar<A>::v>::type put(int &k, A a)
    {
        if (k < N)
            d[k] = msl_cast<T>(a);
        k++;
    }
    template <class U, int M> void put(int &k, const vec<U, M> &v)
    {
        for (int i = 0; i < M; i++)
            put(k, v.d[i]);
    }
    template <class V, class U, int M, int... I> void put(int &k, const msl_swizzle<V, U, M, I...> &v)
    {
        put(k, v.operator V());
    }

public:
#define MSL_OP(op)                                                                                                     \
    friend vec operator op(vec a, vec b)                                                                               \
    {                                                                                                                  \
        vec r;                                                                                                         \
        for (int i = 0; i < N; i++)                                                                                    \
            r.d[i] = a.d[i] op b.d[i];                                                                                 \
        return r;                                                                                                      \
    }                                                                                                                  \
    vec &operator op##=(vec b) { return *this = *this op b; }
    MSL_OP(+) MSL_OP(-) MSL_OP(*) MSL_OP(/) MSL_OP(%) MSL_OP(&) MSL_OP(|) MSL_OP(^) MSL_OP(<<) MSL_OP(>>)
#undef MSL_OP
#define MSL_OP(op)                                                                                                     \
    friend vec<bool, N> operator op(vec a, vec b)                                                                      \
    {                                                                                                                  \
        vec<bool, N> r;                                                                                                \
        for (int i = 0; i < N; i++)                                                                                    \
            r.d[i] = a.d[i] op b.d[i];                                                                                 \
        return r;                                                                                                      \
    }
    MSL_OP(==) MSL_OP(!=) MSL_OP(<) MSL_OP(<=) MSL_OP(>) MSL_OP(>=) MSL_OP(&&) MSL_OP(||)
#undef MSL_OP
#define MSL_OP(op)                                                                                                     \
    friend vec operator op(vec a)                                                                                      \
    {                                                                                                                  \
        for (int i = 0; i < N; i++)                                                                                    \
            a.d[i] = op a.d[i];                                                                                        \
        return a;                                                                                                      \
    }
    MSL_OP(+) MSL_OP(-) MSL_OP(~)
#undef MSL_OP
#define MSL_F(n)                                                                                                       \
    friend vec n(vec a)                                                                                                \
    {                                                                                                                  \
        for (int i = 0; i < N; i++)                                                                                    \
            a.d[i] = metal::n(a.d[i]);                                                                                 \
        return a;                                                                                                      \
    }
    MSL_F(exp) MSL_F(exp2) MSL_F(log) MSL_F(log2) MSL_F(sqrt) MSL_F(rsqrt) MSL_F(sin) MSL_F(cos) MSL_F(tanh)
    MSL_F(floor) MSL_F(ceil) MSL_F(round) MSL_F(rint) MSL_F(trunc) MSL_F(fabs) MSL_F(fract) MSL_F(sign) MSL_F(saturate)
    MSL_F(abs)
#undef MSL_F
#define MSL_F(n)                                                                                                       \
    friend vec n(vec a, vec b)                                                                                         \
    {                                                                                                                  \
        for (int i = 0; i < N; i++)                                                                                    \
            a.d[i] = metal::n(a.d[i], b.d[i]);                                                                         \
        return a;                                                                                                      \
    }
    MSL_F(pow) MSL_F(fmod) MSL_F(copysign) MSL_F(fmin) MSL_F(fmax) MSL_F(step) MSL_F(min) MSL_F(max)
#undef MSL_F
#define MSL_F(n)                                                                                                       \
    friend vec n(vec a, vec b, vec c)                                                                                  \
    {                                                                                                                  \
        for (int i = 0; i < N; i++)                                                                                    \
            a.d[i] = metal::n(a.d[i], b.d[i], c.d[i]);                                                                 \
        return a;                                                                                                      \
    }
    MSL_F(fma) MSL_F(mix) MSL_F(clamp)
#undef MSL_F
    friend T dot(vec a, vec b)
    {
        T r = (T)0;
        for (int i = 0; i < N; i++)
            r += a.d[i] * b.d[i];
        return r;
    }
    friend vec select(vec a, vec b, vec<bool, N> c)
    {
        for (int i = 0; i < N; i++)
            a.d[i] = c.d[i] ? b.d[i] : a.d[i];
        return a;
    }
};

template <int N> inline bool any(vec<bool, N> v)
{
    bool r = false;
    for (int i = 0; i < N; i++)
        r |= v.d[i];
    return r;
}
template <int N> inline bool all(vec<bool, N> v)
{
    bool r = true;
    for (int i = 0; i < N; i++)
        r &= v.d[i];
    return r;
}

/* Alignment of one element. */
template <class T, int N> struct msl_packed_lanes;
template <class T> struct msl_packed_lanes<T, 2> {
    union {
        T d[2];
        struct {
            T x, y;
        };
    };
};
template <class T> struct msl_packed_lanes<T, 3> {
    union {
        T d[3];
        struct {
            T x, y, z;
        };
    };
};
template <class T> struct msl_packed_lanes<T, 4> {
    union {
        T d[4];
        struct {
            T x, y, z, w;
        };
    };
};
template <class T, int N> struct packed_vec : msl_packed_lanes<T, N> {
    using msl_packed_lanes<T, N>::d;
    packed_vec() = default;
    packed_vec(T s) { for (int i = 0; i < N; i++) d[i] = s; }
    packed_vec(const vec<T, N> &o) { for (int i = 0; i < N; i++) d[i] = o.d[i]; }
    T &operator[](int i) { return d[i]; }
    const T &operator[](int i) const { return d[i]; }
};

/* Column-major: m[column][row]. */
template <class T, int C, int R> struct matrix {
    vec<T, R> c[C];
    matrix() = default;
    explicit matrix(T s)
    {
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++)
                c[i].d[j] = i == j ? s : (T)0;
    }
    vec<T, R> &operator[](int i) { return c[i]; }
    const vec<T, R> &operator[](int i) const { return c[i]; }
};
template <class T, int N> struct array {
    T v[N];
    T &operator[](int i) { return v[i]; }
    const T &operator[](int i) const { return v[i]; }
};
} // namespace metal

#define MSL_VECTORS(T, n)                                                                                              \
    typedef metal::vec<T, 2> n##2;                                                                                     \
    typedef metal::vec<T, 3> n##3;                                                                                     \
    typedef metal::vec<T, 4> n##4;                                                                                     \
    typedef metal::packed_vec<T, 2> packed_##n##2;                                                                     \
    typedef metal::packed_vec<T, 3> packed_##n##3;                                                                     \
    typedef metal::packed_vec<T, 4> packed_##n##4;
MSL_VECTORS(bool, bool) MSL_VECTORS(char, char) MSL_VECTORS(uchar, uchar) MSL_VECTORS(short, short)
MSL_VECTORS(ushort, ushort) MSL_VECTORS(int, int) MSL_VECTORS(uint, uint) MSL_VECTORS(long, long)
MSL_VECTORS(ulong, ulong) MSL_VECTORS(half, half) MSL_VECTORS(float, float)
#ifdef MSL_HAS_BFLOAT
MSL_VECTORS(bfloat, bfloat)
#endif
typedef metal::matrix<float, 4, 4> float4x4;
typedef metal::matrix<half, 4, 4> half4x4;

namespace metal
{
namespace precise { using namespace metal; }
namespace fast { using namespace metal; }
} // namespace metal

#endif
