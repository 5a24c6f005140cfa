/* Experts as separate tensors, as older files have them: the bits of logits, losses, gradients and generation are those
 * of the stacked file, however the experts lie in the file. */
#include "unit/model.h"

#include "firn/merge.h"

#include "model/block.h"
#include "model/random_model.h"
#include "model/stack.h"

#include <stdlib.h>

enum { VOCAB = 512, MAX_PARTS = 256 };

/* In which order an expert's tensors are written. */
typedef enum {
    BEHIND,   /* all of gate, all of up, all of down */
    TURN,     /* gate, down, up of one expert, then of the next */
    SHUFFLED, /* any order */
    SPLIT,    /* every other expert in a second file */
} order;

typedef struct {
    const firn_gguf_tensor *from;
    char name[64];
    int n_dims;
    int64_t ne[FIRN_MAX_DIMS];
    size_t offset, size;
    int64_t rank; /* experts of a block: place in the order */
    int file;     /* of SPLIT, 0 or 1 */
} part;

static int by_rank(const void *a, const void *b)
{
    const int64_t x = ((const part *)a)->rank, y = ((const part *)b)->rank;

    return (x > y) - (x < y);
}

/* What is wrong with a file, for sentences. */
typedef struct {
    const char *drop;    /* a tensor that is left out */
    const char *add;     /* one of 8 floats that nothing asks for */
    const char *reshape; /* its rows are halved */
} fault;

/* The writer writes no keys of split files: they were given another name, and get theirs here. */
static void name_split_keys(const char *path)
{
    FILE *f = fopen(path, "r+b");
    char window[6] = "";
    int found = 0;

    assert_non_null(f);
    for (int c; found < 3 && (c = getc(f)) != EOF;) {
        memmove(window, window + 1, 5);
        window[5] = (char)c;
        if (memcmp(window, "splix.", 6) != 0)
            continue;
        found++;
        fseek(f, -2, SEEK_CUR);
        putc('t', f);
        fseek(f, 1, SEEK_CUR);
    }
    fclose(f);
    assert_int_equal(found, 3);
}

/* One of n_files. */
static void write_file(firn_context *ctx, const firn_gguf *g, part *parts, int n, int file, int n_files, const fault *f,
                       const char *to)
{
    firn_gguf_writer *w;
    static const char zeros[32];

    OK(ctx, firn_gguf_writer_create(ctx, &w));
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        OK(ctx, firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)));
    if (n_files > 1) {
        OK(ctx, firn_gguf_put_u32(w, "splix.no", (uint32_t)file));
        OK(ctx, firn_gguf_put_u32(w, "splix.count", (uint32_t)n_files));
        OK(ctx, firn_gguf_put_u32(w, "splix.tensors.count", (uint32_t)n));
    }
    for (int writing = 0; writing < 2; writing++) {
        for (int i = 0; i < n; i++) {
            part *p = &parts[i];
            const bool halved = f->reshape && strcmp(p->name, f->reshape) == 0;
            if (p->file != file || (f->drop && strcmp(p->name, f->drop) == 0))
                continue;
            if (!writing && halved)
                p->ne[1] /= 2, p->size /= 2;
            if (!writing)
                OK(ctx, firn_gguf_add_tensor(w, p->name, p->from->type, p->n_dims, p->ne));
            else
                OK(ctx, firn_gguf_writer_data(w, p->from->data + p->offset, p->size));
        }
        if (f->add && !writing)
            OK(ctx, firn_gguf_add_tensor(w, f->add, FIRN_F32, 1, (int64_t[]){8}));
        if (f->add && writing)
            OK(ctx, firn_gguf_writer_data(w, zeros, sizeof zeros));
        if (!writing)
            OK(ctx, firn_gguf_writer_begin(w, to));
    }
    OK(ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    if (n_files > 1)
        name_split_keys(to);
}

/* `to`: the first file of SPLIT's two, named so. */
static void take_apart(const char *from, order o, const fault *f, const char *to)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;
    static part parts[MAX_PARTS];
    int n = 0;

    OK(ctx, firn_gguf_open(ctx, from, &g));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        const char *exps = strstr(t->name, "_exps.");
        const int64_t n_expert = exps ? t->ne[2] : 1;
        for (int64_t e = 0; e < n_expert; e++) {
            part *p = &parts[n++];
            assert_true(n <= MAX_PARTS);
            *p = (part){.from = t, .n_dims = exps ? 2 : t->n_dims, .size = t->size / (size_t)n_expert};
            memcpy(p->ne, t->ne, sizeof p->ne);
            p->offset = (size_t)e * p->size;
            p->rank = (int64_t)(1000 * i);
            snprintf(p->name, sizeof p->name, "%s", t->name);
            if (!exps)
                continue;
            p->file = o == SPLIT ? (int)e % 2 : 0;
            p->ne[2] = 1;
            const int which = strstr(t->name, "ffn_down") ? 1 : strstr(t->name, "ffn_up") ? 2 : 0;
            int block;
            sscanf(t->name, "blk.%d", &block);
            snprintf(p->name, sizeof p->name, "%.*s.%d.weight", (int)(exps - t->name), t->name, (int)e);
            if (o == TURN || o == SHUFFLED) /* behind everything else, block by block */
                p->rank = 1000000 + 10000 * block + (o == TURN ? 3 * e + which : (e * 7 + which * 5) % 11 * 10 + e);
        }
    }
    qsort(parts, (size_t)n, sizeof *parts, by_rank);
    write_file(ctx, g, parts, n, 0, o == SPLIT ? 2 : 1, f, to);
    if (o == SPLIT)
        write_file(ctx, g, parts, n, 1, 2, f, in_scratch("apart-00002-of-00002.gguf"));
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

