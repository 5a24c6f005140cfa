/* The values of the Jinja engine: making, comparing, looking inside. See value.h for their layout. */
#include "jinja/eval.h"

#include <math.h>
#include <string.h>

/* ---- UTF-8 ---- */

size_t firn_jinja_char_size(char lead)
{
    const unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

uint32_t firn_jinja_char_at(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;

    switch (firn_jinja_char_size(*s)) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    }
}

size_t firn_jinja_chars(const char *s, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

size_t firn_jinja_offset(const char *s, size_t size, size_t i)
{
    size_t at = 0;

    while (i-- && at < size)
        at += firn_jinja_char_size(s[at]);
    return at;
}

size_t firn_jinja_last_char(const char *s, size_t size)
{
    size_t n = 1;

    while (n < size && ((unsigned char)s[size - n] & 0xC0) == 0x80)
        n++;
    return n;
}

bool firn_jinja_same_text(const jinja_string *a, const char *b)
{
    return strlen(b) == a->size && memcmp(a->data, b, a->size) == 0;
}

/* ---- making values ---- */

void *firn_jinja_alloc(jinja_eval *e, size_t count, size_t size)
{
    size_t bytes;

    if (!firn_mul_size(count, size, &bytes))
        bytes = SIZE_MAX;
    return firn_jinja_step(e, bytes) == FIRN_OK ? firn_arena_zeroed(&e->arena, count ? count : 1, size) : NULL;
}

firn_status firn_jinja_view(jinja_eval *e, const char *data, size_t size, jinja_value *out)
{
    jinja_string *s = firn_arena_alloc(&e->arena, sizeof *s);

    if (!s)
        return FIRN_ERR_MEMORY;
    *s = (jinja_string){data, size};
    *out = (jinja_value){.type = JINJA_STRING, .string = s};
    return FIRN_OK;
}

firn_status firn_jinja_string(jinja_eval *e, const char *data, size_t size, jinja_value *out)
{
    FIRN_TRY(firn_jinja_step(e, size));
    const char *copy = firn_arena_text(&e->arena, data, size);
    return copy ? firn_jinja_view(e, copy, size, out) : FIRN_ERR_MEMORY;
}

void firn_jinja_text(jinja_eval *e, firn_text *text)
{
    firn_text_init(text, e->ctx, e->limits.memory);
}

firn_status firn_jinja_take(jinja_eval *e, firn_text *text, jinja_value *out)
{
    firn_status status = text->status;

    if (status == FIRN_OK)
        status = firn_jinja_string(e, firn_text_cstr(text), text->size, out);
    firn_text_free(text);
    return status;
}

firn_status firn_jinja_finish(jinja_eval *e, firn_text *text, firn_status status, jinja_value *out)
{
    if (status == FIRN_OK)
        return firn_jinja_take(e, text, out);
    firn_text_free(text);
    return status;
}

firn_status firn_jinja_list(jinja_eval *e, jinja_type type, size_t n, jinja_value *out)
{
    jinja_list *list = firn_jinja_alloc(e, 1, sizeof *list);
    if (!list || !(list->items = firn_jinja_alloc(e, n, sizeof *list->items)))
        return FIRN_ERR_MEMORY;
    list->n = n;
    list->label = "list";
    *out = (jinja_value){.type = (uint8_t)type, .list = list};
    return FIRN_OK;
}

firn_status firn_jinja_dict(jinja_eval *e, jinja_value *out)
{
    jinja_dict *dict = firn_jinja_alloc(e, 1, sizeof *dict);

    if (!dict)
        return FIRN_ERR_MEMORY;
    *out = (jinja_value){.type = JINJA_DICT, .dict = dict};
    return FIRN_OK;
}

/* ---- dicts ---- */

enum { INDEX_FROM = 8, MAX_NESTING = 200 };

/* Equal values have equal hashes: 1, 1.0 and true are one key, and so are a float and an int of 2^62. */
static uint64_t hash_number(const firn_secret *secret, jinja_value v)
{
    const double real = v.type == JINJA_FLOAT ? v.real : 0;

    if (v.type == JINJA_FLOAT && !(real >= -0x1p63 && real < 0x1p63 && (double)(int64_t)real == real))
        return firn_secret_hash(secret, &real, sizeof real);
    return firn_secret_number(secret, (uint64_t)(v.type == JINJA_FLOAT ? (int64_t)real : jinja_as_int(v)));
}

static firn_status hash(jinja_eval *e, jinja_value v, int depth, uint64_t *out)
{
    const firn_secret *secret = &e->jinja->secret;

    FIRN_TRY(firn_jinja_step(e, v.type == JINJA_STRING ? JINJA_PER_CHAR * v.string->size : 0));
    switch (v.type) {
    case JINJA_STRING:
        *out = firn_secret_hash(secret, v.string->data, v.string->size);
        return FIRN_OK;
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        *out = hash_number(secret, v);
        return FIRN_OK;
    case JINJA_TUPLE: {
        if (depth >= MAX_NESTING)
            return firn_jinja_fail(e, "a key is nested too deep");
        uint64_t all = v.list->n, h = 0;
        for (size_t i = 0; i < v.list->n; i++) {
            FIRN_TRY(hash(e, v.list->items[i], depth + 1, &h));
            all = firn_secret_pair(secret, all, h);
        }
        *out = all;
        return FIRN_OK;
    }
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        *out = v.type;
        return FIRN_OK;
    case JINJA_LIST:
    case JINJA_DICT:
        return firn_jinja_fail(e, "unhashable type: '%s'", firn_jinja_type_name(v));
    default:
        *out = firn_secret_hash(secret, &v.list, sizeof v.list);
        return FIRN_OK;
    }
}

static bool quick_hash(const jinja_dict *d)
{
    return d->index_size != 0;
}

static firn_status find(jinja_eval *e, const jinja_dict *d, jinja_value key, uint64_t h, size_t *at)
{
    bool equal = false;

    if (!quick_hash(d)) {
        for (*at = 0; *at < d->n; ++*at) {
            FIRN_TRY(firn_jinja_equal(e, d->entries[*at].key, key, 0, &equal));
            if (equal)
                return FIRN_OK;
        }
        *at = SIZE_MAX;
        return FIRN_OK;
    }
    for (size_t slot = h & (d->index_size - 1); d->index[slot].entry; slot = (slot + 1) & (d->index_size - 1)) {
        if (d->index[slot].hash != (uint32_t)(h >> 32))
            continue;
        *at = d->index[slot].entry - 1;
        FIRN_TRY(firn_jinja_equal(e, d->entries[*at].key, key, 0, &equal));
        if (equal)
            return FIRN_OK;
    }
    *at = SIZE_MAX;
    return FIRN_OK;
}

static void put_index(jinja_dict *d, uint64_t h, size_t entry)
{
    size_t slot = h & (d->index_size - 1);

    while (d->index[slot].entry)
        slot = (slot + 1) & (d->index_size - 1);
    d->index[slot].entry = (uint32_t)entry + 1;
    d->index[slot].hash = (uint32_t)(h >> 32);
}

firn_status firn_jinja_dict_set(jinja_eval *e, jinja_dict *d, jinja_value key, jinja_value value)
{
    uint64_t h = 0;
    size_t at;

    FIRN_TRY(hash(e, key, 0, &h));
    FIRN_TRY(find(e, d, key, h, &at));
    if (at != SIZE_MAX) {
        d->entries[at].value = value;
        return FIRN_OK;
    }
    if (d->n == d->capacity) {
        const size_t capacity = d->capacity ? 2 * d->capacity : 4;
        jinja_entry *entries = firn_jinja_alloc(e, capacity, sizeof *entries);
        if (!entries)
            return FIRN_ERR_MEMORY;
        if (d->n)
            memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->capacity = capacity;
    }
    d->entries[d->n++] = (jinja_entry){key, value};
    if (d->n >= INDEX_FROM && 2 * d->n > d->index_size) {
        d->index_size = d->index_size ? 2 * d->index_size : 4 * INDEX_FROM;
        if (!(d->index = firn_jinja_alloc(e, d->index_size, sizeof *d->index)))
            return FIRN_ERR_MEMORY;
        for (size_t i = 0; i < d->n; i++) {
            FIRN_TRY(hash(e, d->entries[i].key, 0, &h));
            put_index(d, h, i);
        }
    } else if (d->index_size) {
        put_index(d, h, d->n - 1);
    }
    return FIRN_OK;
}

firn_status firn_jinja_dict_get(jinja_eval *e, const jinja_dict *d, jinja_value key, const jinja_value **found)
{
    uint64_t h = 0;
    size_t at;

    FIRN_TRY(hash(e, key, 0, &h));
    FIRN_TRY(find(e, d, key, h, &at));
    *found = at == SIZE_MAX ? NULL : &d->entries[at].value;
    return FIRN_OK;
}

firn_status firn_jinja_dict_text(jinja_eval *e, const jinja_dict *d, const jinja_string *key, const jinja_value **found)
{
    return firn_jinja_dict_get(e, d, (jinja_value){.type = JINJA_STRING, .string = key}, found);
}

firn_status firn_jinja_from_json(jinja_eval *e, const json_t *json, int depth, jinja_value *out)
{
    FIRN_TRY(firn_jinja_step(e, 0));
    if (depth >= MAX_NESTING)
        return firn_jinja_fail(e, "the variables are nested more than %d levels deep", MAX_NESTING);
    switch (json_typeof(json)) {
    case JSON_STRING:
        return firn_jinja_string(e, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(json));
        return FIRN_OK;
    case JSON_REAL:
        *out = jinja_float(json_real_value(json));
        return FIRN_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(json));
        return FIRN_OK;
    case JSON_ARRAY:
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, json_array_size(json), out));
        for (size_t i = 0; i < out->list->n; i++)
            FIRN_TRY(firn_jinja_from_json(e, json_array_get(json, i), depth + 1, &out->list->items[i]));
        return FIRN_OK;
    case JSON_OBJECT: {
        FIRN_TRY(firn_jinja_dict(e, out));
        json_t *object = (json_t *)(uintptr_t)json; /* jansson iterates without const */
        for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
            jinja_value key, value;
            FIRN_TRY(firn_jinja_string(e, json_object_iter_key(i), json_object_iter_key_len(i), &key));
            FIRN_TRY(firn_jinja_from_json(e, json_object_iter_value(i), depth + 1, &value));
            FIRN_TRY(firn_jinja_dict_set(e, out->dict, key, value));
        }
        return FIRN_OK;
    }
    default:
        *out = jinja_none();
        return FIRN_OK;
    }
}

