/* Text to ids and back:
 *     special tokens are cut out of the text (special.c); each raw fragment between them is cut into words, by the
 *     pre-tokenizer (pretokenize.c) or before spaces that no token bridges; each word is merged to tokens (merge.c).
 * A word that came before in the same call is copied from where its ids lie already. */
#include "text/unicode.h"
#include "text/vocab.h"

#include <string.h>

/* ---- output ---- */

static firn_status reserve(firn_context *ctx, firn_tokens *out, size_t more)
{
    if (more <= out->capacity - out->n)
        return FIRN_OK;
    const size_t capacity = (out->n + more) * 2 < 32 ? 32 : (out->n + more) * 2;
    int32_t *ids = firn_realloc(ctx, out->ids, capacity * sizeof *ids);
    if (!ids)
        return FIRN_ERR_MEMORY;
    out->ids = ids;
    firn_token_span *spans = firn_realloc(ctx, out->spans, capacity * sizeof *spans);
    if (!spans)
        return FIRN_ERR_MEMORY;
    out->spans = spans;
    out->capacity = capacity;
    return FIRN_OK;
}

static firn_status append(firn_context *ctx, firn_tokens *out, int32_t id, size_t begin, size_t end)
{
    FIRN_TRY(reserve(ctx, out, 1));
    out->ids[out->n] = id;
    out->spans[out->n++] = (firn_token_span){(uint32_t)begin, (uint32_t)end};
    return FIRN_OK;
}

void firn_tokens_free(firn_context *ctx, firn_tokens *tokens)
{
    if (!ctx || !tokens)
        return;
    firn_free(ctx, tokens->ids);
    firn_free(ctx, tokens->spans);
    *tokens = (firn_tokens){0};
}

/* ---- words ---- */

/* A word of this call and where its tokens lie in the output. */
typedef struct {
    uint32_t at, n; /* bytes of the text; n 0: a free slot */
    uint32_t token, n_tokens;
} cached_word;

enum { CACHED_BYTES = 48, CACHE_SLOTS = 1 << 15 };

typedef struct {
    firn_context *ctx;
    const firn_tokenizer *tok;
    const char *text;
    size_t n, base; /* base: where the fragment begins that is cut into words */
    firn_tokens *out;
    firn_cutter *cutter;
    firn_symbol *symbols;
    uint64_t *heap;
    char *word; /* a word with its spaces written as U+2581, or in the byte alphabet */
    size_t symbols_capacity;
    cached_word *cache;
    size_t cache_mask;
    bool goes_on; /* FIRN_GOES_ON */
} encoder;

static firn_status room(encoder *e, size_t n)
{
    if (n <= e->symbols_capacity)
        return FIRN_OK;
    const size_t capacity = n < 256 ? 256 : n + n / 2;
    firn_free(e->ctx, e->symbols);
    firn_free(e->ctx, e->heap);
    firn_free(e->ctx, e->word);
    e->symbols_capacity = 0;
    e->symbols = firn_alloc(e->ctx, capacity * sizeof *e->symbols);
    e->heap = firn_alloc(e->ctx, 3 * capacity * sizeof *e->heap);
    e->word = firn_alloc(e->ctx, 4 * capacity);
    if (!e->symbols || !e->heap || !e->word)
        return FIRN_ERR_MEMORY;
    e->symbols_capacity = capacity;
    return FIRN_OK;
}

/* The word's slot; *hit true: it came before, and has been copied. NULL: this word is not kept. */
static firn_status recall(encoder *e, size_t begin, size_t n, cached_word **slot, bool *hit)
{
    *slot = NULL;
    *hit = false;
    if (!e->cache || n > CACHED_BYTES)
        return FIRN_OK;
    cached_word *w = &e->cache[firn_secret_hash(&e->tok->secret, e->text + begin, n) & e->cache_mask];
    *slot = w;
    if (w->n != n || memcmp(e->text + w->at, e->text + begin, n) != 0)
        return FIRN_OK;
    FIRN_TRY(reserve(e->ctx, e->out, w->n_tokens));
    for (uint32_t i = 0; i < w->n_tokens; i++) {
        const firn_token_span s = e->out->spans[w->token + i];
        e->out->ids[e->out->n] = e->out->ids[w->token + i];
        e->out->spans[e->out->n++] =
            (firn_token_span){(uint32_t)(begin + s.begin - w->at), (uint32_t)(begin + s.end - w->at)};
    }
    *hit = true;
    return FIRN_OK;
}

