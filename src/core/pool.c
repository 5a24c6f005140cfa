#include "core/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Some 50 to 150 microseconds of spinning before a thread sleeps: longer than the gap between two operations of a step,
 * shorter than anything a person or another process would notice. Whoever waits longer must sleep, not yield: where
 * other programs want the processors too, a thread that spent its share on waiting gets none when its turn comes. */
enum { SPINS = 8000, LEAST_STACK = 1 << 20 };

typedef struct {
    firn_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct firn_pool {
    int n_threads, n_started; /* n_started: workers that exist, the caller not counted */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* a new round */
    pthread_cond_t met;  /* a barrier's last thread, or a piece's last worker */
    atomic_uint round;   /* one more for each piece of work */
    atomic_int busy;     /* workers that have not finished the piece */
    atomic_bool stop;
    atomic_int sleepers, waiters; /* for wake, for met */
    void (*work)(void *, firn_team);
    void *argument;
    atomic_int arrived; /* the barrier */
    atomic_uint phase;
    worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int firn_cpu_count(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int n = CPU_COUNT(&set);
        if (n > 0)
            return n;
    }
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* What a thread waits for: that a counter changes, or becomes 0. */
static bool round_begun(const firn_pool *p, unsigned seen)
{
    return atomic_load(&p->round) != seen;
}

static bool phase_over(const firn_pool *p, unsigned seen)
{
    return atomic_load(&p->phase) != seen;
}

static bool all_finished(const firn_pool *p, unsigned unused)
{
    (void)unused;
    return atomic_load(&p->busy) == 0;
}

/* Spins, then sleeps, until it is so. */
static void await(firn_pool *p, bool (*so)(const firn_pool *, unsigned), unsigned seen, pthread_cond_t *cond,
                  atomic_int *count)
{
    for (int i = 0; i < SPINS; i++) {
        if (so(p, seen))
            return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(count, 1);
    while (!so(p, seen))
        pthread_cond_wait(cond, &p->mutex);
    atomic_fetch_sub(count, 1);
    pthread_mutex_unlock(&p->mutex);
}

/* After what they await has become so. Who goes to sleep after this look sees that first: both sides write, then read,
 * in one order for all. */
static void wake_all(firn_pool *p, pthread_cond_t *cond, atomic_int *count)
{
    if (atomic_load(count)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(cond);
        pthread_mutex_unlock(&p->mutex);
    }
}

static void start_round(firn_pool *p)
{
    atomic_fetch_add(&p->round, 1);
    wake_all(p, &p->wake, &p->sleepers);
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    firn_pool *p = self->pool;

    for (unsigned seen = 0;; seen++) {
        await(p, round_begun, seen, &p->wake, &p->sleepers);
        if (atomic_load(&p->stop))
            return NULL;
        p->work(p->argument, (firn_team){self->index, p->n_threads, p});
        if (atomic_fetch_sub(&p->busy, 1) == 1)
            wake_all(p, &p->met, &p->waiters);
    }
}

/* Signals are the program's: its handlers never run on a worker. Faults, which belong to the thread that makes them,
 * do. A small limit on stacks (ulimit -s) is the main thread's; workers get what kernels need. */
static int start_worker(worker *w)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    pthread_attr_t attr;
    sigset_t mask, old;
    size_t stack;
    int error = pthread_attr_init(&attr);

    if (error)
        return error;
    if (pthread_attr_getstacksize(&attr, &stack) == 0 && stack < LEAST_STACK)
        pthread_attr_setstacksize(&attr, LEAST_STACK);
    sigfillset(&mask);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&mask, faults[i]);
    pthread_sigmask(SIG_SETMASK, &mask, &old);
    error = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return error;
}

static firn_pool *pool_create(firn_context *ctx, int n_threads)
{
    firn_pool *p = firn_alloc_zeroed(ctx, 1, sizeof *p + (size_t)n_threads * sizeof(worker));

    if (!p)
        return NULL;
    p->n_threads = n_threads;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->met, NULL);
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (worker){.pool = p, .index = i};
        const int error = start_worker(&p->workers[i]);
        if (error) {
            firn_fail(ctx, FIRN_ERR_MEMORY, "thread %d of %d could not be started: %s", i + 1, n_threads,
                      strerror(error));
            firn_pool_destroy(ctx, p);
            return NULL;
        }
        p->n_started++;
    }
    return p;
}

void firn_pool_destroy(firn_context *ctx, firn_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    start_round(p);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->met);
    pthread_mutex_destroy(&p->mutex);
    firn_free(ctx, p);
}

firn_pool *firn_context_pool(firn_context *ctx)
{
    if (!ctx->pool)
        ctx->pool = pool_create(ctx, ctx->n_threads);
    return ctx->pool;
}

int firn_pool_threads(const firn_pool *pool)
{
    return pool->n_threads;
}

void firn_pool_run(firn_pool *p, void (*work)(void *, firn_team), void *argument)
{
    p->work = work;
    p->argument = argument;
    if (p->n_threads > 1) {
        atomic_store(&p->busy, p->n_threads - 1);
        start_round(p);
    }
    work(argument, (firn_team){0, p->n_threads, p});
    await(p, all_finished, 0, &p->met, &p->waiters);
}

firn_status firn_context_team(firn_context *ctx, int asked, int *n_threads)
{
    FIRN_EXPECT(ctx, asked >= 0 && asked <= ctx->n_threads, "%d threads were asked for; the context has %d", asked,
                ctx->n_threads);
    *n_threads = asked ? asked : ctx->n_threads;
    return FIRN_OK;
}

typedef struct {
    void (*work)(void *, firn_team);
    void *argument;
    int n_threads;
} part_job;

static void run_part(void *argument, firn_team team)
{
    const part_job *job = argument;

    if (team.ith < job->n_threads)
        job->work(job->argument, (firn_team){team.ith, job->n_threads, team.pool});
}

firn_status firn_context_run(firn_context *ctx, int n_threads, void (*work)(void *, firn_team), void *argument)
{
    part_job job = {work, argument, 0};

    FIRN_TRY(firn_context_team(ctx, n_threads, &job.n_threads));
    if (job.n_threads == 1) {
        work(argument, (firn_team){0, 1, NULL});
        return FIRN_OK;
    }
    firn_pool *pool = firn_context_pool(ctx);
    if (!pool)
        return FIRN_ERR_MEMORY;
    firn_pool_run(pool, run_part, &job);
    return FIRN_OK;
}

firn_status firn_context_start(firn_context *ctx)
{
    if (!ctx)
        return FIRN_ERR_ARGUMENT;
    return ctx->n_threads == 1 || firn_context_pool(ctx) ? FIRN_OK : FIRN_ERR_MEMORY;
}

void firn_team_barrier(firn_team team)
{
    firn_pool *p = team.pool;

    if (team.nth == 1)
        return;
    const unsigned phase = atomic_load(&p->phase);
    if (atomic_fetch_add(&p->arrived, 1) == team.nth - 1) {
        atomic_store(&p->arrived, 0);
        atomic_fetch_add(&p->phase, 1);
        wake_all(p, &p->met, &p->waiters);
        return;
    }
    await(p, phase_over, phase, &p->met, &p->waiters);
}

bool firn_team_take(atomic_llong *counter, int64_t n, int64_t grain, int64_t *begin, int64_t *end)
{
    const int64_t from = atomic_fetch_add_explicit(counter, grain, memory_order_relaxed);

    if (from >= n)
        return false;
    *begin = from;
    *end = firn_min_i64(from + grain, n);
    return true;
}
