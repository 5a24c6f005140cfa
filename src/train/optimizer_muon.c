/* Muon (Jordan et al. 2024): the momentum of each factor, made orthogonal, is its step.
 *
 *     M = b M + g                                b = 0.95
 *     X = M / |M|                                of each factor, of a stack of experts each expert's: [n, r] or [r, n]
 *     X = a X + (b G + c G^2) X, five times      G = X X' [r, r], the short side; (a, b, c) = (3.4445, -4.7750, 2.0315)
 *     p -= lr (0.2 sqrt(max(n, r)) X + decay p)  of AdamW's size (Liu et al. 2025), so that its rates serve
 *
 * M's sign is turned: OPT_STEP_SGD on it with the numbers (1, 1 - b, factor) leaves b M - factor g, and nothing where
 * the factor is NaN. An expert without gradient has M = 0, and no step. */
#include "train/optimizer.h"

#include <math.h>
#include <string.h>

enum { RATE, DECAY, ONE, FORGET, FACTOR, N_HYPER, ROUNDS = 5 };

static void fill(const firn_optimizer_params *p, double t, float learning_rate, float *hyper)
{
    (void)t;
    memcpy(hyper, (float[]){learning_rate, p->weight_decay, 1, 0.05f}, FACTOR * sizeof *hyper);
}

static firn_tensor *numbers(const firn_optimizer_build *b, int first, int64_t n)
{
    return firn_view(b->graph, b->hyper, 1, &n, (int64_t[]){sizeof(float)}, first * (int64_t)sizeof(float));
}

/* A factor in a part, [ne0, ne1, n_expert]. */
static firn_tensor *factor_of(const firn_optimizer_build *b, firn_parameters_part part, int64_t at, const int64_t ne[3])
{
    const int64_t size = sizeof(float), nb[] = {size, size * ne[0], size * ne[0] * ne[1]};

    return firn_view(b->graph, b->part[part], 3, ne, nb, at * size);
}

/* Over each expert's matrix. */
static firn_tensor *normalized(firn_graph *g, firn_tensor *m, const int64_t ne[3])
{
    firn_tensor *squares = firn_reshape(g, firn_sqr(g, m), 3, (int64_t[]){ne[0] * ne[1], 1, ne[2]});
    firn_tensor *norm = firn_clamp(g, firn_sqrt(g, firn_sum_rows(g, squares)), 1e-30f, 3e38f);

    return firn_div(g, m, norm);
}

/* tall: the long side is the outer one, [r, n]. */
static firn_tensor *orthogonal(firn_graph *g, firn_tensor *x, bool tall)
{
    for (int i = 0; i < ROUNDS; i++) {
        firn_tensor *gram = tall ? firn_out_prod(g, x, x) : firn_mul_mat(g, x, x);
        firn_tensor *twice = firn_mul_mat(g, gram, gram); /* it is symmetric */
        firn_tensor *p = firn_add(g, firn_scale(g, gram, -4.7750f), firn_scale(g, twice, 2.0315f));
        x = firn_add(g, firn_scale(g, x, 3.4445f), tall ? firn_mul_mat(g, p, x) : firn_out_prod(g, x, p));
    }
    return x;
}

static void add_factor(const firn_optimizer_build *b, firn_tensor *hyper, int64_t at, const int64_t ne[3], bool tall)
{
    const float size = 0.2f * sqrtf((float)firn_max_i64(ne[0], ne[1]));
    firn_tensor *m = factor_of(b, FIRN_PARAMETERS_M, at, ne);

    m = firn_opt_step_sgd(b->graph, m, factor_of(b, FIRN_PARAMETERS_GRADIENTS, at, ne), numbers(b, ONE, 3));
    firn_tensor *x = orthogonal(b->graph, normalized(b->graph, m, ne), tall);
    firn_named(firn_opt_step_sgd(b->graph, factor_of(b, FIRN_PARAMETERS_VALUES, at, ne), firn_scale(b->graph, x, -size),
                                 hyper),
               "muon");
}

static void add(const firn_optimizer_build *b)
{
    const firn_adapter *ad = b->store->adapter;
    const int64_t first = b->stretch.first, end = first + b->stretch.n;
    /* (rate, decay, 1), NaN in place of 1 where the gradient is not finite */
    firn_tensor *sound = firn_div(b->graph, numbers(b, FACTOR, 1), numbers(b, FACTOR, 1));
    firn_tensor *hyper = firn_concat(b->graph, numbers(b, RATE, 2), sound, 0);

    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        if (e->a >= first && e->a < end)
            add_factor(b, hyper, e->a, (int64_t[]){e->n_in, e->rank, e->n_expert}, false);
        if (e->b >= first && e->b < end)
            add_factor(b, hyper, e->b, (int64_t[]){e->rank, e->n_out, e->n_expert}, true);
    }
}

/* While a factor is made orthogonal: some tensors of its size. */
static uint64_t work(const firn_adapter *ad)
{
    int64_t most = 0;

    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        most = firn_max_i64(most, e->rank * e->n_expert * firn_max_i64(e->n_in, e->n_out));
    }
    return 4 * (uint64_t)most * sizeof(float);
}

const firn_optimizer_rule firn_optimizer_muon = {"muon", {FIRN_PARAMETERS_M}, 1, N_HYPER, fill, add, work};
