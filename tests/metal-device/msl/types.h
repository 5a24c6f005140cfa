/* Address spaces, scalar types and traits; see metal_stdlib. */
#ifndef MSL_TYPES_H
#define MSL_TYPES_H

#ifdef __OPENCL_CPP_VERSION__
#define MSL_SPACES 1
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#define MSL_DEVICE      __global
#define MSL_THREADGROUP __local
#define MSL_CONSTANT    __constant
#define MSL_THREAD      __private
#define MSL_NO_TSAN
#define atomic_int   msl_atomic_int /* names that clang keeps for OpenCL */
#define atomic_uint  msl_atomic_uint
#define atomic_float msl_atomic_float
#else
#define MSL_SPACES 0
#define MSL_DEVICE
#define MSL_THREADGROUP
#define MSL_CONSTANT
#define MSL_THREAD
#define MSL_NO_TSAN __attribute__((no_sanitize("thread")))
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef decltype(sizeof(0)) size_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
typedef ulong uintptr_t;
typedef long intptr_t;

/* What the executor gives to kernels (executor.cpp). */
extern "C" {
void mdev_barrier(int simdgroup, int flags, int line);
/* Exchange among the lanes of a simdgroup: lane i's value lies at 64 i behind the result. */
const void *mdev_exchange(int op, const void *value, unsigned size, int line);
int mdev_exchange_first(void);         /* this lane is to compute the common result, which goes to slot 32 */
void mdev_note(int op, int line);      /* every lane must pass here alike, without waiting */
unsigned mdev_lane(void);
unsigned long mdev_active_lanes(void); /* those that have not returned */
void mdev_trap(const MSL_CONSTANT char *what, int line);
}

#if !MSL_SPACES
typedef _Float16 half; /* built into C++ for OpenCL */
#endif
#if MSL_SPACES
/* Only the type is wanted: this mode runs nothing. */
struct bfloat {
    ushort bits;
    bfloat() = default;
    bfloat(float) : bits(0) {}
    operator float() const { return 0; }
};
#define MSL_HAS_BFLOAT 1
#define __HAVE_BFLOAT__ 1
#elif !defined(MSL_NO_BFLOAT)
typedef __bf16 bfloat;
#define MSL_HAS_BFLOAT 1
#define __HAVE_BFLOAT__ 1
#endif
#if !MSL_SPACES
inline half operator""h(long double x) { return (half)(float)x; }
inline half operator""h(unsigned long long x) { return (half)(float)x; }
#endif

namespace metal
{
template <class A, class B> struct msl_same { enum { v = 0 }; };
template <class A> struct msl_same<A, A> { enum { v = 1 }; };
template <bool B, class T = void> struct msl_if {};
template <class T> struct msl_if<true, T> { typedef T type; };
template <class T> struct msl_id { typedef T type; };

template <class A, class B> struct is_same { static constexpr MSL_CONSTANT bool value = msl_same<A, B>::v; };
template <class A, class B> constexpr MSL_CONSTANT bool is_same_v = msl_same<A, B>::v;
template <bool B, class T = void> using enable_if_t = typename msl_if<B, T>::type;
template <bool B, class X, class Y> struct conditional { typedef X type; };
template <class X, class Y> struct conditional<false, X, Y> { typedef Y type; };
template <bool B, class X, class Y> using conditional_t = typename conditional<B, X, Y>::type;

template <class T> struct msl_scalar { enum { v = 0 }; };
#define MSL_SCALAR(T) template <> struct msl_scalar<T> { enum { v = 1 }; };
MSL_SCALAR(bool) MSL_SCALAR(char) MSL_SCALAR(signed char) MSL_SCALAR(uchar) MSL_SCALAR(short) MSL_SCALAR(ushort)
MSL_SCALAR(int) MSL_SCALAR(uint) MSL_SCALAR(long) MSL_SCALAR(ulong) MSL_SCALAR(half) MSL_SCALAR(float)
MSL_SCALAR(double)
#ifdef MSL_HAS_BFLOAT
MSL_SCALAR(bfloat)
#endif
#undef MSL_SCALAR

template <class D, class S> inline D msl_bits(S s)
{
    static_assert(sizeof(D) == sizeof(S), "as_type between types of different sizes");
    D d;
    __builtin_memcpy(&d, &s, sizeof(D));
    return d;
}

template <class D, class S> inline D msl_cast(S s) { return (D)s; }
#ifdef MSL_HAS_BFLOAT /* clang has no direct cast between its 16-bit floats */
template <> inline half msl_cast<half, bfloat>(bfloat s) { return (half)(float)s; }
template <> inline bfloat msl_cast<bfloat, half>(half s) { return (bfloat)(float)s; }
#endif

template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
} // namespace metal

/* An operator in MSL: it has no namespace. */
template <class D, class S> inline D as_type(S s) { return metal::msl_bits<D>(s); }

#define FLT_MAX     3.402823466e+38f
#define FLT_MIN     1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define MAXFLOAT    FLT_MAX
#define HALF_MAX    ((half)65504.0f)
#define INFINITY    (__builtin_inff())
#define NAN         (__builtin_nanf(""))
#define INT_MAX     2147483647
#define INT_MIN     (-INT_MAX - 1)
#define UINT_MAX    0xffffffffu
#define M_PI_F      3.14159265358979323846f
#define M_SQRT2_F   1.41421356237309504880f
#define M_E_F       2.71828182845904523536f

#endif
