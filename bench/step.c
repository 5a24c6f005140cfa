/* A training step by operation: where its time goes, and what share lies in matrix products and attention.
 *
 *     bench-step MODEL [--tokens 512] [--steps 3] [--threads N] [--targets attention,experts]
 *
 * Random tokens, one window. Prints tokens per second (median), the profile of all steps, and the share. */
#include "firn/model.h"

#include "bench/measure.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != FIRN_OK) {                                                                                       \
            fprintf(stderr, "bench-step: %s\n", firn_error(ctx));                                                      \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static bool is_product(const char *op)
{
    return strncmp(op, "MUL_MAT", 7) == 0 || strncmp(op, "OUT_PROD", 8) == 0 || strncmp(op, "ATTENTION", 9) == 0;
}

int main(int argc, char **argv)
{
    int n = 512, n_steps = 3, n_threads = 0;
    const char *targets = "attention,experts";

    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--tokens") == 0)
            n = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--steps") == 0)
            n_steps = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--threads") == 0)
            n_threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--targets") == 0)
            targets = argv[i + 1];
    }
    if (argc < 2 || n < 2 || n_steps < 1) {
        fprintf(stderr, "usage: bench-step MODEL [--tokens N] [--steps N] [--threads N] [--targets LIST]\n");
        return 2;
    }
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = n_threads});
    firn_model *model;
    firn_adapter *adapter;
    firn_device *device;
    firn_session *session;
    MUST(firn_model_open(ctx, argv[1], &model));
    MUST(firn_device_open(ctx, "CPU", &device));
    MUST(firn_adapter_create(ctx, model, targets, 16, 32, 1, &adapter));
    const firn_session_params params = {.n_tokens = n, .train = true};
    firn_session_memory memory = {.size = sizeof memory};
    MUST(firn_session_plan(ctx, device, model, adapter, &params, &memory));
    MUST(firn_session_create(ctx, device, model, adapter, &params, &session));
    int32_t *ids = calloc(4 * (size_t)n, sizeof *ids), *targets_of = ids + n, *position = ids + 2 * n,
            *first = ids + 3 * n;
    double *seconds = calloc((size_t)n_steps, sizeof *seconds), loss;
    int64_t count;
    if (!ids || !seconds)
        return 1;
    for (int i = 0; i < n; i++) {
        ids[i] = (int32_t)firn_random_below(1, 0, (uint64_t)i, (uint64_t)firn_model_get_info(model)->n_vocab);
        position[i] = i;
    }
    for (int i = 0; i < n; i++)
        targets_of[i] = i + 1 < n ? ids[i + 1] : -1;
    const firn_batch batch = {
        .n_tokens = n, .tokens = ids, .targets = targets_of, .position = position, .first = first};
    printf("%s\n%lld trained values, plan %.0f MiB, %d of %d blocks kept\n", firn_device_about(device),
           (long long)adapter->n_values, (double)memory.total / 1048576, memory.blocks_kept, memory.blocks);
    for (int s = -1; s < n_steps; s++) {
        const double start = clock_now(CLOCK_MONOTONIC);
        if (s == 0)
            firn_device_profile(device, true);
        firn_session_zero_gradients(session);
        MUST(firn_session_gradient(session, &batch, 1.0f / (float)(n - 1), &loss, &count));
        if (s >= 0)
            seconds[s] = clock_now(CLOCK_MONOTONIC) - start;
    }
    const double middle = median(seconds, (int)n_steps);
    const firn_profile_row *rows;
    int n_rows;
    double all = 0, products = 0, flops = 0;
    MUST(firn_device_profile_rows(device, &rows, &n_rows));
    for (int i = 0; i < n_rows; i++) {
        all += rows[i].seconds;
        flops += rows[i].flops;
        products += is_product(rows[i].op) ? rows[i].seconds : 0;
    }
    printf("loss %.4f; %.1f tokens/s, %.0f GFLOP/s over the whole step\n\n%-22s %7s %8s %6s %9s %8s\n",
           loss / (double)count, n / middle, flops / n_steps / middle * 1e-9, "operation", "calls", "ms/step", "share",
           "GFLOP/s", "GB/s");
    for (int i = 0; i < n_rows; i++)
        printf("%-22s %7llu %8.1f %5.1f%% %9.1f %8.1f\n", rows[i].op,
               (unsigned long long)rows[i].calls / (unsigned)n_steps, 1e3 * rows[i].seconds / n_steps,
               100 * rows[i].seconds / all, rows[i].flops / rows[i].seconds * 1e-9,
               rows[i].bytes / rows[i].seconds * 1e-9);
    printf("\nproducts and attention: %.1f %% of the time in operations, %.1f %% of the step\n", 100 * products / all,
           100 * products / n_steps / middle);
    free(ids);
    free(seconds);
    firn_session_destroy(session);
    firn_adapter_destroy(adapter);
    firn_device_close(device);
    firn_model_close(model);
    firn_context_destroy(ctx);
    return 0;
}
