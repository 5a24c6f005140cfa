/* The GGUF reader: maps, walks the header once with a bounds-checked cursor, indexes keys and tensors.
 *
 * Nothing is allocated on the word of a count: a count is first compared with the bytes that are left, since each thing
 * counted takes some. Every failure is one sentence that names the file, the thing and the numbers. */
#include "core/arena.h"
#include "core/file.h"
#include "gguf/gguf.h"
#include "gguf/index.h"
#include "gguf/other.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One file of a split model, or the only one. */
typedef struct {
    firn_map map;
    bool mapped; /* by us */
    firn_kv *kv;
    size_t n_kv;
    firn_index kv_index;
    firn_gguf_tensor *tensors;
    size_t n_tensors;
    uint32_t version;
    size_t header;    /* bytes before the padding */
    size_t data;      /* where tensor data begins */
    size_t alignment; /* of tensor data */
} gguf_part;

struct firn_gguf {
    firn_context *ctx; /* for memory only: errors go to the caller's */
    firn_arena arena;
    gguf_part *parts;
    size_t n_parts;
    firn_gguf_tensor *tensors; /* of all parts */
    size_t n_tensors;
    firn_index tensor_index;
    uint64_t bytes;
};

/* ---- the cursor ---- */

typedef struct {
    firn_context *ctx;
    const uint8_t *data;
    size_t size, at;
} cursor;

/* A name from the file as a sentence may show it: printable, cut. */
typedef struct {
    char text[72];
} shown;

static shown show(const char *name, size_t n)
{
    enum { CUT = 64 };
    shown s;
    size_t i = 0;

    for (; i < n && i < CUT; i++)
        s.text[i] = name[i] >= 0x20 && name[i] < 0x7F ? name[i] : '?';
    s.text[i] = 0;
    if (n > CUT)
        strcpy(s.text + CUT, "...");
    return s;
}

static shown show_name(const char *name)
{
    return show(name, strlen(name));
}

/* The next n bytes, or NULL with the sentence. `of` is what the bytes belong to; it may be empty. */
static const uint8_t *take(cursor *c, uint64_t n, const char *what, const char *of)
{
    const size_t left = c->size - c->at;

    if (n > left) {
        firn_fail(c->ctx, FIRN_ERR_FORMAT,
                  "the file is truncated: %s%s%s%s takes %" PRIu64 " bytes at offset %zu, the file has %zu left", what,
                  of[0] ? " '" : "", of, of[0] ? "'" : "", n, c->at, left);
        return NULL;
    }
    const uint8_t *p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

static bool take_u32(cursor *c, const char *what, const char *of, uint32_t *value)
{
    const uint8_t *p = take(c, sizeof *value, what, of);

    if (p)
        memcpy(value, p, sizeof *value);
    return p;
}

static bool take_u64(cursor *c, const char *what, const char *of, uint64_t *value)
{
    const uint8_t *p = take(c, sizeof *value, what, of);

    if (p)
        memcpy(value, p, sizeof *value);
    return p;
}

static bool take_string(cursor *c, const char *what, const char *of, firn_string *value)
{
    uint64_t n;

    if (!take_u64(c, what, of, &n))
        return false;
    const uint8_t *p = take(c, n, what, of);
    *value = (firn_string){(const char *)p, (size_t)n};
    return p;
}

/* A key or tensor name: a copy with a NUL behind it, and none inside. */
static firn_status take_name(cursor *c, firn_arena *arena, const char *what, const char **name)
{
    firn_string s;

    if (!take_string(c, what, "", &s))
        return FIRN_ERR_FORMAT;
    if (s.size > GGUF_MAX_NAME)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "%s '%s' has %zu bytes, more than the %d that are allowed", what,
                         show(s.data, s.size).text, s.size, GGUF_MAX_NAME);
    if (memchr(s.data, 0, s.size))
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "%s '%s' has a zero byte in it", what, show(s.data, s.size).text);
    *name = firn_arena_text(arena, s.data, s.size);
    return *name ? FIRN_OK : FIRN_ERR_MEMORY;
}

/* ---- keys ---- */

