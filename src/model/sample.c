/* Sampling; see sample.h. */
#include "firn/sample.h"

#include "core/random.h"
#include "core/sized.h"

#include <math.h>

enum { RECENT = 64 };

typedef struct {
    int32_t id;
    float logit;
    double p;
} candidate;

struct firn_sampler {
    firn_context *ctx;
    firn_sample_params params;
    int64_t n_vocab;
    uint64_t step;
    int32_t recent[RECENT];
    int n_recent, at;
    candidate *candidates; /* [n_vocab]: a heap, and behind it what was taken from it, the best last */
};

static firn_status check(firn_context *ctx, const firn_sample_params *p)
{
    FIRN_EXPECT(ctx, p->temperature >= 0 && isfinite(p->temperature),
                "the temperature is a number of at least 0, not %g", (double)p->temperature);
    FIRN_EXPECT(ctx, p->repeat_penalty > 0 && isfinite(p->repeat_penalty),
                "the repeat penalty is a positive number (1: none), not %g", (double)p->repeat_penalty);
    FIRN_EXPECT(ctx, p->top_k >= 0, "top-k is at least 0 (all), not %lld", (long long)p->top_k);
    FIRN_EXPECT(ctx, p->top_p >= 0 && p->top_p <= 1, "top-p is a probability (1: all), not %g", (double)p->top_p);
    FIRN_EXPECT(ctx, p->min_p >= 0 && p->min_p <= 1, "min-p is a part of 1 (0: all), not %g", (double)p->min_p);
    return FIRN_OK;
}

firn_status firn_sampler_create(firn_context *ctx, const firn_sample_params *params, int64_t n_vocab,
                                firn_sampler **sampler)
{
    FIRN_GIVEN(ctx, ctx, params, sampler);
    firn_sample_params p;

    *sampler = NULL;
    FIRN_TRY(FIRN_TAKE(ctx, firn_sample_params, seed, params, &p));
    FIRN_EXPECT(ctx, n_vocab >= 1, "there is nothing to choose from");
    FIRN_TRY(check(ctx, &p));
    firn_sampler *s = firn_alloc_zeroed(ctx, 1, sizeof *s);
    if (!s)
        return FIRN_ERR_MEMORY;
    s->ctx = ctx;
    s->params = p;
    s->n_vocab = n_vocab;
    s->candidates = firn_alloc(ctx, (size_t)n_vocab * sizeof *s->candidates);
    if (!s->candidates) {
        firn_sampler_destroy(s);
        return FIRN_ERR_MEMORY;
    }
    *sampler = s;
    return FIRN_OK;
}

void firn_sampler_destroy(firn_sampler *s)
{
    if (!s)
        return;
    firn_free(s->ctx, s->candidates);
    firn_free(s->ctx, s);
}

void firn_sampler_saw(firn_sampler *s, int32_t token)
{
    if (!s)
        return;
    s->recent[s->at] = token;
    s->at = (s->at + 1) % RECENT;
    s->n_recent += s->n_recent < RECENT;
}

/* Largest logit first, lowest id among equals; NaN last. */
static int by_logit(const void *a, const void *b)
{
    const candidate *p = a, *q = b;

    if (p->logit > q->logit || (isnan(q->logit) && !isnan(p->logit)))
        return -1;
    if (p->logit < q->logit || (isnan(p->logit) && !isnan(q->logit)))
        return 1;
    return p->id < q->id ? -1 : 1;
}

static void penalize(firn_sampler *s)
{
    const float penalty = s->params.repeat_penalty;

    for (int i = 0; i < s->n_recent; i++) {
        bool before = false;
        for (int j = 0; j < i; j++)
            before |= s->recent[j] == s->recent[i];
        if (before || s->recent[i] < 0 || s->recent[i] >= s->n_vocab)
            continue;
        float *logit = &s->candidates[s->recent[i]].logit;
        *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
}

/* Of a heap of n candidates whose parents come before their children by by_logit. */
static void sift_down(candidate *heap, int64_t at, int64_t n)
{
    const candidate c = heap[at];

    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && by_logit(&heap[child + 1], &heap[child]) < 0)
            child++;
        if (by_logit(&c, &heap[child]) < 0)
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* Moves the best candidate of the heap to its end, and that out of it. */
static const candidate *take_best(candidate *heap, int64_t *n)
{
    const candidate best = heap[0];

    heap[0] = heap[--*n];
    heap[*n] = best;
    sift_down(heap, 0, *n);
    return &heap[*n];
}

/* A vocabulary is large and the candidates that count are few: they are taken from a heap as far as they are needed. */
static int32_t draw(firn_sampler *s)
{
    const firn_sample_params *p = &s->params;
    candidate *c = s->candidates;
    const int64_t n = s->n_vocab, all = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    int64_t heap = n, m = 0; /* m: that are chosen from */
    double sum = 0, kept = 0;

    for (int64_t i = n / 2; i-- > 0;)
        sift_down(c, i, n);
    const float best = c[0].logit;
    while (all < n && n - heap < all)
        take_best(c, &heap);
    for (int64_t i = 0; i < all; i++) {
        candidate *of = &c[n - 1 - i];
        of->p = isnan(of->logit) ? 0 : exp((double)(of->logit - best) / (double)p->temperature);
        sum += of->p;
    }
    const bool whole = p->top_p >= 1 && p->min_p <= 0;
    while (!whole && m < all) {
        const candidate *next = m < n - heap ? &c[n - 1 - m] : take_best(c, &heap);
        if (m > 0 && (kept >= (double)p->top_p * sum || next->p < (double)p->min_p)) /* the best one's p is 1 */
            break;
        kept += next->p;
        m++;
    }
    if (whole) {
        m = all;
        kept = sum;
    }
    double x = (double)(firn_random(p->seed, 0, s->step) >> 11) * 0x1p-53 * kept;
    const candidate *chosen = NULL;
    for (int64_t i = 0; i < m; i++) {
        const candidate *next = i < n - heap ? &c[n - 1 - i] : take_best(c, &heap);
        if (chosen && next->p == 0) /* x passed the last sum by a rounding */
            break;
        chosen = next;
        if (x < next->p)
            break;
        x -= next->p;
    }
    return chosen->id;
}

int32_t firn_sampler_next(firn_sampler *s, const float *logits)
{
    int32_t token = 0;

    if (!s || !logits)
        return -1;
    for (int64_t i = 0; i < s->n_vocab; i++)
        s->candidates[i] = (candidate){.id = (int32_t)i, .logit = logits[i]};
    if (s->params.repeat_penalty != 1)
        penalize(s);
    if (s->params.temperature > 0) {
        token = draw(s);
    } else {
        for (int64_t i = 1; i < s->n_vocab; i++)
            if (by_logit(&s->candidates[i], &s->candidates[token]) < 0)
                token = (int32_t)i;
    }
    s->step++;
    firn_sampler_saw(s, token);
    return token;
}
