/* The sum of a step's passes: the same bits for any number of ranks, as the definition in train/reduce.h gives them.
 * The ranks are threads of this process, which talk through a group kind of the test's own. */
#include "unit/unit.h"

#include "core/group.h"
#include "train/reduce.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { MOST_RANKS = 8, MOST_POSTED = 64 };

/* ---- a group of threads ---- */

typedef struct message {
    struct message *next;
    size_t size;
    char data[];
} message;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    message *queue[MOST_RANKS][MOST_RANKS]; /* [from][to], the oldest first */
} post_office;

typedef struct {
    post_office *office;
    struct {
        int from;
        void *data;
        size_t size;
    } posted[MOST_POSTED];
    int n_posted;
} desk;

static firn_status send(firn_group *g, int to, const void *data, size_t size)
{
    desk *d = g->state;
    message *m = malloc(sizeof *m + size), **end = &d->office->queue[g->rank][to];

    *m = (message){.size = size};
    memcpy(m->data, data, size);
    pthread_mutex_lock(&d->office->lock);
    while (*end)
        end = &(*end)->next;
    *end = m;
    pthread_cond_broadcast(&d->office->change);
    pthread_mutex_unlock(&d->office->lock);
    return FIRN_OK;
}

static firn_status receive(firn_group *g, int from, void *data, size_t size)
{
    desk *d = g->state;

    assert_true(d->n_posted < MOST_POSTED);
    d->posted[d->n_posted].from = from;
    d->posted[d->n_posted].data = data;
    d->posted[d->n_posted++].size = size;
    return FIRN_OK;
}

static firn_status wait_for_all(firn_group *g)
{
    desk *d = g->state;

    for (int i = 0; i < d->n_posted; i++) {
        message **first = &d->office->queue[d->posted[i].from][g->rank], *m;
        pthread_mutex_lock(&d->office->lock);
        while (!*first)
            pthread_cond_wait(&d->office->change, &d->office->lock);
        m = *first;
        *first = m->next;
        pthread_mutex_unlock(&d->office->lock);
        assert_int_equal(m->size, d->posted[i].size);
        memcpy(d->posted[i].data, m->data, m->size);
        free(m);
    }
    d->n_posted = 0;
    return FIRN_OK;
}

static firn_status broadcast(firn_group *g, int from, void *data, size_t size)
{
    if (g->rank != from)
        return receive(g, from, data, size), wait_for_all(g);
    for (int to = 0; to < g->size; to++)
        if (to != from)
            send(g, to, data, size);
    return FIRN_OK;
}

static firn_status gather(firn_group *g, const void *mine, size_t size, void *all)
{
    for (int i = 0; i < g->size; i++)
        if (i != g->rank)
            send(g, i, mine, size);
    for (int i = 0; i < g->size; i++)
        if (i != g->rank)
            receive(g, i, (char *)all + (size_t)i * size, size);
    memcpy((char *)all + (size_t)g->rank * size, mine, size);
    return wait_for_all(g);
}

static const firn_group_kind threads = {.about = "threads",
                                        .send = send,
                                        .receive = receive,
                                        .wait = wait_for_all,
                                        .broadcast = broadcast,
                                        .gather = gather};

/* ---- passes ---- */

/* Value i of the gradient of a pass: of very different sizes, so that the order of additions shows. */
static float value(int64_t pass, int64_t i)
{
    uint64_t x = (uint64_t)pass * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xBF58476D1CE4E5B9u + 1;

    x ^= x >> 29;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 32;
    const float size[] = {1e-6f, 1, 1e3f, 1e7f};
    return ((float)(x >> 40) / 8388608.0f - 1) * size[x & 3];
}

/* T(k, i) of the definition. */
static float sum_of(int level, int depth, int64_t i, int64_t n, int64_t at)
{
    if (level == 0)
        return value(i, at);
    const int64_t half = (int64_t)1 << (depth - level);
    const float left = sum_of(level - 1, depth, i, n, at);
    return i + half < n ? left + sum_of(level - 1, depth, i + half, n, at) : left;
}

typedef struct {
    post_office *office;
    int rank, size, steps;
    int64_t n, n_values;
    bool whole;
    uint64_t *taken; /* a bit for each pass; by rank */
    int wrong;
} part;

