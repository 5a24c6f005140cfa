/* test-backend-ops: every operation, on every backend, against double precision; gradients against differences.
 *
 *     main.c       the command line and what is printed
 *     run.c        one case on one device: build, plan, run between canaries, compare
 *     data.c       inputs: random numbers, ids, packed weights
 *     cases_*.c    which shapes an operation is tried with, and how to build it
 *     ref_*.c      what it should compute, in double, sharing no code with the kernels
 *     records.c    what is printed
 *     limits.c     what the machine can do, for perf
 *     bugs.c       defects planted on purpose, to see that the cases catch them
 */
#ifndef FIRN_HARNESS_H
#define FIRN_HARNESS_H

#include "core/context.h"
#include "core/graph.h"
#include "op/op.h"

#include <stdio.h>

/* ---- cases ---- */

enum { MAX_ARGS = 14, MAX_INPUTS = 10 };

typedef struct {
    const char *name;
    double value;
} case_arg;

typedef struct family family;

typedef struct {
    const family *family;
    firn_type type; /* of the weight, where the operation takes one */
    int n_args;
    case_arg args[MAX_ARGS];
} test_case;

/* The value of an argument by name; `otherwise` where the case has none. */
double arg_or(const test_case *c, const char *name, double otherwise);
static inline int64_t arg(const test_case *c, const char *name)
{
    return (int64_t)arg_or(c, name, 1);
}
/* The first n characters of `name`, kept for the program's life: arguments' names are few. */
const char *arg_name(const char *name, size_t n);
/* "k=256,m=5": without the type. */
void case_text(const test_case *c, char *text, size_t size);

typedef struct {
    test_case *items;
    size_t n, capacity;
} case_list;

/* Adds a case; the format lists its arguments: add_case(l, f, FIRN_F32, "k m", 256, 5). Values are ints. */
test_case *add_case(case_list *list, const family *f, firn_type type, const char *names, ...);

/* ---- inputs ---- */

typedef enum {
    UNIFORM,  /* -1 .. 1 */
    AWAY,     /* as UNIFORM, but not within 0.2 of 0 */
    POSITIVE, /* 0.5 .. 2 */
    GRID,     /* odd multiples of 0.05 in -1 .. 1: never within 0.05 of a multiple of 0.1 */
    IDS,      /* I32 below `limit` */
} fill;

typedef struct {
    firn_tensor *slot;
    unsigned char *bytes;
    size_t size;
    bool fixed; /* not to be differentiated */
} input;

/* A graph under construction, and the contents of its slots. */
typedef struct {
    firn_context *ctx;
    firn_graph *g;
    uint64_t seed;
    int n;
    input inputs[MAX_INPUTS];
} world;

/* A filled slot. ne are int64_t. */
firn_tensor *slot4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
/* The same as a view of a larger slot: rows apart, planes apart, and nb[0] still the element. */
firn_tensor *strided4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2,
                      int64_t n3);
/* The same as a view whose first two axes lie the other way round in memory. */
firn_tensor *turned4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
/* One of the three, by the case's `layout`: 0, 1, 2. */
firn_tensor *laid_out(world *w, const test_case *c, firn_type type, fill kind, double limit, int64_t n0, int64_t n1,
                      int64_t n2, int64_t n3);
