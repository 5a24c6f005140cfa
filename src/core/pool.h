/* A small pool of threads: the caller and n - 1 workers do one piece of work together.
 *
 * Workers spin for a short, bounded while between pieces (a step is hundreds of pieces of some ten microseconds), then
 * sleep. Who does which share never shows in results: work is cut by shape, and each output element has one writer. */
#ifndef FIRN_CORE_POOL_H
#define FIRN_CORE_POOL_H

#include "core/context.h"

#include <stdatomic.h>

typedef struct firn_pool firn_pool;

/* What a thread knows of the piece it takes part in. */
typedef struct {
    int ith, nth; /* which of how many threads this is */
    firn_pool *pool;
} firn_team;

/* Processors that this process may run on, at least 1. */
int firn_cpu_count(void);

/* The context's pool of firn_context_threads threads, made at the first call. NULL with the sentence set on failure. */
firn_pool *firn_context_pool(firn_context *ctx);
void firn_pool_destroy(firn_context *ctx, firn_pool *pool);
int firn_pool_threads(const firn_pool *pool);

/* Runs work(argument, team) once on every thread, and returns when all are done. Not reentrant. */
void firn_pool_run(firn_pool *pool, void (*work)(void *argument, firn_team team), void *argument);

/* The same on the first n_threads of the context's threads, 0: all; 1 needs no pool. More than there are is refused. */
firn_status firn_context_run(firn_context *ctx, int n_threads, void (*work)(void *argument, firn_team team),
                             void *argument);
/* How many threads `asked` means, as above. */
firn_status firn_context_team(firn_context *ctx, int asked, int *n_threads);

/* Inside work: waits until every thread of the team has come here. What was written before is seen after. */
void firn_team_barrier(firn_team team);

/* Inside work: items [0, n) in runs of `grain`, taken from one counter until none is left. `counter` starts at 0 and is
 * shared by the team. Returns false when nothing is left. */
bool firn_team_take(atomic_llong *counter, int64_t n, int64_t grain, int64_t *begin, int64_t *end);

#endif
