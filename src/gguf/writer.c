/* The GGUF writer: keys and tensor descriptions are gathered in memory, then the file streams out in one pass, since
 * every offset follows from the descriptions. */
#include "core/arena.h"
#include "core/buffer.h"
#include "core/file.h"
#include "gguf/gguf.h"
#include "gguf/index.h"

#include <inttypes.h>
#include <string.h>

typedef struct {
    char *key;
    firn_text value; /* as in the file: type, then the value */
} out_key;

typedef struct {
    char *name;
    firn_type type;
    int n_dims;
    int64_t ne[FIRN_MAX_DIMS];
    size_t size;
} out_tensor;

struct firn_gguf_writer {
    firn_context *ctx;
    out_key *keys;
    size_t n_keys, keys_capacity;
    out_tensor *tensors;
    size_t n_tensors, tensors_capacity;
    firn_out *out;    /* NULL before begin */
    size_t at;        /* the tensor whose bytes come next */
    size_t remaining; /* of that tensor */
};

firn_status firn_gguf_writer_create(firn_context *ctx, firn_gguf_writer **writer)
{
    FIRN_GIVEN(ctx, ctx, writer);
    *writer = firn_alloc_zeroed(ctx, 1, sizeof **writer);
    if (!*writer)
        return FIRN_ERR_MEMORY;
    (*writer)->ctx = ctx;
    return FIRN_OK;
}

void firn_gguf_writer_destroy(firn_gguf_writer *w)
{
    if (!w)
        return;
    firn_out_abort(w->out);
    for (size_t i = 0; i < w->n_keys; i++) {
        firn_free(w->ctx, w->keys[i].key);
        firn_text_free(&w->keys[i].value);
    }
    for (size_t i = 0; i < w->n_tensors; i++)
        firn_free(w->ctx, w->tensors[i].name);
    firn_free(w->ctx, w->keys);
    firn_free(w->ctx, w->tensors);
    firn_free(w->ctx, w);
}

/* ---- keys ---- */

static void put_u32(firn_text *text, uint32_t value)
{
    firn_text_append(text, &value, sizeof value);
}

static void put_u64(firn_text *text, uint64_t value)
{
    firn_text_append(text, &value, sizeof value);
}

static void put_bytes(firn_text *text, const void *data, size_t size)
{
    put_u64(text, size);
    firn_text_append(text, data, size);
}

/* Where the file's own layout is said; this writer decides it, whatever a copied key says. */
static bool is_layout(const char *key)
{
    return strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0;
}

static out_key *find_key(const firn_gguf_writer *w, const char *key)
{
    for (size_t i = 0; i < w->n_keys; i++)
        if (strcmp(w->keys[i].key, key) == 0)
            return &w->keys[i];
    return NULL;
}

/* Every put comes here: a value of `n` elements, in an array or alone. */
static firn_status put(firn_gguf_writer *w, const char *key, bool array, firn_kv_type type, uint64_t n,
                       const void *data, const firn_string *strings)
{
    const size_t size = firn_kv_size(type);
    size_t bytes = 0;
    firn_text value;

    FIRN_EXPECT(w->ctx, !w->out, "key '%s' comes after the file was begun", key);
    FIRN_EXPECT(w->ctx, key[0] && strlen(key) <= GGUF_MAX_NAME, "a key has 1 to %d bytes, not %zu", GGUF_MAX_NAME,
                strlen(key));
    FIRN_EXPECT(w->ctx, size || type == FIRN_KV_STRING, "key '%s' has values of type %d, neither fixed-size nor string",
                key, (int)type);
    FIRN_EXPECT(w->ctx, n <= SIZE_MAX && firn_mul_size(size, (size_t)n, &bytes), "key '%s' has %" PRIu64 " values", key,
                n);
    FIRN_EXPECT(w->ctx, n == 0 || (type == FIRN_KV_STRING ? (const void *)strings : data),
                "key '%s' has no values: null", key);
    for (uint64_t i = 0; type == FIRN_KV_STRING && i < n; i++)
        FIRN_EXPECT(w->ctx, strings[i].data || strings[i].size == 0, "text %" PRIu64 " of key '%s' is null", i, key);
    if (is_layout(key))
        return FIRN_OK;
    firn_text_init(&value, w->ctx, 0);
    put_u32(&value, array ? FIRN_KV_ARRAY : type);
    if (array) {
        put_u32(&value, type);
        put_u64(&value, n);
    }
    if (type == FIRN_KV_STRING)
        for (uint64_t i = 0; i < n; i++)
            put_bytes(&value, strings[i].data, strings[i].size);
    else
        firn_text_append(&value, data, bytes);
    out_key *old = find_key(w, key);
    firn_status s = value.status;
    if (s == FIRN_OK && !old) {
        char *copy = NULL;
        s = firn_grow(w->ctx, (void **)&w->keys, w->n_keys, &w->keys_capacity, sizeof *w->keys);
        if (s == FIRN_OK && !(copy = firn_strdup(w->ctx, key)))
            s = FIRN_ERR_MEMORY;
        if (s == FIRN_OK) {
            old = &w->keys[w->n_keys++];
            old->key = copy;
            firn_text_init(&old->value, w->ctx, 0);
        }
    }
    if (s != FIRN_OK) {
        firn_text_free(&value);
        return s;
    }
    firn_text_free(&old->value);
    old->value = value;
    return FIRN_OK;
}