static const struct {
    const char *name;
    size_t size;
} kv_types[] = {
    [FIRN_KV_U8] = {"u8", 1},       [FIRN_KV_I8] = {"i8", 1},     [FIRN_KV_U16] = {"u16", 2},
    [FIRN_KV_I16] = {"i16", 2},     [FIRN_KV_U32] = {"u32", 4},   [FIRN_KV_I32] = {"i32", 4},
    [FIRN_KV_F32] = {"f32", 4},     [FIRN_KV_BOOL] = {"bool", 1}, [FIRN_KV_STRING] = {"string", 0},
    [FIRN_KV_ARRAY] = {"array", 0}, [FIRN_KV_U64] = {"u64", 8},   [FIRN_KV_I64] = {"i64", 8},
    [FIRN_KV_F64] = {"f64", 8},
};

size_t firn_kv_size(firn_kv_type type)
{
    return (unsigned)type < sizeof kv_types / sizeof *kv_types ? kv_types[type].size : 0;
}

const char *firn_kv_type_name(firn_kv_type type)
{
    return (unsigned)type < sizeof kv_types / sizeof *kv_types ? kv_types[type].name : NULL;
}

static firn_status take_type(cursor *c, const char *key, const char *what, firn_kv_type *type)
{
    uint32_t number;

    if (!take_u32(c, what, key, &number))
        return FIRN_ERR_FORMAT;
    *type = (firn_kv_type)number;
    if (number > FIRN_KV_F64)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "%s '%s' is %" PRIu32 ", and the types end at %d", what, key, number,
                         FIRN_KV_F64);
    return FIRN_OK;
}

static firn_status take_values(cursor *c, firn_arena *arena, const char *key, firn_kv *kv)
{
    const bool array = kv->type == FIRN_KV_ARRAY;

    if (array) {
        FIRN_TRY(take_type(c, key, "the element type of key", &kv->element));
        if (kv->element == FIRN_KV_ARRAY)
            return firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED, "key '%s' is an array of arrays, which is not read", key);
        if (!take_u64(c, "the length of key", key, &kv->n))
            return FIRN_ERR_FORMAT;
    } else {
        kv->element = kv->type;
        kv->n = 1;
    }
    const size_t left = c->size - c->at;
    const size_t least = kv->element == FIRN_KV_STRING ? sizeof(uint64_t) : firn_kv_size(kv->element);
    if (kv->n > left / least)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT,
                         "the file is truncated: key '%s' has %" PRIu64 " values of at least %zu bytes at offset %zu, "
                         "the file has %zu bytes left",
                         key, kv->n, least, c->at, left);
    if (kv->element != FIRN_KV_STRING) {
        kv->data = take(c, kv->n * least, "the value of key", key);
        return FIRN_OK;
    }
    firn_string *strings = firn_arena_zeroed(arena, (size_t)kv->n, sizeof *strings);
    if (!strings)
        return FIRN_ERR_MEMORY;
    for (uint64_t i = 0; i < kv->n; i++)
        if (!take_string(c, array ? "a string of key" : "the value of key", key, &strings[i]))
            return FIRN_ERR_FORMAT;
    kv->strings = strings;
    return FIRN_OK;
}

static const char *kv_name(const void *items, size_t i)
{
    return ((const firn_kv *)items)[i].key;
}

static firn_status read_keys(cursor *c, firn_arena *arena, gguf_part *part)
{
    part->kv = firn_arena_zeroed(arena, part->n_kv, sizeof *part->kv);
    if (!part->kv)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_index_init(&part->kv_index, arena, kv_name, part->kv, part->n_kv));
    for (size_t i = 0; i < part->n_kv; i++) {
        firn_kv *kv = &part->kv[i];
        FIRN_TRY(take_name(c, arena, "a key", &kv->key));
        const shown key = show_name(kv->key);
        FIRN_TRY(take_type(c, key.text, "the type of key", &kv->type));
        FIRN_TRY(take_values(c, arena, key.text, kv));
        if (firn_index_add(&part->kv_index, i) != FIRN_INDEX_NONE)
            return firn_fail(c->ctx, FIRN_ERR_FORMAT, "key '%s' is there twice", key.text);
    }
    return FIRN_OK;
}

static const firn_kv *part_kv(const gguf_part *part, const char *key)
{
    const size_t i = firn_index_find(&part->kv_index, key);

    return i == FIRN_INDEX_NONE ? NULL : &part->kv[i];
}

/* ---- tensors ---- */

