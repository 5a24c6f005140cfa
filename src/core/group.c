/* Groups of processes; see group.h. */
#include "core/group.h"

#include "core/backend.h"
#include "core/sha256.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what the launcher says ---- */

typedef struct {
    const char *size, *rank; /* names in the environment */
    const char *kind;        /* whose processes these are */
    const char *launcher;
} launcher_row;

/* Sources: Open MPI's FAQ on its environment variables, MPICH's Hydra (PMI_*), Slurm's srun(1). srun comes last: it
 * sets its own beside those of the process manager that it serves. A batch script alone has no SLURM_STEP_NUM_TASKS. */
static const launcher_row launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "openmpi", "mpirun of Open MPI"},
    {"PMI_SIZE", "PMI_RANK", "mpich", "mpirun of MPICH"},
    {"SLURM_STEP_NUM_TASKS", "PMIX_RANK", "openmpi", "srun --mpi=pmix"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "mpich", "srun"},
};

static const launcher_row *launcher(int *size)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *n = getenv(launchers[i].size), *rank = getenv(launchers[i].rank);
        if (n && rank && atoi(n) > 1) {
            *size = atoi(n);
            return &launchers[i];
        }
    }
    return NULL;
}

/* ---- opening ---- */

static firn_status find_kind(firn_context *ctx, const launcher_row *l, int size, const firn_group_kind **kind)
{
    char file[64], why[400] = "";

    snprintf(file, sizeof file, "libfirn-group-%s.so", l->kind);
    void *object = firn_plugin_object(file, why, sizeof why);
    if (!object)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "%s started %d processes, and they can train together only through %s: %s", l->launcher, size,
                         file, why);
    const firn_group_kind *k = dlsym(object, "firn_group_plugin");
    if (!k || !k->version || strcmp(k->version, FIRN_VERSION) != 0 || k->layout != FIRN_GROUP_LAYOUT) {
        dlclose(object);
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is not of this firn %s: it was built from other sources", file,
                         FIRN_VERSION);
    }
    *kind = k;
    return FIRN_OK;
}

firn_status firn_group_open(firn_context *ctx, firn_group **group)
{
    int size = 1;
    const launcher_row *l = launcher(&size);
    firn_group *g = *group = firn_alloc_zeroed(ctx, 1, sizeof *g);

    if (!g)
        return FIRN_ERR_MEMORY;
    *g = (firn_group){.ctx = ctx, .size = 1, .local_size = 1};
    if (gethostname(g->host, sizeof g->host - 1) != 0)
        snprintf(g->host, sizeof g->host, "this host");
    if (!l)
        return FIRN_OK;
    firn_status s = find_kind(ctx, l, size, &g->kind);
    if (s == FIRN_OK)
        s = g->kind->start(ctx, g);
    if (s == FIRN_OK && g->size != size)
        s = firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s started %d processes, and %s knows of %d: it is another MPI's",
                      l->launcher, size, g->kind->about, g->size);
    if (s != FIRN_OK) {
        firn_free(ctx, g);
        *group = NULL;
    }
    return s;
}

void firn_group_close(firn_group *g)
{
    if (!g)
        return;
    if (g->kind)
        g->kind->leave(g, g->together);
    firn_free(g->ctx, g);
}

/* ---- messages ---- */

static bool alone(const firn_group *g)
{
    return !g || !g->kind;
}

/* Once a message failed, or was given up because this rank is to stop, what others do is not known any more. */
static firn_status keep(firn_group *g, firn_status s)
{
    g->broken |= s != FIRN_OK;
    return s;
}

static firn_status expect_whole(firn_group *g)
{
    return g->broken ? firn_fail(g->ctx, FIRN_ERR_CANCELLED, "the other ranks are not heard of any more") : FIRN_OK;
}

firn_status firn_group_send(firn_group *g, int to, const void *data, size_t size)
{
    if (alone(g) || size == 0)
        return FIRN_OK;
    FIRN_TRY(expect_whole(g));
    return keep(g, g->kind->send(g, to, data, size));
}

