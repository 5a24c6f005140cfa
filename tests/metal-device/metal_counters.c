/* metal_counters TYPE...: the products on the software device that counts, a line of values for each dispatch of their
 * kernels. scripts/make_metal_counters runs it on the counting build of the device, and says what the values mean.
 *
 * m inputs and k outputs of a weight [m, k], by experts; the routing is uneven and always the same. */
#include "core/backend.h"
#include "executor.h"

#include <firn/firn.h>
#include <firn/ops.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 256, K = 128, MAX_EXPERTS = 8, TILE_ROWS = 32 };

typedef struct {
    const char *name;
    int experts, used, tokens;
} shape;
static const shape shapes[] = {{"few", 8, 2, 3}, {"training", 4, 2, 127}};

typedef enum { OUT_PROD, MUL_MAT_ID_BACK, MUL_MAT_ID, OUT_PROD_ID, N_OPS } op;

static struct {
    const shape *shape;
    const char *type;
    int rows, tiles;
    size_t expert_bytes;
} now;

static void print_counts(const mdev_dispatch *d, const mdev_counts *c)
{
    const mdev_traffic *w = NULL, *x = NULL, *y = NULL;

    for (int i = 0; i < d->kernel->n_params; i++) {
        const mdev_param *p = &d->kernel->params[i];
        const mdev_traffic *t = p->kind == MDEV_BUFFER ? &c->buffer[p->index] : NULL;
        w = t && (strcmp(p->name, "w") == 0 || strcmp(p->name, "dy") == 0) ? t : w; /* dy: OUT_PROD_ID's */
        x = t && strcmp(p->name, "x") == 0 ? t : x;
        y = t && strcmp(p->name, "y") == 0 ? t : y;
    }
    if (!w || !x || !y) /* the sorting of slots, the check of ids */
        return;
    printf("kernel=%s shape=%s type=%s m=%d k=%d experts=%d rows=%d tiles=%d expert_bytes=%zu w=%llu w_once=%llu "
           "x=%llu y=%llu "
           "constant=%llu shared_read=%llu shared_written=%llu products=%llu others=%llu barriers=%llu groups=%u "
           "memory=%zu\n",
           d->kernel->name, now.shape->name, now.type, M, K, now.shape->experts, now.rows, now.tiles, now.expert_bytes,
           (unsigned long long)w->read, (unsigned long long)w->once, (unsigned long long)x->read,
           (unsigned long long)y->written, (unsigned long long)c->constant, (unsigned long long)c->threadgroup.read,
           (unsigned long long)c->threadgroup.written, (unsigned long long)c->products, (unsigned long long)c->others,
           (unsigned long long)c->barriers, d->grid[0] * d->grid[1] * d->grid[2], c->memory);
}

/* Every token's experts differ; expert 0 gets the most. */
static int expert_of(const shape *s, int token, int slot)
{
    return (token % 3 == 0 ? slot : token * 5 + slot) % s->experts;
}

static int count_tiles(const shape *s, op o)
{
    int n[MAX_EXPERTS] = {0}, tiles = 0;

    if (o == OUT_PROD)
        return (s->used * s->tokens + TILE_ROWS - 1) / TILE_ROWS;
    for (int t = 0; t < s->tokens; t++)
        for (int i = 0; i < s->used; i++)
            n[expert_of(s, t, i)]++;
    for (int e = 0; e < s->experts; e++)
        tiles += (n[e] + TILE_ROWS - 1) / TILE_ROWS;
    return tiles;
}

/* w: of OUT_PROD_ID its dy. */
static firn_tensor *build(firn_graph *g, op o, firn_tensor *w, firn_tensor *x, firn_tensor *ids, int experts)
{
    if (o == OUT_PROD_ID)
        return firn_out_prod_id(g, x, w, ids, experts);
    if (o == OUT_PROD)
        return firn_out_prod(g, w, firn_transpose(g, x));
    return o == MUL_MAT_ID ? firn_mul_mat_id(g, w, x, ids, NULL) : firn_mul_mat_id_back(g, w, x, ids);
}

