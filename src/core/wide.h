/* Loops for wider machines than the one that everything is compiled for. */
#ifndef FIRN_CORE_WIDE_H
#define FIRN_CORE_WIDE_H

/* A function with loops worth compiling twice: for the baseline and for AVX2, chosen when the program is loaded. Bits
 * do not differ, since nothing is contracted or reordered. Sanitizers' start-up code does not stand the choice (ifunc).
 */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&                       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FIRN_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FIRN_WIDE
#endif

#endif
