/* Every architecture on a small random model of it (`firn init --like tiny-...`): gradients against differences of the
 * loss, the key/value cache against whole passes, the forms in which files come (fused products, prediction blocks,
 * arrays per block, long and short rotary factors), the router's rules, sentences for what is refused. */
#include "unit/rewriting.h"

static const char *const cases[] = {"glm4moe",        "gpt-oss-mxfp4", "granitemoe",  "qwen2moe",     "afmoe",
                                    "exaone-moe",     "glm-dsa",       "qwen35moe",   "qwen3next-in", "lfm2moe",
                                    "nemotron-h-moe", "granitehybrid", "kimi-linear", "gemma4",       "gemma4-moe",
                                    "gemma4-e",       "hunyuan-moe",   "hy-v3",       "mellum",       "minimax-m2",
                                    "mistral4",       "qwen3vlmoe"};
static const char *const shared_cases[] = {
    "qwen35moe-q4_0",    "qwen35-q8_0",        "qwen35-long", "qwen3next-q4_0", "lfm2moe-q4_0",
    "nemotron-h-moe-q5", "granitehybrid-q4_k", "qwen35",      "qwen3next",      "nemotron-h-moe-latent",
    "kimi-linear-attn",  "gemma4-moe-q4_0",    "bailingmoe2", "dots1",          "mistral4-q4_0"};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, CASES "/%s", cases[i]);
        assert_int_equal(verify(folder), 0);
    }
}

static void test_shared_cases(void **state)
{
    (void)state;
    if (access(SHARED "/llama/case.json", R_OK) != 0)
        skip();
    for (size_t i = 0; i < sizeof shared_cases / sizeof *shared_cases; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, SHARED "/%s", shared_cases[i]);
        assert_int_equal(verify(folder), 0);
    }
}

/* The small shapes, one after the other. */
static const firn_random_shape *next_tiny(int *i)
{
    const firn_random_shape *s;

    while ((s = firn_random_shape_at((*i)++)) != NULL)
        if (strncmp(s->name, "tiny", 4) == 0)
            return s;
    return NULL;
}

/* Every architecture of the list has a small shape and a real one. */
static void test_shapes(void **state)
{
    (void)state;
    for (int a = 0; firn_archs[a]; a++) {
        int tiny = 0, real = 0;
        for (int i = 0; firn_random_shape_at(i); i++) {
            const firn_random_shape *s = firn_random_shape_at(i);
            if (strcmp(s->arch, firn_archs[a]->name) == 0)
                strncmp(s->name, "tiny", 4) == 0 ? tiny++ : real++;
            /* Kinds of blocks are told whole, or by a period of theirs. */
            if (s->pattern && strncmp(s->name, "tiny", 4) != 0)
                assert_int_equal(s->n_layer % (int64_t)strlen(s->pattern), 0);
        }
        if (!tiny || (!real && strcmp(firn_archs[a]->name, "llama") != 0))
            fail_msg("%s: %d small shapes, %d real ones", firn_archs[a]->name, tiny, real);
    }
}

/* ---- gradients ---- */

static double loss_of(fixture *f, firn_session *session)
{
    const firn_batch batch = batch_of(f, 2 * N);
    double loss;
    int64_t n;

    OK(f->ctx, firn_session_loss(session, &batch, &loss, &n));
    return loss;
}

/* "ffn_up_exps.weight" of "blk.2.ffn_up_exps.weight". */
static const char *base_of(const char *tensor)
{
    return strncmp(tensor, "blk.", 4) == 0 ? strchr(tensor + 4, '.') + 1 : tensor;
}

/* values += step * direction on all tensors of that base. */
static void move(firn_adapter *ad, const char *base, const float *direction, double step)
{
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        const int64_t n = e->b + e->rank * e->n_out * e->n_expert;
        for (int64_t j = e->a; strcmp(base_of(e->tensor), base) == 0 && j < n; j++)
            ad->values[j] += (float)(step * (double)direction[j]);
    }
}

static double norm2(const firn_adapter *ad, const char *base, const float *x)
{
    double sum = 0;

    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        const int64_t n = e->b + e->rank * e->n_out * e->n_expert;
        for (int64_t j = e->a; strcmp(base_of(e->tensor), base) == 0 && j < n; j++)
            sum += (double)x[j] * (double)x[j];
    }
    return sum;
}

