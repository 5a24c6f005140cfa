/* Builders of operations. Each adds a node to the graph and returns its tensor (NULL after a failure, see
 * firn/graph.h). The full contract of an operation stands at the top of src/op/<name>.c. F32 unless said otherwise. */
#ifndef FIRN_OPS_H
#define FIRN_OPS_H

#include "firn/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise; b is repeated over a (a.ne[i] is a multiple of b.ne[i]); any strides ---- */
FIRN_API firn_tensor *firn_add(firn_graph *g, firn_tensor *a, firn_tensor *b);
FIRN_API firn_tensor *firn_sub(firn_graph *g, firn_tensor *a, firn_tensor *b);
FIRN_API firn_tensor *firn_mul(firn_graph *g, firn_tensor *a, firn_tensor *b);
FIRN_API firn_tensor *firn_div(firn_graph *g, firn_tensor *a, firn_tensor *b);
FIRN_API firn_tensor *firn_scale(firn_graph *g, firn_tensor *a, float s);
FIRN_API firn_tensor *firn_clamp(firn_graph *g, firn_tensor *a, float low, float high);
FIRN_API firn_tensor *firn_sqr(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_sqrt(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_exp(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_log(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_silu(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_gelu(firn_graph *g, firn_tensor *a);       /* tanh form */
FIRN_API firn_tensor *firn_gelu_quick(firn_graph *g, firn_tensor *a); /* x sigmoid(1.702 x) */
FIRN_API firn_tensor *firn_gelu_erf(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_relu(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_sigmoid(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_tanh(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_softplus(firn_graph *g, firn_tensor *a);
/* y[:,s,t] = a[:,s,t] + b[:, ids[s,t]]; a [m, n_used, n_tokens], b [m, n_expert], ids I32 [n_used, n_tokens] */
FIRN_API firn_tensor *firn_add_id(firn_graph *g, firn_tensor *a, firn_tensor *b, firn_tensor *ids);
/* f(gate) * up, contiguous rows: silu, gelu (tanh), relu; OAI: min(gate, limit) sigmoid(alpha gate) (clamp(up, +-limit)
 * + 1) */
FIRN_API firn_tensor *firn_swiglu(firn_graph *g, firn_tensor *gate, firn_tensor *up);
FIRN_API firn_tensor *firn_geglu(firn_graph *g, firn_tensor *gate, firn_tensor *up);
FIRN_API firn_tensor *firn_reglu(firn_graph *g, firn_tensor *gate, firn_tensor *up);
FIRN_API firn_tensor *firn_swiglu_oai(firn_graph *g, firn_tensor *gate, firn_tensor *up, float alpha, float limit);

/* ---- shape ---- */
/* A contiguous copy; of another type with firn_cast (F32, F16, BF16 among each other; from packed types to F32). */
FIRN_API firn_tensor *firn_cont(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_cast(firn_graph *g, firn_tensor *a, firn_type type);
/* dst (a slot, or a view of one) = a, converted to dst's type; same number of elements. Returns dst's new contents. */
FIRN_API firn_tensor *firn_cpy(firn_graph *g, firn_tensor *a, firn_tensor *dst);
FIRN_API firn_tensor *firn_reshape(firn_graph *g, firn_tensor *a, int n_dims, const int64_t *ne); /* a is contiguous */
FIRN_API firn_tensor *firn_view(firn_graph *g, firn_tensor *a, int n_dims, const int64_t *ne, const int64_t *nb,
                                int64_t offset); /* nb[0] is the element; nb has n_dims entries; bytes */
/* Axis i of a becomes axis axes[i] of the result (ggml's order). */
FIRN_API firn_tensor *firn_permute(firn_graph *g, firn_tensor *a, int a0, int a1, int a2, int a3);
FIRN_API firn_tensor *firn_transpose(firn_graph *g, firn_tensor *a);
FIRN_API firn_tensor *firn_concat(firn_graph *g, firn_tensor *a, firn_tensor *b, int axis);
FIRN_API firn_tensor *firn_repeat(firn_graph *g, firn_tensor *a, const int64_t ne[FIRN_MAX_DIMS]);
FIRN_API firn_tensor *firn_repeat_back(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS]); /* sums */
/* dx of shape ne (and contiguous), zero but for the view (n_dims, nb, offset as in firn_view) that receives dy. */
FIRN_API firn_tensor *firn_view_back(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS],
                                     const int64_t nb[FIRN_MAX_DIMS], int64_t offset);
/* A constant of that shape. */
FIRN_API firn_tensor *firn_fill(firn_graph *g, const int64_t ne[FIRN_MAX_DIMS], float value);
/* slot += a, in place; the same shape. No gradient. */
FIRN_API firn_tensor *firn_add_into(firn_graph *g, firn_tensor *slot, firn_tensor *a);

/* ---- reductions and choices ---- */
FIRN_API firn_tensor *firn_sum(firn_graph *g, firn_tensor *a);      /* [1], in double */
FIRN_API firn_tensor *firn_sum_rows(firn_graph *g, firn_tensor *a); /* [1, ne1, ne2, ne3] */
FIRN_API firn_tensor *firn_mean(firn_graph *g, firn_tensor *a);     /* of each row: [1, ne1, ne2, ne3] */
FIRN_API firn_tensor *firn_argsort(firn_graph *g, firn_tensor *a, bool descending); /* I32, stable; NaN last */
FIRN_API firn_tensor *firn_top_k(firn_graph *g, firn_tensor *a,
                                 int k); /* I32 [k, ...], descending, ties by index; NaN last */

/* ---- gathers ---- */
/* y[:, i, j, l] = a[:, ids[i, j, l], j, l]; a [n, rows, B, C] of any format, ids I32 [r, B, C] -> F32 [n, r, B, C] */
FIRN_API firn_tensor *firn_get_rows(firn_graph *g, firn_tensor *a, firn_tensor *ids);
/* The gradient with respect to a: zeros of [n, n_rows, B, C], repeated rows summed in the order of ids. */
FIRN_API firn_tensor *firn_get_rows_back(firn_graph *g, firn_tensor *dy, firn_tensor *ids, int64_t n_rows);
/* dst[:, ids[i], j] = a[:, i, j], in place (dst a slot); ids I32 [rows of a]; F32 into F32 or F16 */
FIRN_API firn_tensor *firn_set_rows(firn_graph *g, firn_tensor *dst, firn_tensor *a, firn_tensor *ids);

/* ---- norms ---- */
/* x / sqrt(mean(x^2) + eps) * w along rows; w [n] or NULL */
FIRN_API firn_tensor *firn_rms_norm(firn_graph *g, firn_tensor *x, firn_tensor *w, float eps);
FIRN_API firn_tensor *firn_rms_norm_back(firn_graph *g, firn_tensor *x, firn_tensor *w, firn_tensor *dy, float eps);
FIRN_API firn_tensor *firn_norm(firn_graph *g, firn_tensor *x, float eps);    /* (x - mean) / sqrt(var + eps) */
FIRN_API firn_tensor *firn_l2_norm(firn_graph *g, firn_tensor *x, float eps); /* x / max(|x|, eps) */

/* softmax(scale x + mask) along rows. mask F32 [n, ...] repeated over x, or NULL; sinks F32 [ne2 of x] (one logit per
 * head that enters the denominator only), or NULL */
FIRN_API firn_tensor *firn_soft_max(firn_graph *g, firn_tensor *x, firn_tensor *mask, firn_tensor *sinks, float scale);

/* ---- rotary position embedding ---- */
typedef struct {
    int n_rot; /* leading values of a head that rotate; the rest passes */
    bool neox; /* pairs (i, i + n_rot/2); else (2i, 2i+1) */
    float freq_base, freq_scale;
    float ext_factor;  /* 0: none; 1: YaRN */
    float attn_factor; /* cos and sin are multiplied by it (YaRN: by it and 1 + 0.1 ln(1/freq_scale)) */
    float beta_fast, beta_slow;
    int n_ctx_orig;
} firn_rope_params;
/* x [head, n_head, n_tokens], pos I32 [n_tokens], factors F32 [n_rot/2] or NULL (each angle is divided by its factor)
 */
FIRN_API firn_tensor *firn_rope(firn_graph *g, firn_tensor *x, firn_tensor *pos, firn_tensor *factors,
                                const firn_rope_params *params);
FIRN_API firn_tensor *firn_rope_back(firn_graph *g, firn_tensor *dy, firn_tensor *pos, firn_tensor *factors,
                                     const firn_rope_params *params);

/* ---- attention ---- */
/* y[:,h,t] = sum over keys j in [range[0,t], range[1,t]) of softmax_j(scale q[:,h,t] . k[:,h/(H/G),j]) v[:,h/(H/G),j]
 * q [hd, H, n_q], k [hd, G, n_kv], v [hv, G, n_kv], rows contiguous; range I32 [2, n_q] says causality, isolated
 * documents, sliding window and cache length in one; an empty range gives zeros. sinks F32 [H] or NULL. softcap c > 0:
 * scores become c tanh(s / c). The result is [hv, H, n_q]; the score matrix is never stored whole. Differentiable in q,
 * k, v, sinks. Sums over keys are taken in tiles that are counted from key 0: the same keys further from it by a
 * multiple of FIRN_ATTENTION_TILE give the same bits. */
enum { FIRN_ATTENTION_TILE = 64 };
FIRN_API firn_tensor *firn_attention(firn_graph *g, firn_tensor *q, firn_tensor *k, firn_tensor *v, firn_tensor *range,
                                     firn_tensor *sinks, float scale, float softcap);

/* ---- states along the tokens (see op/conv.c, op/scan.c) ----
 * `first` I32 [n] says for each token where its document begins: the number of a token of this pass, or less than 0,
 * before it. */
/* A filter of 1 to 8 taps for each channel, back within the document: x [C, n_history + n], w [taps, C], bias [C] or
 * NULL
 * -> [C, n], with silu on request. The first n_history rows of x are tokens from before this pass. Differentiable in
 * x. */
FIRN_API firn_tensor *firn_conv_causal(firn_graph *g, firn_tensor *x, firn_tensor *w, firn_tensor *first,
                                       firn_tensor *bias, int64_t n_history, bool silu);
/* The gated delta rule: q, k [s, G, n], v [dv, H, n], decay [1 or s, H, n] (logarithms, at most 0), beta [1, H, n],
 * state [s, dv, H] or NULL -> [dv, H, n];  S' = e^decay S, S = S' + beta k (v - S'^T k)^T, y = S^T q. Head h reads key
 * head h / (H/G), or h mod G if `tiled`. *last_state (or NULL) is the state behind the last token. Differentiable in q,
 * k, v, decay, beta. */
FIRN_API firn_tensor *firn_gated_delta(firn_graph *g, firn_tensor *q, firn_tensor *k, firn_tensor *v,
                                       firn_tensor *decay, firn_tensor *beta, firn_tensor *first, firn_tensor *state,
                                       bool tiled, firn_tensor **last_state);
/* Mamba 2's recurrence, S = e^decay S + step b x^T, y = S^T c, with c and b for q and k, x for v, step for beta. */
FIRN_API firn_tensor *firn_ssm_scan(firn_graph *g, firn_tensor *c, firn_tensor *b, firn_tensor *x, firn_tensor *decay,
                                    firn_tensor *step, firn_tensor *first, firn_tensor *state, bool tiled,
                                    firn_tensor **last_state);

/* ---- matrix products ---- */
/* w [k, m, B', C'] any format, x [k, n, B, C] -> [m, n, B, C]; w is repeated over B and C */
FIRN_API firn_tensor *firn_mul_mat(firn_graph *g, firn_tensor *w, firn_tensor *x);
/* a [k, r] any format, b [p, r] F32 with any strides -> [k, p] = sum over r of a[:,r] b[:,r]'; 4-D, a repeated over B,
 * C */
FIRN_API firn_tensor *firn_out_prod(firn_graph *g, firn_tensor *a, firn_tensor *b);
/* table I64 [n_expert] or NULL */
FIRN_API firn_tensor *firn_mul_mat_id(firn_graph *g, firn_tensor *w, firn_tensor *x, firn_tensor *ids,
                                      firn_tensor *table);
FIRN_API firn_tensor *firn_mul_mat_id_back(firn_graph *g, firn_tensor *w, firn_tensor *dy, firn_tensor *ids);
FIRN_API firn_tensor *firn_out_prod_id(firn_graph *g, firn_tensor *x, firn_tensor *dy, firn_tensor *ids,
                                       int64_t n_expert);
/* [k, n_used, n_tokens] -> [k, s', n_tokens]: sums the slots s with the same s mod s', in order of s */
FIRN_API firn_tensor *firn_sum_slots(firn_graph *g, firn_tensor *x, int64_t s);
/* y[:,t] = sum over s, in order, of w[s,t] x[:,s,t]; x [m, n_used, n_tokens], w [n_used, n_tokens] -> [m, n_tokens] */
FIRN_API firn_tensor *firn_mix_slots(firn_graph *g, firn_tensor *x, firn_tensor *w);

/* ---- losses and optimizers ---- */
/* -log softmax(logits[:,t])[targets[t]], [n]; 0 where targets[t] < 0. logits [n_vocab, n], targets I32 [n]; a target of
 * n_vocab or more is reported. */
FIRN_API firn_tensor *firn_cross_entropy(firn_graph *g, firn_tensor *logits, firn_tensor *targets);
/* The same times mask[t] (F32 [n], or NULL); a target equal to `ignore` counts for nothing either. */
FIRN_API firn_tensor *firn_cross_entropy_masked(firn_graph *g, firn_tensor *logits, firn_tensor *targets,
                                                firn_tensor *mask, int32_t ignore);
/* One number: how unevenly the router spreads its tokens, E sum_e f_e P_e; f_e the part of the slots that went to
 * expert e, P_e its mean probability; 1 when both are even. probs [E, n_tokens], ids I32 [n_used, n_tokens]; weights
 * F32 [n_tokens] (0: the token does not count) or NULL. ids get no gradient. */
FIRN_API firn_tensor *firn_router_balance(firn_graph *g, firn_tensor *probs, firn_tensor *ids, firn_tensor *weights);
/* One number: the mean over the tokens of (ln sum_e e^logits[e,t])^2. */
FIRN_API firn_tensor *firn_router_z(firn_graph *g, firn_tensor *logits, firn_tensor *weights);
/* The norm of x and the factor that brings it down to `clip` (0: none is wanted), written into the slot `state` (F32
 * [n]) from element `at`: min(1, clip / norm), then the norm as a float and what that leaves of it. The factor is NaN
 * where the norm is not finite, and the steps below change nothing then: a state that ends in it is their hyper. */
FIRN_API firn_tensor *firn_clip_norm(firn_graph *g, firn_tensor *state, firn_tensor *x, int at, float clip);
/* In place on the slots p, m, v (all one shape, contiguous). hyper F32 [8]: lr, beta1, beta2, eps, weight decay,
 * 1/(1-beta1^t), 1/(1-beta2^t), gradient scale (clipping). p -= lr (mhat / (sqrt(vhat) + eps) + decay p) */
FIRN_API firn_tensor *firn_opt_step_adamw(firn_graph *g, firn_tensor *p, firn_tensor *grad, firn_tensor *m,
                                          firn_tensor *v, firn_tensor *hyper);
FIRN_API firn_tensor *firn_opt_step_sgd(firn_graph *g, firn_tensor *p, firn_tensor *grad,
                                        firn_tensor *hyper); /* lr, decay, scale */

#ifdef __cplusplus
}
#endif
#endif