size_t firn_tensor_bytes(firn_type type, const int64_t *ne)
{
    size_t bytes = firn_type_size(type);
    const int64_t block = firn_type_block(type);

    if (block == 0 || ne[0] % block)
        return 0;
    for (int d = 0; d < FIRN_MAX_DIMS; d++)
        if (ne[d] <= 0 || !firn_mul_size(bytes, (size_t)(d ? ne[d] : ne[d] / block), &bytes))
            return 0;
    return bytes > INT64_MAX ? 0 : bytes;
}

static firn_status read_tensor(cursor *c, firn_arena *arena, firn_gguf_tensor *t)
{
    uint32_t n_dims, type;

    FIRN_TRY(take_name(c, arena, "a tensor name", &t->name));
    const shown name = show_name(t->name);
    if (!take_u32(c, "the number of dimensions of tensor", name.text, &n_dims))
        return FIRN_ERR_FORMAT;
    if (n_dims > FIRN_MAX_DIMS)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "tensor '%s' has %" PRIu32 " dimensions, more than %d", name.text,
                         n_dims, FIRN_MAX_DIMS);
    t->n_dims = (int)n_dims;
    uint64_t elements = 1;
    for (int d = 0; d < FIRN_MAX_DIMS; d++) {
        uint64_t n = 1;
        if (d < t->n_dims && !take_u64(c, "the shape of tensor", name.text, &n))
            return FIRN_ERR_FORMAT;
        if (n == 0 || n > INT64_MAX || __builtin_mul_overflow(elements, n, &elements) || elements > INT64_MAX)
            return firn_fail(c->ctx, FIRN_ERR_FORMAT, "dimension %d of tensor '%s' is %" PRIu64 "%s", d, name.text, n,
                             n ? ", and its elements pass 2^63" : "");
        t->ne[d] = (int64_t)n;
    }
    if (!take_u32(c, "the type of tensor", name.text, &type) ||
        !take_u64(c, "the offset of tensor", name.text, &t->offset))
        return FIRN_ERR_FORMAT;
    t->type = (firn_type)type;
    if (type >= FIRN_TYPE_LIMIT || !firn_type_name(t->type))
        return firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED, "tensor '%s' has type %" PRIu32 ", which is not known here",
                         name.text, type);
    if (t->ne[0] % firn_type_block(t->type))
        return firn_fail(c->ctx, FIRN_ERR_FORMAT,
                         "tensor '%s' has rows of %" PRId64 " elements, no multiple of the %" PRId64
                         " in a block of %s",
                         name.text, t->ne[0], firn_type_block(t->type), firn_type_name(t->type));
    t->size = firn_tensor_bytes(t->type, t->ne);
    if (t->size == 0)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "tensor '%s' has more than 2^63 bytes", name.text);
    return FIRN_OK;
}

static firn_status read_alignment(firn_context *ctx, gguf_part *part)
{
    const firn_kv *kv = part_kv(part, "general.alignment");
    uint32_t alignment = GGUF_ALIGNMENT;

    if (kv && kv->type != FIRN_KV_U32)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "key 'general.alignment' is of type %s, not u32",
                         firn_kv_type_name(kv->type));
    if (kv)
        memcpy(&alignment, kv->data, sizeof alignment);
    if (alignment < 8 || (alignment & (alignment - 1)))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "key 'general.alignment' is %" PRIu32 ", no power of two from 8 on",
                         alignment);
    part->alignment = alignment;
    return FIRN_OK;
}