/* Where a choice of experts changes the loss jumps, so all of them are used (all of the chosen groups). */
static const char *draw_smooth(const firn_random_shape *like)
{
    firn_random_shape s = *like;
    const char *path = in_scratch("slopes.gguf");

    s.n_expert_used = s.n_group ? s.n_expert / s.n_group * s.n_group_used : s.n_expert;
    s.n_layer = 2;
    for (int a = 0; firn_archs[a]; a++)
        if (strcmp(firn_archs[a]->name, s.arch) == 0 &&
            (firn_archs[a]->rope_skip || firn_archs[a]->window_step == 4 || s.n_head_window || s.pattern))
            s.n_layer = 4; /* the fourth is another than the first three */
    firn_context *ctx = firn_context_create(NULL);
    OK(ctx, firn_random_model_write(ctx, &s, 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    return path;
}

static void check_slopes(const char *path)
{
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    open_at(&f, path, NULL, 2);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "all", 3, 6, 1, &f.adapter));
    firn_adapter *ad = f.adapter;
    for (int64_t i = 0; i < ad->n_values; i++)
        if (ad->values[i] == 0)
            ad->values[i] = 0.02f * sinf((float)i);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, ad,
                                  &(firn_session_params){.n_tokens = 2 * N, .train = true}, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
    const size_t bytes = (size_t)ad->n_values * sizeof(float);
    float *g = malloc(bytes), *start = malloc(bytes);
    memcpy(g, firn_session_gradients(session), bytes);
    memcpy(start, ad->values, bytes);
    for (int i = 0; i < ad->n_entries; i++) {
        const char *base = base_of(ad->entries[i].tensor);
        bool seen = false;
        for (int j = 0; j < i; j++)
            seen |= strcmp(base_of(ad->entries[j].tensor), base) == 0;
        if (seen)
            continue;
        const double slope = norm2(ad, base, g);
        assert_true(slope > 0);
        double best = INFINITY;
        for (double change = 0.01; change > 0.001 && !(best < 3e-3); change /= 4) {
            const double h = change / slope;
            move(ad, base, g, h);
            const double up = loss_of(&f, session);
            memcpy(ad->values, start, bytes);
            move(ad, base, g, -h);
            const double down = loss_of(&f, session);
            memcpy(ad->values, start, bytes);
            best = fmin(best, fabs((up - down) / (2 * h) / slope - 1));
        }
        if (!(best < 3e-3))
            fail_msg("%s, %s: the gradient is off by %.1e", f.model->info.name, base, best);
    }
    free(g);
    free(start);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_slopes(void **state)
{
    (void)state;
    const firn_random_shape *s;
    int i = 0;

    while ((s = next_tiny(&i)) != NULL)
        check_slopes(draw_smooth(s));
}

/* ---- logits ---- */

/* A prompt, then token by token: the same as a whole pass. */
static void check_generator(const char *path)
{
    enum { ALL = 2 * N };
    fixture f;
    firn_generator *generator;
    const float *last;
    float *logits = logits_of(path, ALL);

    open_at(&f, path, NULL, 2);
    const int64_t v = f.model->hp.n_vocab;
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, NULL, ALL, &generator));
    for (int t = 0; t < ALL;) {
        const int n = t == 0 ? 15 : t == 15 ? 4 : 1;
        OK(f.ctx, firn_generator_feed(generator, f.tokens + t, n, &last));
        t += n;
        const double error = nmse(last, logits + (t - 1) * v, v);
        if (!(error < 1e-10))
            fail_msg("%s: token %d is off by %.1e", f.model->info.name, t - 1, error);
    }
    free(logits);
    firn_generator_destroy(generator);
    close_fixture(&f);
}

static void test_generators(void **state)
{
    (void)state;
    const firn_random_shape *s;
    int i = 0;

    while ((s = next_tiny(&i)) != NULL)
        check_generator(draw(s->name));
}

/* Factors for long contexts where a document is longer than the original context, those for short ones else. */
static void test_long_factors(void **state)
{
    (void)state;
    const char *path = draw("tiny-granite"); /* original context: 24 */
    float *at_24 = logits_of(path, 24), *at_25 = logits_of(path, 25);

    assert_true(nmse(at_24, at_25, 20 * 512) > 1e-8);
    float *at_20 = logits_of(path, 20);
    assert_true(nmse(at_20, at_24, 20 * 512) < 1e-12);
    free(at_24);
    free(at_25);
    free(at_20);
}

/* ---- files in other forms ---- */

/* The second part's rows behind the first's, matrix by matrix (or values, vector by vector); the result is named
 * `name`. */
