/* An adapter on a device; see parameters.h. */
#include "model/parameters.h"

firn_status firn_parameters_create(firn_context *ctx, firn_device *device, firn_adapter *adapter,
                                   firn_parameters **result)
{
    firn_parameters *s = *result = firn_alloc_zeroed(ctx, 1, sizeof *s);

    if (!s)
        return FIRN_ERR_MEMORY;
    *s = (firn_parameters){.ctx = ctx, .device = device, .adapter = adapter, .n = adapter->n_values, .keepers = 1};
    const firn_status status = firn_buffer_of(device, adapter->values, (size_t)s->n * sizeof(float),
                                              &s->part[FIRN_PARAMETERS_VALUES], &s->in_place);
    if (status != FIRN_OK) {
        firn_parameters_drop(s);
        *result = NULL;
    }
    return status;
}

firn_parameters *firn_parameters_keep(firn_parameters *s)
{
    s->keepers++;
    return s;
}

void firn_parameters_drop(firn_parameters *s)
{
    if (!s || --s->keepers > 0)
        return;
    for (int i = 0; i < FIRN_PARAMETERS_PARTS; i++)
        firn_buffer_destroy(s->part[i]);
    firn_free(s->ctx, s);
}

firn_status firn_parameters_add(firn_parameters *s, firn_parameters_part part)
{
    const size_t bytes = (size_t)s->n * sizeof(float);

    if (s->part[part])
        return FIRN_OK;
    FIRN_TRY(firn_buffer_create(s->device, bytes ? bytes : sizeof(float), &s->part[part]));
    return firn_parameters_zero(s, part);
}

static firn_status expect(const firn_parameters *s, firn_parameters_part part, int64_t first, int64_t n)
{
    FIRN_EXPECT(s->ctx, s->part[part], "this store has no %s",
                part == FIRN_PARAMETERS_GRADIENTS ? "gradients" : "moments of an optimizer");
    FIRN_EXPECT(s->ctx, first >= 0 && n >= 0 && first <= s->n && n <= s->n - first,
                "values %lld to %lld are not among the %lld of the adapter", (long long)first, (long long)(first + n),
                (long long)s->n);
    return FIRN_OK;
}

firn_status firn_parameters_read(firn_parameters *s, firn_parameters_part part, int64_t first, int64_t n, float *values)
{
    FIRN_TRY(expect(s, part, first, n));
    return firn_buffer_read(s->part[part], (size_t)first * sizeof(float), values, (size_t)n * sizeof(float));
}

firn_status firn_parameters_write(firn_parameters *s, firn_parameters_part part, int64_t first, int64_t n,
                                  const float *values)
{
    FIRN_TRY(expect(s, part, first, n));
    return firn_buffer_write(s->part[part], (size_t)first * sizeof(float), values, (size_t)n * sizeof(float));
}

firn_status firn_parameters_zero(firn_parameters *s, firn_parameters_part part)
{
    FIRN_TRY(expect(s, part, 0, s->n));
    return firn_queue_clear(FIRN_QUEUE_COMPUTE, s->part[part], 0, (size_t)s->n * sizeof(float));
}

float *firn_parameters_host(const firn_parameters *s, firn_parameters_part part)
{
    return s->part[part] && s->device->backend->host_buffers ? s->part[part]->memory : NULL;
}

firn_status firn_parameters_push(firn_parameters *s)
{
    return s->in_place ? FIRN_OK : firn_parameters_write(s, FIRN_PARAMETERS_VALUES, 0, s->n, s->adapter->values);
}

firn_status firn_parameters_pull(firn_parameters *s)
{
    return s->in_place ? FIRN_OK : firn_parameters_read(s, FIRN_PARAMETERS_VALUES, 0, s->n, s->adapter->values);
}

uint64_t firn_parameters_bytes(int64_t n, int parts)
{
    return (uint64_t)n * sizeof(float) * (uint64_t)parts;
}