static int by_offset(const void *a, const void *b)
{
    const firn_gguf_tensor *x = *(const firn_gguf_tensor *const *)a, *y = *(const firn_gguf_tensor *const *)b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Offsets become file offsets; each tensor lies in the file, aligned, and on no other. */
static firn_status place_tensors(firn_context *ctx, firn_arena *arena, gguf_part *part)
{
    const firn_gguf_tensor **order = firn_arena_zeroed(arena, part->n_tensors, sizeof *order);
    const uint64_t size = part->map.size, room = size > part->data ? size - part->data : 0;

    if (!order)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < part->n_tensors; i++) {
        firn_gguf_tensor *t = &part->tensors[i];
        const shown name = show_name(t->name);
        if (t->offset % part->alignment)
            return firn_fail(ctx, FIRN_ERR_FORMAT,
                             "tensor '%s' has offset %" PRIu64 ", no multiple of the file's alignment %zu", name.text,
                             t->offset, part->alignment);
        if (t->offset > room || t->size > room - t->offset)
            return firn_fail(ctx, FIRN_ERR_FORMAT,
                             "the file is truncated: tensor '%s' takes %zu bytes at offset %" PRIu64
                             " of the tensor data, the file has %" PRIu64 " bytes of it",
                             name.text, t->size, t->offset, room);
        t->offset += part->data;
        t->data = part->map.data + t->offset;
        order[i] = t;
    }
    if (part->n_tensors)
        qsort(order, part->n_tensors, sizeof *order, by_offset);
    for (size_t i = 1; i < part->n_tensors; i++)
        if (order[i - 1]->offset + order[i - 1]->size > order[i]->offset)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "tensors '%s' and '%s' overlap", show_name(order[i - 1]->name).text,
                             show_name(order[i]->name).text);
    return FIRN_OK;
}

/* ---- a file ---- */

static firn_status read_start(cursor *c, gguf_part *part)
{
    uint64_t n_tensors, n_kv;
    const size_t n = c->size < 4 ? c->size : 4;

    if (c->size == 0)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "the file is empty");
    const char *other = firn_gguf_other(c->data, c->size);
    if (other)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "this is no GGUF file but %s", other);
    if (n < 4 || memcmp(c->data, "GGUF", 4) != 0)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT, "this is no GGUF file: it begins with '%s' instead of 'GGUF'",
                         show((const char *)c->data, n).text);
    c->at = 4;
    if (!take_u32(c, "the version", "", &part->version))
        return FIRN_ERR_FORMAT;
    if (part->version && (part->version & 0xFFFF) == 0)
        return firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED, "the file is big-endian; only little-endian GGUF is read");
    if (part->version < 2 || part->version > GGUF_VERSION)
        return firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED,
                         "the file is GGUF version %" PRIu32 "; versions 2 and 3 are read", part->version);
    if (!take_u64(c, "the number of tensors", "", &n_tensors) || !take_u64(c, "the number of keys", "", &n_kv))
        return FIRN_ERR_FORMAT;
    const size_t left = c->size - c->at;
    if (n_tensors > left / GGUF_MIN_TENSOR || n_kv > left / GGUF_MIN_KV || n_tensors > INT32_MAX || n_kv > INT32_MAX)
        return firn_fail(c->ctx, FIRN_ERR_FORMAT,
                         "the file is truncated: it announces %" PRIu64 " tensors and %" PRIu64
                         " keys and has %zu bytes left for them",
                         n_tensors, n_kv, left);
    part->n_tensors = (size_t)n_tensors;
    part->n_kv = (size_t)n_kv;
    return FIRN_OK;
}

static firn_status read_part(firn_context *ctx, firn_arena *arena, gguf_part *part)
{
    cursor c = {ctx, part->map.data, part->map.size, 0};

    FIRN_TRY(read_start(&c, part));
    FIRN_TRY(read_keys(&c, arena, part));
    FIRN_TRY(read_alignment(ctx, part));
    part->tensors = firn_arena_zeroed(arena, part->n_tensors, sizeof *part->tensors);
    if (!part->tensors)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < part->n_tensors; i++)
        FIRN_TRY(read_tensor(&c, arena, &part->tensors[i]));
    part->header = c.at;
    part->data = (c.at + part->alignment - 1) / part->alignment * part->alignment;
    return place_tensors(ctx, arena, part);
}

static const char *tensor_name(const void *items, size_t i)
{
    return ((const firn_gguf_tensor *)items)[i].name;
}

/* One list and one index over the tensors of all parts. */
static firn_status join(firn_context *ctx, firn_gguf *g)
{
    for (size_t p = 0; p < g->n_parts; p++) {
        g->n_tensors += g->parts[p].n_tensors;
        g->bytes += g->parts[p].map.size;
    }
    if (g->n_tensors > INT32_MAX)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "the model has %zu tensors, more than can be read", g->n_tensors);
    g->tensors = firn_arena_zeroed(&g->arena, g->n_tensors, sizeof *g->tensors);
    if (!g->tensors)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_index_init(&g->tensor_index, &g->arena, tensor_name, g->tensors, g->n_tensors));
    size_t n = 0;
    for (size_t p = 0; p < g->n_parts; p++) {
        for (size_t i = 0; i < g->parts[p].n_tensors; i++, n++) {
            g->tensors[n] = g->parts[p].tensors[i];
            g->tensors[n].file = (int)p;
            if (firn_index_add(&g->tensor_index, n) != FIRN_INDEX_NONE)
                return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor '%s' is there twice",
                                 show_name(g->tensors[n].name).text);
        }
    }
    return FIRN_OK;
}

