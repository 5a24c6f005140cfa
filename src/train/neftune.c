/* Noise of a pass; see neftune.h. */
#include "train/neftune.h"

#include "core/random.h"

#include <math.h>
#include <string.h>

void firn_neftune_fill(const firn_pass *pass, double alpha, uint64_t seed, int64_t step, int64_t number, int64_t d,
                       int64_t n_tokens, float *noise)
{
    const uint64_t stream = 0x6E656674756E65u + ((uint64_t)step << 20) + (uint64_t)number; /* its own: "neftune" */

    for (int64_t t = 0, end; t < pass->n; t = end) {
        for (end = t + 1; end < pass->n && pass->first[end] == pass->first[t];)
            end++;
        const float size = (float)(alpha / sqrt((double)(end - t) * (double)d));
        for (int64_t i = t * d; i < end * d; i++)
            noise[i] = size * (2 * firn_random_unit(seed, stream, (uint64_t)i) - 1);
    }
    memset(noise + pass->n * d, 0, (size_t)((n_tokens - pass->n) * d) * sizeof *noise);
}