firn_status firn_group_receive(firn_group *g, int from, void *data, size_t size)
{
    if (alone(g) || size == 0)
        return FIRN_OK;
    FIRN_TRY(expect_whole(g));
    return keep(g, g->kind->receive(g, from, data, size));
}

firn_status firn_group_wait(firn_group *g)
{
    if (alone(g))
        return FIRN_OK;
    FIRN_TRY(expect_whole(g));
    return keep(g, g->kind->wait(g));
}

firn_status firn_group_broadcast(firn_group *g, int from, void *data, size_t size)
{
    if (alone(g) || size == 0)
        return FIRN_OK;
    FIRN_TRY(expect_whole(g));
    return keep(g, g->kind->broadcast(g, from, data, size));
}

firn_status firn_group_gather(firn_group *g, const void *mine, size_t size, void *all)
{
    if (alone(g) || size == 0) {
        memcpy(all, mine, size);
        return FIRN_OK;
    }
    FIRN_TRY(expect_whole(g));
    return keep(g, g->kind->gather(g, mine, size, all));
}

/* ---- agreement ---- */

/* The lowest rank of those that failed, before those that were cancelled; -1: none. */
static int guilty(const int32_t *all, int n)
{
    int cancelled = -1;

    for (int i = 0; i < n; i++) {
        if (all[i] != FIRN_OK && all[i] != FIRN_ERR_CANCELLED)
            return i;
        if (all[i] == FIRN_ERR_CANCELLED && cancelled < 0)
            cancelled = i;
    }
    return cancelled;
}

firn_status firn_group_agree(firn_group *g, firn_status mine)
{
    char sentence[FIRN_ERROR_BYTES];
    int32_t one = (int32_t)mine;

    if (alone(g) || (g->broken && mine != FIRN_OK)) /* broken: this rank's own sentence is the one that says why */
        return mine;
    int32_t *all = firn_alloc(g->ctx, (size_t)g->size * sizeof *all);
    if (!all)
        return FIRN_ERR_MEMORY;
    g->together = false;
    firn_status s = firn_group_gather(g, &one, sizeof one, all);
    const int who = s == FIRN_OK ? guilty(all, g->size) : -1;
    if (who >= 0) {
        snprintf(sentence, sizeof sentence, "%s", firn_error(g->ctx));
        s = firn_group_broadcast(g, who, sentence, sizeof sentence);
        if (s == FIRN_OK)
            s = (firn_status)all[who];
        if (who != g->rank && s != FIRN_ERR_CANCELLED)
            firn_fail(g->ctx, s, "rank %d: %s", who, sentence);
    }
    g->together = who >= 0;
    firn_free(g->ctx, all);
    return s;
}

firn_status firn_group_end(firn_group *g, firn_status mine)
{
    if (alone(g) || g->together) /* that they end here was agreed on already */
        return mine;
    const firn_status s = firn_group_agree(g, mine);
    g->together |= s == FIRN_OK;
    return s;
}

firn_status firn_group_expect_same(firn_group *g, const char *what, const void *bytes, size_t size)
{
    uint8_t hash[FIRN_SHA256_BYTES];
    firn_sha256 sum;

    if (alone(g))
        return FIRN_OK;
    uint8_t *all = firn_alloc(g->ctx, (size_t)g->size * sizeof hash);
    if (!all)
        return FIRN_ERR_MEMORY;
    firn_sha256_init(&sum);
    firn_sha256_add(&sum, bytes, size);
    firn_sha256_digest(&sum, hash);
    firn_status s = firn_group_gather(g, hash, sizeof hash, all);
    for (int i = 1; s == FIRN_OK && i < g->size; i++)
        if (memcmp(all, all + (size_t)i * sizeof hash, sizeof hash) != 0)
            s = firn_fail(g->ctx, FIRN_ERR_ARGUMENT,
                          "%s of rank %d is not that of rank 0: processes that train together must be given the same",
                          what, i);
    g->together = s == FIRN_ERR_ARGUMENT;
    firn_free(g->ctx, all);
    return s;
}
