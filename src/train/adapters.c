/* Adapters as algebra: see adapters.h. */
#include "train/adapters.h"

#include "train/low_rank.h"
#include "train/origin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

firn_status firn_adapter_open(firn_context *ctx, const char *path, firn_adapter **adapter)
{
    firn_gguf *gguf;

    *adapter = NULL;
    FIRN_TRY(firn_gguf_open(ctx, path, &gguf));
    const firn_status s = firn_adapter_parse(ctx, gguf, adapter);
    firn_gguf_close(gguf);
    return s == FIRN_OK ? FIRN_OK : firn_fail_in(ctx, s, "%s", path);
}

firn_status firn_adapters_expect_one_base(firn_context *ctx, const firn_adapter *one, const firn_adapter *other,
                                          const char *const names[2])
{
    const firn_adapter_origin *a = &one->origin, *b = &other->origin;

    FIRN_EXPECT(ctx, strcmp(one->arch, other->arch) == 0, "%s is an adapter of %s models, %s of %s models", names[0],
                one->arch, names[1], other->arch);
    FIRN_EXPECT(ctx, firn_fingerprints_agree(a->base_fingerprint, b->base_fingerprint),
                "%s was made for %s, %s for %s: updates of two models do not belong together (--force takes them all "
                "the same)",
                names[0], *a->base_name ? a->base_name : "a model without a name", names[1],
                *b->base_name ? b->base_name : "another without a name");
    return FIRN_OK;
}

const firn_adapter_entry *firn_adapter_find(const firn_adapter *ad, const char *tensor)
{
    for (int i = 0; i < ad->n_entries; i++)
        if (strcmp(ad->entries[i].tensor, tensor) == 0)
            return &ad->entries[i];
    return NULL;
}

/* ---- sums ---- */

/* The entry of the sum for one of a summand's: a new one, or a higher rank. */
static firn_status add_shape(firn_context *ctx, firn_adapter *sum, const firn_adapter_entry *e)
{
    firn_adapter_entry *there = (firn_adapter_entry *)firn_adapter_find(sum, e->tensor);

    if (!there) {
        there = &sum->entries[sum->n_entries];
        *there = *e;
        there->scale = 1;
        there->tensor = firn_strdup(ctx, e->tensor);
        if (!there->tensor)
            return FIRN_ERR_MEMORY;
        sum->n_entries++;
        return FIRN_OK;
    }
    FIRN_EXPECT(ctx, there->n_in == e->n_in && there->n_out == e->n_out && there->n_expert == e->n_expert,
                "%s is [%lld, %lld, %lld] to one adapter and [%lld, %lld, %lld] to another", e->tensor,
                (long long)there->n_in, (long long)there->n_out, (long long)there->n_expert, (long long)e->n_in,
                (long long)e->n_out, (long long)e->n_expert);
    there->rank += e->rank;
    FIRN_EXPECT(ctx, there->rank <= FIRN_MAX_RANK, "the ranks of %s add up to %lld; at most %d is possible", e->tensor,
                (long long)there->rank, FIRN_MAX_RANK);
    return FIRN_OK;
}

/* Puts a summand's factors behind the `before` ranks that are filled already. */
static firn_status lay(firn_context *ctx, const firn_adapter *sum, const firn_adapter_entry *to, int64_t before,
                       const firn_adapter *ad, const firn_adapter_entry *e, double weight)
{
    const double scale = weight * (double)e->scale;

    for (int64_t x = 0; x < e->n_expert; x++) {
        memcpy(sum->values + to->a + (x * to->rank + before) * to->n_in, ad->values + e->a + x * e->rank * e->n_in,
               (size_t)(e->rank * e->n_in) * sizeof(float));
        for (int64_t o = 0; o < e->n_out; o++)
            for (int64_t r = 0; r < e->rank; r++) {
                const float v = (float)(scale * (double)ad->values[e->b + (x * e->n_out + o) * e->rank + r]);
                FIRN_EXPECT(ctx, isfinite(v), "%s.lora_b times %g is more than a float holds", e->tensor, scale);
                sum->values[to->b + (x * to->n_out + o) * to->rank + before + r] = v;
            }
    }
    return FIRN_OK;
}

