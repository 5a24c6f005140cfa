/* Ranks and scales of an adapter's tensors; see low_rank.h. */
#include "train/low_rank.h"

#include "train/pattern.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { LEAST_OF_EXPERTS = 4 };

int64_t firn_rank_of_experts(const firn_model *model, int64_t rank)
{
    const int64_t used = model->hp.n_expert_used;

    if (model->hp.n_expert == 0 || used < 1)
        return rank;
    return firn_min_i64(rank, firn_max_i64(rank / used, LEAST_OF_EXPERTS));
}

/* "PATTERN=R" into its two; false where it is none. */
static bool split(const char *text, char pattern[FIRN_PATTERN_BYTES], int64_t *rank)
{
    const char *value;
    char *end;

    if (!firn_pattern_split(text, pattern, &value) || *value < '0' || *value > '9')
        return false;
    errno = 0;
    *rank = strtoll(value, &end, 10);
    return !*end && !errno && *rank >= 1 && *rank <= FIRN_MAX_RANK;
}

firn_status firn_ranks_check(firn_context *ctx, const firn_adapter_spec *spec)
{
    char pattern[FIRN_PATTERN_BYTES];
    int64_t rank;

    FIRN_EXPECT(ctx, spec->rank >= 1 && spec->rank <= FIRN_MAX_RANK, "the rank is 1 to %d, not %lld", FIRN_MAX_RANK,
                (long long)spec->rank);
    FIRN_EXPECT(ctx, spec->expert_rank >= 0 && spec->expert_rank <= FIRN_MAX_RANK,
                "the rank of the experts is 1 to %d, not %lld", FIRN_MAX_RANK, (long long)spec->expert_rank);
    FIRN_EXPECT(ctx, isfinite(spec->alpha) && spec->alpha >= 0, "alpha is a number of at least 0, not %g",
                (double)spec->alpha);
    FIRN_EXPECT(ctx, spec->alpha > 0 || !spec->rslora, "with rslora alpha is a number above 0, not %g",
                (double)spec->alpha);
    for (int i = 0; i < spec->n_rank_of; i++)
        FIRN_EXPECT(ctx, split(spec->rank_of[i], pattern, &rank),
                    "rank_of is a class of targets or a pattern over tensor names and its rank from 1 to %d, as in "
                    "experts=8 or blk.*.attn_q.weight=32, not '%.80s'",
                    FIRN_MAX_RANK, spec->rank_of[i]);
    return FIRN_OK;
}

int64_t firn_rank_of_tensor(const firn_adapter_spec *spec, const char *tensor, firn_class class_, bool *used)
{
    int64_t rank = class_ == FIRN_CLASS_EXPERTS && spec->expert_rank ? spec->expert_rank : spec->rank;
    char pattern[FIRN_PATTERN_BYTES];

    for (int i = 0; i < spec->n_rank_of; i++) {
        int64_t r;
        if (!split(spec->rank_of[i], pattern, &r) || !firn_pattern_matches(pattern, tensor, class_))
            continue;
        rank = r;
        if (used)
            used[i] = true;
    }
    return rank;
}

float firn_rank_scale(const firn_adapter_spec *spec, int64_t r)
{
    if (spec->alpha == 0)
        return 1;
    return spec->rslora ? (float)((double)spec->alpha / sqrt((double)r)) : spec->alpha / (float)spec->rank;
}

double firn_rank_factor(const firn_adapter *adapter, const firn_adapter_entry *e)
{
    const float theirs = adapter->alpha == 0 ? 1 : adapter->alpha / (float)e->rank;

    if (theirs == e->scale)
        return 1;
    return adapter->alpha == 0 ? (double)e->scale : (double)e->scale * (double)e->rank / (double)adapter->alpha;
}
