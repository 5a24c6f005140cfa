/* firn's kernels in another program: a layer of routed experts forward, its two gradients, and finite differences that
 * agree with them. Build it against the installed library:
 *
 *     cc kernels.c $(pkg-config --cflags --libs firn) -lm -o kernels && ./kernels
 *
 *     y[:,s,t] = W[:,:,ids[s,t]]' x[:,t]      MUL_MAT_ID       W packed, 4.5 bits a weight
 *     loss     = sum of u y                   so dy = u
 *     dx       = W dy                         MUL_MAT_ID_BACK  through the packed experts, one row per slot
 *     dW       = x dy'                        OUT_PROD_ID      for experts that are trained (F32) */
#include <firn/kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { K = 256, M = 64, N_EXPERT = 8, N_USED = 2, N_TOKENS = 6 };

static firn_context *ctx;

static void need(firn_status status)
{
    if (status == FIRN_OK)
        return;
    fprintf(stderr, "kernels: %s\n", firn_error(ctx));
    exit(1);
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!p) {
        fprintf(stderr, "kernels: out of memory\n");
        exit(1);
    }
    return p;
}

static float *random_floats(int n)
{
    static unsigned state = 1;
    float *x = memory((size_t)n * sizeof *x);

    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / (1 << 23) - 1;
    }
    return x;
}

/* The workspace is asked for first; an engine would keep it and the description from call to call. */
static void run(const firn_product *product, const char *name)
{
    size_t bytes;

    need(firn_product_work_bytes(ctx, product, &bytes));
    void *work = memory(bytes);
    need(firn_product_run(ctx, product, work, bytes));
    free(work);
    if (name)
        printf("  %-16s workspace %zu KiB\n", name, bytes / 1024);
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The loss where `at` has moved by step * direction. */
static double loss_near(const firn_product *forward, float *at, const float *direction, int n, float step,
                        const float *u)
{
    for (int i = 0; i < n; i++)
        at[i] += step * direction[i];
    run(forward, NULL);
    for (int i = 0; i < n; i++)
        at[i] -= step * direction[i];
    return dot(forward->out.data, u, M * N_USED * N_TOKENS);
}

/* The slope of the loss along a random direction, from the gradient and from a central difference. */
static int compare(const char *what, const firn_product *forward, float *at, const float *gradient, int n,
                   const float *u)
{
    const float step = 0.25f; /* the loss is linear in x and in W: only rounding separates the two */
    float *direction = random_floats(n);
    const double slope = dot(gradient, direction, n);
    const double difference =
        (loss_near(forward, at, direction, n, step, u) - loss_near(forward, at, direction, n, -step, u)) / (2 * step);
    const double off = fabs(slope - difference) / fabs(slope);

    free(direction);
    printf("  d loss / d %-3s gradient %12.6f   difference %12.6f   apart by %.1e\n", what, slope, difference, off);
    return off < 1e-4;
}

int main(void)
{
    firn_context_params params = {0}; /* n_threads 0: as many as the machine has */
    ctx = firn_context_create(&params);
    if (!ctx) {
        fprintf(stderr, "kernels: out of memory\n");
        return 1;
    }

    /* Experts [K, M, N_EXPERT], packed row by row. */
    const size_t row = firn_row_bytes(FIRN_Q4_K, K), rows = (size_t)M * N_EXPERT;
    float *plain = random_floats(K * M * N_EXPERT);
    void *packed = memory(row * rows);
    need(firn_encode_rows(ctx, FIRN_Q4_K, plain, K * sizeof(float), K, (int64_t)rows, NULL, packed, row, 0));

    float *x = random_floats(K * N_TOKENS), *u = random_floats(M * N_USED * N_TOKENS);
    float *y = memory(sizeof(float) * M * N_USED * N_TOKENS);
    float *dx_slots = memory(sizeof(float) * K * N_USED * N_TOKENS);
    float *dx = memory(sizeof(float) * K * N_TOKENS);
    float *dw = memory(sizeof(float) * K * M * N_EXPERT);
    int32_t ids[N_TOKENS][N_USED] = {{0, 3}, {3, 1}, {7, 3}, {2, 2}, {0, 5}, {3, 6}}; /* expert 4 has no rows */

    /* s' = 1: both slots of a token read its one row of x. */
    firn_product forward = {.kind = FIRN_PRODUCT_MUL_MAT_ID,
                            .w = firn_array_dense(FIRN_Q4_K, packed, K, M, N_EXPERT, 1),
                            .x = firn_array_dense(FIRN_F32, x, K, 1, N_TOKENS, 1),
                            .ids = firn_array_dense(FIRN_I32, ids, N_USED, N_TOKENS, 1, 1),
                            .out = firn_array_dense(FIRN_F32, y, M, N_USED, N_TOKENS, 1)};
    firn_product back = {.kind = FIRN_PRODUCT_MUL_MAT_ID_BACK,
                         .w = forward.w,
                         .dy = firn_array_dense(FIRN_F32, u, M, N_USED, N_TOKENS, 1),
                         .ids = forward.ids,
                         .out = firn_array_dense(FIRN_F32, dx_slots, K, N_USED, N_TOKENS, 1)};
    firn_product outer = {.kind = FIRN_PRODUCT_OUT_PROD_ID,
                          .x = forward.x,
                          .dy = back.dy,
                          .ids = forward.ids,
                          .out = firn_array_dense(FIRN_F32, dw, K, M, N_EXPERT, 1)};

    printf("firn %s, %d threads; %d experts [%d, %d] in %s: %zu bytes, %zu as f32\n", firn_version(),
           firn_context_threads(ctx), N_EXPERT, K, M, firn_type_name(FIRN_Q4_K), row * rows, rows * K * sizeof(float));
    run(&forward, "MUL_MAT_ID");
    printf("  %-16s %.6f\n", "loss", dot(y, u, M * N_USED * N_TOKENS));
    run(&back, "MUL_MAT_ID_BACK");
    run(&outer, "OUT_PROD_ID");

    /* Slots that shared a row of x: its gradient is their sum. */
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < K; i++)
            dx[t * K + i] = dx_slots[(t * N_USED) * K + i] + dx_slots[(t * N_USED + 1) * K + i];

    int ok = compare("x", &forward, x, dx, K * N_TOKENS, u);
    forward.w = firn_array_dense(FIRN_F32, plain, K, M, N_EXPERT, 1); /* the same experts, not packed */
    ok &= compare("W", &forward, plain, dw, K * M * N_EXPERT, u);

    /* What is not allowed comes back as one sentence. */
    ids[4][1] = 130;
    if (firn_product_run(ctx, &forward, NULL, 0) != FIRN_OK)
        printf("  refused: %s\n", firn_error(ctx));
    size_t bytes;
    need(firn_product_work_bytes(ctx, &forward, &bytes));
    void *work = memory(bytes);
    if (firn_product_run(ctx, &forward, work, bytes) == FIRN_ERR_DEVICE)
        printf("  found:   %s\n", firn_error(ctx));

    free(work);
    free(dw);
    free(dx);
    free(dx_slots);
    free(y);
    free(u);
    free(x);
    free(packed);
    free(plain);
    firn_context_destroy(ctx);
    return ok ? 0 : 1;
}
