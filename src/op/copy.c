/* CONT(a) -> a contiguous copy of a, of a's type.
 * CAST(a) -> the same values in another type: F32, F16, BF16 among each other (rounded to nearest even), packed weights
 *            to F32.
 * CPY(dst, a) -> dst's new contents: a's elements, in order, written into dst (a slot or a view of one), converted to
 *            its type. Shapes may differ, the number of elements may not.
 *
 * Gradients are F32 whatever the types are, and pass unchanged; what CPY overwrites receives none. */
#include "op/mathf.h"
#include "op/util.h"

#include "format/encode.h"
#include "format/format.h"

enum { A }; /* CONT, CAST */
enum { DST, FROM };

static bool scalar_float(firn_type t)
{
    return t == FIRN_F32 || t == FIRN_F16 || t == FIRN_BF16;
}

/* Bytes of a value of any type. */
typedef uint32_t __attribute__((may_alias)) any32;
typedef uint16_t __attribute__((may_alias)) any16;

/* n elements of `size` bytes, at a stride on both sides. */
static void copy_bytes(char *out, int64_t so, const char *in, int64_t si, int64_t n, size_t size)
{
    if (so == (int64_t)size && si == (int64_t)size) {
        memcpy(out, in, (size_t)n * size);
    } else if (size == sizeof(uint32_t)) {
        for (int64_t i = 0; i < n; i++)
            *(any32 *)(out + i * so) = *(const any32 *)(in + i * si);
    } else if (size == sizeof(uint16_t)) {
        for (int64_t i = 0; i < n; i++)
            *(any16 *)(out + i * so) = *(const any16 *)(in + i * si);
    } else {
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * so, in + i * si, size);
    }
}

/* n elements of type `from` as others of type `to`, both scalar, at a stride on both sides: what is not dense goes
 * through arrays, so that the conversions are those of whole rows. */
static void convert(firn_type to, char *out, int64_t so, firn_type from, const char *in, int64_t si, int64_t n)
{
    enum { RUN = 512 };
    const size_t size_in = firn_type_size(from), size_out = firn_type_size(to);
    const bool dense_in = si == (int64_t)size_in, dense_out = so == (int64_t)size_out;
    _Alignas(float) char packed_in[RUN * sizeof(float)], packed_out[RUN * sizeof(float)];
    float floats[RUN];

    for (int64_t at = 0, here; at < n; at += here) {
        here = firn_min_i64(RUN, n - at);
        const void *source = in + at * si;
        void *target = out + at * so;
        if (!dense_in) {
            copy_bytes(packed_in, (int64_t)size_in, source, si, here, size_in);
            source = packed_in;
        }
        const float *values = firn_row_floats(from, source, floats, here);
        firn_encode_row(to, values, here, NULL, dense_out ? target : packed_out);
        if (!dense_out)
            copy_bytes(target, so, packed_out, (int64_t)size_out, here, size_out);
    }
}

/* ---- CONT ---- */

static firn_status cont_shape(firn_context *ctx, firn_tensor *y)
{
    return firn_shape_like(ctx, y, y->src[A]->type, y->src[A]->ne);
}

enum { COLUMNS = 16, ROWS = 128 };

/* out[i] = in[i * stride]. */
FIRN_INLINE void copy_column(any32 *out, const char *in, int64_t stride, int n)
{
    uint32_t line[COLUMNS];

    for (int i = 0; i < n; i++)
        line[i] = *(const any32 *)(in + i * stride);
    memcpy(out, line, (size_t)n * sizeof *line);
}

/* Rows [r, r + n_rows) of a plane whose columns are contiguous, n_rows <= ROWS: a cache line's worth of each row in
 * turn, from lines that are near until the last row has passed. */
FIRN_WIDE static void copy_turned(const firn_call *call, int64_t r, int64_t n_rows)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const char *in = firn_row_at(a, call->src[A], r);
    any32 *out = (any32 *)firn_row_at(y, call->dst, r);

    for (int64_t i = 0; i < y->ne[0]; i += COLUMNS) {
        const int n = (int)firn_min_i64(COLUMNS, y->ne[0] - i);
        for (int64_t j = 0; j < n_rows; j++) {
            any32 *to = out + j * y->ne[0] + i;
            const char *from = in + i * a->nb[0] + j * (int64_t)sizeof *to;
            if (n == COLUMNS) /* known when compiled */
                copy_column(to, from, a->nb[0], COLUMNS);
            else
                copy_column(to, from, a->nb[0], n);
        }
    }
}

static void cont_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t n = y->ne[0] / firn_type_block(y->type);
    const size_t size = firn_type_size(y->type);
    const bool turned = size == sizeof(uint32_t) && a->nb[1] == (int64_t)size && a->nb[0] != (int64_t)size;

    for (int64_t r = begin, rows; turned && r < end; r += rows) {
        rows = firn_min_i64(firn_min_i64(end - r, ROWS), y->ne[1] - r % y->ne[1]);
        copy_turned(call, r, rows);
    }
    for (int64_t r = begin; !turned && r < end; r++)
        copy_bytes(firn_row_at(y, call->dst, r), (int64_t)size, firn_row_at(a, call->src[A], r), a->nb[0], n, size);
}

