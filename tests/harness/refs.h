/* The references, one per operation: ref_<name>(case, node, sources, result). */
#ifndef FIRN_HARNESS_REFS_H
#define FIRN_HARNESS_REFS_H

#include "harness.h"

/* v as F32, F16 or BF16 hold it, to nearest even. */
double round_to(firn_type type, double v);

#define REFERENCE(name) void ref_##name(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y);
REFERENCE(mul_mat)
REFERENCE(out_prod)
REFERENCE(mul_mat_id)
REFERENCE(mul_mat_id_back)
REFERENCE(out_prod_id)
REFERENCE(sum_slots)
REFERENCE(mix_slots)
REFERENCE(add_id)
REFERENCE(get_rows)
REFERENCE(get_rows_back)
REFERENCE(set_rows)
REFERENCE(rms_norm)
REFERENCE(rms_norm_back)
REFERENCE(norm)
REFERENCE(l2_norm)
REFERENCE(soft_max)
REFERENCE(rope)
REFERENCE(rope_back)
REFERENCE(attention)
REFERENCE(cross_entropy)
REFERENCE(adamw)
REFERENCE(sgd)
REFERENCE(swiglu)
REFERENCE(geglu)
REFERENCE(reglu)
REFERENCE(swiglu_oai)
REFERENCE(argsort)
REFERENCE(top_k)
REFERENCE(unary)
REFERENCE(arithmetic)
REFERENCE(copy)
REFERENCE(cast)
REFERENCE(cpy)
REFERENCE(view)
REFERENCE(view_back)
REFERENCE(permute)
REFERENCE(repeat)
REFERENCE(repeat_back)
REFERENCE(concat)
REFERENCE(fill)
REFERENCE(add_into)
REFERENCE(sum)
REFERENCE(sum_rows)
REFERENCE(mean)
#undef REFERENCE

#endif