static void join(rewriting *r, const char *first, const char *second, const char *name)
{
    part *a = find(r, first), *b = find(r, second);

    if (!a || !b)
        return;
    const int axis = strstr(first, ".bias") ? 0 : 1;
    int64_t na = 1, nb = 1;
    for (int d = 0; d <= axis; d++) {
        na *= a->ne[d];
        nb *= b->ne[d];
    }
    float *both = malloc(sizeof(float) * (size_t)(count(a) + count(b)));
    for (int64_t i = 0; i < count(a) / na; i++) {
        memcpy(both + i * (na + nb), a->data + i * na, sizeof(float) * (size_t)na);
        memcpy(both + i * (na + nb) + na, b->data + i * nb, sizeof(float) * (size_t)nb);
    }
    free(a->data);
    a->data = both;
    a->ne[axis] += b->ne[axis];
    snprintf(a->name, sizeof a->name, "%s", name);
    drop(b);
}

static const char *block_name(char name[64], int block, const char *base)
{
    snprintf(name, 64, "blk.%d.%s", block, base);
    return name;
}

static void join_blocks(rewriting *r, const char *first, const char *second, const char *name)
{
    char a[64], b[64], c[64];

    for (int i = 0; i < 8; i++)
        join(r, block_name(a, i, first), block_name(b, i, second), block_name(c, i, name));
}

static void test_fused(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny-qwen2moe",   "tiny-gpt-oss", "tiny-glm4moe",
                                         "tiny-granitemoe", "tiny-ernie",   "tiny-llama3"};
    rewriting r;

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const char *split = draw(shapes[i]);
        rewrite_begin(&r, split);
        join_blocks(&r, "attn_q.weight", "attn_k.weight", "attn_qkv.weight");
        join_blocks(&r, "attn_qkv.weight", "attn_v.weight", "attn_qkv.weight");
        join_blocks(&r, "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight");
        join_blocks(&r, "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_gate_up_exps.bias");
        same_logits(split, rewrite_end(&r, "fused.gguf")); /* biases of q, k, v apart */
        split = draw(shapes[i]);
        rewrite_begin(&r, split);
        join_blocks(&r, "attn_q.weight", "attn_k.weight", "attn_qkv.weight");
        join_blocks(&r, "attn_qkv.weight", "attn_v.weight", "attn_qkv.weight");
        join_blocks(&r, "attn_q.bias", "attn_k.bias", "attn_qkv.bias");
        join_blocks(&r, "attn_qkv.bias", "attn_v.bias", "attn_qkv.bias");
        same_logits(split, rewrite_end(&r, "fused.gguf"));
    }
}

/* Positions do not matter where nothing rotates. */
static double position_effect(const char *path)
{
    float *a = strided_logits(path, N, 1), *b = strided_logits(path, N, 2);
    const double effect = nmse(b, a, N * 512);

    free(a);
    free(b);
    return effect;
}

static void test_blocks_that_do_not_rotate(void **state)
{
    (void)state;
    rewriting r;
    char name[64];

    assert_true(position_effect(draw("tiny-smollm3")) > 1e-6);
    for (int rotating = 0; rotating < 2; rotating++) {
        rewrite_begin(&r, draw("tiny-smollm3"));
        for (int i = 0; i < 5; i++) {
            part *w = find(&r, block_name(name, i, "attn_output.weight"));
            if (i != 3 && !(rotating && i == 4)) /* block 3 does not rotate, nor does one without an output */
                memset(w->data, 0, sizeof(float) * (size_t)count(w));
        }
        const double effect = position_effect(rewrite_end(&r, "smollm3.gguf"));
        assert_true(rotating ? effect > 1e-8 : effect == 0);
    }
    assert_true(position_effect(draw("tiny-granite")) > 1e-12);
    rewrite_begin(&r, draw("tiny-granite"));
    OK(r.ctx, firn_gguf_put_bool(r.out, "granite.rope.scaling.finetuned", false));
    assert_true(position_effect(rewrite_end(&r, "granite.gguf")) == 0);
}