/* ---- asking values ---- */

const char *firn_jinja_type_name(jinja_value v)
{
    static const char *const names[] = {
        "missing", "Undefined",   "NoneType", "bool",   "int",    "float",  "str",
        "list",    "tuple",       "range",    NULL,     NULL,     "dict",   "Namespace",
        "Macro",   "LoopContext", "function", "method", "Cycler", "Joiner",
    };
    return names[v.type] ? names[v.type] : v.list->label;
}

bool firn_jinja_truth(jinja_value v)
{
    switch (v.type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.boolean;
    case JINJA_INT:
        return v.integer != 0;
    case JINJA_FLOAT:
        return v.real != 0;
    case JINJA_STRING:
        return v.string->size != 0;
    case JINJA_DICT:
        return v.dict->n != 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        return v.list->n != 0;
    default:
        return true;
    }
}

firn_status firn_jinja_length(jinja_eval *e, jinja_value v, int64_t *n)
{
    switch (v.type) {
    case JINJA_UNDEFINED:
        *n = 0;
        return FIRN_OK;
    case JINJA_STRING:
        FIRN_TRY(firn_jinja_step(e, v.string->size));
        *n = (int64_t)firn_jinja_chars(v.string->data, v.string->size);
        return FIRN_OK;
    case JINJA_DICT:
        *n = (int64_t)v.dict->n;
        return FIRN_OK;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        *n = (int64_t)v.list->n;
        return FIRN_OK;
    case JINJA_LOOP:
        *n = (int64_t)v.loop->list->n;
        return FIRN_OK;
    default:
        *n = -1;
        return FIRN_OK;
    }
}

