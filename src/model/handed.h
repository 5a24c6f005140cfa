/* What a block is handed besides the stream: inputs of its own (ends.h makes them), and keys and values of an earlier
 * block, which all that borrow them read; backward, each adds to their gradients, and the lender takes them last.
 * Generating, blocks borrow from the cache. Called by session.c and generate.c. */
#ifndef FIRN_MODEL_HANDED_H
#define FIRN_MODEL_HANDED_H

#include "model/block.h"
#include "model/ends.h"

typedef struct {
    const firn_model *model;
    int64_t n_tokens;          /* the most of a pass */
    firn_buffer *inputs;       /* [n_per_layer, n, n_layer] for a pass of n tokens; NULL: there are none */
    firn_buffer *keys, *dkeys; /* of each lender [k_row, n_tokens], [v_row, n_tokens]; NULL: there are none */
} firn_handed;

/* Which of it a pass needs. */
typedef enum {
    FIRN_HANDED_INPUTS,
    FIRN_HANDED_KEYS,      /* and keys and values */
    FIRN_HANDED_GRADIENTS, /* and their gradients */
} firn_handed_parts;

uint64_t firn_handed_bytes(const firn_model *model, int64_t n_tokens, firn_handed_parts parts);
/* Buffers, which firn_handed_clear takes away, also after a failure. */
firn_status firn_handed_create(firn_device *device, const firn_model *model, int64_t n_tokens, firn_handed_parts parts,
                               firn_handed *handed);
void firn_handed_clear(firn_handed *handed);
/* No gradients yet. */
firn_status firn_handed_zero(const firn_handed *handed);

firn_status firn_handed_bind_embedding(const firn_handed *handed, const firn_embedding *embedding);
/* Block `layer` in a pass of n tokens. */
firn_status firn_handed_bind(const firn_handed *handed, const firn_block *block, firn_exec *exec, int64_t layer,
                             int64_t n);

#endif