/* Matrices divided by powers of two, which `.scale` tensors beside them bring back: the same numbers. */
static void test_factors(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny-qwen2moe", "tiny-gpt-oss", "tiny-deepseek2", "tiny-deepseek2-old"};
    static const char *const skip[] = {"_norm", "token_embd", "attn_sinks", ".bias", "rope_"};
    rewriting r;

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const char *plain = draw(shapes[i]);
        rewrite_begin(&r, plain);
        for (int j = r.n - 1; j >= 0; j--) {
            part *p = &r.parts[j];
            const int64_t E = strstr(p->name, "_exps") ? p->ne[2] : 1;
            float factors[16];
            char name[64];
            bool plain_part = false;
            for (size_t k = 0; k < sizeof skip / sizeof *skip; k++)
                plain_part |= strstr(p->name, skip[k]) != NULL;
            if (plain_part)
                continue;
            for (int64_t e = 0; e < E; e++) {
                factors[e] = ldexpf(1, 1 + (int)((e + j) % 3));
                for (int64_t k = 0; k < count(p) / E; k++)
                    p->data[e * (count(p) / E) + k] /= factors[e];
            }
            snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(p->name) - strlen(".weight")), p->name);
            add_vector(&r, name, E, factors);
            if (j % 2) {
                snprintf(name, sizeof name, "%.*s.input_scale", (int)(strlen(p->name) - strlen(".weight")), p->name);
                add_vector(&r, name, E, factors);
            }
        }
        const char *scaled = rewrite_end(&r, "factors.gguf");
        same_logits(plain, scaled);
        check_generator(scaled);
    }
}

/* llama.cpp takes a feed-forward's factors in few architectures, and an adapter beside one nowhere. */
static void check_factor(const char *shape, const char *base, bool warned, bool served)
{
    const float two = 2;
    rewriting r;
    fixture f;
    char name[64], weight[64];

    rewrite_begin(&r, draw(shape));
    snprintf(name, sizeof name, "blk.1.%s.scale", base);
    snprintf(weight, sizeof weight, "blk.1.%s.weight", base);
    add_vector(&r, name, 1, &two);
    open_at(&f, rewrite_end(&r, "factor.gguf"), NULL, 1);
    const char *warning = firn_model_warning(f.model, 0);
    if ((warning && strstr(warning, "ignores some of the model's .scale tensors")) != warned)
        fail_msg("%s %s: %s", shape, base, warning ? warning : "no warning");
    assert_int_equal(firn_model_serves(f.model, weight), served);
    close_fixture(&f);
}

static void test_factor_warnings(void **state)
{
    (void)state;
    check_factor("tiny-llama", "attn_q", false, true);
    check_factor("tiny-llama", "ffn_up", false, false);
    check_factor("tiny-granite", "attn_q", false, true);
    check_factor("tiny-granite", "ffn_up", true, false);
    check_factor("tiny-deepseek2", "attn_output", false, true);
    check_factor("tiny-deepseek2", "attn_v_b", true, false);
    check_factor("tiny-deepseek2", "ffn_up_shexp", true, false);
}

/* An adapter on the fused product of gate and up. */
static void test_fused_slopes(void **state)
{
    (void)state;
    rewriting r;
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    rewrite_begin(&r, draw("tiny-gpt-oss"));
    join_blocks(&r, "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight");
    join_blocks(&r, "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_gate_up_exps.bias");
    open_at(&f, rewrite_end(&r, "fused.gguf"), NULL, 2);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "blk.*.ffn_gate_up_exps.weight", 3, 6, 1, &f.adapter));
    assert_int_equal(f.adapter->n_entries, 4);
    assert_int_equal(f.adapter->entries[0].n_out, 128);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter,
                                  &(firn_session_params){.n_tokens = 2 * N, .train = true}, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
    const float *g = firn_session_gradients(session);
    const double slope = norm2(f.adapter, "ffn_gate_up_exps.weight", g), h = 0.02 / slope;
    move(f.adapter, "ffn_gate_up_exps.weight", g, h);
    const double up = loss_of(&f, session);
    move(f.adapter, "ffn_gate_up_exps.weight", g, -2 * h);
    assert_true(fabs((up - loss_of(&f, session)) / (2 * h) / slope - 1) < 1e-2);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void put_array(rewriting *r, const char *key, const int32_t *values, uint64_t n)
{
    OK(r->ctx, firn_gguf_put_array(r->out, key, FIRN_KV_U32, values, n));
}