firn_status firn_gguf_put_u32(firn_gguf_writer *w, const char *key, uint32_t value)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    return put(w, key, false, FIRN_KV_U32, 1, &value, NULL);
}

firn_status firn_gguf_put_f32(firn_gguf_writer *w, const char *key, float value)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    return put(w, key, false, FIRN_KV_F32, 1, &value, NULL);
}

firn_status firn_gguf_put_bool(firn_gguf_writer *w, const char *key, bool value)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    const uint8_t byte = value;

    return put(w, key, false, FIRN_KV_BOOL, 1, &byte, NULL);
}

firn_status firn_gguf_put_string(firn_gguf_writer *w, const char *key, const char *value, size_t size)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    return put(w, key, false, FIRN_KV_STRING, 1, NULL, &(firn_string){value, size});
}

firn_status firn_gguf_put_array(firn_gguf_writer *w, const char *key, firn_kv_type element, const void *data,
                                uint64_t n)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    FIRN_EXPECT(w->ctx, firn_kv_size(element), "key '%s' is an array of type %d, not of a fixed-size one", key,
                (int)element);
    return put(w, key, true, element, n, data, NULL);
}

firn_status firn_gguf_put_strings(firn_gguf_writer *w, const char *key, const firn_string *strings, uint64_t n)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, key);
    return put(w, key, true, FIRN_KV_STRING, n, NULL, strings);
}

firn_status firn_gguf_put_kv(firn_gguf_writer *w, const firn_kv *kv)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, kv);
    FIRN_GIVEN(w->ctx, kv->key);
    return put(w, kv->key, kv->type == FIRN_KV_ARRAY, kv->element, kv->n, kv->data, kv->strings);
}

void firn_gguf_remove(firn_gguf_writer *w, const char *key)
{
    if (!w || !key)
        return;
    out_key *k = find_key(w, key);

    if (!k)
        return;
    firn_free(w->ctx, k->key);
    firn_text_free(&k->value);
    memmove(k, k + 1, (size_t)(w->keys + --w->n_keys - k) * sizeof *k);
}

/* ---- tensors ---- */

firn_status firn_gguf_add_tensor(firn_gguf_writer *w, const char *name, firn_type type, int n_dims, const int64_t *ne)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, name, ne);
    out_tensor t = {.type = type, .n_dims = n_dims, .ne = {1, 1, 1, 1}};

    FIRN_EXPECT(w->ctx, !w->out, "tensor '%s' comes after the file was begun", name);
    FIRN_EXPECT(w->ctx, name[0] && strlen(name) < GGUF_LLAMA_NAME,
                "a tensor name has 1 to %d bytes, '%s' has %zu (llama.cpp would refuse the file)", GGUF_LLAMA_NAME - 1,
                name, strlen(name));
    FIRN_EXPECT(w->ctx, n_dims >= 1 && n_dims <= FIRN_MAX_DIMS, "tensor '%s' has %d dimensions, not 1 to %d", name,
                n_dims, FIRN_MAX_DIMS);
    FIRN_EXPECT(w->ctx, firn_type_name(type), "tensor '%s' has type %d, which is not known here", name, (int)type);
    for (int d = 0; d < n_dims; d++)
        t.ne[d] = ne[d];
    t.size = firn_tensor_bytes(type, t.ne);
    FIRN_EXPECT(w->ctx, t.size,
                "tensor '%s' of type %s cannot have the shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                name, firn_type_name(type), t.ne[0], t.ne[1], t.ne[2], t.ne[3]);
    FIRN_TRY(firn_grow(w->ctx, (void **)&w->tensors, w->n_tensors, &w->tensors_capacity, sizeof *w->tensors));
    t.name = firn_strdup(w->ctx, name);
    if (!t.name)
        return FIRN_ERR_MEMORY;
    w->tensors[w->n_tensors++] = t;
    return FIRN_OK;
}