static void keep(const encoder *e, cached_word *slot, size_t begin, size_t n, size_t first)
{
    if (slot)
        *slot = (cached_word){(uint32_t)begin, (uint32_t)n, (uint32_t)first, (uint32_t)(e->out->n - first)};
}

/* True when the byte at `at` belongs to no well-formed character. */
static bool is_broken(const encoder *e, size_t at)
{
    for (size_t back = 0; back < 4 && back <= at; back++) {
        uint32_t code;
        const size_t n = firn_utf8_decode(e->text + at - back, e->n - (at - back), &code);
        if (code != UINT32_MAX && n > back)
            return false;
    }
    return true;
}

/* ---- byte-level BPE ---- */

static firn_status merge_bytes(encoder *e, size_t begin, size_t end)
{
    const firn_tokenizer *tok = e->tok;
    const size_t n = end - begin;
    const char *bytes = e->text + begin;

    FIRN_TRY(room(e, n));
    if ((tok->pre_flags & FIRN_PRE_IGNORE_MERGES) && n <= tok->max_bytes) {
        size_t length = 0;
        for (size_t i = 0; i < n; i++)
            length += firn_vocab_alphabet((uint8_t)bytes[i], e->word + length);
        const int32_t id = firn_vocab_text(tok, e->word, length);
        if (id >= 0)
            return append(e->ctx, e->out, id, begin, end);
    }
    for (size_t i = 0; i < n; i++)
        e->symbols[i] = (firn_symbol){.begin = (uint32_t)i, .n = 1, .width = 1, .id = tok->byte_ids[(uint8_t)bytes[i]]};
    firn_merge_symbols(tok, bytes, e->symbols, n, e->heap);
    for (uint32_t i = 0; i != FIRN_NO_SYMBOL; i = e->symbols[i].next) {
        const firn_symbol *s = &e->symbols[i];
        const size_t at = begin + s->begin;
        if (s->id >= 0)
            FIRN_TRY(append(e->ctx, e->out, s->id, at, at + s->n));
        else if (is_broken(e, at))
            for (int j = 0; j < tok->n_replacement; j++)
                FIRN_TRY(append(e->ctx, e->out, tok->replacement[j], at + (j > 0), at + 1));
    }
    return FIRN_OK;
}

static firn_status byte_word(void *argument, size_t begin, size_t end)
{
    encoder *e = argument;
    cached_word *slot;
    bool hit;

    begin += e->base;
    end += e->base;
    FIRN_TRY(recall(e, begin, end - begin, &slot, &hit));
    if (hit)
        return FIRN_OK;
    const size_t first = e->out->n;
    FIRN_TRY(merge_bytes(e, begin, end));
    keep(e, slot, begin, end - begin, first);
    return FIRN_OK;
}

/* ---- models that write spaces as U+2581 ---- */

/* A character without a token: byte tokens, or U+FFFD for a byte that is not UTF-8, or the unknown token. */
static firn_status spell(encoder *e, const firn_symbol *s, size_t at)
{
    const firn_tokenizer *tok = e->tok;
    const char *bytes = e->word + s->begin;
    bool all = true;

    for (uint32_t i = 0; i < s->n; i++)
        all &= tok->byte_ids[(uint8_t)bytes[i]] >= 0;
    if (all) {
        for (uint32_t i = 0; i < s->n; i++)
            FIRN_TRY(append(e->ctx, e->out, tok->byte_ids[(uint8_t)bytes[i]], at + (i < s->width ? i : s->width),
                            at + (i + 1 < s->width ? i + 1 : s->width)));
        return FIRN_OK;
    }
    int32_t id = s->n == 1 && is_broken(e, at) ? firn_vocab_text(tok, "\xEF\xBF\xBD", 3) : -1;
    id = id < 0 ? tok->unknown : id;
    return id < 0 ? FIRN_OK : append(e->ctx, e->out, id, at, at + s->width);
}