/* Prediction blocks do not run; arrays that say for each block what a number said for all change nothing. */
static void test_prediction_blocks_and_arrays(void **state)
{
    (void)state;
    rewriting r;
    const char *plain = draw("tiny-glm4moe");

    rewrite_begin(&r, plain);
    const int32_t heads[] = {6, 6, 6, 1}, kv[] = {2, 2, 2, 1}, ff[] = {192, 0, 0, 0}, used[] = {0, 3, 3, 0};
    OK(r.ctx, firn_gguf_put_u32(r.out, "glm4moe.block_count", 4));
    OK(r.ctx, firn_gguf_put_u32(r.out, "glm4moe.nextn_predict_layers", 1));
    put_array(&r, "glm4moe.attention.head_count", heads, 4);
    put_array(&r, "glm4moe.attention.head_count_kv", kv, 4);
    put_array(&r, "glm4moe.feed_forward_length", ff, 4);
    put_array(&r, "glm4moe.expert_used_count", used, 4);
    static const char *const extra[] = {"blk.3.nextn.eh_proj.weight", "blk.3.attn_norm.weight"};
    for (int i = 0; i < 2; i++) {
        part *p = &r.parts[r.n++];
        *p = (part){.n_dims = 1, .ne = {7, 1, 1, 1}, .data = calloc(7, sizeof(float))};
        snprintf(p->name, sizeof p->name, "%s", extra[i]);
    }
    same_logits(plain, rewrite_end(&r, "arrays.gguf"));
}

/* Numbers that differ from block to block. */
static void test_arrays_that_differ(void **state)
{
    (void)state;
    rewriting r;
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    rewrite_begin(&r, draw("tiny-qwen3moe"));
    const int32_t used[] = {1, 3};
    put_array(&r, "qwen3moe.expert_used_count", used, 2);
    open_at(&f, rewrite_end(&r, "arrays.gguf"), NULL, 1);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = 2 * N}, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_loss(session, &batch, &loss, &n));
    for (int layer = 0; layer < 2; layer++) {
        int64_t sum = 0;
        for (int e = 0; e < 8; e++)
            sum += firn_session_expert_load(session)[layer * 8 + e];
        assert_int_equal(sum, 2 * N * used[layer]);
    }
    firn_session_destroy(session);
    close_fixture(&f);

    /* Windows by an array: all blocks, then none, against the alternating ones of the number 2. */
    float *alternating = logits_of(draw("tiny-gpt-oss"), N);
    for (int turn = 0; turn < 3; turn++) {
        rewrite_begin(&r, draw("tiny-gpt-oss"));
        const int32_t pattern[3][4] = {{1, 0, 1, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}};
        put_array(&r, "gpt-oss.attention.sliding_window_pattern", pattern[turn], 4);
        float *logits = logits_of(rewrite_end(&r, "windows.gguf"), N);
        assert_true(turn == 0 ? nmse(logits, alternating, N * 512) == 0 : nmse(logits, alternating, N * 512) > 1e-6);
        /* The first eight tokens see everything in any case. */
        assert_true(nmse(logits, alternating, 8 * 512) < 1e-12);
        free(logits);
    }
    free(alternating);
}

/* tiny-gpt-oss with these bases (0: the key stays or is not there) and windows (NULL: on every other block). */
static const char *draw_rotated(const char *from, float base, float base_swa, const int32_t *windows, int n_layer)
{
    rewriting r;

    rewrite_begin(&r, from);
    if (base != 0)
        OK(r.ctx, firn_gguf_put_f32(r.out, "gpt-oss.rope.freq_base", base));
    if (base_swa != 0)
        OK(r.ctx, firn_gguf_put_f32(r.out, "gpt-oss.rope.freq_base_swa", base_swa));
    if (windows)
        put_array(&r, "gpt-oss.attention.sliding_window_pattern", windows, (uint64_t)n_layer);
    return rewrite_end(&r, "rotated.gguf");
}

/* Blocks with a window rotate by a base of their own where the file has one, the others never do. */
static void test_rotation_of_windows(void **state)
{
    (void)state;
    static const int32_t all[] = {1, 1, 1, 1}, none[] = {0, 0, 0, 0};
    const float a = 1.5e5f, b = 1e4f;
    char from[256];
    snprintf(from, sizeof from, "%s", draw("tiny-gpt-oss"));
    const struct {
        float base, base_swa;
        const int32_t *windows;
    } pairs[][2] = {
        {{a, b, all}, {b, 0, all}},
        {{a, b, none}, {a, 0, none}},
        {{a, a, NULL}, {a, 0, NULL}},
    };
    for (int i = 0; i < 3; i++) {
        float *x = logits_of(draw_rotated(from, pairs[i][0].base, pairs[i][0].base_swa, pairs[i][0].windows, 4), N);
        float *y = logits_of(draw_rotated(from, pairs[i][1].base, pairs[i][1].base_swa, pairs[i][1].windows, 4), N);
        assert_memory_equal(x, y, sizeof(float) * N * 512);
        free(x);
        free(y);
    }
    float *of_a = logits_of(from, N), *of_b = logits_of(draw_rotated(from, b, 0, NULL, 4), N);
    float *of_both = logits_of(draw_rotated(from, a, b, NULL, 4), N);
    assert_true(nmse(of_both, of_a, N * 512) > 1e-6 && nmse(of_both, of_b, N * 512) > 1e-6);
    free(of_a);
    free(of_b);
    free(of_both);
    check_generator(draw_rotated(from, a, b, NULL, 4));
    check_slopes(draw_rotated(draw_smooth(firn_random_shape_find("tiny-gpt-oss")), a, b, NULL, 2));
    model_refused(draw_rotated(from, 1, 0, NULL, 4), "the rotary metadata of gpt-oss makes no sense: base 1");
    model_refused(draw_rotated(from, a, 1, NULL, 4), "gpt-oss.rope.freq_base_swa is 1, and a base is above 1");
    model_refused(draw_rotated(from, a, -1, NULL, 4), "gpt-oss.rope.freq_base_swa is -1, and a base is above 1");
}

