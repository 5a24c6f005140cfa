/* Processes that train together: who they are, and how bytes go from one to another.
 *
 * A group of one ("self") needs nothing. More come of a launcher (mpirun, srun), are known from its environment, and
 * talk through MPI: libfirn-group-<kind>.so (src/group/mpi.c), found where backends are (core/plugin.c), so that the
 * plain program needs no MPI. Nothing here knows models; the order in which sums are added is train/reduce.h's.
 *
 * All ranks make the same calls in the same order. What fails is a sentence in the context on the rank that met it. */
#ifndef FIRN_CORE_GROUP_H
#define FIRN_CORE_GROUP_H

#include "core/context.h"

typedef struct firn_group firn_group;

enum { FIRN_GROUP_HOST_BYTES = 64 };

/* What a kind of group does: a row in the shared object. Functions return FIRN_OK, or FIRN_ERR_DEVICE with a sentence
 * in the context. Of two ranks, messages arrive in the order in which they were sent. */
typedef struct {
    const char *version;                                        /* FIRN_VERSION */
    uint64_t layout;                                            /* FIRN_GROUP_LAYOUT */
    const char *about;                                          /* "Open MPI 4.1.4" */
    firn_status (*start)(firn_context *ctx, firn_group *group); /* fills rank, size, local_rank, local_size, host */
    /* Enqueued; memory stays the caller's until wait. */
    firn_status (*send)(firn_group *group, int to, const void *data, size_t size);
    firn_status (*receive)(firn_group *group, int from, void *data, size_t size);
    firn_status (*wait)(firn_group *group); /* for all that is enqueued */
    firn_status (*broadcast)(firn_group *group, int from, void *data, size_t size);
    /* mine, of `size` bytes, of every rank, one after the other into all [group->size][size] */
    firn_status (*gather)(firn_group *group, const void *mine, size_t size, void *all);
    /* all: every rank comes here, and is done with its messages; else this rank leaves alone, and the job goes down
     * when its process ends, so that nobody waits for it for ever. */
    void (*leave)(firn_group *group, bool all);
} firn_group_kind;

struct firn_group {
    firn_context *ctx;
    const firn_group_kind *kind; /* NULL: self */
    void *state;                 /* the kind's */
    int rank, size;
    int local_rank, local_size; /* among the ranks of this host */
    char host[FIRN_GROUP_HOST_BYTES];
    bool together; /* every rank is known to end here */
    bool broken;   /* a message failed or was given up: none is tried any more */
    /* Asked while others are waited for; true for some seconds: the wait ends with FIRN_ERR_CANCELLED. NULL: not asked.
     */
    bool (*stop)(void *);
    void *stop_user;
};

#define FIRN_GROUP_LAYOUT ((uint64_t)sizeof(firn_group_kind) * 1009 + sizeof(firn_group))

/* The group that the launcher's environment says; `self` without one. Launched by several, and no way to talk: refused,
 * naming what is missing. One a process: MPI can be started once. */
firn_status firn_group_open(firn_context *ctx, firn_group **group);
/* What firn_group_agree does, by which every rank ends. */
firn_status firn_group_end(firn_group *group, firn_status mine);
/* NULL is fine. A rank that failed where no agreement was reached leaves alone: the launcher takes the job down when
 * its process ends. */
void firn_group_close(firn_group *group);

static inline bool firn_group_first(const firn_group *group)
{
    return !group || group->rank == 0;
}
static inline int firn_group_size(const firn_group *group)
{
    return group ? group->size : 1;
}

/* On a group of one (or NULL) these do what is left to do: copy, or nothing. */
firn_status firn_group_send(firn_group *group, int to, const void *data, size_t size);
firn_status firn_group_receive(firn_group *group, int from, void *data, size_t size);
firn_status firn_group_wait(firn_group *group);
firn_status firn_group_broadcast(firn_group *group, int from, void *data, size_t size);
firn_status firn_group_gather(firn_group *group, const void *mine, size_t size, void *all);
/* What happened on this rank becomes what happened on all: FIRN_OK where all say so; else the status of the lowest rank
 * that says otherwise, with its sentence, behind "rank 2: " where it is not this one's, and all are taken to end.
 * FIRN_ERR_CANCELLED of some is cancelled for all, unless another rank failed in earnest. */
firn_status firn_group_agree(firn_group *group, firn_status mine);
/* All ranks have the same bytes, or an error on all, naming the ranks and `what` differs. */
firn_status firn_group_expect_same(firn_group *group, const char *what, const void *bytes, size_t size);

#endif