static firn_status gguf_new(firn_context *ctx, size_t n_parts, firn_gguf **result)
{
    firn_gguf *g = firn_alloc_zeroed(ctx, 1, sizeof *g);

    if (!g)
        return FIRN_ERR_MEMORY;
    g->ctx = ctx;
    firn_arena_init(&g->arena, ctx, 0);
    g->parts = firn_arena_zeroed(&g->arena, n_parts, sizeof *g->parts);
    if (!g->parts) {
        firn_gguf_close(g);
        return FIRN_ERR_MEMORY;
    }
    g->n_parts = n_parts;
    *result = g;
    return FIRN_OK;
}

void firn_gguf_close(firn_gguf *g)
{
    if (!g)
        return;
    for (size_t p = 0; p < g->n_parts; p++)
        if (g->parts[p].mapped)
            firn_map_close(&g->parts[p].map);
    firn_arena_clear(&g->arena);
    firn_free(g->ctx, g);
}

firn_status firn_gguf_check(firn_context *ctx, const firn_gguf *g)
{
    for (size_t p = 0; p < g->n_parts; p++)
        FIRN_TRY(firn_map_check(ctx, &g->parts[p].map));
    return FIRN_OK;
}

firn_status firn_gguf_unchanged(firn_context *ctx, const firn_gguf *g)
{
    for (size_t p = 0; p < g->n_parts; p++)
        FIRN_TRY(firn_map_unchanged(ctx, &g->parts[p].map));
    return FIRN_OK;
}

firn_status firn_gguf_parse(firn_context *ctx, const void *data, size_t size, firn_gguf **gguf)
{
    FIRN_GIVEN(ctx, ctx, data, gguf);
    firn_gguf *g;

    *gguf = NULL;
    FIRN_TRY(gguf_new(ctx, 1, &g));
    g->parts[0].map = (firn_map){.data = data, .size = size};
    firn_status s = read_part(ctx, &g->arena, &g->parts[0]);
    if (s == FIRN_OK)
        s = join(ctx, g);
    if (s == FIRN_OK)
        *gguf = g;
    else
        firn_gguf_close(g);
    return s;
}

/* ---- split files ---- */

/* The value of an integer key of any width and sign, *value unchanged when it is absent. Writers disagree about the
 * width of split.*: u16, but i32 for split.tensors.count. */
static firn_status split_number(firn_context *ctx, const gguf_part *part, const char *key, uint64_t *value)
{
    const firn_kv *kv = part_kv(part, key);
    uint64_t v = 0;

    if (!kv)
        return FIRN_OK;
    if (kv->type > FIRN_KV_I32 && kv->type != FIRN_KV_U64 && kv->type != FIRN_KV_I64)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "key '%s' is of type %s, not a whole number", key,
                         firn_kv_type_name(kv->type));
    memcpy(&v, kv->data, firn_kv_size(kv->type)); /* little-endian, as the file */
    *value = v;
    return FIRN_OK;
}

enum { SPLIT_TAIL = 20 }; /* strlen("-00001-of-00003.gguf") */

static void split_tail(char tail[SPLIT_TAIL + 16], uint64_t no, uint64_t count)
{
    snprintf(tail, SPLIT_TAIL + 16, "-%05u-of-%05u.gguf", (unsigned)(no + 1), (unsigned)count);
}

/* Maps and reads one part; afterwards *no and *count are what it says of itself (0 and 1 when it says nothing). */
static firn_status open_part(firn_context *ctx, firn_arena *arena, const char *path, gguf_part *part, uint64_t *no,
                             uint64_t *count)
{
    FIRN_TRY(firn_map_open(ctx, path, &part->map));
    part->mapped = true;
    firn_status s = read_part(ctx, arena, part);
    *no = 0;
    *count = 1;
    if (s == FIRN_OK)
        s = split_number(ctx, part, "split.no", no);
    if (s == FIRN_OK)
        s = split_number(ctx, part, "split.count", count);
    if (s == FIRN_OK && (*count > UINT16_MAX || (*count > 1 && *no >= *count)))
        s = firn_fail(ctx, FIRN_ERR_FORMAT, "it says that it is part %" PRIu64 " of %" PRIu64, *no + 1, *count);
    return s == FIRN_OK ? s : firn_fail_in(ctx, s, "%s", path);
}

