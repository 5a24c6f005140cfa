/* The executor of the software Metal device: the threads of a threadgroup are fibers on one stack each, threadgroups
 * are spread over the machine's threads.
 *
 * A fiber runs until it waits (for its simdgroup or its threadgroup) or returns; pick() chooses the next one and
 * releases what all have reached. So every thread sees the others' memory only as far as barriers force it, and the
 * order in which lanes run (forward, reverse, random) decides what a missing barrier shows.
 *
 * Under the thread sanitizer (kernels instrumented, this file not: MDEV_TSAN) every fiber is a thread to it and a
 * barrier that names memory is a release and an acquire; two sets of fibers alternate, so that neighbouring
 * threadgroups are unordered. Then it finds races itself, in any order. */
#include "executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if __has_feature(address_sanitizer)
#define MDEV_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef MDEV_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreWritesBegin(const char *, int);
extern "C" void AnnotateIgnoreWritesEnd(const char *, int);
#endif

namespace
{
constexpr size_t STACK = 256 * 1024;
constexpr unsigned LANES = 32;
constexpr size_t SHARED_LIMIT = 32768;

enum state { RUNNING, AT_SIMDGROUP, AT_THREADGROUP, RETURNED };

struct fiber {
    void *sp;
    char *stack;
    void *fake = nullptr; /* the address sanitizer's */
    void *tsan = nullptr;
    bool armed = false;
    state st;
    int op, line;
    unsigned hash, phase, tid, lane, simdgroup;
    mdev_env env;
};

struct simdgroup {
    unsigned first, n, live;
    bool have[2]; /* a reduction's result is there */
    alignas(64) char slots[2][LANES + 1][64];
};

mdev_order the_order = MDEV_FORWARD;
unsigned the_seed = 1;
int n_threads = 0;

/* One of the machine's threads, and the threadgroup that it runs. */
struct worker {
    fiber main;
    std::vector<fiber *> sets[2];
    fiber **fibers = nullptr;
    unsigned groups = 0, n = 0, n_simdgroups = 0, at_simdgroup = 0, at_lane = 0, returned = 0;
    std::vector<simdgroup> simdgroups;
    std::vector<unsigned> lane_order, simdgroup_order;
    fiber *current = nullptr;
    const mdev_dispatch *dispatch = nullptr;
    std::vector<std::pair<int, void *>> variables; /* threadgroup variables of the kernel, by their number */
    std::mt19937 random{1};
    char error[512];
    bool failed = false;
    const void *stack_bottom = nullptr;
    size_t stack_size = 0;
    size_t arena_used = 0;                  /* bytes of threadgroup memory in use */
    char *arena = nullptr, *sync = nullptr; /* thread sanitizer; sync: [0] the threadgroup, [1 + i] simdgroup i */
    ~worker();
};
thread_local worker *self;

worker::~worker()
{
    for (auto &set : sets)
        for (auto f : set) {
            munmap(f->stack, STACK);
#ifdef MDEV_TSAN
            __tsan_destroy_fiber(f->tsan);
#endif
            delete f;
        }
}

/* ---- switching ---- */

extern "C" void mdev_swap(void **save, void *to);
#if defined(__x86_64__)
asm(R"(
.text
.globl mdev_swap
.hidden mdev_swap
.type mdev_swap,@function
mdev_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size mdev_swap,.-mdev_swap
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl mdev_swap
.hidden mdev_swap
mdev_swap:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
#endif

void switch_to(fiber *from, fiber *to)
{
    self->current = to == &self->main ? nullptr : to;
#ifdef MDEV_ASAN
    const bool home = to == &self->main;
    __sanitizer_start_switch_fiber(&from->fake, home ? self->stack_bottom : to->stack, home ? self->stack_size : STACK);
#endif
#ifdef MDEV_TSAN
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    mdev_swap(&from->sp, to->sp);
#ifdef MDEV_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

/* ---- whose turn it is ---- */

void reorder(std::vector<unsigned> &v)
{
    for (unsigned i = 0; i < v.size(); i++)
        v[i] = the_order == MDEV_REVERSE ? v.size() - 1 - i : i;
    if (the_order == MDEV_RANDOM)
        std::shuffle(v.begin(), v.end(), self->random);
}

[[gnu::format(printf, 1, 2)]] fiber *fail(const char *format, ...)
{
    if (!self->failed) {
        va_list args;
        va_start(args, format);
        vsnprintf(self->error, sizeof self->error, format, args);
        va_end(args);
    }
    self->failed = true;
    return &self->main;
}

/* All lanes of s that still run wait at one operation: lets them on. False: none waits. nullptr error in *bad else. */
bool release_simdgroup(simdgroup &s, bool *bad)
{
    worker &w = *self;
    fiber *a = nullptr;
    unsigned waiting = 0, elsewhere = 0;

    for (unsigned l = 0; l < s.n; l++) {
        fiber *f = w.fibers[s.first + l];
        if (f->st == AT_THREADGROUP)
            elsewhere++;
        if (f->st != AT_SIMDGROUP)
            continue;
        a = a ? a : f;
        waiting++;
        if (f->line != a->line || f->op != a->op || f->hash != a->hash) {
            fail("divergent simdgroup: lane %u is at line %d (operation %d), lane %u at line %d (operation %d)",
                 a->lane, a->line, a->op, f->lane, f->line, f->op);
            return *bad = true;
        }
    }
    if (!waiting)
        return false;
    if (elsewhere) {
        fail("divergent simdgroup: %u lanes are at the simdgroup operation of line %d, %u lanes at a threadgroup "
             "barrier",
             waiting, a->line, elsewhere);
        return *bad = true;
    }
    s.live = 0;
    s.have[(a->phase - 1) & 1] = false;
    for (unsigned l = 0; l < s.n; l++) {
        fiber *f = w.fibers[s.first + l];
        if (f->st == AT_SIMDGROUP) {
            f->st = RUNNING;
            s.live |= 1u << l;
        }
    }
    reorder(w.lane_order);
    w.at_lane = 0;
    return true;
}

/* The next fiber to run. Lanes of a simdgroup run one after another, simdgroups one after another; a barrier is
 * released when all have come to it. */
fiber *pick()
{
    worker &w = *self;

    if (w.failed)
        return &w.main;
    for (;;) {
        for (; w.at_simdgroup < w.n_simdgroups; w.at_simdgroup++, w.at_lane = 0) {
            simdgroup &s = w.simdgroups[w.simdgroup_order[w.at_simdgroup]];
            bool bad = false;
            do {
                while (w.at_lane < LANES) {
                    const unsigned l = w.lane_order[w.at_lane++];
                    if (l < s.n && w.fibers[s.first + l]->st == RUNNING)
                        return w.fibers[s.first + l];
                }
            } while (release_simdgroup(s, &bad) && !bad);
            if (bad)
                return &w.main;
        }
        if (w.returned == w.n)
            return &w.main;
        for (unsigned i = 0; i < w.n; i++) {
            if (w.fibers[i]->st == RETURNED)
                return fail("a threadgroup barrier is not reached by thread %u, which has returned", i);
            if (w.fibers[i]->line != w.fibers[0]->line)
                return fail("threads of a threadgroup are at different barriers, lines %d and %d", w.fibers[0]->line,
                            w.fibers[i]->line);
        }
        for (unsigned i = 0; i < w.n; i++)
            w.fibers[i]->st = RUNNING;
        reorder(w.simdgroup_order);
        reorder(w.lane_order);
        w.at_simdgroup = w.at_lane = 0;
    }
}

void wait(state st)
{
    fiber *f = self->current;

    f->st = st;
    fiber *next = pick();
    if (next != f)
        switch_to(f, next);
}

/* ---- fibers ---- */

/* A fiber lives on from threadgroup to threadgroup. */
void entry()
{
    fiber *f = self->current;

#ifdef MDEV_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        self->dispatch->kernel->launch(&f->env);
        f->st = RETURNED;
        self->returned++;
        switch_to(f, pick());
    }
}

fiber *new_fiber()
{
    fiber *f = new fiber;

    f->stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == (char *)MAP_FAILED)
        abort();
    mprotect(f->stack, 4096, PROT_NONE);
#ifdef MDEV_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void arm(fiber *f)
{
    /* Staggered, or all stacks fall into the same sets of the cache. */
    void **sp = (void **)(f->stack + STACK - f->tid * 192 % 8192 / 64 * 64);

#if defined(__x86_64__)
    *--sp = nullptr; /* the stack pointer is 8 past a multiple of 16 at a function's entry */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
#else
    sp -= 20;
    memset(sp, 0, 160);
    sp[11] = (void *)entry;
#endif
    f->sp = sp;
    f->fake = nullptr;
    f->armed = true;
}

/* ---- counters ---- */

void (*the_report)(const mdev_dispatch *, const mdev_counts *);

#ifdef MDEV_COUNTERS
/* Of the dispatch that runs: the machine's threads are one in this build. */
mdev_counts counts;
std::vector<uint32_t> read_by[MDEV_MAX_BUFFERS]; /* by byte: the last threadgroup that read it, from 1 */
uint32_t threadgroup_number;
struct range {
    const char *memory;
    size_t size;
};
std::vector<range> threadgroup_memory;

bool is_in(const void *p, const void *memory, size_t size)
{
    return (uintptr_t)p - (uintptr_t)memory < size;
}

/* What is no memory of MSL's (a thread's stack, its arguments, the lanes' exchange) is passed over. */
void count_access(const void *p, unsigned n, bool is_store)
{
    worker &w = *self;
    const mdev_dispatch &d = *w.dispatch;

    if (is_in(p, w.current->stack, STACK) || is_in(p, w.current, sizeof *w.current) ||
        is_in(p, w.simdgroups.data(), w.simdgroups.size() * sizeof w.simdgroups[0]))
        return;
    for (auto &r : threadgroup_memory)
        if (is_in(p, r.memory, r.size)) {
            (is_store ? counts.threadgroup.written : counts.threadgroup.read) += n;
            return;
        }
    for (int i = 0; i < MDEV_MAX_BUFFERS; i++) {
        if (!is_in(p, d.buffer[i], d.size[i]) || d.is_bytes[i])
            continue;
        (is_store ? counts.buffer[i].written : counts.buffer[i].read) += n;
        for (size_t at = (const char *)p - (const char *)d.buffer[i], end = at + n; !is_store && at < end; at++)
            if (read_by[i][at] != threadgroup_number) {
                read_by[i][at] = threadgroup_number;
                counts.buffer[i].once++;
            }
        return;
    }
    if (!is_store)
        counts.constant += n;
}

void start_counting(const mdev_dispatch &d)
{
    counts = {};
    threadgroup_number = 0;
    for (int i = 0; i < MDEV_MAX_BUFFERS; i++)
        read_by[i].assign(d.is_bytes[i] ? 0 : d.size[i], 0);
}
#endif

/* ---- a threadgroup ---- */

void set_position(fiber &f, int kind, unsigned a, unsigned b, unsigned c)
{
    f.env.position[kind][0] = a;
    f.env.position[kind][1] = b;
    f.env.position[kind][2] = c;
}

void set_up(fiber &f, unsigned i, const unsigned at[3], void *const *shared)
{
    const mdev_dispatch &d = *self->dispatch;
    const unsigned *b = d.block, *g = d.grid;
    const unsigned t[3] = {i % b[0], i / b[0] % b[1], i / (b[0] * b[1])};

    f.st = RUNNING;
    f.tid = i;
    f.lane = i % LANES;
    f.simdgroup = i / LANES;
    f.hash = f.phase = 0;
    if (!f.armed)
        arm(&f);
    for (int j = 0; j < MDEV_MAX_BUFFERS; j++) { /* volatile: not memcpy, which the thread sanitizer watches */
        ((void *volatile *)f.env.buffer)[j] = d.buffer[j];
        ((void *volatile *)f.env.shared)[j] = shared[j];
    }
    set_position(f, MDEV_THREADGROUP_POSITION_IN_GRID, at[0], at[1], at[2]);
    set_position(f, MDEV_THREADGROUPS_PER_GRID, g[0], g[1], g[2]);
    set_position(f, MDEV_THREAD_POSITION_IN_THREADGROUP, t[0], t[1], t[2]);
    set_position(f, MDEV_THREADS_PER_THREADGROUP, b[0], b[1], b[2]);
    set_position(f, MDEV_THREAD_POSITION_IN_GRID, at[0] * b[0] + t[0], at[1] * b[1] + t[1], at[2] * b[2] + t[2]);
    set_position(f, MDEV_THREADS_PER_GRID, g[0] * b[0], g[1] * b[1], g[2] * b[2]);
    set_position(f, MDEV_THREAD_INDEX_IN_THREADGROUP, i, 0, 0);
    set_position(f, MDEV_THREAD_INDEX_IN_SIMDGROUP, f.lane, 0, 0);
    set_position(f, MDEV_SIMDGROUP_INDEX_IN_THREADGROUP, f.simdgroup, 0, 0);
    set_position(f, MDEV_SIMDGROUPS_PER_THREADGROUP, self->n_simdgroups, 0, 0);
    set_position(f, MDEV_THREADS_PER_SIMDGROUP, LANES, 0, 0);
}

/* Threadgroup memory starts as NaN. */
void *new_shared(size_t size)
{
    void *p = aligned_alloc(16, (size + 15) / 16 * 16);

    if (!p)
        abort();
    memset(p, 0xff, size);
    return p;
}

void run_threadgroup(worker &w, const unsigned at[3])
{
    const mdev_dispatch &d = *w.dispatch;
    void *shared[MDEV_MAX_THREADGROUP] = {};

    w.n = d.block[0] * d.block[1] * d.block[2];
    w.n_simdgroups = (w.n + LANES - 1) / LANES;
    w.returned = w.at_simdgroup = w.at_lane = 0;
    w.failed = false;
#ifdef MDEV_TSAN
    auto &set = w.sets[w.groups++ & 1];
#else
    auto &set = w.sets[0];
#endif
    while (set.size() < w.n)
        set.push_back(new_fiber());
    w.fibers = set.data();
    if (w.simdgroups.size() < w.n_simdgroups)
        w.simdgroups.resize(w.n_simdgroups);
    w.simdgroup_order.resize(w.n_simdgroups);
    w.lane_order.resize(LANES);
    reorder(w.simdgroup_order);
    reorder(w.lane_order);
#ifdef MDEV_TSAN
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__); /* fresh memory is nobody's write */
    w.sync = (char *)malloc(64);
    w.arena = (char *)malloc(SHARED_LIMIT);
#endif
    w.arena_used = 0;
    for (int i = 0; i < MDEV_MAX_THREADGROUP; i++)
        if (d.shared[i]) {
            shared[i] = new_shared(d.shared[i]);
            w.arena_used += d.shared[i];
        }
#ifdef MDEV_COUNTERS
    threadgroup_number++;
    threadgroup_memory.clear();
    for (int i = 0; i < MDEV_MAX_THREADGROUP; i++)
        if (shared[i])
            threadgroup_memory.push_back({(char *)shared[i], d.shared[i]});
#endif
#ifdef MDEV_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
    for (unsigned s = 0; s < w.n_simdgroups; s++) {
        simdgroup &g = w.simdgroups[s];
        g.first = LANES * s;
        g.n = std::min(LANES, w.n - g.first);
        g.live = g.n == LANES ? ~0u : (1u << g.n) - 1;
    }
    for (unsigned i = 0; i < w.n; i++)
        set_up(*w.fibers[i], i, at, shared);

    switch_to(&w.main, pick());

    w.current = nullptr;
#ifdef MDEV_COUNTERS
    counts.memory = std::max(counts.memory, w.arena_used);
#endif
#ifdef MDEV_TSAN
    for (unsigned i = 0; i < w.n; i++) {
        __tsan_switch_to_fiber(w.fibers[i]->tsan, __tsan_switch_to_fiber_no_sync);
        __tsan_release(w.sync);
    }
    __tsan_switch_to_fiber(w.main.tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(w.sync);
#endif
    for (unsigned i = 0; w.failed && i < w.n; i++) { /* abandoned in the middle of the kernel */
        w.fibers[i]->armed = false;
#ifdef MDEV_ASAN
        __asan_unpoison_memory_region(w.fibers[i]->stack + 4096, STACK - 4096);
#endif
    }
    for (auto p : shared)
        free(p);
#ifdef MDEV_TSAN
    free(w.arena);
    free(w.sync);
#else
    for (auto &v : w.variables)
        free(v.second);
#endif
    w.variables.clear();
}

/* ---- a dispatch ---- */

struct job {
    const mdev_dispatch *dispatch;
    std::vector<uint64_t> order;
    uint64_t total;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> bad{false};
    std::mutex mutex;
    char *error;
    size_t size;
};

void enter(worker &w, const job &j)
{
    self = &w;
    w.dispatch = j.dispatch;
    w.random.seed(the_seed);
#ifdef MDEV_ASAN
    pthread_attr_t a;
    void *bottom;
    pthread_getattr_np(pthread_self(), &a);
    pthread_attr_getstack(&a, &bottom, &w.stack_size);
    pthread_attr_destroy(&a);
    w.stack_bottom = bottom;
#endif
#ifdef MDEV_TSAN
    w.main.tsan = __tsan_get_current_fiber();
    __tsan_release(&w.groups); /* fibers acquire it: what came before the dispatch */
    for (auto &set : w.sets)
        for (auto f : set) {
            __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
            __tsan_acquire(&w.groups);
            __tsan_switch_to_fiber(w.main.tsan, __tsan_switch_to_fiber_no_sync);
        }
#endif
}

/* While there is one, denormals are zeros, where that is wanted. */
class flushing
{
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();

  public:
    flushing()
    {
        _mm_setcsr(mdev_like_a_gpu() ? before | 0x8040 : before);
    }
    ~flushing()
    {
        _mm_setcsr(before);
    }
#elif defined(__aarch64__)
    const uint64_t before = __builtin_arm_rsr64("fpcr");

  public:
    flushing()
    {
        __builtin_arm_wsr64("fpcr", mdev_like_a_gpu() ? before | 1u << 24 : before);
    }
    ~flushing()
    {
        __builtin_arm_wsr64("fpcr", before);
    }
#endif
};

void run_threadgroups(job &j)
{
    static thread_local worker w;
    const unsigned *g = j.dispatch->grid;
    const flushing denormals;

    enter(w, j);
    for (uint64_t i; !j.bad && (i = j.next++) < j.total;) {
        const uint64_t n = j.order.empty() ? i : j.order[i];
        const unsigned at[3] = {(unsigned)(n % g[0]), (unsigned)(n / g[0] % g[1]),
                                (unsigned)(n / ((uint64_t)g[0] * g[1]))};
        run_threadgroup(w, at);
        if (!w.failed)
            continue;
        std::lock_guard<std::mutex> lock(j.mutex);
        if (!j.bad)
            snprintf(j.error, j.size, "%s, threadgroup (%u, %u, %u): %s", j.dispatch->kernel->name, at[0], at[1], at[2],
                     w.error);
        j.bad = true;
    }
}

/* Starting a thread costs what thousands of barriers cost, and its fibers' stacks are made anew; so they wait between
 * dispatches. They are never joined: the process ends with them waiting. */
class crew
{
    std::mutex mutex;
    std::condition_variable wake, done;
    job *current = nullptr;
    unsigned started = 0, wanted = 0, running = 0;
    uint64_t round = 0;

    void serve(unsigned number)
    {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return round != seen; });
            seen = round;
            if (number >= wanted)
                continue;
            job *j = current;
            lock.unlock();
            run_threadgroups(*j);
            lock.lock();
            if (--running == 0)
                done.notify_one();
        }
    }

  public:
    void run(job &j, unsigned n)
    {
        if (n > 1) {
            std::unique_lock<std::mutex> lock(mutex);
            for (; started < n - 1; started++)
                std::thread([this, number = started] { serve(number); }).detach();
            current = &j;
            wanted = running = n - 1;
            round++;
            wake.notify_all();
        }
        run_threadgroups(j);
        if (n > 1) {
            std::unique_lock<std::mutex> lock(mutex);
            done.wait(lock, [&] { return running == 0; });
        }
    }
};

