/* Any bytes as a data set: a sentence or samples, never more; what comes out must keep the promises of data.h. */
#include "../unit/byte_encoder.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool good)
{
    if (!good)
        abort();
}

static void check(const firn_data *d, int64_t context)
{
    firn_sample_list train, held;
    firn_packing packing;
    int64_t packed = 0;

    for (size_t i = 0; i < d->n_samples; i++) {
        const firn_sample *s = &d->samples[i];
        int32_t n = 0;
        expect(s->n >= 2 && s->n <= context && s->begin + s->n <= (int64_t)d->n_tokens);
        for (int32_t t = 0; t < s->n; t++)
            n += firn_data_trained(d, s->begin + t);
        expect(n == s->n_targets && n > 0 && !firn_data_trained(d, s->begin));
    }
    if (firn_data_split(d, 0.3, 1, &train, &held) != FIRN_OK)
        return;
    expect(train.n > 0 && train.n + held.n == d->n_samples);
    if (firn_pack(d, &train, context, true, 1, 2, &packing) == FIRN_OK) {
        packed = packing.window[packing.n_windows];
        firn_packing_clear(&packing);
        expect(packed == (int64_t)train.n);
    }
    firn_sample_list_free(d->ctx, &train);
    firn_sample_list_free(d->ctx, &held);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    const int64_t context = size ? 2 + data[0] % 62 : 2;
    const firn_encoder encoder = byte_encoder(&ctx, size % 2);
    const firn_data_spec spec = {.skip_bad = size % 3, .preferences = size % 5 == 0};
    firn_data *d;

    if (firn_data_parse(ctx, "fuzz.jsonl", data, size, &spec, &encoder, context, &d) == FIRN_OK)
        check(d, context);
    else
        expect(firn_error(ctx)[0] != 0);
    firn_data_destroy(d);
    firn_context_destroy(ctx);
    return 0;
}
