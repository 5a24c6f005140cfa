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
} counts;

/* The factor's gradient of an entry: n_expert slices of *slice floats. */
static const float *gradient_of(const firn_adapter_entry *e, const float *gradients, char factor, int64_t *slice)
{
    *slice = factor == 'a' ? e->n_in * e->rank : e->rank * e->n_out;
    return gradients + (factor == 'a' ? e->a : e->b);
}

/* Experts of all layers, and those of them that got no gradient in any of their tensors: no token reached them, or none
 * that bears on the loss. Entries of a layer follow each other. */
static int64_t experts_without(const firn_adapter *adapter, const float *gradients, char factor, int64_t *n_experts)
{
    int64_t without = 0;

    *n_experts = 0;
    for (int i = 0, end; i < adapter->n_entries; i = end) {
        int64_t n = 0;
        for (end = i; end < adapter->n_entries && adapter->entries[end].layer == adapter->entries[i].layer; end++)
            if (adapter->entries[end].class_ == FIRN_CLASS_EXPERTS)
                n = adapter->entries[end].n_expert;
        *n_experts += n;
        for (int64_t x = 0; x < n; x++) {
            bool zero = true;
            for (int k = i; k < end && zero; k++) {
                int64_t slice;
                const float *g = gradient_of(&adapter->entries[k], gradients, factor, &slice);
                if (adapter->entries[k].class_ == FIRN_CLASS_EXPERTS)
                    zero = all_zero(g + x * slice, slice);
            }
            without += zero;
        }
    }
    return without;
}

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
    int64_t slice;
    const float *g = gradient_of(e, gradients, factor, &slice);
    const int64_t n_expert = firn_model_get_info(model)->n_expert;
    const bool routed = e->class_ == FIRN_CLASS_EXPERTS;
    int64_t with = 0, reached = 0;

    for (int64_t x = 0; x < e->n_expert; x++) {
        with += !all_zero(g + x * slice, slice);
        reached += !routed || !load || load[e->layer * n_expert + x] > 0;
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
    firn_text_printf(found, "step %lld: %d of %d lora_%c tensors receive a gradient\n", (long long)step,
                     c.tensors - c.silent, c.tensors, factor);
    int64_t n_experts;
    const int64_t without = experts_without(adapter, gradients, factor, &n_experts);
    if (without)
        firn_text_printf(found, "%lld of %lld experts got no gradient this step; normal early on\n", (long long)without,
                         (long long)n_experts);
    firn_text_append(found, firn_text_cstr(&silent), silent.size);
    if (found->status == FIRN_OK)
        found->status = silent.status;
    firn_text_free(&silent);
    return c.unexplained;
}