/* F32 with dense rows, whatever the layout: 0, or else strided. */
firn_tensor *dense4(world *w, const test_case *c, fill kind, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
/* The last slot made is not differentiated. */
void keep_fixed(world *w);
/* The last slot's contents, to be changed by a builder. */
void *last_bytes(world *w);

/* ---- references ---- */

/* A tensor in double, contiguous. v NULL: absent. */
typedef struct {
    int64_t ne[FIRN_MAX_DIMS];
    double *v;
} dtensor;

static inline double *dat(const dtensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return &t->v[i0 + t->ne[0] * (i1 + t->ne[1] * (i2 + t->ne[2] * i3))];
}
/* With each index taken modulo t's dimension. */
static inline double drep(const dtensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return *dat(t, i0 % t->ne[0], i1 % t->ne[1], i2 % t->ne[2], i3 % t->ne[3]);
}
static inline int64_t dcount(const dtensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}
/* Makes t zeros of that shape. A reference calls it once for its result. */
void dshape(dtensor *t, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
void dfree(dtensor *t);

#define FOR_EACH(t, i0, i1, i2, i3)                                                                                    \
    for (int64_t i3 = 0; i3 < (t)->ne[3]; i3++)                                                                        \
        for (int64_t i2 = 0; i2 < (t)->ne[2]; i2++)                                                                    \
            for (int64_t i1 = 0; i1 < (t)->ne[1]; i1++)                                                                \
                for (int64_t i0 = 0; i0 < (t)->ne[0]; i0++)

struct family {
    const char *op;
    /* Returns the node under test, or the view of it that its builder hands out. */
    firn_tensor *(*build)(world *w, const test_case *c);
    /* src are the sources of the node (not of the view). */
    void (*reference)(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y);
    void (*cases)(case_list *list, const family *f);
    void (*perf)(case_list *list, const family *f); /* NULL: not measured */
    double bound;                                   /* normalized mean squared error of the result */
    bool formats; /* promised for every weight format of formats.def, else F32 alone */
    bool linear;  /* in each of its float sources: <f(x), u> = <x, f'(u)> is checked as well */
};

/* Ends with an op of NULL. */
extern const family simple_families[], model_families[], product_families[], back_families[], scan_families[];

/* ---- running ---- */

/* While a device of that precision is tested: products round their operands to bf16. */
extern bool bf16_references;
/* A product of weights and activations: what the precision is about. */
bool is_product(const family *f);
/* Normalized mean squared error of a product whose two factors were rounded to bf16, against one of exact factors; and
 * the same of a few sums only, which scatter more. */
#define BF16_BOUND      4e-5
#define BF16_SUMS_BOUND 4e-4

/* While differences are taken: references do not round to the result's type, as gradients pass rounding by. */
extern bool smooth_references;

typedef enum { PASSED, FAILED, SKIPPED } verdict;

typedef struct {
    verdict verdict;
    double error, bound;
    char reason[512];
} outcome;

typedef struct {
    firn_context *ctx, *ctx1; /* with all threads, and with one: bits must agree */
    firn_device *device, *device1;
    char name[32];
} target;

outcome run_test(const target *t, const test_case *c);
outcome run_grad(const target *t, const test_case *c);
/* True when the device takes the case; else the reason. */
bool case_supported(const target *t, const test_case *c, char *reason, size_t size);

typedef struct {
    double seconds, flops, bytes;
    bool ok;
    char reason[256];
} timing;
/* By the wall's clock on the CPU, elsewhere by the device's: the node's kernels alone. */
timing run_perf(const target *t, const test_case *c);

/* ---- records ---- */

typedef enum { CONSOLE, CSV, JSON } style;

typedef struct {
    double flops, bandwidth; /* a second */
} limits;

void print_outcome(style how, const test_case *c, const char *backend, const outcome *r);
/* With percent of the limit that the operation's cost meets first; l NULL: none was measured. */
void print_timing(style how, const test_case *c, const char *backend, const timing *r, const limits *l);
void print_support(style how, const test_case *c, const char *backend, bool yes, const char *reason);

/* ---- planted defects ---- */

int bug_count(void);
/* From now on every node of its operation has defect i (-1: none any more). Returns what it is. */
const char *bug_plant(int i, const char **op, bool *grad);
/* The same inside the CPU's kernel set, as the target's devices use it. NULL: this set has no such kernel. */
int cpu_bug_count(void);
const char *cpu_bug_plant(const target *t, int i, const char **op);
/* Puts the planted defect into a node under test. */
void bug_infect(firn_tensor *node);

/* ---- limits ---- */

/* A burst of fused multiply-adds on the widest vectors there are, and memory read, on all threads of the context. Takes
 * a tenth of a second: on a machine that others use, a limit is worth something beside what it is compared with. */
limits limits_of(firn_context *ctx);

/* The types that products and GET_ROWS are promised for. */
extern const firn_type promised_types[];
extern const int n_promised_types;
/* The types of hub files beyond those: decoding is enough, so products take them too, without a promise of speed. */
extern const firn_type decoded_types[];
extern const int n_decoded_types;

#endif