/* Opens the part `path` and, when it is one of several, g with all of them. */
static firn_status open_split(firn_context *ctx, const char *path, uint64_t no, uint64_t count, firn_gguf **result)
{
    char tail[SPLIT_TAIL + 16];
    const size_t n = strlen(path);
    uint64_t said_no, said_count, tensors = UINT64_MAX;
    firn_gguf *g;

    split_tail(tail, no, count);
    if (n < SPLIT_TAIL || strcmp(path + n - SPLIT_TAIL, tail) != 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "%s: it is part %" PRIu64 " of %" PRIu64 " of a split model, so its name must end in %s", path,
                         no + 1, count, tail);
    FIRN_TRY(gguf_new(ctx, (size_t)count, &g));
    char *sibling = firn_arena_text(&g->arena, path, n);
    firn_status s = sibling ? FIRN_OK : FIRN_ERR_MEMORY;
    for (uint64_t i = 0; s == FIRN_OK && i < count; i++) {
        split_tail(tail, i, count);
        memcpy(sibling + n - SPLIT_TAIL, tail, SPLIT_TAIL);
        s = open_part(ctx, &g->arena, sibling, &g->parts[i], &said_no, &said_count);
        if (s == FIRN_OK && (said_no != i || said_count != count))
            s = firn_fail(ctx, FIRN_ERR_FORMAT,
                          "%s: it says that it is part %" PRIu64 " of %" PRIu64 ", not %" PRIu64 " of %" PRIu64,
                          sibling, said_no + 1, said_count, i + 1, count);
    }
    if (s == FIRN_OK) {
        s = join(ctx, g);
        if (s == FIRN_OK)
            s = split_number(ctx, &g->parts[0], "split.tensors.count", &tensors);
        if (s == FIRN_OK && tensors != UINT64_MAX && tensors != g->n_tensors)
            s = firn_fail(ctx, FIRN_ERR_FORMAT, "the %" PRIu64 " parts have %zu tensors, not the %" PRIu64 " announced",
                          count, g->n_tensors, tensors);
        if (s != FIRN_OK)
            firn_fail_in(ctx, s, "%s", path);
    }
    if (s == FIRN_OK)
        *result = g;
    else
        firn_gguf_close(g);
    return s;
}

firn_status firn_gguf_open(firn_context *ctx, const char *path, firn_gguf **gguf)
{
    FIRN_GIVEN(ctx, ctx, path, gguf);
    uint64_t no, count;
    firn_gguf *g;

    *gguf = NULL;
    FIRN_TRY(gguf_new(ctx, 1, &g));
    firn_status s = open_part(ctx, &g->arena, path, &g->parts[0], &no, &count);
    if (s == FIRN_OK && count > 1) {
        firn_gguf_close(g);
        return open_split(ctx, path, no, count, gguf);
    }
    if (s == FIRN_OK) {
        s = join(ctx, g);
        if (s != FIRN_OK)
            firn_fail_in(ctx, s, "%s", path);
    }
    if (s == FIRN_OK)
        *gguf = g;
    else
        firn_gguf_close(g);
    return s;
}

/* ---- getters ---- */

size_t firn_gguf_n_kv(const firn_gguf *g)
{
    return g ? g->parts[0].n_kv : 0;
}

const firn_kv *firn_gguf_kv_at(const firn_gguf *g, size_t i)
{
    return g && i < g->parts[0].n_kv ? &g->parts[0].kv[i] : NULL;
}

const firn_kv *firn_gguf_kv(const firn_gguf *g, const char *key)
{
    return g && key ? part_kv(&g->parts[0], key) : NULL;
}

size_t firn_gguf_n_tensors(const firn_gguf *g)
{
    return g ? g->n_tensors : 0;
}

const firn_gguf_tensor *firn_gguf_tensor_at(const firn_gguf *g, size_t i)
{
    return g && i < g->n_tensors ? &g->tensors[i] : NULL;
}