firn_status firn_jinja_iterate(jinja_eval *e, jinja_value v, jinja_list **list)
{
    jinja_value result;

    switch (v.type) {
    case JINJA_UNDEFINED:
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, 0, &result));
        break;
    case JINJA_STRING: {
        const char *s = v.string->data;
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * v.string->size));
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, firn_jinja_chars(s, v.string->size), &result));
        for (size_t i = 0; i < result.list->n; i++) {
            FIRN_TRY(firn_jinja_view(e, s, firn_jinja_char_size(*s), &result.list->items[i]));
            s += firn_jinja_char_size(*s);
        }
        break;
    }
    case JINJA_DICT:
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, v.dict->n, &result));
        for (size_t i = 0; i < v.dict->n; i++)
            result.list->items[i] = v.dict->entries[i].key;
        break;
    case JINJA_ITERATOR:
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, 0, &result));
        if (!v.list->used) {
            result.list->items = v.list->items;
            result.list->n = v.list->n;
        }
        v.list->used = true;
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        *list = v.list;
        return FIRN_OK;
    default:
        return firn_jinja_fail(e, "'%s' object is not iterable", firn_jinja_type_name(v));
    }
    *list = result.list;
    return FIRN_OK;
}

/* Exact: an int beyond 2^53 equals only the float that is that number. */
static int compare_numbers(jinja_value a, jinja_value b)
{
    if (a.type != JINJA_FLOAT && b.type != JINJA_FLOAT) {
        const int64_t x = jinja_as_int(a), y = jinja_as_int(b);
        return (x > y) - (x < y);
    }
    if (a.type == JINJA_FLOAT && b.type == JINJA_FLOAT)
        return (a.real > b.real) - (a.real < b.real);
    const double f = a.type == JINJA_FLOAT ? a.real : b.real;
    const int64_t i = jinja_as_int(a.type == JINJA_FLOAT ? b : a);
    int sign; /* of i - f */
    if (f >= 9223372036854775808.0) {
        sign = -1;
    } else if (f < -9223372036854775808.0) {
        sign = 1;
    } else {
        const int64_t whole = (int64_t)f;
        const double rest = f - (double)whole;
        sign = i != whole ? (i > whole) - (i < whole) : (rest < 0) - (rest > 0);
    }
    return a.type == JINJA_FLOAT ? -sign : sign;
}

