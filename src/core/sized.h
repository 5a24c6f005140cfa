/* Structs of the public headers that begin with their size (firn/firn.h): taking one in and giving one out, where the
 * caller's form of it may be shorter or longer than ours. Their last field is that of the first form.
 *
 *     FIRN_TRY(FIRN_TAKE(ctx, firn_batch, router_weight, batch, &ours));         what a caller filled
 *     FIRN_TRY(FIRN_ROOM(ctx, firn_eval_result, perplexity, result));            what a call will fill, at its start
 *     firn_sized_give(result, &ours);                                            and at its end */
#ifndef FIRN_CORE_SIZED_H
#define FIRN_CORE_SIZED_H

#include "core/context.h"

/* Bytes of a struct through one of its fields. */
#define FIRN_THROUGH(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

#define FIRN_TAKE(ctx, type, last, from, to)                                                                           \
    firn_sized_take(ctx, #type, FIRN_THROUGH(type, last), from, to, sizeof(type))
#define FIRN_ROOM(ctx, type, last, result) firn_sized_room(ctx, #type, FIRN_THROUGH(type, last), result)

/* Copies the caller's struct to ours of to_size bytes: what it does not reach is zero. Its size 0 stands for `first`,
 * the bytes of the first form. Refused: fewer bytes than that, and bytes behind ours that are not zero, which ask for
 * something that this library does not know. ctx may be NULL (then no sentence). */
firn_status firn_sized_take(firn_context *ctx, const char *name, size_t first, const void *from, void *to,
                            size_t to_size);
/* Whether the struct that a call is to fill says how long it is, and is long enough. */
firn_status firn_sized_room(firn_context *ctx, const char *name, size_t first, const void *result);
/* Fills the caller's struct as far as it goes from ours, both with their size; the caller's is kept. What is longer
 * than ours becomes zero. */
void firn_sized_give(void *result, const void *ours);

#endif