/* A loss whose exponential is infinite: what firn eval prints is JSON still. */
static void test_infinite_perplexity(void **state)
{
    (void)state;
    char model[256], data[256], json[256], command[1024], text[512] = "";
    rewriting r;

    rewrite_begin(&r, draw("tiny-granite"));
    OK(r.ctx, firn_gguf_put_f32(r.out, "granite.logit_scale", 1e-6f));
    snprintf(model, sizeof model, "%s", rewrite_end(&r, "loud.gguf"));
    snprintf(data, sizeof data, "%s", in_scratch("loud.jsonl"));
    snprintf(json, sizeof json, "%s", in_scratch("loud.json"));
    FILE *f = fopen(data, "w");
    assert_non_null(f);
    fputs("{\"text\": \"snow and ice\"}\n", f);
    fclose(f);
    snprintf(command, sizeof command, "%s/firn eval %s --data %s --json >%s", FIRN_BIN_DIR, model, data, json);
    assert_int_equal(system(command), 0);
    f = fopen(json, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_non_null(strstr(text, ", \"perplexity\": null, "));
}

/* ---- the router ---- */

/* Router weights zero: the bias alone chooses. Experts 0 .. 11 in groups of three, the two groups with the largest sums
 * of two win, and of those the three largest experts. */
static void test_groups(void **state)
{
    (void)state;
    static const float bias[12] = {0.9f, 0, 0, 0.5f, 0.45f, 0, 0.6f, 0.35f, 0.31f, 0.05f, 0.05f, 0};
    rewriting r;
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    rewrite_begin(&r, draw("tiny-bailingmoe2"));
    for (int i = 1; i < 3; i++) {
        char name[64];
        part *w = find(&r, block_name(name, i, "ffn_gate_inp.weight"));
        memset(w->data, 0, sizeof(float) * (size_t)count(w));
        memcpy(find(&r, block_name(name, i, "exp_probs_b.bias"))->data, bias, sizeof bias);
    }
    open_at(&f, rewrite_end(&r, "groups.gguf"), NULL, 1);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = 2 * N}, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_loss(session, &batch, &loss, &n));
    for (int layer = 0; layer < 3; layer++)
        for (int e = 0; e < 12; e++) {
            const bool chosen = layer > 0 && (e == 3 || e == 4 || e == 6); /* not 0, whose group is weak */
            assert_int_equal(firn_session_expert_load(session)[layer * 12 + e], chosen ? 2 * N : 0);
        }
    firn_session_destroy(session);
    close_fixture(&f);
}

/* ---- what is refused ---- */

static void refused_u32(const char *shape, const char *key, uint32_t value, const char *sentence)
{
    rewriting r;

    rewrite_begin(&r, draw(shape));
    OK(r.ctx, firn_gguf_put_u32(r.out, key, value));
    model_refused(rewrite_end(&r, "refused.gguf"), sentence);
}

