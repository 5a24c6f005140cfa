/* One case on one device. Results start as NaN between canaries, so do arena and workspace; what a node may not write
 * is compared with what was there. Differences are taken of the double-precision reference: its rounding is 1e-16, so
 * that a gradient's error is the gradient's. */
#include "harness.h"

#include "core/random.h"
#include "format/format.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { PAD = 64, MAX_OUTPUTS = MAX_INPUTS + 1 };

static const unsigned char canary = 0xA5, unwritten = 0xFF; /* 0xFF..: NaN */

/* ---- outcomes ---- */

static outcome verdict_of(verdict v, const char *format, ...)
{
    outcome o = {.verdict = v, .error = NAN};
    va_list args;

    va_start(args, format);
    vsnprintf(o.reason, sizeof o.reason, format, args);
    va_end(args);
    return o;
}

static outcome judged(double error, double bound)
{
    outcome o = {.error = error, .bound = bound, .verdict = error <= bound ? PASSED : FAILED};

    if (o.verdict == FAILED)
        snprintf(o.reason, sizeof o.reason, "error %.3g is above %.3g", error, bound);
    return o;
}

/* ---- building ---- */

static uint64_t seed_of(const test_case *c)
{
    char text[256];
    uint64_t h = (uint64_t)c->type;

    case_text(c, text, sizeof text);
    for (const char *p = c->family->op; *p; p++)
        h = firn_mix64(h * 31 + (unsigned char)*p);
    for (const char *p = text; *p; p++)
        h = firn_mix64(h * 31 + (unsigned char)*p);
    return h >> 1;
}

static void world_close(world *w)
{
    for (int i = 0; i < w->n; i++)
        free(w->inputs[i].bytes);
    firn_graph_destroy(w->g);
}

/* The case's graph; *node is the operation under test, the result its value or the view of it. NULL on failure. */
static firn_tensor *world_build(world *w, firn_context *ctx, const test_case *c, firn_tensor **node)
{
    *w = (world){.ctx = ctx, .seed = seed_of(c)};
    if (firn_graph_create(ctx, &w->g) != FIRN_OK)
        return NULL;
    firn_tensor *y = c->family->build(w, c);
    *node = y;
    if (y && y->op && strcmp(y->op->name, c->family->op) != 0)
        *node = y->src[0];
    bug_infect(*node);
    return firn_graph_status(w->g) == FIRN_OK ? y : NULL;
}

/* A node of its own, to be an output. */
static firn_tensor *kept(firn_graph *g, firn_tensor *t)
{
    if (!t)
        return NULL;
    if (!t->op || t->root != t || t->output)
        t = firn_cont(g, t);
    return firn_output(g, t);
}

/* ---- running ---- */

typedef struct {
    firn_tensor *tensor;
    firn_buffer *buffer;
    unsigned char *after; /* PAD + size + PAD bytes, read back */
    size_t size;
} binding;

typedef struct {
    firn_plan *plan;
    firn_exec *exec;
    binding b[MAX_INPUTS + MAX_OUTPUTS + 2]; /* inputs, outputs, arena, workspace */
    int n_inputs, n;
} session;

static void session_close(session *s)
{
    firn_exec_destroy(s->exec);
    firn_plan_destroy(s->plan);
    for (int i = 0; i < s->n; i++) {
        firn_buffer_destroy(s->b[i].buffer);
        free(s->b[i].after);
    }
}

static firn_status add_buffer(session *s, firn_device *device, firn_tensor *t, size_t size, const void *contents)
{
    binding *b = &s->b[s->n++];

    *b = (binding){.tensor = t, .size = size, .after = malloc(size + 2 * PAD)};
    if (!b->after)
        abort();
    memset(b->after, canary, size + 2 * PAD);
    if (contents)
        memcpy(b->after + PAD, contents, size);
    else
        memset(b->after + PAD, unwritten, size);
    firn_status status = firn_buffer_create(device, size + 2 * PAD, &b->buffer);
    if (status == FIRN_OK)
        status = firn_buffer_write(b->buffer, 0, b->after, size + 2 * PAD);
    return status;
}