static const char *draw(const char *shape, firn_type type)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *path = in_scratch("stacked.gguf");

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 0, type, 3, path, NULL));
    firn_context_destroy(ctx);
    return path;
}

/* ---- equal bits ---- */

typedef struct {
    double loss;
    float *gradients, generated[4 * VOCAB];
    int64_t n;
} outcome;

/* A training pass that keeps as few blocks as it can, then a prompt and three tokens. */
static outcome run(const char *path, firn_weights_place place)
{
    fixture f;
    firn_session *session;
    firn_session_memory memory = {.size = sizeof memory};
    firn_generator *generator;
    const float *logits;
    int64_t n;
    outcome o = {0};

    open_at(&f, path, NULL, 2);
    firn_context_set_weights(f.ctx, place, 0);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "all", 3, 6, 1, &f.adapter));
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        if (f.adapter->values[i] == 0)
            f.adapter->values[i] = 0.02f * sinf((float)i);
    firn_session_params params = {.n_tokens = 2 * N, .train = true};
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &memory));
    params.memory_limit = memory.least;
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    for (int pass = 0; pass < 2; pass++) /* the second finds experts of the first in place */
        OK(f.ctx, firn_session_gradient(session, &batch, 1, &o.loss, &n));
    o.n = f.adapter->n_values;
    o.gradients = malloc((size_t)o.n * sizeof(float));
    memcpy(o.gradients, firn_session_gradients(session), (size_t)o.n * sizeof(float));
    firn_session_destroy(session);
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, N, &generator));
    for (int i = 0; i < 4; i++) {
        OK(f.ctx, firn_generator_feed(generator, f.tokens + (i ? 9 + i : 0), i ? 1 : 10, &logits));
        memcpy(o.generated + i * VOCAB, logits, sizeof(float) * VOCAB);
    }
    firn_generator_destroy(generator);
    close_fixture(&f);
    return o;
}

typedef enum { DENSE, SPREAD, TABLE, GATHERED } use;

/* How the experts of the last block's gate are used. */
static use use_of(const char *path)
{
    fixture f;

    open_at(&f, path, NULL, 1);
    const firn_stack *s = f.model->layers[f.model->hp.n_layer - 1].stack[FIRN_T_FFN_GATE_EXPS];
    assert_non_null(s);
    const use found = s->span ? TABLE : !s->distance ? GATHERED : firn_stack_dense(s) ? DENSE : SPREAD;
    /* Experts are copied where a table does not do: for gradients, from block 1 on here, and from several files. */
    firn_weights *w;
    const int64_t n_layer = f.model->hp.n_layer;
    OK(f.ctx, firn_weights_create(f.ctx, f.device, f.model, n_layer, 0, &w));
    for (int id = 0; id < FIRN_T_COUNT; id++)
        assert_true(found == GATHERED || !w->gathered[id]);
    assert_true((w->gathered[FIRN_T_FFN_GATE_EXPS] != NULL) == (found == GATHERED));
    assert_true((firn_weights_gathered_bytes(f.model, n_layer) > 0) == (found == GATHERED));
    assert_true((firn_weights_gathered_bytes(f.model, 1) > 0) == (found >= TABLE));
    assert_int_equal(firn_weights_table_bytes(f.model), w->tables ? firn_buffer_size(w->tables) : 0);
    assert_true((w->tables != NULL) == (found == TABLE));
    firn_weights_destroy(w);
    const firn_block_kind forward = firn_block_kind_of(f.model, 1, NULL, 1, 0, false, false),
                          backward = firn_block_kind_of(f.model, 1, NULL, 1, 0, true, false);
    assert_true((forward.t[FIRN_T_FFN_GATE_EXPS].span > 0) == (found == TABLE));
    assert_int_equal(backward.t[FIRN_T_FFN_GATE_EXPS].span, 0);
    assert_string_equal(f.model->layers[1].weight[FIRN_T_FFN_UP_EXPS]->name, "blk.1.ffn_up_exps.weight");
    assert_non_null(strstr(firn_model_warning(f.model, 0), "llama.cpp does not load files that keep experts apart"));
    assert_null(firn_model_warning(f.model, 1));
    close_fixture(&f);
    return found;
}

