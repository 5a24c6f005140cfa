/* Where an adapter comes from: see origin.h. */
#include "train/origin.h"

#include "core/random.h"
#include "core/sha256.h"
#include "format/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMS = 64, SIGNS = 128, ROWS = 4, MOST_TURNED = SIGNS / 4 };

/* ---- the fingerprint ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const firn_gguf_tensor *const *)a)->name, (*(const firn_gguf_tensor *const *)b)->name);
}

/* Sorted, since files differ in their order; *norms is the caller's. Blocks that do not run are passed over: not every
 * file has them. */
static firn_status find_norms(firn_context *ctx, const firn_model *m, const firn_gguf_tensor ***norms, size_t *n)
{
    const size_t all = firn_gguf_n_tensors(m->gguf);
    firn_tensor_id id;
    int layer;
    bool bias;

    *n = 0;
    *norms = firn_alloc(ctx, all * sizeof(firn_gguf_tensor *));
    if (!*norms)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < all; i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->gguf, i);
        if (t->n_dims == 1 && strstr(t->name, "norm.weight") && firn_model_find(m, t->name, &layer, &id, &bias))
            (*norms)[(*n)++] = t;
    }
    qsort(*norms, *n, sizeof **norms, by_name);
    return FIRN_OK;
}

static firn_status hash_norms(firn_context *ctx, const firn_model *m, firn_sha256 *hash)
{
    const firn_gguf_tensor **norms;
    firn_status s = FIRN_OK;
    size_t n;

    FIRN_TRY(find_norms(ctx, m, &norms, &n));
    for (size_t i = 0; s == FIRN_OK && i < n; i++) {
        const firn_gguf_tensor *t = norms[i];
        float *x = firn_alloc(ctx, (size_t)t->ne[0] * sizeof *x);
        s = !x ? FIRN_ERR_MEMORY
            : firn_format_can_decode(t->type)
                ? FIRN_OK
                : firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s has type %s, which is no weight", t->name,
                            firn_type_name(t->type));
        if (s == FIRN_OK) {
            firn_decode_row(t->type, t->data, t->ne[0], x);
            firn_sha256_add(hash, t->name, strlen(t->name) + 1);
            firn_sha256_add(hash, x, (size_t)t->ne[0] * sizeof *x);
        }
        firn_free(ctx, x);
    }
    firn_free(ctx, norms);
    return s;
}

/* A model that has swallowed an adapter is not the one that it was. */
static void hash_merged(const firn_model *m, firn_sha256 *hash)
{
    const firn_kv *merged = firn_gguf_kv(m->gguf, "firn.merged");

    for (uint64_t i = 0; merged && merged->type == FIRN_KV_ARRAY && merged->strings && i < merged->n; i++)
        firn_sha256_add(hash, merged->strings[i].data, merged->strings[i].size);
}

static firn_status put_signs(firn_context *ctx, const firn_gguf_tensor *t, char *text)
{
    float *x = firn_alloc(ctx, (size_t)t->ne[0] * sizeof *x);

    if (!x)
        return FIRN_ERR_MEMORY;
    unsigned digit = 0;
    for (int i = 0; i < SIGNS; i++) {
        double sum = 0;
        for (int r = 0; r < ROWS; r++) {
            const uint64_t row = firn_random_below(0, (uint64_t)i, (uint64_t)r, (uint64_t)t->ne[1]);
            firn_decode_row(t->type, t->data + row * firn_row_bytes(t->type, t->ne[0]), t->ne[0], x);
            for (int64_t k = 0; k < t->ne[0]; k++)
                sum += firn_random(1, (uint64_t)(i * ROWS + r), (uint64_t)k) & 1 ? (double)x[k] : -(double)x[k];
        }
        digit = digit << 1 | (sum > 0);
        if (i % 4 == 3) {
            *text++ = "0123456789abcdef"[digit];
            digit = 0;
        }
    }
    *text = 0;
    firn_free(ctx, x);
    return FIRN_OK;
}

