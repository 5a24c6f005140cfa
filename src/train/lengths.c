/* The histogram of lengths: see lengths.h. */
#include "train/lengths.h"

enum { EXACT = 64, STEPS = 32, BARS = 40 };

int firn_length_bucket(int64_t n)
{
    int shift = 0;

    if (n < EXACT)
        return n < 0 ? 0 : (int)n;
    /* EXACT + k STEPS ..: n >> shift lies in [STEPS, 2 STEPS) */
    while (n >> shift >= 2 * STEPS)
        shift++;
    const int bucket = EXACT + (shift - 1) * STEPS + (int)(n >> shift) - STEPS;
    return bucket < FIRN_LENGTH_BUCKETS ? bucket : FIRN_LENGTH_BUCKETS - 1;
}

int64_t firn_length_limit(int bucket)
{
    if (bucket < EXACT)
        return bucket;
    const int shift = (bucket - EXACT) / STEPS + 1;
    return (((int64_t)(bucket - EXACT) % STEPS + STEPS + 1) << shift) - 1;
}

int64_t firn_lengths_count(const int64_t lengths[FIRN_LENGTH_BUCKETS])
{
    int64_t n = 0;

    for (int i = 0; i < FIRN_LENGTH_BUCKETS; i++)
        n += lengths[i];
    return n;
}

int64_t firn_lengths_quantile(const int64_t lengths[FIRN_LENGTH_BUCKETS], double share)
{
    const double wanted = share * (double)firn_lengths_count(lengths);
    int64_t n = 0;

    for (int i = 0; i < FIRN_LENGTH_BUCKETS; i++) {
        n += lengths[i];
        if (n > 0 && (double)n >= wanted)
            return firn_length_limit(i);
    }
    return 0;
}

void firn_lengths_draw(const int64_t lengths[FIRN_LENGTH_BUCKETS], firn_text *text)
{
    int64_t bars[64] = {0}, most = 1;
    int first = 64, last = -1;

    for (int i = 0; i < FIRN_LENGTH_BUCKETS; i++) {
        int k = 0;
        while ((int64_t)1 << k < firn_length_limit(i)) /* 2^(k-1) < length <= 2^k, as near as the buckets tell */
            k++;
        bars[k] += lengths[i];
        most = bars[k] > most ? bars[k] : most;
        if (lengths[i]) {
            first = k < first ? k : first;
            last = k > last ? k : last;
        }
    }
    for (int k = first; k <= last; k++) {
        const int n = (int)((BARS * bars[k] + most - 1) / most);
        firn_text_printf(text, "  %9lld to %9lld tokens  %-*.*s %lld\n", k ? ((long long)1 << (k - 1)) + 1 : 0,
                         (long long)1 << k, BARS, n, "########################################", (long long)bars[k]);
    }
}
