/* Rates of factors; see rates.h. */
#include "train/rates.h"

#include "core/plain.h"
#include "train/pattern.h"

#include <math.h>
#include <string.h>

static bool number(const char *text, double *x)
{
    char *end;

    *x = firn_strtod(text, &end);
    return end != text && *end == 0 && isfinite(*x) && *x >= 0 && *x <= 10;
}

/* Of a tensor's A, over the highest; `used` notes which items said so. */
static firn_status factor_of(firn_context *ctx, const firn_rates *rates, const firn_adapter_entry *e, bool *used,
                             double *factor)
{
    char pattern[FIRN_PATTERN_BYTES];

    *factor = 1;
    for (int i = 0; i < rates->n_rate_of; i++) {
        const char *value;
        double x;
        FIRN_EXPECT(ctx, firn_pattern_split(rates->rate_of[i], pattern, &value) && number(value, &x),
                    "learning_rate_of is a class of targets or a pattern over tensor names and its rate from 0 to 10, "
                    "as in experts=1e-4, not '%.80s'",
                    rates->rate_of[i]);
        if (!firn_pattern_matches(pattern, e->tensor, e->class_))
            continue;
        used[i] = true;
        *factor = x / rates->learning_rate;
    }
    return FIRN_OK;
}

static firn_status fill(firn_context *ctx, const firn_adapter *ad, const firn_rates *rates, bool *used,
                        firn_rate_stretch *list, int *n)
{
    FIRN_EXPECT(ctx, rates->n_rate_of == 0 || rates->learning_rate > 0,
                "learning_rate_of needs a learning_rate above 0, that it is measured by");
    for (int i = 0; i < 2 * ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i / 2];
        double factor;
        FIRN_TRY(factor_of(ctx, rates, e, used, &factor));
        const float f = (float)(i % 2 ? factor * rates->loraplus : factor);
        if (*n == 0 || list[*n - 1].factor != f)
            list[(*n)++] = (firn_rate_stretch){.first = i % 2 ? e->b : e->a, .factor = f};
    }
    for (int i = 0; i < *n; i++)
        list[i].n = (i + 1 < *n ? list[i + 1].first : ad->n_values) - list[i].first;
    for (int i = 0; i < rates->n_rate_of; i++)
        FIRN_EXPECT(ctx, used[i], "learning_rate_of '%.80s' matches no tensor that is trained", rates->rate_of[i]);
    return FIRN_OK;
}

firn_status firn_rates_of(firn_context *ctx, const firn_adapter *ad, const firn_rates *rates,
                          firn_rate_stretch **stretches, int *n)
{
    firn_rate_stretch *list = firn_alloc_zeroed(ctx, 2 * (size_t)ad->n_entries + 1, sizeof *list);
    bool *used = firn_alloc_zeroed(ctx, (size_t)rates->n_rate_of + 1, sizeof *used);
    firn_status s = list && used ? FIRN_OK : FIRN_ERR_MEMORY;

    *n = 0;
    if (s == FIRN_OK)
        s = fill(ctx, ad, rates, used, list, n);
    firn_free(ctx, used);
    if (s != FIRN_OK) {
        firn_free(ctx, list);
        list = NULL;
    }
    *stretches = list;
    return s;
}