const firn_gguf_tensor *firn_gguf_find(const firn_gguf *g, const char *name)
{
    if (!g || !name)
        return NULL;
    const size_t i = firn_index_find(&g->tensor_index, name);

    return i == FIRN_INDEX_NONE ? NULL : &g->tensors[i];
}

uint32_t firn_gguf_version(const firn_gguf *g)
{
    return g ? g->parts[0].version : 0;
}

const void *firn_gguf_header(const firn_gguf *g, size_t *size)
{
    if (!g || !size)
        return NULL;
    *size = g->parts[0].header;
    return g->parts[0].map.data;
}

uint64_t firn_gguf_file_bytes(const firn_gguf *g)
{
    return g ? g->bytes : 0;
}

/* Whether its pages are the mapped file's: a tensor of another file has none here. */
static bool is_mapped(const firn_gguf *g, const firn_gguf_tensor *t)
{
    return g && t && t >= g->tensors && t < g->tensors + g->n_tensors && g->parts[t->file].mapped;
}

void firn_gguf_will_need(const firn_gguf *g, const firn_gguf_tensor *t)
{
    if (is_mapped(g, t))
        firn_map_will_need(&g->parts[t->file].map, (size_t)t->offset, t->size);
}

void firn_gguf_release(const firn_gguf *g, const firn_gguf_tensor *t)
{
    if (is_mapped(g, t))
        firn_map_release(&g->parts[t->file].map, (size_t)t->offset, t->size);
}

/* *kv is NULL when the key is absent and need not be there. */
static firn_status scalar(firn_context *ctx, const firn_gguf *g, const char *key, bool required, firn_kv_type type,
                          const firn_kv **result)
{
    const firn_kv *kv = firn_gguf_kv(g, key);

    *result = NULL;
    if (!kv && required)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the file has no key '%s'", key);
    if (kv && kv->type != type)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "key '%s' is of type %s, not %s", key, firn_kv_type_name(kv->type),
                         firn_kv_type_name(type));
    *result = kv;
    return FIRN_OK;
}

firn_status firn_gguf_get_u32(firn_context *ctx, const firn_gguf *g, const char *key, bool required, uint32_t *value)
{
    FIRN_GIVEN(ctx, ctx, g, key, value);
    const firn_kv *kv;

    FIRN_TRY(scalar(ctx, g, key, required, FIRN_KV_U32, &kv));
    if (kv)
        memcpy(value, kv->data, sizeof *value);
    return FIRN_OK;
}

firn_status firn_gguf_get_f32(firn_context *ctx, const firn_gguf *g, const char *key, bool required, float *value)
{
    FIRN_GIVEN(ctx, ctx, g, key, value);
    const firn_kv *kv;

    FIRN_TRY(scalar(ctx, g, key, required, FIRN_KV_F32, &kv));
    if (kv)
        memcpy(value, kv->data, sizeof *value);
    return FIRN_OK;
}

firn_status firn_gguf_get_bool(firn_context *ctx, const firn_gguf *g, const char *key, bool required, bool *value)
{
    FIRN_GIVEN(ctx, ctx, g, key, value);
    const firn_kv *kv;

    FIRN_TRY(scalar(ctx, g, key, required, FIRN_KV_BOOL, &kv));
    if (kv)
        *value = *(const uint8_t *)kv->data != 0;
    return FIRN_OK;
}

firn_status firn_gguf_get_string(firn_context *ctx, const firn_gguf *g, const char *key, bool required,
                                 firn_string *value)
{
    FIRN_GIVEN(ctx, ctx, g, key, value);
    const firn_kv *kv;

    FIRN_TRY(scalar(ctx, g, key, required, FIRN_KV_STRING, &kv));
    if (kv)
        *value = kv->strings[0];
    return FIRN_OK;
}

firn_status firn_gguf_refuse_part(firn_context *ctx, const firn_gguf *g, const char *path)
{
    struct stat st;

    for (size_t i = 0; g->n_parts > 1 && i < g->n_parts && stat(path, &st) == 0; i++)
        if (st.st_dev == g->parts[i].map.device && st.st_ino == g->parts[i].map.inode)
            return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                             "%s is part %zu of %zu of the model that is read: expected another name", path, i + 1,
                             g->n_parts);
    return FIRN_OK;
}