static bool is_nan(jinja_value v)
{
    return v.type == JINJA_FLOAT && isnan(v.real);
}

static int compare_text(const jinja_string *a, const jinja_string *b)
{
    const size_t n = a->size < b->size ? a->size : b->size;
    const int c = n ? memcmp(a->data, b->data, n) : 0;
    return c ? c : (a->size > b->size) - (a->size < b->size);
}

firn_status firn_jinja_equal(jinja_eval *e, jinja_value a, jinja_value b, int depth, bool *equal)
{
    *equal = false;
    FIRN_TRY(firn_jinja_step(e, 0));
    if (depth >= MAX_NESTING)
        return firn_jinja_fail(e, "values nested more than %d levels deep are compared", MAX_NESTING);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *equal = !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
        return FIRN_OK;
    }
    if (a.type != b.type)
        return FIRN_OK;
    switch (a.type) {
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        *equal = true;
        return FIRN_OK;
    case JINJA_STRING:
        if (a.string->size == b.string->size) {
            FIRN_TRY(firn_jinja_step(e, a.string->size));
            *equal = memcmp(a.string->data, b.string->data, a.string->size) == 0;
        }
        return FIRN_OK;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
        if (a.list->n != b.list->n)
            return FIRN_OK;
        for (size_t i = 0; i < a.list->n; i++) {
            FIRN_TRY(firn_jinja_equal(e, a.list->items[i], b.list->items[i], depth + 1, equal));
            if (!*equal)
                return FIRN_OK;
        }
        *equal = true;
        return FIRN_OK;
    case JINJA_DICT:
        if (a.dict->n != b.dict->n)
            return FIRN_OK;
        for (size_t i = 0; i < a.dict->n; i++) {
            const jinja_value *other;
            *equal = false;
            FIRN_TRY(firn_jinja_dict_get(e, b.dict, a.dict->entries[i].key, &other));
            if (!other)
                return FIRN_OK;
            FIRN_TRY(firn_jinja_equal(e, a.dict->entries[i].value, *other, depth + 1, equal));
            if (!*equal)
                return FIRN_OK;
        }
        *equal = true;
        return FIRN_OK;
    default:
        *equal = a.list == b.list;
        return FIRN_OK;
    }
}