/* Axes of an image take turns at the pairs; one that none takes stands still. */
static void test_sections(void **state)
{
    (void)state;
    static const int32_t all[4] = {6, 5, 5}, none[4] = {0}; /* of 16 pairs */
    const char *key = "qwen3vlmoe.rope.dimension_sections";
    rewriting r;
    float *logits[2];

    for (int i = 0; i < 2; i++) {
        rewrite_begin(&r, draw("tiny-qwen3vlmoe")); /* its sections leave one pair out */
        if (i)
            OK(r.ctx, firn_gguf_put_array(r.out, key, FIRN_KV_I32, all, 4));
        logits[i] = logits_of(rewrite_end(&r, "sections.gguf"), N);
    }
    assert_true(nmse(logits[0], logits[1], N * 512) > 1e-9);
    free(logits[0]);
    free(logits[1]);
    assert_true(position_effect(draw("tiny-qwen3vlmoe")) > 1e-9);
    rewrite_begin(&r, draw("tiny-qwen3vlmoe"));
    OK(r.ctx, firn_gguf_put_array(r.out, key, FIRN_KV_I32, none, 4));
    assert_true(position_effect(rewrite_end(&r, "sections.gguf")) == 0);
    rewrite_begin(&r, draw("tiny-qwen3vlmoe"));
    OK(r.ctx, firn_gguf_put_u32(r.out, key, 6));
    model_refused(rewrite_end(&r, "refused.gguf"), "rope.dimension_sections must be an array of 4 whole numbers");
}

/* A model that chooses among keys runs as long as it would choose all of them. */
static void test_most_keys(void **state)
{
    (void)state;
    const char *sentence =
        "a document of 17 tokens or more is longer than this glm-dsa model attends to without choosing "
        "among its keys (glm-dsa.attention.indexer.top_k is 16)";
    rewriting r;
    fixture f;
    firn_session *session;
    firn_generator *generator;
    const float *logits;
    double loss;
    int64_t n;

    rewrite_begin(&r, draw("tiny-glm-dsa"));
    OK(r.ctx, firn_gguf_put_u32(r.out, "glm-dsa.attention.indexer.top_k", 16));
    open_at(&f, rewrite_end(&r, "keys.gguf"), NULL, 1);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = 2 * N}, &session));
    firn_batch batch = batch_of(&f, 17);
    for (int i = 0; i < 17; i++) {
        f.position[i] = i;
        f.first[i] = 0;
    }
    assert_int_equal(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(f.ctx), sentence));
    batch.n_tokens = 16;
    OK(f.ctx, firn_session_loss(session, &batch, &loss, &n));
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, NULL, 32, &generator));
    OK(f.ctx, firn_generator_feed(generator, f.tokens, 16, &logits));
    assert_int_equal(firn_generator_feed(generator, f.tokens, 1, &logits), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(f.ctx), sentence));
    firn_generator_destroy(generator);
    firn_session_destroy(session);
    close_fixture(&f);
}

/* Blocks with a window rotate as if there were no rope.scaling: with windows on all, it changes nothing. */
static void test_unstretched_windows(void **state)
{
    (void)state;
    rewriting r;
    float *logits[2][2];

    for (int windows = 0; windows < 2; windows++)
        for (int plain = 0; plain < 2; plain++) {
            const int32_t pattern[] = {windows, windows, windows, windows};
            rewrite_begin(&r, draw("tiny-mellum"));
            put_array(&r, "mellum.attention.sliding_window_pattern", pattern, 4);
            if (plain)
                OK(r.ctx, firn_gguf_put_string(r.out, "mellum.rope.scaling.type", "none", 4));
            logits[windows][plain] = logits_of(rewrite_end(&r, "mellum.gguf"), N);
        }
    assert_memory_equal(logits[1][0], logits[1][1], sizeof(float) * N * 512);
    assert_true(nmse(logits[0][0], logits[0][1], N * 512) > 1e-6);
    for (int i = 0; i < 4; i++)
        free(logits[i / 2][i % 2]);
}

