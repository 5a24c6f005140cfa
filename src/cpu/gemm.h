/* The one tiled product behind MUL_MAT, MUL_MAT_ID, MUL_MAT_ID_BACK, OUT_PROD and OUT_PROD_ID on the CPU.
 *
 * Shapes are innermost first, strides are bytes, as in a tensor's nb. W's rows are contiguous blocks of its format.
 *
 *   FORWARD  out[:,row] = W' x[:,row]       in1 = x  [k, rows]   out [m, rows]
 *   BACK     out[:,row] = W  dy[:,row]      in1 = dy [m, rows]   out [k, rows]
 *   OUTER    out[:,:,e] = sum over the slots of e of x dy'       in1 = x, in2 = dy, out [k, m, n_expert] (routed only)
 *
 * Routed (ids given): w [k, m, n_expert]; rows are slots (s, t), nb[1] per slot, nb[2] per token; in1 of FORWARD and
 * OUTER has x_slots rows a token and slot s reads row s mod x_slots.
 * Dense (ids NULL): w [k, m, w_n2, w_n3], in1 and out [.., n, n2, n3] with nb[1], nb[2], nb[3]; batch (i2, i3) reads
 * w at (i2 mod w_n2, i3 mod w_n3).
 *
 * OUT_PROD(a [k, r], b [p, r]) -> [k, p] is dense BACK with w = a, m = r, n = p and in1 = b with nb[0] and nb[1]
 * exchanged: any format of a, any strides of b.
 *
 * Sums are F32 and activations are never quantized. Each element of out has one writer; the order of its sum depends
 * on shapes, routing and kernel set only, so any number of threads gives the same bits. */
#ifndef FIRN_CPU_GEMM_H
#define FIRN_CPU_GEMM_H

#include "core/pool.h"
#include "cpu/kernel_set.h"

typedef enum { FIRN_GEMM_FORWARD, FIRN_GEMM_BACK, FIRN_GEMM_OUTER } firn_gemm_kind;

typedef struct {
    const void *data;
    int64_t nb[FIRN_MAX_DIMS]; /* nb[0] of an input may be any multiple of 4; w and out have contiguous rows */
} firn_gemm_view;

typedef struct {
    firn_gemm_kind kind;
    firn_type type; /* of w; not used by OUTER */
    int64_t k, m;
    firn_gemm_view w, in1, in2;
    float *out;
    int64_t out_nb[FIRN_MAX_DIMS];
    bool accumulate; /* out += product */

    /* routed */
    const int32_t *ids; /* [n_used, n_tokens]; NULL: dense */
    int64_t ids_nb[2];
    int64_t n_expert, n_used, n_tokens, x_slots;
    const int64_t *table; /* [n_expert] byte offsets from w.data in place of w.nb[2]; FORWARD only, or NULL */
    int64_t table_bytes;  /* of all that lies behind w.data: an expert that is asked for must be inside */

    /* dense */
    int64_t n, n2, n3, w_n2, w_n3; /* n2, n3, w_n2, w_n3: 0 reads as 1 */

    const firn_kernel_set *set; /* NULL: firn_kernel_set_default() */
} firn_gemm;

/* The first id outside [0, n_expert), or whose expert the table puts outside w, in the order slot t*n_used + s. Its row
 * of out is zero (unchanged when accumulating), and OUTER leaves it out. */
typedef struct {
    bool found;
    int64_t slot;
    int32_t id;
    bool outside; /* the id is in range, its table entry is not */
} firn_gemm_fault;

/* Can the product read such weights? */
bool firn_gemm_reads(firn_type type);
/* Bytes of the workspace that firn_gemm_run needs on a team of n_threads, aligned to 64. Addresses are not looked at
 * (ids only for NULL or not). */
size_t firn_gemm_work_bytes(const firn_gemm *g, int n_threads);
/* Called by every thread of the team with the same arguments; returns when the whole product is there. `work` must be
 * out of use by all of them. fault is set by one thread when ids are bad, and left alone otherwise; NULL is fine. */
void firn_gemm_run(const firn_gemm *g, void *work, firn_team team, firn_gemm_fault *fault);

#endif
