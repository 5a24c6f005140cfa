/* Weights are decoded and encoded in pieces of 4096, which every block size divides, so that memory does not depend on
 * the model nor on its largest tensor: a round of pieces is read, encoded into one buffer and written, and its pages of
 * the input are given back. */
#include "firn/quantize.h"

#include "core/pool.h"
#include "core/sized.h"
#include "format/encode.h"
#include "format/fallback.h"
#include "format/format.h"
#include "format/range.h"
#include "gguf/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PIECE = 4096, PIECES = 256 }; /* weights; pieces encoded between two writes */

typedef struct {
    firn_context *ctx;
    const firn_quantize_options *options;
    firn_quantize_report *report;
    firn_gguf *in;
    firn_gguf_writer *out;
    bool tied;
    char *packed; /* [PIECES * PIECE floats at most] */
} job;

/* ---- which type ---- */

/* "ffn_up_exps.weight", and "ffn_up.7.weight" of files that keep every expert apart. */
static bool is_expert(const char *name)
{
    const char *ffn = strstr(name, ".ffn_");
    int at = 0;

    return strstr(name, "_exps.") || (ffn && sscanf(ffn, ".ffn_%*[a-z].%*d.weight%n", &at) >= 0 && at > 0);
}

static firn_type wanted_type(const job *j, const firn_gguf_tensor *t)
{
    const firn_quantize_options *o = j->options;

    if (!firn_type_is_weight(t->type))
        return t->type;
    if (firn_quantize_keeps_f32(t->name, t->n_dims))
        return FIRN_F32;
    if (o->experts && is_expert(t->name))
        return *o->experts;
    if (o->output && strcmp(t->name, j->tied ? "token_embd.weight" : "output.weight") == 0)
        return *o->output;
    return o->type;
}

static firn_type final_type(const job *j, const firn_gguf_tensor *t)
{
    const firn_type wanted = wanted_type(j, t);

    return t->type == wanted ? wanted : firn_quantize_fallback(wanted, t->ne[0]);
}

/* llama.cpp's number for "mostly this type" (general.file_type); 1024 is its "not specified". */
static uint32_t file_type(firn_type type)
{
    static const struct {
        firn_type type;
        uint32_t number;
    } numbers[] = {
        {FIRN_F32, 0},     {FIRN_F16, 1},     {FIRN_Q4_0, 2},  {FIRN_Q4_1, 3},   {FIRN_Q8_0, 7},   {FIRN_Q5_0, 8},
        {FIRN_Q5_1, 9},    {FIRN_Q2_K, 10},   {FIRN_Q3_K, 11}, {FIRN_Q4_K, 14},  {FIRN_Q5_K, 16},  {FIRN_Q6_K, 18},
        {FIRN_IQ4_NL, 25}, {FIRN_IQ4_XS, 30}, {FIRN_BF16, 32}, {FIRN_MXFP4, 38}, {FIRN_NVFP4, 39},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].type == type)
            return numbers[i].number;
    return 1024;
}

/* ---- one tensor ---- */

typedef struct {
    firn_decoder decode;
    firn_encoder encode;
    const uint8_t *src;
    char *dst;
    size_t src_piece, dst_piece; /* bytes of PIECE weights */
    int64_t n;                   /* weights of this round */
    firn_type type;              /* of dst */
    atomic_llong next;
    atomic_bool bad;    /* a weight is not finite */
    _Atomic float lost; /* magnitude of one that the type cannot hold */
} round_job;

static void run_round(void *argument, firn_team team)
{
    round_job *r = argument;
    float x[PIECE];
    int64_t begin, end;

    (void)team;
    while (firn_team_take(&r->next, (r->n + PIECE - 1) / PIECE, 1, &begin, &end)) {
        for (int64_t p = begin; p < end; p++) {
            const int64_t n = firn_min_i64(PIECE, r->n - p * PIECE);
            r->decode(r->src + (size_t)p * r->src_piece, n, x);
            char *dst = r->dst + (size_t)p * r->dst_piece;
            r->encode(x, n, NULL, dst);
            if (r->type == FIRN_F32) /* whatever stands in the file */
                continue;
            const bool finite = firn_all_finite(x, n);
            const float lost = finite ? firn_format_lost(r->type, x, n, dst) : 0;
            if (!finite)
                atomic_store(&r->bad, true);
            if (lost > 0)
                atomic_store(&r->lost, lost);
        }
    }
}

