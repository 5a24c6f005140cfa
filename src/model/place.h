/* Where a model's weights lie for a device, as a plan: no memory of the device is touched here.
 *
 * The tensors of a block are taken as the stretches of the file that they fill, one stretch where they follow each
 * other, so that a copy keeps their distances: experts that a file keeps apart are used in it as they are in the file
 * (stack.c).
 *
 * Called by weights.c, which has the memory, and by session.c and generate.c, which plan it. */
#ifndef FIRN_MODEL_PLACE_H
#define FIRN_MODEL_PLACE_H

#include "core/backend.h"
#include "core/buffer.h"
#include "model/model.h"

/* Bytes [low, high) of a part of the file, and where they lie in the memory of their group: at a place that has the
 * file's alignment up to 64. */
typedef struct {
    int file;
    uint64_t low, high;
    size_t at;
} firn_stretch;

typedef struct {
    firn_stretch *stretches;
    int n;
    size_t bytes; /* of its memory */
} firn_weight_group;

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    firn_weight_group *groups; /* [n_layer + 1]: the blocks; what lies outside them */
    int32_t *group_of;         /* [tensors of the file] -1: nobody's */
} firn_weight_layout;

/* Blocks from `backward` on are differentiated: their experts that lie about are gathered, and not among these. */
firn_status firn_weight_layout_create(firn_context *ctx, const firn_model *model, int64_t backward,
                                      firn_weight_layout *layout);
void firn_weight_layout_clear(firn_weight_layout *layout);
/* The offset of byte `offset` of a part of the file in its group's memory; false: it is not there. */
bool firn_weight_layout_find(const firn_weight_layout *layout, int64_t group, int file, uint64_t offset, size_t *at);

typedef struct {
    firn_weights_place blocks; /* never AUTO */
    bool ends_mapped;          /* what lies outside the blocks is read in the file */
    int n_slots;               /* streamed: of the ring */
    uint64_t slot_bytes;       /* of the largest block */
    uint64_t block_bytes;      /* of all blocks */
    uint64_t ends_bytes;       /* of what lies outside */
    uint64_t device_bytes;     /* that copies take */
} firn_weight_plan;

/* As the context asks (firn_context_set_weights), or by what fits beside `others` bytes on a device that does not read
 * the host's memory in place. Refused in words where it cannot be. */
firn_status firn_weight_plan_of(firn_context *ctx, firn_device *device, const firn_weight_layout *layout,
                                uint64_t others, firn_weight_plan *plan);
/* "mapped from the file 12.30 GiB", "streamed through 3 blocks ...": for people. */
void firn_weight_plan_text(const firn_session_memory *memory, firn_text *text);
/* Bytes that are free on a device with memory of its own; 0: it computes in the host's, or does not say. */
uint64_t firn_device_room(firn_device *device);

#endif