static firn_status session_open(session *s, firn_device *device, world *w, firn_tensor **outputs, int n_outputs)
{
    *s = (session){0};
    FIRN_TRY(firn_plan_create(device, w->g, &s->plan));
    FIRN_TRY(firn_exec_create(s->plan, &s->exec));
    for (int i = 0; i < w->n; i++) {
        FIRN_TRY(add_buffer(s, device, w->inputs[i].slot, w->inputs[i].size, w->inputs[i].bytes));
        FIRN_TRY(firn_exec_bind(s->exec, w->inputs[i].slot, s->b[i].buffer, PAD));
    }
    s->n_inputs = w->n;
    for (int i = 0; i < n_outputs; i++) {
        FIRN_TRY(add_buffer(s, device, outputs[i], firn_n_bytes(outputs[i]), NULL));
        FIRN_TRY(firn_exec_bind(s->exec, outputs[i], s->b[w->n + i].buffer, PAD));
    }
    FIRN_TRY(add_buffer(s, device, NULL, firn_plan_arena_bytes(s->plan), NULL));
    FIRN_TRY(add_buffer(s, device, NULL, firn_plan_work_bytes(s->plan), NULL));
    return firn_exec_memory(s->exec, s->b[s->n - 2].buffer, PAD, s->b[s->n - 1].buffer, PAD);
}

static firn_status session_run(session *s, firn_device *device)
{
    for (int part = 0; part < firn_plan_n_parts(s->plan); part++)
        FIRN_TRY(firn_exec_run(s->exec, part, 0));
    FIRN_TRY(firn_device_wait(device));
    for (int i = 0; i < s->n; i++)
        FIRN_TRY(firn_buffer_read(s->b[i].buffer, 0, s->b[i].after, s->b[i].size + 2 * PAD));
    return FIRN_OK;
}

/* True when nothing was written beside the buffers, nor into inputs other than those that `written` lies in. */
static bool undisturbed(const session *s, const world *w, bool into, char *reason, size_t size)
{
    for (int i = 0; i < s->n; i++) {
        const binding *b = &s->b[i];
        for (size_t j = 0; j < PAD; j++) {
            if (b->after[j] != canary || b->after[PAD + b->size + j] != canary) {
                snprintf(reason, size, "wrote outside %s", b->tensor ? b->tensor->name : "arena or workspace");
                return false;
            }
        }
        if (i < s->n_inputs && !into && memcmp(b->after + PAD, w->inputs[i].bytes, b->size) != 0) {
            snprintf(reason, size, "wrote into its input %d", i);
            return false;
        }
    }
    return true;
}

/* ---- values in double ---- */

/* All values of a slot, in the order of its bytes. */
static double *values_of(const firn_tensor *slot, const unsigned char *bytes)
{
    const int64_t n = firn_n_elements(slot);
    double *v = calloc((size_t)n + 1, sizeof *v);
    float *f = calloc((size_t)n + 1, sizeof *f);

    if (!v || !f)
        abort();
    if (slot->type == FIRN_I32 || slot->type == FIRN_I64) {
        for (int64_t i = 0; i < n; i++) {
            int32_t a;
            int64_t b;
            memcpy(&a, bytes + 4 * i, 4);
            if (slot->type == FIRN_I64)
                memcpy(&b, bytes + 8 * i, 8);
            else
                b = a;
            v[i] = (double)b;
        }
    } else {
        if (n)
            firn_decode_row(slot->type, bytes, n, f);
        for (int64_t i = 0; i < n; i++)
            v[i] = (double)f[i];
    }
    free(f);
    return v;
}

