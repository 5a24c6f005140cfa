/* safetensors files: see safetensors.h. Every entry is checked when the file is opened, so that a name that is asked
 * for is sound. */
#include "train/safetensors.h"

#include "format/format.h"

#include <string.h>

#define EXPECT(ctx, cond, ...)                                                                                         \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return firn_fail(ctx, FIRN_ERR_FORMAT, __VA_ARGS__);                                                       \
    } while (0)

enum { MOST_HEADER = 100 << 20 /* as the format's own reader has it */ };

static const struct {
    const char *name;
    int bytes;
    firn_type type; /* FIRN_TYPE_LIMIT: not read here */
} types[] = {
    {"F32", 4, FIRN_F32},
    {"F16", 2, FIRN_F16},
    {"BF16", 2, FIRN_BF16},
    {"F64", 8, FIRN_TYPE_LIMIT},
    {"I64", 8, FIRN_TYPE_LIMIT},
    {"I32", 4, FIRN_TYPE_LIMIT},
    {"I16", 2, FIRN_TYPE_LIMIT},
    {"I8", 1, FIRN_TYPE_LIMIT},
    {"U64", 8, FIRN_TYPE_LIMIT},
    {"U32", 4, FIRN_TYPE_LIMIT},
    {"U16", 2, FIRN_TYPE_LIMIT},
    {"U8", 1, FIRN_TYPE_LIMIT},
    {"BOOL", 1, FIRN_TYPE_LIMIT},
    {"F8_E4M3", 1, FIRN_TYPE_LIMIT},
    {"F8_E5M2", 1, FIRN_TYPE_LIMIT},
};

enum { N_TYPES = sizeof types / sizeof *types };

static int type_of(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));

    for (int i = 0; name && i < N_TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return i;
    return -1;
}

static bool whole(const json_t *number, json_int_t most, json_int_t *value)
{
    *value = json_is_integer(number) ? json_integer_value(number) : -1;
    return *value >= 0 && *value <= most;
}

static firn_status check_entry(const firn_safetensors *f, const char *name, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    const json_int_t most = (json_int_t)f->size;
    const int type = type_of(entry);
    json_int_t begin = 0, end = 0, n;
    size_t bytes = type >= 0 ? (size_t)types[type].bytes : 0;

    EXPECT(f->ctx, json_is_object(entry), "tensor '%.80s' should be an object with dtype, shape and data_offsets",
           name);
    EXPECT(f->ctx, type >= 0, "tensor '%.80s' has dtype '%.20s', which is none that is known", name,
           json_string_value(json_object_get(entry, "dtype")) ? json_string_value(json_object_get(entry, "dtype"))
                                                              : "");
    EXPECT(f->ctx, json_is_array(shape) && json_array_size(shape) <= 16,
           "tensor '%.80s' should have a shape, a list of at most 16 sizes", name);
    for (size_t i = 0; i < json_array_size(shape); i++)
        EXPECT(f->ctx, whole(json_array_get(shape, i), INT64_MAX, &n) && firn_mul_size(bytes, (size_t)n, &bytes),
               "tensor '%.80s' has a shape that no file holds", name);
    EXPECT(f->ctx,
           json_array_size(offsets) == 2 && whole(json_array_get(offsets, 0), most, &begin) &&
               whole(json_array_get(offsets, 1), most, &end) && begin <= end,
           "tensor '%.80s' should have data_offsets [begin, end] within the file's %llu bytes of data", name,
           (unsigned long long)f->size);
    EXPECT(f->ctx, (size_t)(end - begin) == bytes, "tensor '%.80s' lies in %lld bytes, and its shape takes %llu", name,
           (long long)(end - begin), (unsigned long long)bytes);
    return FIRN_OK;
}

firn_status firn_safetensors_parse(firn_context *ctx, const void *bytes, size_t size, firn_safetensors *f)
{
    const uint8_t *b = bytes;
    uint64_t length = 0;
    json_error_t error;
    const char *name;
    json_t *entry;

    *f = (firn_safetensors){.ctx = ctx};
    EXPECT(ctx, size >= 8, "no safetensors file: expected 8 bytes of length at least, it has %llu",
           (unsigned long long)size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | b[i];
    EXPECT(ctx, length <= size - 8 && length <= MOST_HEADER,
           "no safetensors file, or one that was cut: its header should have %llu bytes, and %llu are there",
           (unsigned long long)length, (unsigned long long)(size - 8));
    f->data = b + 8 + length;
    f->size = size - 8 - (size_t)length;
    f->header = json_loadb((const char *)b + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    firn_status s = f->header && json_is_object(f->header)
                        ? FIRN_OK
                        : firn_fail(ctx, FIRN_ERR_FORMAT, "the safetensors header is no JSON object: %.100s",
                                    f->header ? "it is something else" : error.text);
    json_object_foreach(f->header, name, entry)
    {
        if (s == FIRN_OK && strcmp(name, "__metadata__") != 0)
            s = check_entry(f, name, entry);
    }
    if (s != FIRN_OK)
        firn_safetensors_forget(f);
    return s;
}

void firn_safetensors_forget(firn_safetensors *f)
{
    json_decref(f->header);
    *f = (firn_safetensors){0};
}

firn_status firn_safetensors_find(const firn_safetensors *f, const char *name, firn_safetensor *t, bool *found)
{
    const json_t *entry = json_object_get(f->header, name), *shape = json_object_get(entry, "shape");
    const int type = type_of(entry);

    *found = type >= 0; /* __metadata__ is no tensor */
    if (type < 0)
        return FIRN_OK;
    *t = (firn_safetensor){.type = types[type].type, .n_dims = (int)json_array_size(shape), .ne = {1, 1, 1, 1}};
    if (t->type == FIRN_TYPE_LIMIT || t->n_dims < 1 || t->n_dims > FIRN_MAX_DIMS)
        return firn_fail(f->ctx, FIRN_ERR_UNSUPPORTED,
                         "tensor '%.80s' is %s of %d dimensions; factors of adapters are F32, F16 or BF16 of 1 to %d",
                         name, types[type].name, t->n_dims, FIRN_MAX_DIMS);
    for (int i = 0; i < t->n_dims; i++)
        t->ne[t->n_dims - 1 - i] = json_integer_value(json_array_get(shape, (size_t)i));
    t->data = f->data + json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    return FIRN_OK;
}

void firn_safetensor_values(const firn_safetensor *t, int64_t at, int64_t n, float *values)
{
    const uint8_t *data = t->data + firn_row_bytes(t->type, at);

    if (t->type == FIRN_F32) {
        memcpy(values, data, (size_t)n * sizeof *values);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t half; /* decoders ask for even addresses */
        memcpy(&half, data + 2 * i, sizeof half);
        firn_decode_row(t->type, &half, 1, &values[i]);
    }
}