static firn_status order(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, int depth, bool *result)
{
    static const char *const names[] = {"<", "<=", ">", ">="};
    int c;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (depth >= MAX_NESTING)
        return firn_jinja_fail(e, "values nested more than %d levels deep are compared", MAX_NESTING);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (is_nan(a) || is_nan(b)) {
            *result = false;
            return FIRN_OK;
        }
        c = compare_numbers(a, b);
    } else if (a.type == JINJA_STRING && b.type == JINJA_STRING) {
        FIRN_TRY(firn_jinja_step(e, a.string->size));
        c = compare_text(a.string, b.string);
    } else if (a.type == b.type && (a.type == JINJA_LIST || a.type == JINJA_TUPLE)) {
        size_t i = 0;
        for (; i < a.list->n && i < b.list->n; i++) {
            bool equal;
            FIRN_TRY(firn_jinja_equal(e, a.list->items[i], b.list->items[i], depth + 1, &equal));
            if (!equal)
                return order(e, op, a.list->items[i], b.list->items[i], depth + 1, result);
        }
        c = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    } else {
        if (a.type == JINJA_UNDEFINED || b.type == JINJA_UNDEFINED)
            return firn_jinja_fail_undefined(e, a.type == JINJA_UNDEFINED ? a : b);
        return firn_jinja_fail(e, "'%s' not supported between instances of '%s' and '%s'", names[op - JINJA_T_LT],
                               firn_jinja_type_name(a), firn_jinja_type_name(b));
    }
    *result = op == JINJA_T_LT ? c < 0 : op == JINJA_T_LE ? c <= 0 : op == JINJA_T_GT ? c > 0 : c >= 0;
    return FIRN_OK;
}

firn_status firn_jinja_order(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, bool *result)
{
    return order(e, op, a, b, 0, result);
}

firn_status firn_jinja_contains(jinja_eval *e, jinja_value container, jinja_value v, bool *result)
{
    *result = false;
    if (container.type == JINJA_STRING) {
        if (v.type == JINJA_UNDEFINED)
            return firn_jinja_fail_undefined(e, v);
        if (v.type != JINJA_STRING)
            return firn_jinja_fail(e, "'in <string>' requires string as left operand, not %s", firn_jinja_type_name(v));
        FIRN_TRY(firn_jinja_step(e, container.string->size));
        *result = v.string->size == 0 ||
                  memmem(container.string->data, container.string->size, v.string->data, v.string->size) != NULL;
        return FIRN_OK;
    }
    if (container.type == JINJA_DICT) {
        const jinja_value *found;
        FIRN_TRY(firn_jinja_dict_get(e, container.dict, v, &found));
        *result = found != NULL;
        return FIRN_OK;
    }
    jinja_list *list;
    FIRN_TRY(firn_jinja_iterate(e, container, &list));
    for (size_t i = 0; i < list->n && !*result; i++)
        FIRN_TRY(firn_jinja_equal(e, list->items[i], v, 0, result));
    return FIRN_OK;
}

