/* x += noise; see noise.h. */
#include "model/noise.h"

#include "firn/ops.h"

struct firn_noise {
    firn_context *ctx;
    firn_device *device;
    size_t bytes;
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *buffer;
    void *host; /* staging */
};

static firn_status build(firn_noise *s, int64_t d, int64_t n_tokens, firn_buffer *x, size_t offset)
{
    const int64_t ne[] = {d, n_tokens};

    FIRN_TRY(firn_graph_create(s->ctx, &s->graph));
    firn_tensor *to = firn_slot(s->graph, FIRN_F32, 2, ne, "embedding");
    firn_tensor *noise = firn_slot(s->graph, FIRN_F32, 2, ne, "noise");
    firn_named(firn_add_into(s->graph, to, noise), "noisy embedding");
    FIRN_TRY(firn_plan_create(s->device, s->graph, &s->plan));
    FIRN_TRY(firn_exec_create(s->plan, &s->exec));
    FIRN_TRY(firn_buffer_create(s->device, s->bytes, &s->buffer));
    FIRN_TRY(firn_staging_create(s->device, s->bytes, &s->host));
    FIRN_TRY(firn_exec_memory(s->exec, NULL, 0, NULL, 0));
    FIRN_TRY(firn_exec_bind(s->exec, to, x, offset));
    return firn_exec_bind(s->exec, noise, s->buffer, 0);
}

firn_status firn_noise_create(firn_context *ctx, firn_device *device, int64_t d, int64_t n_tokens, firn_buffer *x,
                              size_t offset, firn_noise **result)
{
    firn_noise *s = *result = firn_alloc_zeroed(ctx, 1, sizeof *s);

    if (!s)
        return FIRN_ERR_MEMORY;
    *s = (firn_noise){.ctx = ctx, .device = device, .bytes = (size_t)d * (size_t)n_tokens * sizeof(float)};
    const firn_status status = build(s, d, n_tokens, x, offset);
    if (status != FIRN_OK) {
        firn_noise_destroy(s);
        *result = NULL;
    }
    return status;
}

void firn_noise_destroy(firn_noise *s)
{
    if (!s)
        return;
    firn_exec_destroy(s->exec);
    firn_plan_destroy(s->plan);
    firn_graph_destroy(s->graph);
    firn_buffer_destroy(s->buffer);
    firn_staging_destroy(s->device, s->host);
    firn_free(s->ctx, s);
}

float *firn_noise_values(firn_noise *s)
{
    return s->host;
}

firn_status firn_noise_add(firn_noise *s)
{
    FIRN_TRY(firn_queue_upload(FIRN_QUEUE_COMPUTE, s->buffer, 0, s->host, s->bytes));
    return firn_exec_run(s->exec, 0, 0);
}

uint64_t firn_noise_bytes(int64_t d, int64_t n_tokens)
{
    return 2 * (uint64_t)d * (uint64_t)n_tokens * sizeof(float);
}
