/* Fast siblings of ATTENTION and ATTENTION_BACK: the same items, the same scratch, any range of them. */
#ifndef FIRN_CPU_ATTENTION_H
#define FIRN_CPU_ATTENTION_H

#include "op/op.h"

#if defined(__x86_64__)
void firn_attention_avx2(const firn_call *call, int64_t begin, int64_t end);
void firn_attention_back_avx2(const firn_call *call, int64_t begin, int64_t end);
#endif

#endif