static firn_tensor *pass(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    (void)g, (void)y, (void)of;
    return dy;
}

const firn_op firn_op_cont = {
    .name = "CONT",
    .n_src = 1,
    .shape = cont_shape,
    .gradient = pass,
    .reference = cont_reference,
};

firn_tensor *firn_cont(firn_graph *g, firn_tensor *a)
{
    return firn_node(g, &firn_op_cont, &a, 1, NULL);
}

/* ---- CAST ---- */

static firn_status cast_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A];
    const firn_type to = (firn_type)y->params.i[0];

    FIRN_EXPECT(ctx, firn_type_name(to), "there is no tensor type %d", y->params.i[0]);
    FIRN_EXPECT(ctx, scalar_float(to), "values become f32, f16 or bf16, not %s", firn_type_name(to));
    FIRN_EXPECT(ctx, scalar_float(a->type) || (to == FIRN_F32 && firn_format_can_decode(a->type)),
                "%s cannot become %s", firn_type_name(a->type), firn_type_name(to));
    if (!scalar_float(a->type))
        FIRN_TRY(firn_expect_rows(ctx, a, "a"));
    return firn_shape_like(ctx, y, to, a->ne);
}

static void cast_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t n = y->ne[0];

    for (int64_t r = begin; r < end; r++) {
        char *out = firn_row_at(y, call->dst, r);
        const char *in = firn_row_at(a, call->src[A], r);
        if (y->type == a->type) {
            copy_bytes(out, y->nb[0], in, a->nb[0], n, (size_t)y->nb[0]);
        } else if (y->type == FIRN_F32 && firn_dense_rows(a)) {
            firn_decode_row(a->type, in, n, (float *)out);
        } else {
            convert(y->type, out, y->nb[0], a->type, in, a->nb[0], n);
        }
    }
}

const firn_op firn_op_cast = {
    .name = "CAST",
    .n_src = 1,
    .shape = cast_shape,
    .gradient = pass,
    .reference = cast_reference,
};

firn_tensor *firn_cast(firn_graph *g, firn_tensor *a, firn_type type)
{
    return firn_node(g, &firn_op_cast, &a, 1, &(firn_params){.i = {(int32_t)type}});
}

/* ---- CPY ---- */

static firn_status cpy_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *dst = y->src[DST], *a = y->src[FROM];

    FIRN_EXPECT(ctx, firn_n_elements(dst) == firn_n_elements(a), "%s has not as many elements as %s",
                firn_shape_text(a), firn_shape_text(dst));
    FIRN_EXPECT(ctx,
                (dst->type == a->type && firn_type_block(a->type) == 1) ||
                    (scalar_float(dst->type) && scalar_float(a->type)),
                "%s cannot be copied into %s", firn_type_name(a->type), firn_type_name(dst->type));
    y->type = dst->type;
    memcpy(y->ne, dst->ne, sizeof y->ne);
    memcpy(y->nb, dst->nb, sizeof y->nb);
    return FIRN_OK;
}

static void cpy_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[FROM];
    const int64_t n = y->ne[0], na = a->ne[0];

    for (int64_t r = begin; r < end; r++) {
        char *out = firn_row_at(y, call->dst, r);
        /* Runs of elements that lie in one row of a. */
        for (int64_t i = 0, run; i < n; i += run) {
            const int64_t flat = r * n + i;
            const char *in = firn_row_at(a, call->src[FROM], flat / na) + flat % na * a->nb[0];
            run = firn_min_i64(n - i, na - flat % na);
            if (y->type == a->type) {
                copy_bytes(out + i * y->nb[0], y->nb[0], in, a->nb[0], run, firn_type_size(y->type));
                continue;
            }
            convert(y->type, out + i * y->nb[0], y->nb[0], a->type, in, a->nb[0], run);
        }
    }
}

static firn_tensor *cpy_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of == DST)
        return NULL;
    return firn_reshape(g, firn_is_contiguous(dy) ? dy : firn_cont(g, dy), FIRN_MAX_DIMS, y->src[FROM]->ne);
}

static firn_cost cpy_cost(const firn_tensor *y)
{
    return (firn_cost){.bytes_read = (double)firn_n_elements(y) * (double)firn_type_size(y->src[FROM]->type),
                       .bytes_written = (double)firn_n_elements(y) * (double)firn_type_size(y->type)};
}

const firn_op firn_op_cpy = {
    .name = "CPY",
    .n_src = 2,
    .into = true,
    .shape = cpy_shape,
    .gradient = cpy_gradient,
    .cost = cpy_cost,
    .reference = cpy_reference,
};

firn_tensor *firn_cpy(firn_graph *g, firn_tensor *a, firn_tensor *dst)
{
    return firn_node(g, &firn_op_cpy, (firn_tensor *[]){dst, a}, 2, NULL);
}
