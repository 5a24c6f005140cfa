/* Which tensors receive a gradient: see proof.h.
 *
 * A slice of a tensor (an expert; the whole of a dense one) counts as reached when one of its gradients is not exactly
 * zero. Expected zeros:
 *     an expert that no token chose; or only tokens that no target depends on
 *     the router over identical experts (just upcycled): whichever it chooses, the result is the same
 *     lora_a where lora_b is still zero, for one of these reasons */
#include "train/proof.h"

#include <stdio.h>
#include <string.h>

static bool all_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0)
            return false;
    return true;
}

/* Whether all experts of a layer hold the same bytes. */
static bool experts_identical(const firn_model *model, int layer)
{
    static const char *const kinds[] = {"gate", "up", "down"};
    char name[FIRN_MAX_NAME];
    bool any = false;

    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, kinds[k]);
        const firn_gguf_tensor *t = firn_gguf_find(firn_model_gguf(model), name);
        if (!t || t->ne[2] < 2)
            continue;
        const size_t one = t->size / (size_t)t->ne[2];
        for (int64_t e = 1; e < t->ne[2]; e++)
            if (memcmp(t->data, t->data + (size_t)e * one, one) != 0)
                return false;
        any = true;
    }
    return any;
}

typedef struct {
    int tensors, silent, unexplained;
    int64_t slices, unreached, idle; /* experts: of all, reached by no token, by none that bears on the loss */
} counts;

static const char *reason(const firn_model *model, const firn_adapter_entry *e, bool reached)
{
    if (e->class_ == FIRN_CLASS_EXPERTS)
        return reached ? NULL : "no token reached an expert of it";
    if (e->class_ == FIRN_CLASS_ROUTER && experts_identical(model, e->layer))
        return "the experts of its layer are identical, so that any choice gives the same";
    return NULL;
}

static void look_at(const firn_model *model, const firn_adapter_entry *e, const float *gradients, const int64_t *load,
                    char factor, counts *c, firn_text *silent)
{
    const int64_t slice = factor == 'a' ? e->n_in * e->rank : e->rank * e->n_out;
    const float *g = gradients + (factor == 'a' ? e->a : e->b);
    const int64_t n_expert = firn_model_get_info(model)->n_expert;
    const bool routed = e->class_ == FIRN_CLASS_EXPERTS;
    int64_t with = 0, reached = 0;

    for (int64_t x = 0; x < e->n_expert; x++) {
        const bool zero = all_zero(g + x * slice, slice);
        const bool chosen = !routed || !load || load[e->layer * n_expert + x] > 0;
        with += !zero;
        reached += chosen;
        if (routed) {
            c->slices++;
            c->unreached += !chosen;
            c->idle += chosen && zero;
        }
    }
    c->tensors++;
    if (with)
        return;
    const char *why = reason(model, e, reached > 0);
    c->silent++;
    c->unexplained += why == NULL;
    firn_text_printf(silent, "%s.lora_%c receives no gradient: %s\n", e->tensor, factor,
                     why ? why : "no reason is known; it is not trained");
}

int firn_proof(const firn_model *model, const firn_adapter *adapter, const float *gradients, const int64_t *load,
               char factor, int64_t step, firn_text *found)
{
    counts c = {0};
    firn_text silent;

    firn_text_init(&silent, adapter->ctx, 0);
    for (int i = 0; i < adapter->n_entries; i++)
        look_at(model, &adapter->entries[i], gradients, load, factor, &c, &silent);
    firn_text_printf(found, "step %lld: %d of %d lora_%c tensors receive a gradient", (long long)step,
                     c.tensors - c.silent, c.tensors, factor);
    if (c.unreached)
        firn_text_printf(found, "; of their %lld experts no token reached %lld", (long long)c.slices,
                         (long long)c.unreached);
    if (c.idle)
        firn_text_printf(found, "; %lld were reached only by tokens that do not bear on the loss", (long long)c.idle);
    firn_text_putc(found, '\n');
    firn_text_append(found, firn_text_cstr(&silent), silent.size);
    if (found->status == FIRN_OK)
        found->status = silent.status;
    firn_text_free(&silent);
    return c.unexplained;
}
