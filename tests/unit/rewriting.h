/* Small random models written, taken apart and put together otherwise, and the logits of what comes of it. */
#ifndef FIRN_TEST_REWRITING_H
#define FIRN_TEST_REWRITING_H

#include "unit/model.h"

#include "model/random_model.h"

#include <stdlib.h>

UNUSED const char *draw(const char *shape)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *path = in_scratch("model.gguf");

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    return path;
}

/* Logits of the first n tokens as one document, `stride` positions from one to the next: [n_vocab, n]. */
UNUSED float *strided_logits(const char *path, int n, int stride)
{
    fixture f;
    firn_session *session;

    open_at(&f, path, NULL, 1);
    float *logits = malloc(sizeof(float) * (size_t)(n * f.model->hp.n_vocab));
    for (int i = 0; i < n; i++) {
        f.position[i] = i * stride;
        f.first[i] = 0;
    }
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = n}, &session));
    const firn_batch batch = batch_of(&f, n);
    OK(f.ctx, firn_session_logits(session, &batch, logits));
    firn_session_destroy(session);
    close_fixture(&f);
    return logits;
}

UNUSED float *logits_of(const char *path, int n)
{
    return strided_logits(path, n, 1);
}

/* A model in F32 that is taken apart and put together otherwise. */
typedef struct {
    char name[64];
    int n_dims;
    int64_t ne[FIRN_MAX_DIMS];
    float *data;
} part;

typedef struct {
    firn_context *ctx;
    firn_gguf *gguf;
    firn_gguf_writer *out;
    part parts[256];
    int n;
} rewriting;

UNUSED void rewrite_begin(rewriting *r, const char *path)
{
    memset(r, 0, sizeof *r);
    r->ctx = firn_context_create(NULL);
    OK(r->ctx, firn_gguf_open(r->ctx, path, &r->gguf));
    OK(r->ctx, firn_gguf_writer_create(r->ctx, &r->out));
    for (size_t i = 0; i < firn_gguf_n_kv(r->gguf); i++)
        OK(r->ctx, firn_gguf_put_kv(r->out, firn_gguf_kv_at(r->gguf, i)));
    for (size_t i = 0; i < firn_gguf_n_tensors(r->gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(r->gguf, i);
        part *p = &r->parts[r->n++];
        assert_int_equal(t->type, FIRN_F32);
        snprintf(p->name, sizeof p->name, "%s", t->name);
        p->n_dims = t->n_dims;
        memcpy(p->ne, t->ne, sizeof p->ne);
        p->data = malloc(t->size);
        memcpy(p->data, t->data, t->size);
    }
}

UNUSED part *find(rewriting *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->parts[i].name, name) == 0)
            return &r->parts[i];
    return NULL;
}

UNUSED int64_t count(const part *p)
{
    return p->ne[0] * p->ne[1] * p->ne[2] * p->ne[3];
}

UNUSED void drop(part *p)
{
    free(p->data);
    p->name[0] = 0;
    p->data = NULL;
}

UNUSED const char *rewrite_end(rewriting *r, const char *to)
{
    const char *path = in_scratch(to);

    for (int i = 0; i < r->n; i++)
        if (r->parts[i].data)
            OK(r->ctx, firn_gguf_add_tensor(r->out, r->parts[i].name, FIRN_F32, r->parts[i].n_dims, r->parts[i].ne));
    OK(r->ctx, firn_gguf_writer_begin(r->out, path));
    for (int i = 0; i < r->n; i++)
        if (r->parts[i].data)
            OK(r->ctx, firn_gguf_writer_data(r->out, r->parts[i].data, sizeof(float) * (size_t)count(&r->parts[i])));
    OK(r->ctx, firn_gguf_writer_finish(r->out));
    for (int i = 0; i < r->n; i++)
        free(r->parts[i].data);
    firn_gguf_writer_destroy(r->out);
    firn_gguf_close(r->gguf);
    firn_context_destroy(r->ctx);
    return path;
}

UNUSED void same_logits(const char *a, const char *b)
{
    float *x = logits_of(a, N), *y = logits_of(b, N);

    const double error = nmse(y, x, N * 512);
    if (!(error < 1e-12))
        fail_msg("%s: logits differ by %.1e", b, error);
    free(x);
    free(y);
}

UNUSED void add_vector(rewriting *r, const char *name, int64_t n, const float *values)
{
    part *p = &r->parts[r->n++];

    assert_true(r->n <= (int)(sizeof r->parts / sizeof *r->parts));
    *p = (part){.n_dims = 1, .ne = {n, 1, 1, 1}, .data = malloc(sizeof(float) * (size_t)n)};
    snprintf(p->name, sizeof p->name, "%s", name);
    memcpy(p->data, values, sizeof(float) * (size_t)n);
}

#endif
