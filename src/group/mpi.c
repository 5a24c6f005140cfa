/* Groups over MPI: libfirn-group-openmpi.so and libfirn-group-mpich.so are this file, compiled for one and the other.
 *
 * Everything is posted without blocking and then asked for, with naps that grow: a rank that waits for others leaves
 * its cores to them, and hears that it is to stop. Counts of MPI are int, so that messages go in pieces. */
#include "core/group.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_POSTED = 256, PIECE = 1 << 30, TAG = 7, PATIENCE = 5 /* seconds between being told to stop and leaving */ };

/* MPI is started once a process and ended with it. */
static bool started, alone;
static MPI_Comm world;
static MPI_Request posted[MOST_POSTED];
static MPI_Status statuses[MOST_POSTED];
static int n_posted;

/* A rank that left alone takes the job down: the others would wait for it for ever. */
static void at_exit(void)
{
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (finalized)
        return;
    if (alone)
        MPI_Abort(world, 1);
    MPI_Finalize();
}

static firn_status check(firn_group *g, int error)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;

    if (error == MPI_SUCCESS)
        return FIRN_OK;
    if (MPI_Error_string(error, text, &n) != MPI_SUCCESS)
        n = 0;
    return firn_fail(g->ctx, FIRN_ERR_DEVICE, "rank %d: a message to or from other ranks failed: %.*s", g->rank, n,
                     text);
}

#define TRY_MPI(group, call) FIRN_TRY(check(group, call))

static firn_status start(firn_context *ctx, firn_group *g)
{
    int thread = 0, n = 0;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm local;

    if (!started) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &thread) != MPI_SUCCESS)
            return firn_fail(ctx, FIRN_ERR_DEVICE, "MPI could not be started");
        started = true;
        atexit(at_exit);
        MPI_Comm_dup(MPI_COMM_WORLD, &world);
        MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    }
    TRY_MPI(g, MPI_Comm_rank(world, &g->rank));
    TRY_MPI(g, MPI_Comm_size(world, &g->size));
    TRY_MPI(g, MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, g->rank, MPI_INFO_NULL, &local));
    TRY_MPI(g, MPI_Comm_rank(local, &g->local_rank));
    TRY_MPI(g, MPI_Comm_size(local, &g->local_size));
    TRY_MPI(g, MPI_Comm_free(&local));
    if (MPI_Get_processor_name(host, &n) == MPI_SUCCESS)
        snprintf(g->host, sizeof g->host, "%.*s", n, host);
    return FIRN_OK;
}

/* ---- waiting ---- */

static void nap(int tries)
{
    const long us = tries < 200 ? 0 : tries < 400 ? 20 : 200;

    if (us)
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static firn_status wait_for_all(firn_group *g)
{
    double told = 0;

    for (int tries = 0, done = 0;; tries++) {
        TRY_MPI(g, MPI_Testall(n_posted, posted, &done, statuses));
        if (done)
            break;
        nap(tries);
        if (tries % 64 || !g->stop || !g->stop(g->stop_user))
            continue;
        if (told == 0)
            told = now();
        else if (now() - told > PATIENCE)
            return firn_fail(g->ctx, FIRN_ERR_CANCELLED, "rank %d: stopped while it waited for other ranks", g->rank);
    }
    n_posted = 0;
    return FIRN_OK;
}

/* ---- messages ---- */

static firn_status post(firn_group *g, MPI_Request **request)
{
    if (n_posted == MOST_POSTED)
        FIRN_TRY(wait_for_all(g));
    *request = &posted[n_posted];
    return FIRN_OK;
}

/* Calls `one` for pieces of at most PIECE bytes. */
#define IN_PIECES(data, size, at, n)                                                                                   \
    for (size_t at = 0, n; at < (size) && (n = (size)-at < PIECE ? (size)-at : PIECE, true); at += n)

/* To or from another rank. */
static firn_status move(firn_group *g, int other, char *data, size_t size, bool sends)
{
    MPI_Request *request;

    IN_PIECES(data, size, at, n)
    {
        FIRN_TRY(post(g, &request));
        TRY_MPI(g, sends ? MPI_Isend(data + at, (int)n, MPI_BYTE, other, TAG, world, request)
                         : MPI_Irecv(data + at, (int)n, MPI_BYTE, other, TAG, world, request));
        n_posted++;
    }
    return FIRN_OK;
}

static firn_status send(firn_group *g, int to, const void *data, size_t size)
{
    return move(g, to, (char *)data, size, true);
}

static firn_status receive(firn_group *g, int from, void *data, size_t size)
{
    return move(g, from, data, size, false);
}

static firn_status broadcast(firn_group *g, int from, void *data, size_t size)
{
    MPI_Request *request;

    IN_PIECES(data, size, at, n)
    {
        FIRN_TRY(post(g, &request));
        TRY_MPI(g, MPI_Ibcast((char *)data + at, (int)n, MPI_BYTE, from, world, request));
        n_posted++;
    }
    return wait_for_all(g);
}

static firn_status gather(firn_group *g, const void *mine, size_t size, void *all)
{
    MPI_Request *request;

    if (size > PIECE)
        return firn_fail(g->ctx, FIRN_ERR_ARGUMENT, "%zu bytes of each rank are too many to be gathered", size);
    FIRN_TRY(post(g, &request));
    TRY_MPI(g, MPI_Iallgather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, world, request));
    n_posted++;
    return wait_for_all(g);
}

static void leave(firn_group *g, bool all)
{
    (void)g;
    alone |= !all;
}

FIRN_API extern const firn_group_kind firn_group_plugin;
const firn_group_kind firn_group_plugin = {
    .version = FIRN_VERSION,
    .layout = FIRN_GROUP_LAYOUT,
    .about = FIRN_MPI_NAME,
    .start = start,
    .send = send,
    .receive = receive,
    .wait = wait_for_all,
    .broadcast = broadcast,
    .gather = gather,
    .leave = leave,
};