static firn_status merge_characters(encoder *e, size_t begin, size_t end, bool prefix)
{
    size_t n = 0, length = 0;

    FIRN_TRY(room(e, end - begin + 1));
    for (size_t i = begin; i < end || prefix; prefix = false) {
        uint32_t code;
        const bool space = prefix || e->text[i] == ' ';
        const char *bytes = space ? FIRN_SPACE_MARK : e->text + i;
        const size_t width = prefix ? 0 : firn_utf8_decode(e->text + i, end - i, &code), count = space ? 3 : width;
        memcpy(e->word + length, bytes, count);
        e->symbols[n++] = (firn_symbol){.begin = (uint32_t)length,
                                        .n = (uint32_t)count,
                                        .width = (uint32_t)width,
                                        .id = firn_vocab_text(e->tok, bytes, count)};
        length += count;
        i += width;
    }
    firn_merge_symbols(e->tok, e->word, e->symbols, n, e->heap);
    for (uint32_t i = 0; i != FIRN_NO_SYMBOL; i = e->symbols[i].next) {
        const firn_symbol *s = &e->symbols[i];
        FIRN_TRY(s->id >= 0 ? append(e->ctx, e->out, s->id, begin, begin + s->width) : spell(e, s, begin));
        begin += s->width;
    }
    return FIRN_OK;
}

/* Where the word ends that begins at `begin`: before a space that no token joins with what stands in front of it, and
 * in gemma4 where newlines begin or end. */
static size_t word_end(const encoder *e, size_t begin, size_t end)
{
    const bool lines = e->tok->model == FIRN_VOCAB_GEMMA4;

    for (size_t i = begin + 1; i < end; i++) {
        const char c = e->text[i], before = e->text[i - 1];
        if (lines && (c == '\n') != (before == '\n'))
            return i;
        const bool space = c == ' ' || (c == '\xE2' && end - i >= 3 && memcmp(e->text + i, FIRN_SPACE_MARK, 3) == 0);
        if (space && !e->tok->joins[before == ' ' ? 0x81 : (uint8_t)before])
            return i;
    }
    return end;
}

static firn_status spaced_fragment(encoder *e, size_t begin, size_t end)
{
    for (size_t i = begin, next; i < end; i = next) {
        const bool prefix = i == begin && e->tok->add_space_prefix && !(e->goes_on && begin == 0);
        cached_word *slot = NULL;
        bool hit = false;
        next = word_end(e, i, end);
        if (!prefix)
            FIRN_TRY(recall(e, i, next - i, &slot, &hit));
        if (hit)
            continue;
        const size_t first = e->out->n;
        FIRN_TRY(merge_characters(e, i, next, prefix));
        keep(e, slot, i, next - i, first);
    }
    return FIRN_OK;
}

/* ---- all of it ---- */

static firn_status fragment(encoder *e, size_t begin, size_t end)
{
    if (begin == end)
        return FIRN_OK;
    if (e->tok->model != FIRN_VOCAB_GPT2)
        return spaced_fragment(e, begin, end);
    e->base = begin;
    return firn_cut(e->cutter, e->text + begin, end - begin, byte_word, e);
}

static firn_status encode(encoder *e, unsigned flags, const firn_special_match *matches, size_t n_matches)
{
    const firn_tokenizer *tok = e->tok;
    size_t at = 0;

    if ((flags & FIRN_ADD_SPECIAL) && firn_tokenizer_adds_bos(tok)) {
        const bool there = n_matches && matches[0].begin == 0 && matches[0].id == tok->bos;
        if (!there || !(flags & FIRN_BOS_ONCE))
            FIRN_TRY(append(e->ctx, e->out, tok->bos, 0, 0));
    }
    for (size_t i = 0; i < n_matches; i++) {
        FIRN_TRY(fragment(e, at, matches[i].begin));
        FIRN_TRY(append(e->ctx, e->out, matches[i].id, matches[i].begin, matches[i].text_end));
        at = matches[i].end;
    }
    FIRN_TRY(fragment(e, at, e->n));
    if ((flags & FIRN_ADD_SPECIAL) && firn_tokenizer_adds_eos(tok))
        FIRN_TRY(append(e->ctx, e->out, tok->eos, e->n, e->n));
    return FIRN_OK;
}