firn_status firn_model_fingerprint(firn_context *ctx, const firn_model *m, char *text)
{
    firn_sha256 hash;

    firn_sha256_init(&hash);
    firn_sha256_add(&hash, m->arch->name, strlen(m->arch->name) + 1);
    FIRN_TRY(hash_norms(ctx, m, &hash));
    hash_merged(m, &hash);
    firn_sha256_hex(&hash, text);
    text[NORMS] = ':';
    return put_signs(ctx, m->token_embd, text + NORMS + 1);
}

static int digit_of(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

bool firn_fingerprints_agree(const char *one, const char *other)
{
    int turned = 0;

    if (!*one || !*other)
        return true;
    if (strlen(one) != FIRN_FINGERPRINT_BYTES - 1 || strlen(other) != FIRN_FINGERPRINT_BYTES - 1 ||
        memcmp(one, other, NORMS + 1) != 0)
        return false;
    for (int i = NORMS + 1; i < FIRN_FINGERPRINT_BYTES - 1; i++) {
        const int a = digit_of(one[i]), b = digit_of(other[i]);
        if (a < 0 || b < 0)
            return false;
        for (int x = a ^ b; x; x &= x - 1)
            turned++;
    }
    return turned <= MOST_TURNED;
}

/* ---- the adapter's ---- */

firn_status firn_origin_set(firn_context *ctx, const firn_model *m, firn_adapter *ad)
{
    memset(&ad->origin, 0, sizeof ad->origin);
    snprintf(ad->origin.base_name, sizeof ad->origin.base_name, "%s", m->info.name);
    return firn_model_fingerprint(ctx, m, ad->origin.base_fingerprint);
}

static const char *named(const char *name)
{
    return *name ? name : "a model without a name";
}

firn_status firn_origin_expect(firn_context *ctx, const firn_model *m, const firn_adapter *ad)
{
    const firn_adapter_origin *o = &ad->origin;
    char is[FIRN_FINGERPRINT_BYTES];

    if (!*o->base_fingerprint)
        return FIRN_OK;
    FIRN_TRY(firn_model_fingerprint(ctx, m, is));
    if (firn_fingerprints_agree(o->base_fingerprint, is))
        return FIRN_OK;
    const bool norms = strncmp(is, o->base_fingerprint, NORMS) != 0 ||
                       strlen(o->base_fingerprint) != FIRN_FINGERPRINT_BYTES - 1; /* which part tells them apart */
    return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                     "the adapter was made for %s (fingerprint %.8s), and this model is %s (%.8s): its weights are "
                     "others, so that the adapter means nothing to it (--force takes it all the same)",
                     named(o->base_name), o->base_fingerprint + (norms ? 0 : NORMS + 1), named(m->info.name),
                     is + (norms ? 0 : NORMS + 1));
}

/* ---- keys ---- */

static const struct {
    const char *key;
    size_t at, size;
} fields[] = {
#define FIELD(key, name)                                                                                               \
    {                                                                                                                  \
        key, offsetof(firn_adapter_origin, name), sizeof(((firn_adapter_origin *)0)->name)                             \
    }
    FIELD("firn.base.name", base_name),
    FIELD("firn.base.fingerprint", base_fingerprint),
    FIELD("firn.version", version),
    FIELD("firn.data", data),
#undef FIELD
};

firn_status firn_origin_get(firn_context *ctx, const firn_gguf *g, firn_adapter_origin *o)
{
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        firn_string s = {NULL, 0};
        FIRN_TRY(firn_gguf_get_string(ctx, g, fields[i].key, false, &s));
        if (s.size)
            snprintf((char *)o + fields[i].at, fields[i].size, "%.*s", (int)firn_min_i64((int64_t)s.size, 1 << 16),
                     s.data);
    }
    return FIRN_OK;
}

firn_status firn_origin_put(firn_gguf_writer *w, const firn_adapter_origin *o)
{
    firn_adapter_origin now = *o;

    snprintf(now.version, sizeof now.version, "%s", firn_version());
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *text = (const char *)&now + fields[i].at;
        if (*text)
            FIRN_TRY(firn_gguf_put_string(w, fields[i].key, text, strlen(text)));
    }
    return FIRN_OK;
}