static void test_refused(void **state)
{
    (void)state;
    refused_u32("tiny-gemma4", "gemma4.attention.sliding_window_pattern", 6,
                "gemma4.attention.sliding_window_pattern must be an array that says of each block");
    refused_u32("tiny-gemma4", "gemma4.rope.dimension_count_swa", 34, "of which 34 rotate: not possible");
    refused_u32("tiny-gemma4", "gemma4.embedding_length_per_layer_input", 8,
                "per_layer_token_embd.weight is missing; gemma4 models have it, [32, 512]");
    refused_u32("tiny-gemma4-e", "gemma4.attention.shared_kv_layers", 3, "shared_kv_layers is 3: of the last two");
    refused_u32("tiny-gemma4-e", "gemma4.attention.shared_kv_layers", 6, "shared_kv_layers is 6: of the last two");
    refused_u32("tiny-gemma4-e", "gemma4.attention.shared_kv_layers", 0, "blk.4.attn_k.weight is missing");
    refused_u32("tiny-qwen35", "qwen35.ssm.conv_kernel", 9, "filters of 9 taps; 2 to 8 are supported");
    refused_u32("tiny-qwen35", "qwen35.ssm.group_count", 4, "states of 32 in 6 heads of 4 groups over 192 channels");
    refused_u32("tiny-qwen35", "qwen35.ssm.state_size", 16, "keys of 16 and values of 32, which must be the same");
    refused_u32("tiny-qwen35", "qwen35.full_attention_interval", 0, "full_attention_interval is 0");
    refused_u32("tiny-kimi-linear", "kimi-linear.kda.head_dim", 2048, "kda.head_dim is 2048");
    refused_u32("tiny-mistral4", "mistral4.attention.temperature_length", 0, "temperature_length is 0");
    refused_u32("tiny-glm4moe", "glm4moe.expert_gating_func", 4, "glm4moe.expert_gating_func is 4");
    refused_u32("tiny-bailingmoe2", "bailingmoe2.expert_group_count", 5, "chooses 3 of 12 experts from 2 of 5 groups");
    refused_u32("tiny-bailingmoe2", "bailingmoe2.expert_group_used_count", 4, "from 4 of 4 groups");
    refused_u32("tiny-bailingmoe2", "bailingmoe2.expert_group_count", 12, "from 2 of 12 groups");
    refused_u32("tiny-ernie", "ernie4_5-moe.interleave_moe_layer_step", 0, "interleave_moe_layer_step is 0");
    refused_u32("tiny-ernie", "ernie4_5-moe.interleave_moe_layer_step", 2, "blk.2.ffn_gate.weight is missing");
    refused_u32("tiny-ernie", "ernie4_5-moe.expert_shared_feed_forward_length", 64,
                "blk.1.ffn_gate_shexp.weight should be [128, 64]");
    refused_u32("tiny-granitemoe", "granitemoe.expert_shared_feed_forward_length", 0,
                "blk.0.ffn_gate_shexp.weight has no place");
    refused_u32("tiny-smollm3", "smollm3.rope.dimension_count", 16, "it must equal the head's 32 values");
    refused_u32("tiny-qwen2moe", "qwen2moe.expert_used_count", 9, "block 0 of qwen2moe uses 9 of 8 experts");
    rewriting r;
    rewrite_begin(&r, draw("tiny-glm4moe"));
    put_array(&r, "glm4moe.expert_used_count", (const int32_t[]){0, 3, 0}, 3);
    model_refused(rewrite_end(&r, "refused.gguf"), "block 2 of glm4moe uses 0 of 8 experts");
}

/* ---- adapters ---- */

static int64_t count_class(fixture *f, const char *targets)
{
    firn_adapter *ad;

    OK(f->ctx, firn_adapter_create(f->ctx, f->model, targets, 4, 8, 1, &ad));
    const int64_t n = ad->n_entries;
    firn_adapter_destroy(ad);
    return n;
}

static void test_shared_targets(void **state)
{
    (void)state;
    fixture f;
    firn_adapter *ad;

    open_at(&f, draw("tiny-qwen2moe"), NULL, 1);
    assert_int_equal(count_class(&f, "shared"), 2 * 4);
    assert_int_equal(count_class(&f, "router"), 2);
    assert_int_equal(count_class(&f, "all"), 2 * (4 + 1 + 3 + 4) + 1);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "blk.0.ffn_gate_inp_shexp.weight", 4, 8, 1, &ad));
    assert_int_equal(ad->entries[0].n_out, 1);
    OK(f.ctx, firn_adapter_save(f.ctx, ad, NULL, in_scratch("shared.gguf")));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, in_scratch("shared.gguf"), &f.adapter));
    assert_memory_equal(ad->values, f.adapter->values, sizeof(float) * (size_t)ad->n_values);
    firn_adapter_destroy(ad);
    close_fixture(&f);

    open_at(&f, draw("tiny-glm4moe"), NULL, 1);
    assert_int_equal(count_class(&f, "shared"), 2 * 3);
    assert_int_equal(count_class(&f, "dense"), 3);
    assert_int_equal(count_class(&f, "experts"), 2 * 3);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_shared_cases),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_generators),
        cmocka_unit_test(test_long_factors),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_blocks_that_do_not_rotate),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_factor_warnings),
        cmocka_unit_test(test_fused_slopes),
        cmocka_unit_test(test_prediction_blocks_and_arrays),
        cmocka_unit_test(test_arrays_that_differ),
        cmocka_unit_test(test_rotation_of_windows),
        cmocka_unit_test(test_infinite_perplexity),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_most_keys),
        cmocka_unit_test(test_unstretched_windows),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shared_targets),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