static uint64_t aligned(uint64_t n)
{
    return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static const char *tensor_name(const void *items, size_t i)
{
    return ((const out_tensor *)items)[i].name;
}

static firn_status check_names(firn_gguf_writer *w)
{
    firn_arena arena;
    firn_index index;

    firn_arena_init(&arena, w->ctx, 0);
    firn_status s = firn_index_init(&index, &arena, tensor_name, w->tensors, w->n_tensors);
    for (size_t i = 0; s == FIRN_OK && i < w->n_tensors; i++)
        if (firn_index_add(&index, i) != FIRN_INDEX_NONE)
            s = firn_fail(w->ctx, FIRN_ERR_ARGUMENT, "tensor '%s' was added twice", w->tensors[i].name);
    firn_arena_clear(&arena);
    return s;
}

/* Header, keys, tensor table; *total is the whole file's size. */
static firn_status build_header(firn_gguf_writer *w, firn_text *text, uint64_t *total)
{
    uint64_t offset = 0;

    firn_text_append(text, "GGUF", 4);
    put_u32(text, GGUF_VERSION);
    put_u64(text, w->n_tensors);
    put_u64(text, w->n_keys);
    for (size_t i = 0; i < w->n_keys; i++) {
        put_bytes(text, w->keys[i].key, strlen(w->keys[i].key));
        firn_text_append(text, w->keys[i].value.data, w->keys[i].value.size);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const out_tensor *t = &w->tensors[i];
        put_bytes(text, t->name, strlen(t->name));
        put_u32(text, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            put_u64(text, (uint64_t)t->ne[d]);
        put_u32(text, (uint32_t)t->type);
        put_u64(text, offset);
        if (t->size > INT64_MAX - GGUF_ALIGNMENT - offset)
            return firn_fail(w->ctx, FIRN_ERR_ARGUMENT, "the file would have more than 2^63 bytes");
        offset += aligned(t->size);
    }
    *total = aligned(text->size) + offset;
    return text->status;
}

static firn_status pad(firn_gguf_writer *w)
{
    static const uint8_t zeros[GGUF_ALIGNMENT];
    const uint64_t at = firn_out_offset(w->out);

    return firn_out_write(w->out, zeros, (size_t)(aligned(at) - at));
}

firn_status firn_gguf_writer_begin(firn_gguf_writer *w, const char *path)
{
    FIRN_GIVEN(w ? w->ctx : NULL, w, path);
    uint64_t total = 0, room = 0;
    firn_text header;

    FIRN_EXPECT(w->ctx, !w->out, "the file was begun twice");
    FIRN_TRY(check_names(w));
    firn_text_init(&header, w->ctx, 0);
    firn_status s = build_header(w, &header, &total);
    if (s == FIRN_OK)
        s = firn_file_space(w->ctx, path, &room);
    if (s == FIRN_OK && total > room)
        s = firn_fail(w->ctx, FIRN_ERR_IO,
                      "cannot write %s: it takes %" PRIu64 " bytes, and %" PRIu64 " are free on its file system", path,
                      total, room);
    if (s == FIRN_OK)
        s = firn_out_open(w->ctx, path, &w->out);
    if (s == FIRN_OK)
        s = firn_out_write(w->out, header.data, header.size);
    if (s == FIRN_OK)
        s = pad(w);
    firn_text_free(&header);
    w->remaining = w->n_tensors ? w->tensors[0].size : 0;
    return s;
}

firn_status firn_gguf_writer_data(firn_gguf_writer *w, const void *data, size_t size)
{
    FIRN_GIVEN(NULL, w);
    const uint8_t *bytes = data;

    FIRN_EXPECT(w->ctx, data || size == 0, "firn_gguf_writer_data: data must not be null");
    FIRN_EXPECT(w->ctx, w->out, "tensor data comes before the file was begun");
    while (size) {
        FIRN_EXPECT(w->ctx, w->at < w->n_tensors, "%zu bytes come after the last tensor", size);
        const size_t n = size < w->remaining ? size : w->remaining;
        FIRN_TRY(firn_out_write(w->out, bytes, n));
        bytes += n;
        size -= n;
        w->remaining -= n;
        if (w->remaining == 0) {
            FIRN_TRY(pad(w));
            w->at++;
            w->remaining = w->at < w->n_tensors ? w->tensors[w->at].size : 0;
        }
    }
    return FIRN_OK;
}

firn_status firn_gguf_writer_copy(firn_gguf_writer *w, const firn_gguf *in, const firn_gguf_tensor *t)
{
    enum { PIECE = 1 << 20 };

    for (size_t at = 0; at < t->size;) {
        const size_t n = t->size - at < PIECE ? t->size - at : PIECE;
        FIRN_TRY(firn_gguf_writer_data(w, t->data + at, n));
        firn_gguf_release(in, t);
        at += n;
    }
    return FIRN_OK;
}

firn_status firn_gguf_writer_finish(firn_gguf_writer *w)
{
    FIRN_GIVEN(NULL, w);
    FIRN_EXPECT(w->ctx, w->out, "the file was not begun");
    FIRN_EXPECT(w->ctx, w->at == w->n_tensors, "tensor '%s' lacks %zu of its %zu bytes", w->tensors[w->at].name,
                w->remaining, w->tensors[w->at].size);
    firn_out *out = w->out;
    w->out = NULL;
    return firn_out_commit(out);
}
