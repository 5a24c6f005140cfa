/* What metal2cpp.py writes at the end of a unit: for every kernel a launcher that takes its arguments from the device,
 * and the table of them. Parameter types come from the kernel's own type; only attributes come from the text. */
#ifndef MSL_LAUNCH_H
#define MSL_LAUNCH_H

extern "C" void *mdev_threadgroup_variable(size_t size, int id);
template <class T> MSL_THREADGROUP void *msl_threadgroup_variable(int id)
{
    return (MSL_THREADGROUP void *)(uintptr_t)mdev_threadgroup_variable(sizeof(T), id);
}

#if MSL_SPACES
#define MSL_THREADGROUP_REF __local
#else
#define MSL_THREADGROUP_REF
#include "../unit.h"

template <int I, class P, class... Q> struct msl_nth { typedef typename msl_nth<I - 1, Q...>::type type; };
template <class P, class... Q> struct msl_nth<0, P, Q...> { typedef P type; };
template <class F> struct msl_signature;
template <class... P> struct msl_signature<void (*)(P...)> { template <int I> using at = typename msl_nth<I, P...>::type; };

/* A kernel argument of type P; least: the bytes that must be bound for it. */
template <class P> struct msl_argument {
    static P get(const mdev_env &e, int kind, int) { return (P)e.position[kind][0]; }
    enum { least = 0, align = 1 };
};
template <class T, int N> struct msl_argument<metal::vec<T, N>> {
    static metal::vec<T, N> get(const mdev_env &e, int kind, int)
    {
        metal::vec<T, N> r;
        for (int i = 0; i < N; i++)
            r.d[i] = e.position[kind][i];
        return r;
    }
    enum { least = 0, align = 1 };
};
template <class T> struct msl_argument<T *> {
    static T *get(const mdev_env &e, int kind, int i)
    {
        return (T *)(kind == MDEV_THREADGROUP ? e.shared[i] : e.buffer[i]);
    }
    enum { least = 1, align = alignof(T) };
};
template <class T> struct msl_argument<T &> {
    static T &get(const mdev_env &e, int kind, int i)
    {
        return *(T *)(kind == MDEV_THREADGROUP ? e.shared[i] : e.buffer[i]);
    }
    enum { least = sizeof(T), align = alignof(T) };
};

#define MSL_NAME(...) __VA_ARGS__
#define MSL_LAUNCHER(number, expression, ...)                                                                          \
    static void launch_##number(const mdev_env *env)                                                                   \
    {                                                                                                                  \
        auto function = &MSL_NAME expression;                                                                          \
        typedef msl_signature<decltype(function)> signature;                                                           \
        (void)env;                                                                                                     \
        function(__VA_ARGS__);                                                                                         \
    }
#define MSL_ARGUMENT(j, kind, index) msl_argument<typename signature::template at<j>>::get(*env, kind, index)
#define MSL_PARAM(j, expression, kind, index, is_constant, name)                                                        \
    {                                                                                                                  \
        kind, index, is_constant, msl_argument<msl_signature<decltype(&MSL_NAME expression)>::at<j>>::align,              \
            msl_argument<msl_signature<decltype(&MSL_NAME expression)>::at<j>>::least, name                            \
    }
#endif
#endif