void read_environment()
{
    static const bool once = [] {
        const char *order = getenv("MDEV_ORDER"), *seed = getenv("MDEV_SEED"), *threads = getenv("MDEV_THREADS");
        if (order)
            the_order = *order == 'f' ? MDEV_FORWARD : strcmp(order, "reverse") == 0 ? MDEV_REVERSE : MDEV_RANDOM;
        if (seed)
            the_seed = (unsigned)strtoul(seed, nullptr, 10);
        if (threads && !n_threads)
            n_threads = atoi(threads);
        return true;
    }();
    (void)once;
}
} // namespace

extern "C" {
/* How clang rounds to bfloat; not in every libgcc. To nearest, ties to even. */
__bf16 __truncsfbf2(float value)
{
    uint32_t bits;
    uint16_t high;
    __bf16 result;

    memcpy(&bits, &value, sizeof bits);
    high = (uint16_t)(value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(&result, &high, sizeof result);
    return result;
}

void mdev_set_order(mdev_order order, unsigned seed)
{
    read_environment();
    the_order = order;
    the_seed = seed;
}

bool mdev_like_a_gpu(void)
{
    static const char *const arithmetic = getenv("MDEV_ARITHMETIC");

    return arithmetic && strcmp(arithmetic, "gpu") == 0;
}

void mdev_set_threads(int n)
{
    n_threads = n;
}

void mdev_set_report(void (*report)(const mdev_dispatch *, const mdev_counts *))
{
    the_report = report;
}

int mdev_run(const mdev_dispatch *d, char *error, size_t size)
{
    job j;

    read_environment();
    j.dispatch = d;
    j.total = (uint64_t)d->grid[0] * d->grid[1] * d->grid[2];
    j.error = error;
    j.size = size;
    if (the_order != MDEV_FORWARD) {
        j.order.resize(j.total);
        for (uint64_t i = 0; i < j.total; i++)
            j.order[i] = j.total - 1 - i;
        if (the_order == MDEV_RANDOM) {
            std::mt19937 random(the_seed);
            std::shuffle(j.order.begin(), j.order.end(), random);
        }
    }
#ifdef MDEV_COUNTERS
    n_threads = 1;
    start_counting(*d);
#endif
    const unsigned wanted = n_threads ? (unsigned)n_threads : std::thread::hardware_concurrency();
    static crew *const threads = new crew;
    threads->run(j, (unsigned)std::min<uint64_t>(std::max(1u, wanted), (j.total + 7) / 8));
#ifdef MDEV_COUNTERS
    if (the_report)
        the_report(d, &counts);
#endif
    return j.bad ? -1 : 0;
}

#ifdef MDEV_COUNTERS
/* ---- called by kernels that are compiled to count: coverage's callbacks, and count_operations.py's ---- */

#define ACCESS(n)                                                                                                      \
    void __sanitizer_cov_load##n(const void *p)                                                                        \
    {                                                                                                                  \
        count_access(p, n, false);                                                                                     \
    }                                                                                                                  \
    void __sanitizer_cov_store##n(const void *p)                                                                       \
    {                                                                                                                  \
        count_access(p, n, true);                                                                                      \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

/* from NULL: a fill. In words, as the loop was that LLVM took it for. */
void mdev_count_copy(const char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        if (from)
            count_access(from + i, (unsigned)std::min<size_t>(4, n - i), false);
        count_access(to + i, (unsigned)std::min<size_t>(4, n - i), true);
    }
}

void mdev_count_operations(int products, int others)
{
    counts.products += (unsigned)products;
    counts.others += (unsigned)others;
}
#endif

/* ---- called by kernels: see msl/types.h ---- */

void mdev_barrier(int simd, int flags, int line)
{
    fiber *f = self->current;

    (void)flags;
    f->line = line;
    f->op = 0;
#ifdef MDEV_COUNTERS
    if (!simd && f->tid == 0)
        counts.barriers++;
#endif
#ifdef MDEV_TSAN
    char *s = self->sync + (simd ? 1 + f->simdgroup : 0);
    if (flags)
        __tsan_release(s);
#endif
    wait(simd ? AT_SIMDGROUP : AT_THREADGROUP);
#ifdef MDEV_TSAN
    if (flags)
        __tsan_acquire(s);
#endif
}

const void *mdev_exchange(int op, const void *value, unsigned size, int line)
{
    fiber *f = self->current;
    char(*s)[64] = self->simdgroups[f->simdgroup].slots[f->phase++ & 1];

    f->line = line;
    f->op = op;
    for (unsigned i = 0; i < size; i++) /* volatile: not memcpy, which the thread sanitizer watches */
        ((volatile char *)s[f->lane])[i] = ((const volatile char *)value)[i];
    wait(AT_SIMDGROUP);
    return s;
}

int mdev_exchange_first(void)
{
    fiber *f = self->current;
    bool &have = self->simdgroups[f->simdgroup].have[(f->phase - 1) & 1];

    if (have)
        return 0;
    have = true;
    return 1;
}

void mdev_note(int op, int line)
{
    fiber *f = self->current;

    f->hash = (f->hash * 31 + (unsigned)op) * 31 + (unsigned)line;
}

unsigned mdev_lane(void)
{
    return self->current->lane;
}

unsigned long mdev_active_lanes(void)
{
    return self->simdgroups[self->current->simdgroup].live;
}

void mdev_trap(const char *what, int line)
{
    fiber *f = self->current;

    switch_to(f, fail("line %d, thread %u: %s", line, f->tid, what));
}

void *mdev_threadgroup_variable(size_t size, int id)
{
    for (auto &v : self->variables)
        if (v.first == id)
            return v.second;
    const size_t at = self->arena_used;
    self->arena_used += (size + 15) / 16 * 16;
    if (self->arena_used > SHARED_LIMIT)
        mdev_trap("threadgroup memory past 32768 bytes", 0);
#ifdef MDEV_TSAN /* malloc and memset would count as this fiber's writes */
    void *p = self->arena + at;
#else
    void *p = new_shared(size);
    (void)at;
#endif
    self->variables.push_back({id, p});
#ifdef MDEV_COUNTERS
    threadgroup_memory.push_back({(char *)p, size});
#endif
    return p;
}
}