static firn_status add_all(firn_context *ctx, int n, const firn_adapter *const *ads, const double *weights,
                           firn_adapter *sum)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ads[i]->n_entries; k++)
            FIRN_TRY(add_shape(ctx, sum, &ads[i]->entries[k]));
    FIRN_TRY(firn_adapter_make_values(sum));
    for (int k = 0; k < sum->n_entries; k++) {
        int64_t before = 0;
        for (int i = 0; i < n; i++) {
            const firn_adapter_entry *e = firn_adapter_find(ads[i], sum->entries[k].tensor);
            if (!e)
                continue;
            FIRN_TRY(lay(ctx, sum, &sum->entries[k], before, ads[i], e, weights[i]));
            before += e->rank;
        }
    }
    return FIRN_OK;
}

firn_status firn_adapters_add(firn_context *ctx, int n, const firn_adapter *const *ads, const double *weights,
                              firn_adapter **sum)
{
    size_t all = 0;

    for (int i = 0; i < n; i++)
        all += (size_t)ads[i]->n_entries;
    FIRN_TRY(firn_adapter_create_empty(ctx, ads[0]->arch, all, sum));
    (*sum)->origin = ads[0]->origin;
    for (int i = 1; i < n; i++) {
        if (!*(*sum)->origin.base_fingerprint) {
            memcpy((*sum)->origin.base_name, ads[i]->origin.base_name, sizeof ads[i]->origin.base_name);
            memcpy((*sum)->origin.base_fingerprint, ads[i]->origin.base_fingerprint,
                   sizeof ads[i]->origin.base_fingerprint);
        }
        if (strcmp((*sum)->origin.data, ads[i]->origin.data) != 0)
            (*sum)->origin.data[0] = 0; /* of several data sets */
    }
    const firn_status s = add_all(ctx, n, ads, weights, *sum);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*sum);
        *sum = NULL;
    }
    return s;
}

firn_status firn_adapter_scale(firn_context *ctx, firn_adapter *ad, double x)
{
    FIRN_EXPECT(ctx, isfinite(x) && x != 0, "the factor is a finite number other than 0, not %g", x);
    const float alpha = (float)(x * (double)ad->alpha);
    FIRN_EXPECT(ctx, isfinite(alpha) && (alpha != 0 || ad->alpha == 0), "alpha %g times %g is no float",
                (double)ad->alpha, x);
    for (int i = 0; i < ad->n_entries; i++) {
        firn_adapter_entry *e = &ad->entries[i];
        if (alpha != 0)
            e->scale = alpha / (float)e->rank;
        for (int64_t k = 0; alpha == 0 && k < e->rank * e->n_out * e->n_expert; k++) {
            float *b = &ad->values[e->b + k];
            *b = (float)(x * (double)*b);
            FIRN_EXPECT(ctx, isfinite(*b), "%s.lora_b times %g is more than a float holds", e->tensor, x);
        }
    }
    ad->alpha = alpha;
    return FIRN_OK;
}

/* ---- products ---- */

/* sum over o of B[o, i] D[o, j] */
static double columns(const float *b, int64_t rb, const float *d, int64_t rd, int64_t n_out)
{
    double sum = 0;

    for (int64_t o = 0; o < n_out; o++)
        sum += (double)b[o * rb] * (double)d[o * rd];
    return sum;
}

static double rows(const float *a, const float *c, int64_t n_in)
{
    double sum = 0;

    for (int64_t k = 0; k < n_in; k++)
        sum += (double)a[k] * (double)c[k];
    return sum;
}

double firn_updates_product(const firn_adapter *ad, const firn_adapter_entry *e, const firn_adapter *other,
                            const firn_adapter_entry *f)
{
    double sum = 0;

    for (int64_t x = 0; x < e->n_expert; x++) {
        const float *a = ad->values + e->a + x * e->rank * e->n_in;
        const float *b = ad->values + e->b + x * e->rank * e->n_out;
        const float *c = other->values + f->a + x * f->rank * f->n_in;
        const float *d = other->values + f->b + x * f->rank * f->n_out;
        for (int64_t i = 0; i < e->rank; i++)
            for (int64_t j = 0; j < f->rank; j++)
                sum +=
                    columns(b + i, e->rank, d + j, f->rank, e->n_out) * rows(a + i * e->n_in, c + j * e->n_in, e->n_in);
    }
    return (double)e->scale * (double)f->scale * sum;
}