/* A tensor (a slot or a view of one) from the values of its slot. */
static void gather(const firn_tensor *t, const double *values, dtensor *out)
{
    const int64_t size = (int64_t)firn_type_size(t->type), block = firn_type_block(t->type);
    const int64_t step = block == 1 ? t->nb[0] / size : 1;

    dshape(out, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    FOR_EACH(out, i0, i1, i2, i3)
    {
        const int64_t at = t->offset + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
        *dat(out, i0, i1, i2, i3) = values[at / size * block + i0 * step];
    }
}

static int input_of(const world *w, const firn_tensor *t)
{
    for (int i = 0; i < w->n; i++)
        if (w->inputs[i].slot == t->root)
            return i;
    return -1;
}

/* What the node should be, from the slots' values. */
static void expected(const world *w, const test_case *c, const firn_tensor *node, double *const *values, dtensor *y)
{
    dtensor src[FIRN_MAX_SRC];

    memset(src, 0, sizeof src);
    for (int s = 0; s < FIRN_MAX_SRC; s++) {
        const int i = node->src[s] ? input_of(w, node->src[s]) : -1;
        if (i >= 0)
            gather(node->src[s], values[i], &src[s]);
    }
    y->v = NULL;
    c->family->reference(c, node, src, y);
    for (int s = 0; s < FIRN_MAX_SRC; s++)
        dfree(&src[s]);
}

/* Normalized mean squared error; NaN when a value is, or when shapes differ. */
static double difference(const dtensor *got, const dtensor *want)
{
    double error = 0, norm = 0;

    if (memcmp(got->ne, want->ne, sizeof got->ne) != 0)
        return NAN;
    for (int64_t i = 0; i < dcount(want); i++) {
        const double a = got->v[i], b = want->v[i];
        if (a == b)
            error += 0; /* infinities included */
        else
            error += (a - b) * (a - b);
        if (isfinite(b))
            norm += b * b;
    }
    return norm > 0 ? error / norm : error;
}

static void all_values(const world *w, double **values)
{
    for (int i = 0; i < w->n; i++)
        values[i] = values_of(w->inputs[i].slot, w->inputs[i].bytes);
}

static void free_values(const world *w, double **values)
{
    for (int i = 0; i < w->n; i++)
        free(values[i]);
}

/* ---- test ---- */

/* Runs the case; on success the bytes of what is looked at lie in *bytes (to be freed). */
static outcome run_once(firn_context *ctx, firn_device *device, const test_case *c, unsigned char **bytes, size_t *size)
{
    world w;
    session s = {0};
    firn_tensor *node;
    outcome o = {.verdict = PASSED};
    char reason[128];

    *bytes = NULL;
    firn_tensor *y = world_build(&w, ctx, c, &node);
    if (!y) {
        o = verdict_of(FAILED, "building: %s", firn_error(ctx));
        world_close(&w);
        return o;
    }
    const bool into = node->op->into;
    firn_tensor *look = into ? node->src[arg_or(c, "look", 0) > 0 ? (int)arg_or(c, "look", 0) : 0] : y;
    firn_tensor *out = into ? NULL : kept(w.g, y);
    const firn_status status =
        firn_graph_status(w.g) != FIRN_OK ? firn_graph_status(w.g) : session_open(&s, device, &w, &out, out ? 1 : 0);
    if (status != FIRN_OK) {
        o = verdict_of(status == FIRN_ERR_UNSUPPORTED ? SKIPPED : FAILED, "planning: %s", firn_error(ctx));
    } else if (session_run(&s, device) != FIRN_OK) {
        o = verdict_of(FAILED, "running: %s", firn_error(ctx));
    } else if (!undisturbed(&s, &w, into, reason, sizeof reason)) {
        o = verdict_of(FAILED, "%s", reason);
    } else {
        double *values[MAX_INPUTS] = {NULL}, *after = NULL;
        dtensor want = {{0}, NULL}, got = {{0}, NULL};
        const binding *b = &s.b[into ? input_of(&w, look) : s.n_inputs];
        all_values(&w, values);
        bf16_references = is_product(c->family) && firn_context_precision(ctx) == FIRN_PRECISION_BF16;
        expected(&w, c, node, values, &want);
        if (into) {
            after = values_of(look->root, b->after + PAD);
            gather(look, after, &got);
        } else {
            after = values_of(out, b->after + PAD);
            gather(out, after, &got);
        }
        o = judged(difference(&got, &want), c->family->bound);
        if (bf16_references && o.verdict == PASSED && dcount(&want) >= 16) { /* fewer may all be nearly nothing */
            bf16_references = false;
            dfree(&want);
            expected(&w, c, node, values, &want);
            const double error = difference(&got, &want);
            if (!(error <= BF16_BOUND))
                o = judged(error, BF16_BOUND);
        }
        bf16_references = false;
        *size = b->size;
        *bytes = malloc(b->size + 1);
        memcpy(*bytes, b->after + PAD, b->size);
        free_values(&w, values);
        free(after);
        dfree(&want);
        dfree(&got);
    }
    session_close(&s);
    world_close(&w);
    return o;
}

outcome run_test(const target *t, const test_case *c)
{
    unsigned char *many = NULL, *one = NULL;
    size_t size = 0, size1 = 0;
    outcome o = run_once(t->ctx, t->device, c, &many, &size);

    if (o.verdict == PASSED && t->device1) {
        const outcome o1 = run_once(t->ctx1, t->device1, c, &one, &size1);
        if (o1.verdict != PASSED)
            o = o1;
        else if (size != size1 || memcmp(many, one, size) != 0)
            o = verdict_of(FAILED, "one thread and %d give different bits", firn_context_threads(t->ctx));
    }
    free(many);
    free(one);
    return o;
}

/* ---- grad ---- */

static const double step = 1e-3;

/* sum of dy y over the reference with slot `in` moved by h along d. */
static double weighted(const world *w, const test_case *c, const firn_tensor *node, double **values, int in,
                       const double *d, double h, const double *dy)
{
    const int64_t n = firn_n_elements(w->inputs[in].slot);
    double *moved = malloc((size_t)(n + 1) * sizeof *moved), *kept_values = values[in], sum = 0;
    dtensor y = {{0}, NULL};

    if (!moved)
        abort();
    for (int64_t i = 0; i < n; i++)
        moved[i] = kept_values[i] + h * d[i];
    values[in] = moved;
    expected(w, c, node, values, &y);
    values[in] = kept_values;
    for (int64_t i = 0; i < dcount(&y); i++)
        sum += y.v[i] * dy[i];
    dfree(&y);
    free(moved);
    return sum;
}

/* The five-point central difference: its error is of order h^4. */
static double slope(const world *w, const test_case *c, const firn_tensor *node, double **values, int in,
                    const double *d, const double *dy)
{
    const double near = weighted(w, c, node, values, in, d, step, dy) - weighted(w, c, node, values, in, d, -step, dy);
    const double far =
        weighted(w, c, node, values, in, d, 2 * step, dy) - weighted(w, c, node, values, in, d, -2 * step, dy);

    return (8 * near - far) / (12 * step);
}

/* Error of the gradient g with respect to one slot. */
static double gradient_error(const world *w, const test_case *c, const firn_tensor *node, double **values, int in,
                             const double *g, const double *dy)
{
    const int64_t n = firn_n_elements(w->inputs[in].slot);
    const bool each = n < 64;
    const int64_t n_directions = each ? n : 2;
    double *d = calloc((size_t)n + 1, sizeof *d), error = 0, norm = 0;

    if (!d)
        abort();
    for (int64_t i = 0; i < n; i++)
        norm += g[i] * g[i];
    for (int64_t k = 0; k < n_directions; k++) {
        double along = 0;
        for (int64_t i = 0; i < n; i++) {
            const double r = (double)firn_random_unit(w->seed, (uint64_t)k, (uint64_t)i) * 2 - 1;
            d[i] = each ? (i == k ? 1 : 0) : r;
            along += d[i] * g[i];
        }
        const double e = along - slope(w, c, node, values, in, d, dy);
        error += e * e;
    }
    free(d);
    if (!each)
        norm *= (double)n_directions / 3; /* the mean square of a direction's entries */
    return norm > 0 ? error / norm : error;
}

static const double adjoint_bound = 1e-11;

/* SOFT_MAX takes a sink's share as 1 - sum(y), of which small ones have few digits. A gradient of bf16 products is
 * compared with differences of exact ones. */
static double grad_bound(const test_case *c, firn_precision precision)
{
    if (precision == FIRN_PRECISION_BF16 && is_product(c->family))
        return BF16_SUMS_BOUND;
    return strcmp(c->family->op, "SOFT_MAX") == 0 ? 1e-7 : 1e-9;
}

/* <y, dy> = <x, dx> for an operation that is linear in x, relative to the size such a sum usually has. */
static double adjoint_error(const double *y, const double *dy, int64_t n_y, const double *x, const double *dx,
                            int64_t n_x)
{
    double a = 0, b = 0, yy = 0, dd = 0;

    for (int64_t i = 0; i < n_y; i++) {
        a += y[i] * dy[i];
        yy += y[i] * y[i];
        dd += dy[i] * dy[i];
    }
    for (int64_t i = 0; i < n_x; i++)
        b += x[i] * dx[i];
    const double size = yy * dd / (double)(n_y ? n_y : 1);
    return size > 0 ? (a - b) * (a - b) / size : (a - b) * (a - b);
}

static outcome judge_gradients(const world *w, const test_case *c, const firn_tensor *node, const session *s,
                               const int *wanted, int n, firn_tensor *const *outputs, const firn_tensor *dy)
{
    double *values[MAX_INPUTS] = {NULL}, worst = 0;
    const double bound = grad_bound(c, firn_context_precision(w->ctx));
    const double adjoint = bound == BF16_SUMS_BOUND ? bound : adjoint_bound;
    outcome o = {.verdict = PASSED, .bound = bound};

    all_values(w, values);
    const double *weights = values[input_of(w, dy)];
    double *y = values_of(outputs[0], s->b[s->n_inputs].after + PAD);
    for (int i = 0; i < n && o.verdict == PASSED; i++) {
        const int64_t count = firn_n_elements(w->inputs[wanted[i]].slot);
        double *g = outputs[1 + i] ? values_of(outputs[1 + i], s->b[s->n_inputs + 1 + i].after + PAD)
                                   : calloc((size_t)count + 1, sizeof *g);
        smooth_references = true;
        const double error = gradient_error(w, c, node, values, wanted[i], g, weights);
        smooth_references = false;
        if (!(error <= bound)) {
            o = judged(error, bound);
            snprintf(o.reason, sizeof o.reason, "the gradient of input %d differs by %.3g, bound %.3g", wanted[i],
                     error, bound);
        } else if (c->family->linear) {
            const double a = adjoint_error(y, weights, firn_n_elements(dy), values[wanted[i]], g, count);
            if (!(a <= adjoint)) {
                o = judged(a, adjoint);
                snprintf(o.reason, sizeof o.reason, "<Wx,u> and <x,W'u> differ by %.3g for input %d, bound %.3g", a,
                         wanted[i], adjoint);
            }
        }
        worst = error > worst ? error : worst;
        free(g);
    }
    if (o.verdict == PASSED)
        o.error = worst;
    free(y);
    free_values(w, values);
    return o;
}

outcome run_grad(const target *t, const test_case *c)
{
    world w;
    session s = {0};
    firn_tensor *node, *slots[MAX_INPUTS], *grads[MAX_INPUTS], *outputs[MAX_OUTPUTS] = {NULL};
    int wanted[MAX_INPUTS], n = 0;
    outcome o;
    char reason[128];

    firn_tensor *y = world_build(&w, t->ctx, c, &node);
    if (!y) {
        o = verdict_of(FAILED, "building: %s", firn_error(t->ctx));
        goto done;
    }
    if (!node->op->gradient) {
        o = verdict_of(SKIPPED, "no gradient: %s", node->op->no_gradient ? node->op->no_gradient : "no rule");
        goto done;
    }
    if (y->type == FIRN_I32 || y->type == FIRN_I64) {
        o = verdict_of(SKIPPED, "no gradient: it holds integers");
        goto done;
    }
    for (int i = 0; i < w.n; i++) {
        if (w.inputs[i].fixed)
            continue;
        wanted[n] = i;
        slots[n++] = w.inputs[i].slot;
    }
    firn_tensor *dy = slot4(&w, FIRN_F32, UNIFORM, 0, y->ne[0], y->ne[1], y->ne[2], y->ne[3]);
    keep_fixed(&w);
    if (arg_or(c, "table", 0) > 0) {
        const bool refused = firn_graph_grad(w.g, y, dy, slots, n, grads) == FIRN_ERR_UNSUPPORTED;
        o = refused && strstr(firn_error(t->ctx), "table") ? judged(0, 0)
                                                           : verdict_of(FAILED, "a gather table was not refused");
        goto done;
    }
    if (firn_graph_grad(w.g, y, dy, slots, n, grads) != FIRN_OK) {
        o = verdict_of(FAILED, "differentiating: %s", firn_error(t->ctx));
        goto done;
    }
    outputs[0] = kept(w.g, node->op->into ? firn_cont(w.g, y) : y);
    int n_outputs = 1;
    for (int i = 0; i < n; i++) {
        if (!grads[i]) {
            o = verdict_of(FAILED, "no gradient came back for input %d", wanted[i]);
            goto done;
        }
        outputs[n_outputs++] = kept(w.g, grads[i]);
    }
    firn_status status = firn_graph_status(w.g);
    if (status == FIRN_OK)
        status = session_open(&s, t->device, &w, outputs, n_outputs);
    if (status != FIRN_OK)
        o = verdict_of(status == FIRN_ERR_UNSUPPORTED ? SKIPPED : FAILED, "planning: %s", firn_error(t->ctx));
    else if (session_run(&s, t->device) != FIRN_OK)
        o = verdict_of(FAILED, "running: %s", firn_error(t->ctx));
    else if (!undisturbed(&s, &w, node->op->into, reason, sizeof reason))
        o = verdict_of(FAILED, "%s", reason);
    else
        o = judge_gradients(&w, c, node, &s, wanted, n, outputs, dy);
done:
    session_close(&s);
    world_close(&w);
    return o;
}

/* ---- support and perf ---- */

bool case_supported(const target *t, const test_case *c, char *reason, size_t size)
{
    world w;
    firn_tensor *node;
    firn_plan *plan = NULL;

    firn_tensor *y = world_build(&w, t->ctx, c, &node);
    if (y && !node->op->into)
        kept(w.g, y);
    const bool ok = y && firn_plan_create(t->device, w.g, &plan) == FIRN_OK;
    snprintf(reason, size, "%s", ok ? "" : firn_error(t->ctx));
    firn_plan_destroy(plan);
    world_close(&w);
    return ok;
}

/* How long nodes of an operation have run on a device, by its own clock: not what stands beside the node, such as the
 * forward result that a gradient reads. */
static double device_seconds(const target *t, const char *op)
{
    const firn_profile_row *rows;
    int n;

    if (firn_device_profile_rows(t->device, &rows, &n) == FIRN_OK)
        for (int i = 0; i < n; i++)
            if (strcmp(rows[i].op, op) == 0)
                return rows[i].seconds;
    return 0;
}

timing run_perf(const target *t, const test_case *c)
{
    world w;
    session s = {0};
    firn_tensor *node;
    timing r = {.ok = false};

    firn_device_profile(t->device, true);
    firn_tensor *y = world_build(&w, t->ctx, c, &node);
    firn_tensor *out = y && !node->op->into ? kept(w.g, y) : NULL;
    if (y && session_open(&s, t->device, &w, &out, out ? 1 : 0) == FIRN_OK && session_run(&s, t->device) == FIRN_OK) {
        const firn_cost cost = firn_op_cost(node);
        double total = 0, best = INFINITY;
        for (int i = 0; i < 3 || (total < 0.5 && i < 1000); i++) {
            const double start = device_seconds(t, node->op->name);
            if (firn_exec_run(s.exec, 0, 0) != FIRN_OK || firn_device_wait(t->device) != FIRN_OK)
                break;
            const double took = device_seconds(t, node->op->name) - start;
            total += took;
            best = took < best ? took : best;
        }
        r = (timing){
            .ok = isfinite(best), .seconds = best, .flops = cost.flops, .bytes = cost.bytes_read + cost.bytes_written};
    }
    if (!r.ok)
        snprintf(r.reason, sizeof r.reason, "%s", firn_error(t->ctx));
    session_close(&s);
    world_close(&w);
    return r;
}
