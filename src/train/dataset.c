/* firn/data.h over data.h. */
#include "firn/data.h"

#include "core/sized.h"
#include "train/language.h"

struct firn_dataset {
    firn_context *ctx;
    firn_data *data;
};

firn_status firn_dataset_open(firn_language *language, const firn_dataset_options *options, firn_dataset **dataset)
{
    FIRN_GIVEN(NULL, language);
    firn_context *ctx = firn_language_context(language);
    FIRN_GIVEN(ctx, options, dataset);
    firn_dataset_options o;

    *dataset = NULL;
    FIRN_TRY(FIRN_TAKE(ctx, firn_dataset_options, preferences, options, &o));
    FIRN_EXPECT(ctx, o.sources && o.n_sources > 0, "a data set needs a source");
    for (int i = 0; i < o.n_sources; i++)
        FIRN_EXPECT(ctx, o.sources[i], "source %d of the data set is null", i);
    for (int i = 0; o.fields && i < o.n_fields; i++)
        FIRN_EXPECT(ctx, o.fields[i], "field %d of the data set is null", i);
    firn_data_spec spec = {.sources = o.sources,
                           .n_sources = o.n_sources,
                           .fields = o.fields,
                           .n_fields = o.fields ? o.n_fields : 0,
                           .skip_bad = o.skip_bad,
                           .preferences = o.preferences,
                           .cache = o.cache};
    if (o.format)
        FIRN_TRY(firn_data_format_from_name(ctx, o.format, &spec.format));
    firn_dataset *d = firn_alloc(ctx, sizeof *d);
    if (!d)
        return FIRN_ERR_MEMORY;
    d->ctx = ctx;
    const firn_status s = firn_data_load(ctx, &spec, firn_language_encoder(language), o.context, &d->data);
    if (s == FIRN_OK)
        *dataset = d;
    else
        firn_free(ctx, d);
    return s;
}

void firn_dataset_close(firn_dataset *dataset)
{
    if (!dataset)
        return;
    firn_data_destroy(dataset->data);
    firn_free(dataset->ctx, dataset);
}

int64_t firn_dataset_count(const firn_dataset *dataset)
{
    return dataset ? (int64_t)dataset->data->n_samples : 0;
}

static firn_status find(const firn_dataset *d, int64_t i, const firn_sample **sample)
{
    FIRN_EXPECT(d->ctx, i >= 0 && i < firn_dataset_count(d), "there is no sample %lld: the data set has %lld",
                (long long)i, (long long)firn_dataset_count(d));
    *sample = &d->data->samples[i];
    return FIRN_OK;
}

firn_status firn_dataset_at(const firn_dataset *d, int64_t i, firn_dataset_sample *sample)
{
    FIRN_GIVEN(NULL, d);
    FIRN_GIVEN(d->ctx, sample);
    const firn_sample *s = NULL;

    FIRN_TRY(FIRN_ROOM(d->ctx, firn_dataset_sample, weight, sample));
    FIRN_TRY(find(d, i, &s));
    const firn_dataset_sample ours = {.size = sizeof ours,
                                      .file = d->data->files[s->file].name,
                                      .format = firn_data_format_name((firn_data_format)s->format),
                                      .line = (int64_t)s->line,
                                      .n = s->n,
                                      .n_trained = s->n_targets,
                                      .weight = d->data->files[s->file].weight};
    firn_sized_give(sample, &ours);
    return FIRN_OK;
}

firn_status firn_dataset_tokens(const firn_dataset *d, int64_t i, int32_t *tokens, uint8_t *trained)
{
    FIRN_GIVEN(NULL, d);
    const firn_sample *s = NULL;

    FIRN_TRY(find(d, i, &s));
    if (tokens)
        firn_data_ids(d->data, s, tokens);
    for (int32_t t = 0; trained && t < s->n; t++)
        trained[t] = firn_data_trained(d->data, s->begin + t);
    return FIRN_OK;
}