static firn_status bind_zeros(firn_exec *exec, firn_device *device, firn_tensor *t, firn_buffer **buffer)
{
    FIRN_TRY(firn_buffer_create(device, firn_n_bytes(t), buffer));
    firn_buffer_clear(*buffer, 0, firn_n_bytes(t));
    return firn_exec_bind(exec, t, *buffer, 0);
}

/* What it makes lives until the program ends. */
static firn_status run(firn_context *ctx, firn_device *device, op o, firn_type type, const shape *s)
{
    const int64_t in = o == MUL_MAT_ID || o == OUT_PROD_ID ? M : K, rows = (int64_t)s->used * s->tokens;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *b, *work;

    FIRN_TRY(firn_graph_create(ctx, &g));
    firn_tensor *w = o == OUT_PROD_ID ? firn_slot(g, FIRN_F32, 3, (int64_t[]){K, s->used, s->tokens}, "dy")
                                      : firn_slot(g, type, o == OUT_PROD ? 2 : 3, (int64_t[]){M, K, s->experts}, "w");
    firn_tensor *x = o == OUT_PROD ? firn_slot(g, FIRN_F32, 2, (int64_t[]){in, rows}, "x")
                                   : firn_slot(g, FIRN_F32, 3, (int64_t[]){in, s->used, s->tokens}, "x");
    firn_tensor *ids = o == OUT_PROD ? NULL : firn_slot(g, FIRN_I32, 2, (int64_t[]){s->used, s->tokens}, "ids");
    firn_tensor *y = firn_output(g, firn_named(build(g, o, w, x, ids, s->experts), "y"));
    FIRN_TRY(firn_plan_create(device, g, &plan));
    FIRN_TRY(firn_exec_create(plan, &exec));
    FIRN_TRY(firn_buffer_create(device, firn_plan_work_bytes(plan) + 1, &work));
    FIRN_TRY(firn_exec_memory(exec, work, 0, work, 0));
    FIRN_TRY(bind_zeros(exec, device, w, &b));
    FIRN_TRY(bind_zeros(exec, device, x, &b));
    FIRN_TRY(bind_zeros(exec, device, y, &b));
    if (ids) {
        FIRN_TRY(bind_zeros(exec, device, ids, &b));
        for (int t = 0; t < s->tokens; t++)
            for (int i = 0; i < s->used; i++) {
                const int32_t e = expert_of(s, t, i);
                firn_buffer_write(b, (size_t)(t * s->used + i) * sizeof e, &e, sizeof e);
            }
    }
    now.shape = s;
    now.type = firn_type_name(type);
    now.rows = (int)rows;
    now.tiles = count_tiles(s, o);
    now.expert_bytes = firn_row_bytes(type, M) * K;
    FIRN_TRY(firn_exec_run(exec, 0, 0));
    return firn_device_wait(device);
}

int main(int argc, char **argv)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;
    firn_type type;

    mdev_set_report(print_counts);
    if (!ctx || firn_device_open(ctx, "MTL0", &device) != FIRN_OK) {
        fprintf(stderr, "metal_counters: %s\n", ctx ? firn_error(ctx) : "out of memory");
        return 1;
    }
    for (op o = 0; o < N_OPS; o++)
        for (int i = 1; i < argc; i++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                if (!firn_type_from_name(argv[i], &type)) {
                    fprintf(stderr, "metal_counters: '%s' is no type\n", argv[i]);
                    return 2;
                }
                if (o == OUT_PROD_ID && type != FIRN_F32)
                    continue;
                if (run(ctx, device, o, type, &shapes[s]) != FIRN_OK) {
                    fprintf(stderr, "metal_counters: %s\n", firn_error(ctx));
                    return 1;
                }
            }
    firn_device_close(device);
    return 0;
}
