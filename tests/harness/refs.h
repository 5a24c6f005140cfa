/* The references, one per operation: ref_<name>(case, node, sources, result); and what forward and gradient operations
 * share of their cases. */
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
REFERENCE(conv_causal)
REFERENCE(conv_causal_back)
REFERENCE(scan)
REFERENCE(scan_back)
REFERENCE(cross_entropy)
REFERENCE(clip_norm)
REFERENCE(adamw)
REFERENCE(sgd)
REFERENCE(gated)
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
REFERENCE(unary_back)
REFERENCE(glu_back)
REFERENCE(norm_back)
REFERENCE(l2_norm_back)
REFERENCE(soft_max_back)
REFERENCE(attention_back)
REFERENCE(cross_entropy_back)
REFERENCE(router_balance)
REFERENCE(router_balance_back)
REFERENCE(router_z)
REFERENCE(router_z_back)
REFERENCE(mix_slots_back_x)
REFERENCE(mix_slots_back_w)
#undef REFERENCE

/* SCALE, CLAMP, SILU...; SWIGLU, GEGLU, REGLU, SWIGLU_OAI. */
double function_of_one(const char *op, double x);
double gated_unit(const char *op, const test_case *c, double gate, double up);
/* Whose slope UNARY_BACK is, by the case's `kind`. */
extern const char *const back_kinds[];

/* ---- cases and builders ---- */

extern const int row_widths[];
enum { N_ROW_WIDTHS = 13 };

void row_cases(case_list *list, const family *f);
void row_perf(case_list *list, const family *f);
void norm_cases(case_list *list, const family *f);
void l2_norm_cases(case_list *list, const family *f);
void attention_cases(case_list *list, const family *f);
void attention_perf(case_list *list, const family *f);
void cross_entropy_cases(case_list *list, const family *f);
void cross_entropy_perf(case_list *list, const family *f);
void router_cases(case_list *list, const family *f);
void router_perf(case_list *list, const family *f);
void slot_cases(case_list *list, const family *f);
void slot_perf(case_list *list, const family *f);

firn_tensor *build_attention(world *w, const test_case *c);
firn_tensor *build_cross_entropy(world *w, const test_case *c);
firn_tensor *build_router_balance(world *w, const test_case *c);
firn_tensor *build_router_z(world *w, const test_case *c);

float eps_of(const test_case *c);
/* Of SWIGLU_OAI: thousandths in the case. */
float oai_alpha(const test_case *c);
float oai_limit(const test_case *c);

#endif
