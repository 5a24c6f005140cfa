/* The words of the language; included last, for they are macros. See metal_stdlib. */
#ifndef MSL_WORDS_H
#define MSL_WORDS_H
#define kernel
#if MSL_SPACES
#undef constant
#define constant    __constant const
#define device      __global
#define threadgroup __local
#define thread      __private
#else
#define constant const
#define device
#define threadgroup
#define thread
#endif
#endif
