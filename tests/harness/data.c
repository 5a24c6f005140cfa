/* What the cases' inputs hold. */
#include "harness.h"

#include "core/random.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const firn_type promised_types[] = {
    FIRN_F32,  FIRN_F16,  FIRN_BF16, FIRN_Q4_0, FIRN_Q4_1,   FIRN_Q5_0,   FIRN_Q5_1,  FIRN_Q8_0,  FIRN_Q2_K,
    FIRN_Q3_K, FIRN_Q4_K, FIRN_Q5_K, FIRN_Q6_K, FIRN_IQ4_NL, FIRN_IQ4_XS, FIRN_MXFP4, FIRN_NVFP4,
};
const firn_type decoded_types[] = {
    FIRN_IQ2_XXS, FIRN_IQ2_XS, FIRN_IQ2_S, FIRN_IQ3_XXS, FIRN_IQ3_S, FIRN_IQ1_S,
    FIRN_IQ1_M,   FIRN_TQ1_0,  FIRN_TQ2_0, FIRN_Q1_0,    FIRN_Q2_0,
};
const int n_decoded_types = sizeof decoded_types / sizeof *decoded_types;
const int n_promised_types = sizeof promised_types / sizeof *promised_types;

/* ---- cases ---- */

double arg_or(const test_case *c, const char *name, double otherwise)
{
    for (int i = 0; i < c->n_args; i++)
        if (strcmp(c->args[i].name, name) == 0)
            return c->args[i].value;
    return otherwise;
}

void case_text(const test_case *c, char *text, size_t size)
{
    size_t at = 0;

    text[0] = 0;
    for (int i = 0; i < c->n_args && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s=%.10g", i ? "," : "", c->args[i].name, c->args[i].value);
}

const char *arg_name(const char *name, size_t n)
{
    static char *names[256];

    for (int i = 0; i < 256; i++) {
        if (!names[i]) {
            names[i] = strndup(name, n);
            return names[i];
        }
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return names[i];
    }
    abort();
}

test_case *add_case(case_list *list, const family *f, firn_type type, const char *names, ...)
{
    va_list values;

    if (list->n == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 64;
        list->items = realloc(list->items, list->capacity * sizeof *list->items);
        if (!list->items)
            abort();
    }
    test_case *c = &list->items[list->n++];
    *c = (test_case){.family = f, .type = type};
    va_start(values, names);
    for (const char *at = names; *at;) {
        const size_t n = strcspn(at, " ");
        c->args[c->n_args++] = (case_arg){arg_name(at, n), va_arg(values, int)};
        at += n + strspn(at + n, " ");
    }
    va_end(values);
    return c;
}

/* ---- packed weights: random bytes with scales that are numbers of a sensible size ---- */

typedef struct {
    firn_type type;
    int halves[2];      /* byte offsets of binary16 scales, -1: none */
    int bytes, n_bytes; /* byte-sized scales from offset `bytes` */
    int low, high;      /* what they may hold */
} scales;

static const scales scale_fields[] = {
    {FIRN_Q4_0, {0, -1}, 0, 0, 0, 0},          {FIRN_Q4_1, {0, 2}, 0, 0, 0, 0},
    {FIRN_Q5_0, {0, -1}, 0, 0, 0, 0},          {FIRN_Q5_1, {0, 2}, 0, 0, 0, 0},
    {FIRN_Q8_0, {0, -1}, 0, 0, 0, 0},          {FIRN_Q2_K, {80, 82}, 0, 0, 0, 0},
    {FIRN_Q3_K, {108, -1}, 0, 0, 0, 0},        {FIRN_Q4_K, {0, 2}, 0, 0, 0, 0},
    {FIRN_Q5_K, {0, 2}, 0, 0, 0, 0},           {FIRN_Q6_K, {208, -1}, 0, 0, 0, 0},
    {FIRN_IQ4_NL, {0, -1}, 0, 0, 0, 0},        {FIRN_IQ4_XS, {0, -1}, 0, 0, 0, 0},
    {FIRN_MXFP4, {-1, -1}, 0, 1, 122, 128},    {FIRN_NVFP4, {-1, -1}, 0, 4, 0x28, 0x40},
    {FIRN_IQ2_XXS, {0, -1}, 0, 0, 0, 0},       {FIRN_IQ2_XS, {0, -1}, 0, 0, 0, 0},
    {FIRN_IQ2_S, {0, -1}, 0, 0, 0, 0},         {FIRN_IQ3_XXS, {0, -1}, 0, 0, 0, 0},
    {FIRN_IQ3_S, {0, -1}, 0, 0, 0, 0},         {FIRN_IQ1_S, {0, -1}, 0, 0, 0, 0},
    {FIRN_TQ1_0, {52, -1}, 0, 0, 0, 0},        {FIRN_TQ2_0, {64, -1}, 0, 0, 0, 0},
    {FIRN_Q1_0, {0, -1}, 0, 0, 0, 0},          {FIRN_Q2_0, {0, -1}, 0, 0, 0, 0},
    {FIRN_IQ1_M, {-1, -1}, 55, 1, 0x20, 0x2f}, /* the scale's upper bits; the rest of it lies in three other words */
};

static uint64_t bits(world *w)
{
    return firn_random(77, 0, w->seed++);
}

static double unit(world *w)
{
    return (double)(bits(w) >> 11) * 0x1p-53;
}

/* A positive or negative number between 2^-7 and 2^-4 in binary16. */
static uint16_t small_half(world *w)
{
    const uint64_t r = bits(w);

    return (uint16_t)((r & 0x83ff) | (8 + (r >> 32) % 3) << 10);
}

static void fill_packed(world *w, firn_type type, unsigned char *p, size_t size)
{
    const size_t block = firn_type_size(type);
    const scales *f = NULL;

    for (size_t i = 0; i < sizeof scale_fields / sizeof *scale_fields; i++)
        if (scale_fields[i].type == type)
            f = &scale_fields[i];
    for (size_t i = 0; i < size; i++)
        p[i] = (unsigned char)bits(w);
    for (size_t b = 0; f && b < size; b += block) {
        for (int i = 0; i < 2; i++) {
            const uint16_t h = small_half(w);
            if (f->halves[i] >= 0)
                memcpy(p + b + f->halves[i], &h, sizeof h);
        }
        for (int i = 0; i < f->n_bytes; i++)
            p[b + (size_t)(f->bytes + i)] = (unsigned char)(f->low + (int)(bits(w) % (uint64_t)(f->high - f->low + 1)));
    }
}

static float number(world *w, fill kind)
{
    const double u = unit(w);

    switch (kind) {
    case AWAY:
        return (float)(u < 0.5 ? -0.2 - 1.6 * u : 0.2 + 1.6 * (u - 0.5));
    case POSITIVE:
        return (float)(0.5 + 1.5 * u);
    case GRID:
        return (float)(0.1 * (double)(int)(20 * u) - 0.95);
    default:
        return (float)(2 * u - 1);
    }
}

static void fill_slot(world *w, input *in, fill kind, double limit)
{
    const firn_type type = in->slot->type;

    if (type == FIRN_F32) {
        for (size_t i = 0; i < in->size / sizeof(float); i++) {
            const float f = number(w, kind);
            memcpy(in->bytes + i * sizeof f, &f, sizeof f);
        }
    } else if (type == FIRN_I32) {
        for (size_t i = 0; i < in->size / sizeof(int32_t); i++) {
            const int32_t id = (int32_t)(bits(w) % (uint64_t)limit);
            memcpy(in->bytes + i * sizeof id, &id, sizeof id);
        }
    } else if (type == FIRN_F16 || type == FIRN_BF16) {
        for (size_t i = 0; i < in->size / 2; i++) {
            const uint64_t r = bits(w);
            const uint16_t h = type == FIRN_F16 ? (uint16_t)((r & 0x83ff) | (11 + (r >> 32) % 4) << 10)
                                                : (uint16_t)((r & 0x807f) | (123 + (r >> 32) % 4) << 7);
            memcpy(in->bytes + 2 * i, &h, 2);
        }
    } else {
        fill_packed(w, type, in->bytes, in->size);
    }
}

/* ---- slots ---- */

firn_tensor *slot4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const int64_t ne[] = {n0, n1, n2, n3};
    firn_tensor *t = firn_slot(w->g, type, 4, ne, "in%d", w->n);

    if (!t)
        return NULL;
    if (w->n == MAX_INPUTS)
        abort();
    input *in = &w->inputs[w->n++];
    *in = (input){.slot = t, .size = firn_n_bytes(t)};
    in->bytes = malloc(in->size + 1);
    in->fixed = type != FIRN_F32;
    if (!in->bytes) { /* a --case may ask for anything */
        fprintf(stderr, "test-backend-ops: out of memory: an input has %zu bytes\n", in->size);
        exit(1);
    }
    fill_slot(w, in, kind, limit);
    return t;
}