static void run_step(part *p, firn_reduction *r, firn_parameters *store)
{
    float *g = calloc((size_t)p->n_values, sizeof *g);
    int depth = 0;
    int64_t n;
    const int64_t *passes = firn_reduction_passes(r, &n);

    while ((int64_t)1 << depth < p->n)
        depth++;
    assert_int_equal(firn_reduction_begin(r), FIRN_OK);
    *p->taken = 0;
    for (int64_t k = 0; k < n; k++) {
        *p->taken |= (uint64_t)1 << passes[k];
        /* what is added comes in two parts where the gradient is not whole: then only a start from zero is right */
        firn_parameters_read(store, FIRN_PARAMETERS_GRADIENTS, 0, p->n_values, g);
        for (int64_t i = 0; i < p->n_values; i++) {
            const float v = value(passes[k], i);
            g[i] = p->whole ? g[i] + v : (g[i] + 0.75f * v) + (v - 0.75f * v);
        }
        firn_parameters_write(store, FIRN_PARAMETERS_GRADIENTS, 0, p->n_values, g);
        assert_int_equal(firn_reduction_passed(r), FIRN_OK);
    }
    assert_int_equal(firn_reduction_finish(r), FIRN_OK);
    firn_parameters_read(store, FIRN_PARAMETERS_GRADIENTS, 0, p->n_values, g);
    for (int64_t i = 0; p->whole && i<p->n_values; i += p->n_values> 5000 ? 997 : 1)
        p->wrong += g[i] != sum_of(depth, depth, 0, p->n, i);
    for (int64_t i = 0; !p->whole && i < p->n_values; i++)
        p->wrong += !(fabsf(g[i] - sum_of(depth, depth, 0, p->n, i)) <= 16); /* of values up to 1e7 */
    free(g);
}

static void *run_rank(void *user)
{
    part *p = user;
    desk d = {.office = p->office};
    firn_context *ctx;
    firn_device *device;
    firn_parameters *store;
    firn_reduction *r;

    assert_non_null(
        ctx = firn_context_create(&(firn_context_params){.size = sizeof(firn_context_params), .n_threads = 1}));
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    firn_group group = {.ctx = ctx, .kind = &threads, .state = &d, .rank = p->rank, .size = p->size};
    float *values = aligned_alloc(64, ((size_t)p->n_values * sizeof(float) + 63) / 64 * 64);
    firn_adapter adapter = {.ctx = ctx, .n_values = p->n_values, .values = values};
    memset(values, 0, (size_t)p->n_values * sizeof(float));
    assert_int_equal(firn_parameters_create(ctx, device, &adapter, &store), FIRN_OK);
    assert_int_equal(firn_parameters_add(store, FIRN_PARAMETERS_GRADIENTS), FIRN_OK);
    assert_int_equal(firn_reduction_create(store, p->size > 1 ? &group : NULL, p->n, p->whole, &r), FIRN_OK);
    for (int step = 0; step < p->steps; step++)
        run_step(p, r, store);
    firn_reduction_destroy(r);
    firn_parameters_drop(store);
    firn_device_close(device);
    free(values);
    firn_context_destroy(ctx);
    return NULL;
}

/* Sums of n passes on so many ranks, and that each pass was taken once. */
static void try(int size, int64_t n, int64_t n_values, bool whole)
{
    post_office office = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
    part parts[MOST_RANKS];
    uint64_t taken[MOST_RANKS], all = 0;
    pthread_t thread[MOST_RANKS];

    for (int i = 0; i < size; i++) {
        parts[i] = (part){&office, i, size, 2, n, n_values, whole, &taken[i], 0};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &parts[i]), 0);
    }
    for (int i = 0; i < size; i++) {
        pthread_join(thread[i], NULL);
        if (parts[i].wrong)
            fail_msg("%d values of rank %d of %d are wrong, of %d passes", parts[i].wrong, i, size, (int)n);
        assert_true((all & taken[i]) == 0);
        all |= taken[i];
    }
    assert_true(all == ((uint64_t)1 << n) - 1);
}

static void the_same_bits_for_any_number_of_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= MOST_RANKS; size++)
        for (int64_t n = 1; n <= 17; n += n < 9 ? 1 : 4)
            try(size, n, 37, true);
}

static void a_gradient_in_parts_starts_from_zero(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int64_t n = 1; n <= 9; n++)
            try(size, n, 19, false);
}

/* More than one piece, segments of uneven lengths. */
static void long_gradients_go_in_pieces(void **state)
{
    (void)state;
    try(2, 3, 2200003, true);
    try(3, 4, 1500001, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits_for_any_number_of_ranks),
                                       cmocka_unit_test(a_gradient_in_parts_starts_from_zero),
                                       cmocka_unit_test(long_gradients_go_in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
