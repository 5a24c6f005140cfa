/* From a line in firn's form (canon.h) to samples: tokens, and which of them are trained. */
#ifndef FIRN_TRAIN_SAMPLE_H
#define FIRN_TRAIN_SAMPLE_H

#include "train/seen.h"
#include "train/store.h"

typedef struct {
    uint32_t *tokens; /* with FIRN_TRAINED */
    size_t n, capacity;
} firn_packed;

typedef struct {
    size_t begin;
    int32_t n, n_targets;
} firn_piece;

/* What lines go through; its memory serves all. */
typedef struct {
    firn_context *ctx;
    const firn_encoder *encoder;
    const firn_canon_options *canon;
    firn_data *data;   /* counts and notes */
    firn_store *store; /* samples */
    int64_t context;
    bool preferences;
    const firn_jsonl *lines;
    uint32_t file;
    firn_data_format format; /* of the line at hand */

    firn_seen seen;
    firn_text text;
    firn_spans spans;
    firn_token_list encoded;
    /* of the line at hand; they count once it is whole */
    firn_packed packed;
    firn_piece *pieces;
    int64_t *lengths;
    size_t n_pieces, pieces_capacity, n_lengths, lengths_capacity;
    int64_t cut, cut_tokens, split;
    bool joined, has_text;
    firn_status taken;
} firn_sampler;

void firn_sampler_init(firn_sampler *sampler, firn_data *data, firn_store *store, const firn_encoder *encoder,
                       const firn_canon_options *canon, int64_t context, bool preferences);
void firn_sampler_free(firn_sampler *sampler);
/* The samples of the record that sampler->lines gave last. After an error nothing of it was added. */
firn_status firn_sampler_line(firn_sampler *sampler, firn_example *example);

#endif