static firn_status convert(job *j, const firn_gguf_tensor *t, firn_type type)
{
    const int64_t count = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    round_job r = {.decode = firn_format_decoder(t->type),
                   .encode = firn_format_encoder(type),
                   .src_piece = firn_row_bytes(t->type, PIECE),
                   .dst_piece = firn_row_bytes(type, PIECE),
                   .dst = j->packed,
                   .type = type};
    firn_pool *pool = firn_context_pool(j->ctx);

    if (!pool)
        return FIRN_ERR_MEMORY;
    if (!r.decode)
        return firn_fail(j->ctx, FIRN_ERR_UNSUPPORTED, "tensor '%s' has type %s, which cannot be read here", t->name,
                         firn_type_name(t->type));
    for (int64_t at = 0; at < count; at += r.n) {
        r.n = firn_min_i64((int64_t)PIECES * PIECE, count - at);
        r.src = t->data + firn_row_bytes(t->type, at);
        atomic_store(&r.next, 0);
        firn_pool_run(pool, run_round, &r);
        if (atomic_load(&r.bad))
            return firn_fail(j->ctx, FIRN_ERR_FORMAT,
                             "tensor '%s' has weights that are not finite, which %s cannot hold", t->name,
                             firn_type_name(type));
        const float lost = atomic_load(&r.lost);
        if (lost > 0)
            return firn_fail_lost(j->ctx, t->name, type, lost);
        FIRN_TRY(firn_gguf_writer_data(j->out, j->packed, firn_row_bytes(type, r.n)));
        firn_gguf_release(j->in, t);
    }
    return FIRN_OK;
}

/* ---- the model ---- */

static firn_status describe(job *j)
{
    firn_type packed = FIRN_F32;

    for (size_t i = 0; i < firn_gguf_n_kv(j->in); i++)
        FIRN_TRY(firn_gguf_put_kv(j->out, firn_gguf_kv_at(j->in, i)));
    j->tied = !firn_gguf_find(j->in, "output.weight");
    for (size_t i = 0; i < firn_gguf_n_tensors(j->in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(j->in, i);
        const firn_type type = final_type(j, t);
        packed = firn_type_block(type) > 1 ? type : packed;
        FIRN_TRY(firn_gguf_add_tensor(j->out, t->name, type, t->n_dims, t->ne));
        j->report->bytes_in += t->size;
    }
    FIRN_TRY(firn_gguf_put_u32(j->out, "general.file_type", file_type(j->options->type)));
    if (packed == FIRN_F32)
        firn_gguf_remove(j->out, "general.quantization_version");
    else
        FIRN_TRY(firn_gguf_put_u32(j->out, "general.quantization_version", 2));
    return FIRN_OK;
}

static firn_status write_all(job *j)
{
    firn_quantize_step step = {
        .size = sizeof step, .count = (int64_t)firn_gguf_n_tensors(j->in), .bytes = j->report->bytes_in};

    for (; step.index < step.count; step.index++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(j->in, (size_t)step.index);
        step.tensor = t;
        step.wanted = wanted_type(j, t);
        step.type = final_type(j, t);
        if (j->options->begin)
            j->options->begin(j->options->user, &step);
        if (t->type == step.type)
            FIRN_TRY(firn_gguf_writer_copy(j->out, j->in, t));
        else
            FIRN_TRY(convert(j, t, step.type));
        step.done += t->size;
        j->report->n_tensors++;
        j->report->n_changed += t->type != step.type;
        j->report->n_fallbacks += step.wanted != step.type;
        j->report->bytes_out += firn_row_bytes(step.type, t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
    }
    return FIRN_OK;
}

static firn_status check_target(firn_context *ctx, firn_type type)
{
    if (!firn_type_name(type))
        return firn_fail(ctx, FIRN_ERR_ARGUMENT, "%d is no type", (int)type);
    if (!firn_format_encoder(type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "type %s can be read here but not written", firn_type_name(type));
    return FIRN_OK;
}

firn_status firn_quantize(firn_context *ctx, const char *in, const char *out, const firn_quantize_options *options,
                          firn_quantize_report *result)
{
    FIRN_GIVEN(ctx, ctx, in, out, options);
    firn_quantize_options o;
    firn_quantize_report report = {.size = sizeof report};
    job j = {.ctx = ctx, .options = &o, .report = &report};

    FIRN_TRY(FIRN_TAKE(ctx, firn_quantize_options, user, options, &o));
    FIRN_TRY(result ? FIRN_ROOM(ctx, firn_quantize_report, bytes_out, result) : FIRN_OK);
    FIRN_TRY(check_target(ctx, o.type));
    FIRN_TRY(o.experts ? check_target(ctx, *o.experts) : FIRN_OK);
    FIRN_TRY(o.output ? check_target(ctx, *o.output) : FIRN_OK);
    FIRN_TRY(firn_gguf_open(ctx, in, &j.in));
    firn_status s = firn_gguf_refuse_part(ctx, j.in, out);
    if (s == FIRN_OK)
        s = firn_gguf_writer_create(ctx, &j.out);
    if (s == FIRN_OK && !(j.packed = firn_alloc(ctx, (size_t)PIECES * PIECE * sizeof(float))))
        s = FIRN_ERR_MEMORY;
    if (s == FIRN_OK)
        s = describe(&j);
    if (s == FIRN_OK)
        s = firn_gguf_writer_begin(j.out, out);
    if (s == FIRN_OK)
        s = write_all(&j);
    if (s == FIRN_OK)
        s = firn_gguf_unchanged(ctx, j.in);
    if (s == FIRN_OK)
        s = firn_gguf_writer_finish(j.out);
    firn_free(ctx, j.packed);
    firn_gguf_writer_destroy(j.out);
    firn_gguf_close(j.in);
    if (result)
        firn_sized_give(result, &report);
    return s;
}
