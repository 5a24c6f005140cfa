/* An adapter's tensors as pairs of PEFT's factors: see peft.c, where they are found and written, and import.c, which
 * reads them. */
#ifndef FIRN_TRAIN_PEFT_H
#define FIRN_TRAIN_PEFT_H

#include "model/model.h"

enum { FIRN_PEFT_NAME = 160 };

/* Where row o of transformers' B is in GGUF's. */
typedef enum {
    ROWS_AS_THEY_ARE,
    ROWS_PERMUTED,    /* within heads of `head` rows: o = half * head / 2 + i is row 2 i + half */
    ROWS_HALVES,      /* two parts, or the halves of one */
    ROWS_ALTERNATING, /* the same, in turn */
    ROWS_BY_KEY_HEAD, /* two parts, [q | k | v] and z of a delta net: key head by key head q, k, and v, z of its heads
                       */
} firn_peft_order;

/* One pair of PEFT's factors. */
typedef struct {
    char module[FIRN_PEFT_NAME];       /* what the factors' names begin with, after "base_model.model." */
    char target[FIRN_PEFT_NAME];       /* its name in the configuration, the same for all blocks */
    bool parameter;                    /* among target_parameters */
    firn_tensor_id id;                 /* of the first part */
    const firn_adapter_entry *part[2]; /* the second one NULL, or its rows are the other half; a part may be missing */
    firn_peft_order order;
    int64_t first, n_out, head; /* rows [first, first + n_out) of B; first is 0 but for pieces of a fused product */
    int64_t expert, n_expert;   /* expert -1: all, folded */
    int64_t rank, n_in;
    double alpha;
    const float *divisor; /* [n_expert] of B, or NULL */
    /* Value heads of a delta net in another order: from row (or column of A) `from` on, in blocks of `block`; 0: not.
     */
    int64_t from, block;
    bool columns;
    bool exact; /* the configuration names this block's module alone */
} firn_peft_piece;

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    const firn_adapter *adapter;
    const firn_adapter_entry **entries, *output;
    const char *base; /* its name, or NULL */
    firn_peft_piece *pieces;
    size_t n, capacity;
} firn_peft_pieces;

/* Every piece that the adapter's tensors go to, with their names; entries and pieces are the caller's, also on failure.
 */
firn_status firn_peft_collect(firn_peft_pieces *x);
/* Adds those of experts that have modules of their own in `owner` ("mlp.experts"), called by `leaves`: gate, up, down.
 */
firn_status firn_peft_add_expert_modules(firn_peft_pieces *x, int layer, const char *owner,
                                         const char *const leaves[3]);
/* Adds stacks of experts that are one module each, called so in `owner`: mlx-lm's. */
firn_status firn_peft_add_stacks(firn_peft_pieces *x, int layer, const char *owner);
/* The part of a piece that holds transformers' row o of B, and the row in it. */
int64_t firn_peft_row(const firn_peft_pieces *x, const firn_peft_piece *p, int64_t o, int *part);
/* GGUF's column of A for transformers' column i. */
int64_t firn_peft_column(const firn_peft_pieces *x, const firn_peft_piece *p, int64_t i);

#endif