static void test_bits(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        firn_type type;
        use behind, turn; /* q4_K: down is q5_0, whose size the blocks of q4_K do not divide */
    } cases[] = {
        {"tiny", FIRN_Q4_0, DENSE, SPREAD},
        {"tiny-qwen3moe", FIRN_Q4_K, DENSE, TABLE},
        {"tiny-qwen3moe", FIRN_F32, DENSE, SPREAD},
        {"tiny-deepseek2", FIRN_Q8_0, DENSE, SPREAD},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char stacked[256]; /* in_scratch has few places */
        snprintf(stacked, sizeof stacked, "%s", draw(cases[i].shape, cases[i].type));
        outcome a = run(stacked, FIRN_WEIGHTS_AUTO);
        for (order o = BEHIND; o <= SPLIT; o++) {
            const char *apart = in_scratch(o == SPLIT ? "apart-00001-of-00002.gguf" : "apart.gguf");
            take_apart(stacked, o, &(fault){0}, apart);
            const use u = use_of(apart), expected = o == BEHIND     ? cases[i].behind
                                                    : o == TURN     ? cases[i].turn
                                                    : o == SHUFFLED ? TABLE
                                                                    : GATHERED;
            if (u != expected)
                fail_msg("%s, order %d: experts are used by way %d, not %d", cases[i].shape, o, u, expected);
            for (int place = FIRN_WEIGHTS_MAPPED; place <= FIRN_WEIGHTS_STREAMED;
                 place++) { /* copied, they lie as here */
                outcome b = run(apart, (firn_weights_place)place);
                assert_int_equal(a.n, b.n);
                assert_memory_equal(&a.loss, &b.loss, sizeof a.loss);
                assert_memory_equal(a.gradients, b.gradients, (size_t)a.n * sizeof(float));
                assert_memory_equal(a.generated, b.generated, sizeof a.generated);
                free(b.gradients);
            }
        }
        free(a.gradients);
    }
}

/* ---- sentences ---- */

static void refused(const fault *f, const char *sentence)
{
    take_apart(draw("tiny", FIRN_F32), TURN, f, in_scratch("bad.gguf"));
    model_refused(in_scratch("bad.gguf"), sentence);
}

static void test_refused(void **state)
{
    (void)state;
    refused(&(fault){.drop = "blk.1.ffn_down.3.weight"}, "blk.1.ffn_down.3.weight is missing; the experts before it");
    refused(&(fault){.drop = "blk.1.ffn_down.0.weight"}, "tensor blk.1.ffn_down_exps.weight is missing");
    refused(&(fault){.add = "blk.1.ffn_up.6.weight"}, "tensor blk.1.ffn_up.6.weight has no place");
    refused(&(fault){.add = "blk.1.ffn_up.01.weight"}, "tensor blk.1.ffn_up.01.weight has no place");
    refused(&(fault){.reshape = "blk.0.ffn_up.2.weight"}, "blk.0.ffn_up.2.weight should be [256, 256], not [256, 128");
}

/* An adapter of such a model is that of the stacked one. */
static void test_adapter(void **state)
{
    (void)state;
    fixture f, g;

    const char *stacked = draw("tiny", FIRN_F32), *apart = in_scratch("apart.gguf");
    take_apart(stacked, TURN, &(fault){0}, apart);
    open_at(&f, apart, NULL, 1);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "experts", 3, 6, 1, &f.adapter));
    assert_int_equal(f.adapter->n_entries, 2 * 3);
    OK(f.ctx, firn_adapter_save(f.ctx, f.adapter, NULL, in_scratch("a.gguf")));
    open_at(&g, stacked, in_scratch("a.gguf"), 1);
    assert_int_equal(g.adapter->n_values, f.adapter->n_values);
    assert_memory_equal(g.adapter->values, f.adapter->values, (size_t)g.adapter->n_values * sizeof(float));
    /* Merged, each expert's tensor is the stack's slice. */
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        f.adapter->values[i] = g.adapter->values[i] = 0.01f * (float)((i * 7) % 13 - 6);
    const firn_type type = FIRN_Q8_0;
    const firn_merge_options options = {.type = &type};
    OK(f.ctx, firn_merge(f.ctx, f.model, f.adapter, in_scratch("merged-apart.gguf"), &options, NULL));
    OK(g.ctx, firn_merge(g.ctx, g.model, g.adapter, in_scratch("merged.gguf"), &options, NULL));
    close_fixture(&f);
    close_fixture(&g);
    open_at(&f, in_scratch("merged-apart.gguf"), NULL, 1);
    open_at(&g, in_scratch("merged.gguf"), NULL, 1);
    const firn_gguf_tensor *all = firn_gguf_find(g.model->gguf, "blk.1.ffn_down_exps.weight");
    assert_int_equal(all->type, FIRN_Q8_0);
    for (int64_t e = 0; e < all->ne[2]; e++) {
        char name[64];
        snprintf(name, sizeof name, "blk.1.ffn_down.%d.weight", (int)e);
        const firn_gguf_tensor *t = firn_gguf_find(f.model->gguf, name);
        assert_non_null(t);
        assert_int_equal(t->type, FIRN_Q8_0);
        assert_memory_equal(t->data, all->data + (size_t)e * t->size, t->size);
    }
    close_fixture(&f);
    close_fixture(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_adapter),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