/* ---- slices ---- */

static firn_status bound(jinja_eval *e, jinja_value v, int64_t *out, bool *given)
{
    *given = v.type != JINJA_NONE;
    if (!*given)
        return FIRN_OK;
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    if (!jinja_is_integer(v))
        return firn_jinja_fail(e, "slice indices must be integers or None, not %s", firn_jinja_type_name(v));
    *out = jinja_as_int(v);
    return FIRN_OK;
}

/* A bound counted from the end when negative, kept inside [low, high]. */
static int64_t clip(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

firn_status firn_jinja_slice(jinja_eval *e, jinja_value v, const jinja_value bounds[3], jinja_value *out)
{
    int64_t start = 0, stop = 0, step = 1;
    bool has_start, has_stop, has_step;

    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    if (v.type != JINJA_STRING && v.type != JINJA_LIST && v.type != JINJA_TUPLE && v.type != JINJA_RANGE)
        return firn_jinja_fail(e, "'%s' object cannot be sliced", firn_jinja_type_name(v));
    FIRN_TRY(bound(e, bounds[0], &start, &has_start));
    FIRN_TRY(bound(e, bounds[1], &stop, &has_stop));
    FIRN_TRY(bound(e, bounds[2], &step, &has_step));
    if (step == 0)
        return firn_jinja_fail(e, "slice step cannot be zero");
    int64_t n;
    FIRN_TRY(firn_jinja_length(e, v, &n));
    if (step > 0) {
        start = has_start ? clip(start, n, 0, n) : 0;
        stop = has_stop ? clip(stop, n, 0, n) : n;
    } else {
        start = has_start ? clip(start, n, -1, n - 1) : n - 1;
        stop = has_stop ? clip(stop, n, -1, n - 1) : -1;
    }
    int64_t count = 0;
    if (step > 0 && start < stop)
        count = (stop - start - 1) / step + 1;
    else if (step < 0 && start > stop)
        count = step == INT64_MIN ? 1 : (start - stop - 1) / -step + 1;

    if (v.type == JINJA_STRING) {
        const char *s = v.string->data;
        const size_t size = v.string->size;
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * size));
        if (step == 1) {
            const size_t from = firn_jinja_offset(s, size, (size_t)start);
            return firn_jinja_view(e, s + from, firn_jinja_offset(s + from, size - from, (size_t)count), out);
        }
        jinja_list *chars;
        firn_text text;
        FIRN_TRY(firn_jinja_iterate(e, v, &chars));
        firn_jinja_text(e, &text);
        for (int64_t i = 0; i < count; i++) {
            const jinja_string *c = chars->items[start + i * step].string;
            firn_text_append(&text, c->data, c->size);
        }
        return firn_jinja_take(e, &text, out);
    }
    FIRN_TRY(firn_jinja_list(e, (jinja_type)v.type, (size_t)count, out));
    if (v.type == JINJA_RANGE) { /* wraps, where Python's would not, only beyond 64 bits */
        const uint64_t first = (uint64_t)v.list->range[0], by = (uint64_t)v.list->range[2];
        out->list->range[0] = (int64_t)(first + (uint64_t)start * by);
        out->list->range[1] = (int64_t)(first + (uint64_t)stop * by);
        out->list->range[2] = (int64_t)(by * (uint64_t)step);
    }
    for (int64_t i = 0; i < count; i++)
        out->list->items[i] = v.list->items[start + i * step];
    return FIRN_OK;
}
