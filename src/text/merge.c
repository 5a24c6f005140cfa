/* Merging symbols to tokens, for all three models:
 *     BPE   the pair of lowest rank merges first, as the file's list of merges orders them
 *     SPM   the pair whose joined text is the token of highest score merges first
 * Ties go to the left. A heap holds (priority, left symbol); an entry whose symbol has changed since is passed over. */
#include "text/heap.h"
#include "text/vocab.h"

#include <string.h>

/* Order-preserving: a higher score is a smaller number. */
static uint32_t score_priority(float score)
{
    const float positive_zero = score + 0.0f;
    uint32_t bits;

    memcpy(&bits, &positive_zero, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7FFFFFFF;
}

static void consider(const firn_tokenizer *tok, const char *word, firn_symbol *symbols, uint32_t i, uint64_t *heap,
                     size_t *n_heap)
{
    firn_symbol *s = &symbols[i];

    s->product = -1;
    if (s->next == FIRN_NO_SYMBOL)
        return;
    const firn_symbol *right = &symbols[s->next];
    if (tok->model == FIRN_VOCAB_SPM) {
        if (s->n + right->n > tok->max_bytes)
            return;
        s->product = firn_vocab_text(tok, word + s->begin, s->n + right->n);
        if (s->product >= 0)
            s->priority = score_priority(tok->tokens[s->product].score);
    } else if (s->id >= 0 && right->id >= 0) {
        const firn_merge *m = firn_vocab_merge(tok, s->id, right->id);
        if (m) {
            s->product = m->product;
            s->priority = m->rank;
        }
    }
    if (s->product >= 0)
        firn_heap_push(heap, n_heap, firn_heap_key(s->priority, i));
}

void firn_merge_symbols(const firn_tokenizer *tok, const char *word, firn_symbol *symbols, size_t n, uint64_t *heap)
{
    size_t n_heap = 0;

    for (size_t i = 0; i < n; i++) {
        symbols[i].prev = i ? (uint32_t)i - 1 : FIRN_NO_SYMBOL;
        symbols[i].next = i + 1 < n ? (uint32_t)i + 1 : FIRN_NO_SYMBOL;
    }
    for (size_t i = 0; i < n; i++)
        consider(tok, word, symbols, (uint32_t)i, heap, &n_heap);
    while (n_heap > 0) {
        const uint64_t key = firn_heap_pop(heap, &n_heap);
        const uint32_t i = (uint32_t)key;
        firn_symbol *s = &symbols[i];
        if (s->product < 0 || s->priority != key >> 32)
            continue;
        firn_symbol *right = &symbols[s->next];
        s->id = s->product;
        s->n += right->n;
        s->width += right->width;
        s->next = right->next;
        right->product = -1;
        if (s->next != FIRN_NO_SYMBOL)
            symbols[s->next].prev = i;
        consider(tok, word, symbols, i, heap, &n_heap);
        if (s->prev != FIRN_NO_SYMBOL)
            consider(tok, word, symbols, s->prev, heap, &n_heap);
    }
}
