/* Barriers, simdgroup functions and atomics; see metal_stdlib. Each carries the line it was written on, for reports. */
#ifndef MSL_SIMD_H
#define MSL_SIMD_H

namespace metal
{
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
inline void threadgroup_barrier(mem_flags f, int line = __builtin_LINE()) { mdev_barrier(0, (int)f, line); }
inline void simdgroup_barrier(mem_flags f, int line = __builtin_LINE()) { mdev_barrier(1, (int)f, line); }

enum { MSL_SUM = 1, MSL_MAX, MSL_MIN, MSL_PRODUCT, MSL_AND, MSL_OR, MSL_SHUFFLE, MSL_DOWN, MSL_UP, MSL_XOR,
       MSL_BROADCAST, MSL_INCLUSIVE, MSL_EXCLUSIVE, MSL_VOTE, MSL_MULTIPLY, MSL_LOAD, MSL_STORE };

/* One exchange among the lanes of a simdgroup. Bytes are moved one by one, unseen by the thread sanitizer: on the device
 * they travel in registers. */
template <class T> struct msl_exchange {
    const char *slots;
    ulong active;
    msl_exchange(int op, const T &v, int line)
    {
        static_assert(sizeof(T) <= 64, "a slot has 64 bytes");
        static_assert(!msl_same<T, long>::v && !msl_same<T, ulong>::v, "simdgroup functions take no numbers of 64 bits");
        slots = (const char *)mdev_exchange(op, &v, sizeof(T), line);
        active = mdev_active_lanes();
    }
    bool on(uint lane) const { return active >> lane & 1; }
    MSL_NO_TSAN T raw(uint lane) const
    {
        T r;
        const char *p = slots + 64 * lane;
        for (uint j = 0; j < sizeof(T); j++)
            ((char *)&r)[j] = p[j];
        return r;
    }
    MSL_NO_TSAN void put(uint lane, const T &v)
    {
        char *p = (char *)slots + 64 * lane;
        for (uint j = 0; j < sizeof(T); j++)
            p[j] = ((const char *)&v)[j];
    }
    T of(uint lane, int line) const
    {
        if (lane > 31 || !on(lane))
            mdev_trap("a simdgroup function reads a lane that is not active", line);
        return raw(lane);
    }
};

/* The first lane to arrive computes for all. */
#define MSL_REDUCE(n, op, e)                                                                                           \
    template <class T> inline T n(T v, int line = __builtin_LINE())                                                    \
    {                                                                                                                  \
        msl_exchange<T> x(op, v, line);                                                                                \
        bool first = true;                                                                                             \
        T a = v;                                                                                                       \
        if (!mdev_exchange_first())                                                                                    \
            return x.raw(32);                                                                                          \
        for (uint i = 0; i < 32; i++) {                                                                                \
            if (!x.on(i))                                                                                              \
                continue;                                                                                              \
            T b = x.raw(i);                                                                                            \
            a = first ? b : (T)(e);                                                                                    \
            first = false;                                                                                             \
        }                                                                                                              \
        x.put(32, a);                                                                                                  \
        return a;                                                                                                      \
    }
MSL_REDUCE(simd_sum, MSL_SUM, a + b)
MSL_REDUCE(simd_product, MSL_PRODUCT, a *b)
MSL_REDUCE(simd_max, MSL_MAX, max(a, b))
MSL_REDUCE(simd_min, MSL_MIN, min(a, b))
MSL_REDUCE(simd_and, MSL_AND, a &b)
MSL_REDUCE(simd_or, MSL_OR, a | b)
#undef MSL_REDUCE

template <class T> inline T simd_shuffle(T v, ushort lane, int line = __builtin_LINE())
{
    return msl_exchange<T>(MSL_SHUFFLE, v, line).of(lane, line);
}
template <class T> inline T simd_broadcast(T v, ushort lane, int line = __builtin_LINE())
{
    return msl_exchange<T>(MSL_BROADCAST, v, line).of(lane, line);
}
template <class T> inline T simd_shuffle_xor(T v, ushort mask, int line = __builtin_LINE())
{
    return msl_exchange<T>(MSL_XOR, v, line).of(mdev_lane() ^ mask, line);
}
/* Past the ends the result is undefined in MSL; here the lane's own value. */
template <class T> inline T simd_shuffle_down(T v, ushort by, int line = __builtin_LINE())
{
    msl_exchange<T> x(MSL_DOWN, v, line);
    const uint lane = mdev_lane() + by;
    return lane < 32 ? x.of(lane, line) : v;
}
template <class T> inline T simd_shuffle_up(T v, ushort by, int line = __builtin_LINE())
{
    msl_exchange<T> x(MSL_UP, v, line);
    const uint lane = mdev_lane();
    return lane >= by ? x.of(lane - by, line) : v;
}
template <class T> inline T simd_prefix_inclusive_sum(T v, int line = __builtin_LINE())
{
    msl_exchange<T> x(MSL_INCLUSIVE, v, line);
    T a = T(0);
    for (uint i = 0; i <= mdev_lane(); i++)
        if (x.on(i))
            a = a + x.raw(i);
    return a;
}
template <class T> inline T simd_prefix_exclusive_sum(T v, int line = __builtin_LINE())
{
    msl_exchange<T> x(MSL_EXCLUSIVE, v, line);
    T a = T(0);
    for (uint i = 0; i < mdev_lane(); i++)
        if (x.on(i))
            a = a + x.raw(i);
    return a;
}
inline bool simd_any(bool v, int line = __builtin_LINE())
{
    msl_exchange<bool> x(MSL_VOTE, v, line);
    bool r = false;
    for (uint i = 0; i < 32; i++)
        r |= x.on(i) && x.raw(i);
    return r;
}
inline bool simd_all(bool v, int line = __builtin_LINE())
{
    msl_exchange<bool> x(MSL_VOTE, v, line);
    bool r = true;
    for (uint i = 0; i < 32; i++)
        r &= !x.on(i) || x.raw(i);
    return r;
}

/* ---- atomics: relaxed, as MSL's are ---- */

enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T v; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
template <int> struct msl_word;
template <> struct msl_word<4> { typedef uint type; };
template <> struct msl_word<8> { typedef ulong type; };
#define MSL_MODIFY(n, SPACE, e)                                                                                        \
    template <class T> inline T n(volatile SPACE atomic<T> *p, typename msl_id<T>::type v, memory_order)               \
    {                                                                                                                  \
        typedef typename msl_word<sizeof(T)>::type U;                                                                  \
        SPACE U *u = (SPACE U *)&p->v;                                                                                 \
        U old = __atomic_load_n(u, __ATOMIC_RELAXED);                                                                  \
        for (;;) {                                                                                                     \
            T a = msl_bits<T>(old);                                                                                    \
            U w = msl_bits<U>((T)(e));                                                                                 \
            if (__atomic_compare_exchange_n(u, &old, w, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))                        \
                return a;                                                                                              \
        }                                                                                                              \
    }
#define MSL_ATOMICS(SPACE)                                                                                             \
    MSL_MODIFY(atomic_fetch_add_explicit, SPACE, a + v)                                                                \
    MSL_MODIFY(atomic_fetch_sub_explicit, SPACE, a - v)                                                                \
    MSL_MODIFY(atomic_fetch_max_explicit, SPACE, a < v ? v : a)                                                        \
    MSL_MODIFY(atomic_fetch_min_explicit, SPACE, v < a ? v : a)                                                        \
    MSL_MODIFY(atomic_fetch_or_explicit, SPACE, a | v)                                                                 \
    MSL_MODIFY(atomic_fetch_and_explicit, SPACE, a &v)                                                                 \
    MSL_MODIFY(atomic_exchange_explicit, SPACE, v)                                                                     \
    template <class T> inline T atomic_load_explicit(const volatile SPACE atomic<T> *p, memory_order)                  \
    {                                                                                                                  \
        T r;                                                                                                           \
        SPACE T *q = (SPACE T *)&p->v;                                                                                 \
        __atomic_load(q, &r, __ATOMIC_RELAXED);                                                                        \
        return r;                                                                                                      \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    inline void atomic_store_explicit(volatile SPACE atomic<T> *p, typename msl_id<T>::type v, memory_order)           \
    {                                                                                                                  \
        T w = v;                                                                                                       \
        SPACE T *q = (SPACE T *)&p->v;                                                                                 \
        __atomic_store(q, &w, __ATOMIC_RELAXED);                                                                       \
    }
MSL_ATOMICS(MSL_DEVICE)
#if MSL_SPACES
MSL_ATOMICS(MSL_THREADGROUP)
#endif
} // namespace metal

#endif