firn_status firn_tokenize(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, unsigned flags,
                          firn_tokens *out)
{
    FIRN_GIVEN(ctx, ctx, tok, out);
    encoder e = {.ctx = ctx, .tok = tok, .text = text, .n = n, .out = out, .goes_on = (flags & FIRN_GOES_ON) != 0};
    firn_special_match *matches = NULL;
    size_t n_matches = 0, slots = 64;

    FIRN_EXPECT(ctx, text || n == 0, "text is NULL for no bytes only");
    FIRN_EXPECT(ctx, n < UINT32_MAX, "text of %zu bytes to tokenize, expected less than 4 GiB", n);
    out->n = 0;
    FIRN_TRY(reserve(ctx, out, n / 3 + 8));
    firn_status status = firn_specials_find(ctx, tok, text, n, (flags & FIRN_PARSE_SPECIAL) != 0, &matches, &n_matches);
    while (slots < n / 8 && slots < CACHE_SLOTS)
        slots *= 2;
    if (status == FIRN_OK && n > slots) {
        e.cache = firn_alloc_zeroed(ctx, slots, sizeof *e.cache);
        e.cache_mask = slots - 1;
        status = e.cache ? FIRN_OK : FIRN_ERR_MEMORY;
    }
    if (status == FIRN_OK && tok->pre)
        status = firn_cutter_create(ctx, tok->pre, &e.cutter);
    if (status == FIRN_OK)
        status = encode(&e, flags, matches, n_matches);
    firn_cutter_destroy(e.cutter);
    firn_free(ctx, e.cache);
    firn_free(ctx, e.symbols);
    firn_free(ctx, e.heap);
    firn_free(ctx, e.word);
    firn_free(ctx, matches);
    return status;
}

const char *firn_token_piece(const firn_tokenizer *tok, int32_t id, bool *after_special, size_t *n)
{
    if (!after_special || !n)
        return NULL;
    *n = 0;
    if (!tok || id < 0 || id >= tok->n)
        return NULL;
    const firn_token *t = &tok->tokens[id];
    const bool skip = *after_special && tok->add_space_prefix && !t->special && t->n_bytes && t->bytes[0] == ' ' &&
                      t->type != FIRN_TOKEN_BYTE;
    *after_special = t->special;
    *n = t->n_bytes - skip;
    return t->bytes + skip;
}

firn_status firn_detokenize(firn_context *ctx, const firn_tokenizer *tok, const int32_t *ids, size_t n, firn_text *out)
{
    bool after_special = true;

    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *piece = firn_token_piece(tok, ids[i], &after_special, &length);
        FIRN_EXPECT(ctx, piece, "token id %d is outside the vocabulary of %d tokens", (int)ids[i], (int)tok->n);
        firn_text_append(out, piece, length);
    }
    return out->status;
}

firn_status firn_tokens_text(firn_context *ctx, const firn_tokenizer *tok, const int32_t *ids, size_t n, char *out,
                             size_t capacity, size_t *size)
{
    FIRN_GIVEN(ctx, ctx, tok, size);
    bool after_special = true;

    FIRN_EXPECT(ctx, (ids || n == 0) && (out || capacity == 0), "ids and out are NULL for no ids and no bytes only");
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *piece = firn_token_piece(tok, ids[i], &after_special, &length);
        FIRN_EXPECT(ctx, piece, "token id %d is outside the vocabulary of %d tokens", (int)ids[i], (int)tok->n);
        if (*size < capacity)
            memcpy(out + *size, piece, length < capacity - *size ? length : capacity - *size);
        *size += length;
    }
    return FIRN_OK;
}