firn_tensor *strided4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const int64_t block = firn_type_block(type), size = (int64_t)firn_type_size(type);
    firn_tensor *t = slot4(w, type, kind, limit, n0 + 2 * block, n1 + 1, n2 + 1, n3);
    const int64_t ne[] = {n0, n1, n2, n3};

    return t ? firn_view(w->g, t, 4, ne, t->nb, size + t->nb[1]) : NULL;
}

firn_tensor *turned4(world *w, firn_type type, fill kind, double limit, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return firn_transpose(w->g, slot4(w, type, kind, limit, n1, n0, n2, n3));
}

firn_tensor *laid_out(world *w, const test_case *c, firn_type type, fill kind, double limit, int64_t n0, int64_t n1,
                      int64_t n2, int64_t n3)
{
    const int layout = (int)arg_or(c, "layout", 0);

    return (layout == 0 ? slot4 : layout == 1 ? strided4 : turned4)(w, type, kind, limit, n0, n1, n2, n3);
}

firn_tensor *dense4(world *w, const test_case *c, fill kind, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return (arg_or(c, "layout", 0) > 0 ? strided4 : slot4)(w, FIRN_F32, kind, 0, n0, n1, n2, n3);
}

void keep_fixed(world *w)
{
    if (w->n)
        w->inputs[w->n - 1].fixed = true;
}

void *last_bytes(world *w)
{
    return w->n ? w->inputs[w->n - 1].bytes : NULL;
}

/* ---- tensors in double ---- */

void dshape(dtensor *t, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const int64_t ne[] = {n0, n1, n2, n3};

    free(t->v);
    memcpy(t->ne, ne, sizeof ne);
    t->v = calloc((size_t)dcount(t) + 1, sizeof *t->v);
    if (!t->v)
        abort();
}

void dfree(dtensor *t)
{
    free(t->v);
    t->v = NULL;
}
