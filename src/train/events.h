/* A run's numbers as TensorBoard reads them: DIR/events.out.tfevents.*. */
#ifndef FIRN_TRAIN_EVENTS_H
#define FIRN_TRAIN_EVENTS_H

#include "core/buffer.h"

typedef struct {
    const char *tag; /* "loss/train" */
    double value;    /* NAN: left out */
} firn_scalar;

typedef struct {
    firn_context *ctx;
    int fd; /* -1: not open */
    char path[4096];
} firn_events;

/* A new file, as TensorBoard wants one for each start of a run; what earlier files say of steps after `step` counts no
 * longer. */
firn_status firn_events_open(firn_context *ctx, const char *folder, int64_t step, firn_events *events);
/* Nothing where the file is not open. A failure closes it. */
firn_status firn_events_add(firn_events *events, int64_t step, const firn_scalar *scalars, size_t n);
void firn_events_close(firn_events *events);

/* Records as they lie in the file: what begins one, the steps from which a start counts, and scalars. */
void firn_events_begin_record(firn_text *out, double wall_time);
void firn_events_start_record(firn_text *out, double wall_time, int64_t step);
void firn_events_scalars_record(firn_text *out, double wall_time, int64_t step, const firn_scalar *scalars, size_t n);

#endif
