/* Loops for wider machines than the one that everything is compiled for. */
#ifndef FIRN_CORE_WIDE_H
#define FIRN_CORE_WIDE_H

/* A function with loops worth compiling three times: for the baseline, AVX2 and AVX-512, chosen when the program is
 * loaded. Bits do not differ, since nothing is contracted or reordered. Sanitizers' start-up code does not stand the
 * choice (ifunc), and what clang 14 makes of it does not link: other files do not find the function. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&                       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FIRN_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FIRN_WIDE
#endif

/* Before a loop whose results lie apart from what it reads, or in the same place by the same index: without the promise
 * clang runs loops in place one element at a time. */
#if defined(__clang__)
#define FIRN_IN_PLACE _Pragma("clang loop vectorize(assume_safety)")
#else
#define FIRN_IN_PLACE _Pragma("GCC ivdep")
#endif

#endif
