/* Models, adapters, sessions, generation: reference cases through the command itself; equal bits for any number of kept
 * blocks, memory limit and threads; fused and tied forms of a model; sentences for models and adapters that are not
 * what they should be. The cases lie in tests/data/cases; more of them in ../shared are used where it is there. */
#include "unit/model.h"

#include "core/file.h"

#include <sys/stat.h>

enum { VOCAB = 271 };

/* ---- reference cases ---- */

static void test_cases(void **state)
{
    (void)state;
    assert_int_equal(verify(CASES "/llama"), 0);
    assert_int_equal(verify(CASES "/mixtral-q4_0"), 0);
    assert_int_equal(verify(CASES "/qwen3moe"), 0);
    assert_int_equal(verify(CASES "/olmoe"), 0);
}

static void test_shared_cases(void **state)
{
    (void)state;
    if (access(SHARED "/llama/case.json", R_OK) != 0)
        skip();
    static const char *const names[] = {"mixtral",  "qwen3moe-q4_k", "olmoe-iq4_nl", "qwen2",         "qwen3",
                                        "qwen2moe", "qwen2moe-q2_k", "granitemoe",   "granitemoe-q5", "glm4moe",
                                        "gpt-oss",  "gpt-oss-mxfp4", "ernie4-5-moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, SHARED "/%s", names[i]);
        assert_int_equal(verify(folder), 0);
    }
}

/* A case whose numbers are changed must fail: the comparison compares. */
static void test_verify_can_fail(void **state)
{
    (void)state;
    char command[2048], *json;
    size_t size;
    firn_context *ctx = firn_context_create(NULL);

    snprintf(command, sizeof command, "mkdir -p %s && cp " CASES "/llama/* %s", in_scratch("llama"),
             in_scratch("llama"));
    assert_int_equal(system(command), 0);
    OK(ctx, firn_file_read(ctx, in_scratch("llama/lora_grad.gguf"), 0, &json, &size));
    float x;
    memcpy(&x, json + size - 64, sizeof x);
    x = x * 1.01f + 1e-3f;
    memcpy(json + size - 64, &x, sizeof x);
    OK(ctx, firn_file_write(ctx, in_scratch("llama/lora_grad.gguf"), json, size));
    firn_free(ctx, json);
    snprintf(command, sizeof command, "%s/firn verify %s > /dev/null", FIRN_BIN_DIR, in_scratch("llama"));
    assert_int_equal(system(command) >> 8 & 255, 1);
    firn_context_destroy(ctx);
}

/* ---- equal bits ---- */

typedef struct {
    double loss;
    float *gradients;
    int64_t n;
    int kept;
    uint64_t total;
} outcome;

static outcome step_of(const char *name, int threads, uint64_t limit, int64_t n_tokens)
{
    fixture f;
    firn_session *session;
    firn_session_memory memory = {.size = sizeof memory};
    int64_t n_targets;
    outcome o = {0};

    open_case(&f, name, true, threads);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true, .memory_limit = limit};
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &memory));
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    const firn_batch batch = batch_of(&f, n_tokens);
    OK(f.ctx, firn_session_gradient(session, &batch, 0.25f, &o.loss, &n_targets));
    o.n = f.adapter->n_values;
    o.gradients = malloc((size_t)o.n * sizeof(float));
    memcpy(o.gradients, firn_session_gradients(session), (size_t)o.n * sizeof(float));
    o.kept = memory.blocks_kept;
    o.total = memory.total;
    firn_session_destroy(session);
    close_fixture(&f);
    return o;
}

static void assert_same(const outcome *a, const outcome *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
    assert_memory_equal(a->gradients, b->gradients, (size_t)a->n * sizeof(float));
}

static void test_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3moe", "mixtral-q4_0"};

    for (int i = 0; i < 3; i++) {
        outcome all = step_of(names[i], 2, 0, 2 * N);
        outcome threads = step_of(names[i], 1, 0, 2 * N);
        /* One byte less than keeping every block takes: one is rebuilt. */
        outcome tight = step_of(names[i], 2, all.total - 1, 2 * N);
        assert_int_equal(all.kept, 2);
        assert_int_equal(tight.kept, 1);
        assert_true(tight.total < all.total);
        assert_same(&all, &threads);
        assert_same(&all, &tight);
        bool any = false;
        for (int64_t j = 0; j < all.n; j++)
            any |= all.gradients[j] != 0;
        assert_true(any);
        free(all.gradients);
        free(threads.gradients);
        free(tight.gradients);
    }
}

static void test_limit(void **state)
{
    (void)state;
    fixture f;
    firn_session_memory memory = {.size = sizeof memory};
    firn_session *session;

    open_case(&f, "qwen3moe", true, 1);
    firn_session_params params = {.n_tokens = 2 * N, .train = true, .memory_limit = 1 << 16};
    assert_int_equal(firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &memory), FIRN_ERR_MEMORY);
    assert_non_null(strstr(firn_error(f.ctx), "need at least"));
    assert_int_equal(firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session), FIRN_ERR_MEMORY);
    assert_null(session);
    close_fixture(&f);
}

/* What the library takes from its allocator, and the most it ever had. */
typedef struct {
    size_t now, peak;
    long calls, fail_at; /* the call that fails; 0: none */
} counter;

static void *count_alloc(void *user, size_t size)
{
    counter *c = user;
    size_t *p = ++c->calls == c->fail_at ? NULL : malloc(size + 16);

    if (!p)
        return NULL;
    *p = size;
    c->now += size;
    c->peak = c->now > c->peak ? c->now : c->peak;
    return p + 2;
}

static void count_free(void *user, void *memory)
{
    counter *c = user;

    if (!memory)
        return;
    c->now -= ((size_t *)memory)[-2];
    free((size_t *)memory - 2);
}

static void *count_realloc(void *user, void *old, size_t size)
{
    void *memory = count_alloc(user, size);

    if (memory && old) {
        const size_t n = ((size_t *)old)[-2];
        memcpy(memory, old, n < size ? n : size);
        count_free(user, old);
    }
    return memory;
}

static void test_plan_is_kept(void **state)
{
    (void)state;
    counter c = {0};
    firn_context *ctx = firn_context_create(
        &(firn_context_params){.n_threads = 2, .allocator = {count_alloc, count_realloc, count_free, &c}});
    firn_device *device;
    firn_model *model;
    firn_adapter *adapter;
    firn_session *session;
    firn_session_memory memory = {.size = sizeof memory};
    double loss;
    int64_t n;
    enum { TOKENS = 192 };
    int32_t tokens[TOKENS], position[TOKENS], first[TOKENS] = {0};

    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = i;
        position[i] = i;
    }
    OK(ctx, firn_device_open(ctx, "CPU", &device));
    OK(ctx, firn_model_open(ctx, CASES "/qwen3moe/model.gguf", &model));
    OK(ctx, firn_adapter_load(ctx, model, CASES "/qwen3moe/lora_start.gguf", &adapter));
    firn_session_params params = {.n_tokens = TOKENS, .train = true};
    OK(ctx, firn_session_plan(ctx, device, model, adapter, &params, &memory));
    params.memory_limit = memory.total - 1;
    for (int turn = 0; turn < 2; turn++) {
        c.peak = c.now;
        const size_t before = c.now - (size_t)adapter->n_values * sizeof(float);
        OK(ctx, firn_session_plan(ctx, device, model, adapter, &params, &memory));
        OK(ctx, firn_session_create(ctx, device, model, adapter, &params, &session));
        for (int i = TOKENS; i > TOKENS - 3; i--) {
            const firn_batch batch = {
                .n_tokens = i, .tokens = tokens, .targets = tokens, .position = position, .first = first};
            OK(ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
        }
        assert_true((double)(c.peak - before) <= 1.1 * (double)memory.total);
        assert_true((double)(c.peak - before) >= 0.7 * (double)memory.total);
        assert_true(memory.total <= params.memory_limit || params.memory_limit == 0);
        firn_session_destroy(session);
        params.memory_limit = turn ? 0 : memory.total; /* exactly the least that does */
    }
    firn_adapter_destroy(adapter);
    firn_model_close(model);
    firn_device_close(device);
    firn_context_destroy(ctx);
}

/* Opens, trains one pass, generates one token. */
static firn_status everything(firn_context *ctx)
{
    firn_device *device = NULL;
    firn_model *model = NULL;
    firn_adapter *adapter = NULL;
    firn_session *session = NULL;
    firn_generator *generator = NULL;
    const firn_session_params params = {.n_tokens = 4, .train = true};
    const int32_t tokens[4] = {1, 2, 3, 4}, position[4] = {0, 1, 2, 3}, first[4] = {0};
    const firn_batch batch = {.n_tokens = 4, .tokens = tokens, .targets = tokens, .position = position, .first = first};
    const float *logits;
    double loss;
    int64_t n;

    firn_status s = firn_device_open(ctx, "CPU", &device);
    if (s == FIRN_OK)
        s = firn_model_open(ctx, FIRN_SOURCE_DIR "/tests/fuzz/corpus/model/qwen3moe.gguf", &model);
    if (s == FIRN_OK)
        s = firn_adapter_create(ctx, model, "all", 2, 4, 1, &adapter);
    if (s == FIRN_OK)
        s = firn_session_create(ctx, device, model, adapter, &params, &session);
    if (s == FIRN_OK)
        s = firn_session_gradient(session, &batch, 1, &loss, &n);
    if (s == FIRN_OK)
        s = firn_generator_create(ctx, device, model, adapter, 8, &generator);
    if (s == FIRN_OK)
        s = firn_generator_feed(generator, tokens, 4, &logits);
    firn_generator_destroy(generator);
    firn_session_destroy(session);
    firn_adapter_destroy(adapter);
    firn_model_close(model);
    if (device)
        firn_device_close(device);
    return s;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    firn_status s = FIRN_ERR_MEMORY;
    long at;

    for (at = 2; s != FIRN_OK && at < 100000; at++) {
        counter c = {.fail_at = at};
        firn_context *ctx = firn_context_create(
            &(firn_context_params){.n_threads = 1, .allocator = {count_alloc, count_realloc, count_free, &c}});
        assert_non_null(ctx);
        s = everything(ctx);
        if (s != FIRN_OK && s != FIRN_ERR_MEMORY)
            fail_msg("allocation %ld: status %s: %s", at, firn_status_name(s), firn_error(ctx));
        if (s != FIRN_OK && !firn_error(ctx)[0])
            fail_msg("allocation %ld: no sentence", at);
        firn_context_destroy(ctx);
        assert_int_equal(c.now, 0);
    }
    assert_int_equal(s, FIRN_OK);
    assert_true(at > 100);
}

/* A pass adds to the gradients; two documents in one pass are as two passes; a shorter pass uses the same session. */
static void test_documents(void **state)
{
    (void)state;
    fixture f;
    firn_session *session;
    double loss, both;
    int64_t n, m;

    open_case(&f, "qwen3moe", true, 1);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true};
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_gradient(session, &batch, 1, &both, &m));
    const size_t bytes = (size_t)f.adapter->n_values * sizeof(float);
    float *whole = malloc(bytes);
    memcpy(whole, firn_session_gradients(session), bytes);
    assert_non_null(firn_session_expert_load(session));
    int64_t routed = 0;
    for (int i = 0; i < 2 * 6; i++)
        routed += firn_session_expert_load(session)[i];
    assert_int_equal(routed, 2 * 2 * 2 * N); /* layers, experts used, tokens */

    firn_session_zero_gradients(session);
    double sum = 0;
    int64_t targets = 0;
    for (int half = 0; half < 2; half++) {
        batch = (firn_batch){.n_tokens = N,
                             .tokens = f.tokens + half * N,
                             .targets = f.targets + half * N,
                             .position = f.position,
                             .first = f.first};
        OK(f.ctx, firn_session_gradient(session, &batch, 1, &loss, &n));
        sum += loss;
        targets += n;
    }
    assert_int_equal(m, targets);
    assert_true(fabs(sum - both) < 1e-5 * both);
    assert_true(nmse(firn_session_gradients(session), whole, f.adapter->n_values) < 1e-10);
    free(whole);
    firn_session_destroy(session);
    close_fixture(&f);
}

/* d loss / d (one value), by differences. */
static void test_slope(void **state)
{
    (void)state;
    fixture f;
    firn_session *session;
    double at, up, down;
    int64_t n;

    open_case(&f, "qwen3moe", true, 2);
    firn_adapter_destroy(f.adapter);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "all", 3, 6, 1, &f.adapter));
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        if (f.adapter->values[i] == 0)
            f.adapter->values[i] = 0.02f * sinf((float)i);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true};
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_gradient(session, &batch, 1, &at, &n));
    const firn_adapter_entry *last = &f.adapter->entries[f.adapter->n_entries - 1];
    assert_string_equal(last->tensor, "output.weight");
    float *values = f.adapter->values + last->b;
    const float *g = firn_session_gradients(session) + last->b;
    const int64_t count = last->rank * last->n_out;
    double slope = 0;
    for (int64_t i = 0; i < count; i++)
        slope += (double)g[i] * (double)g[i];
    const float h = 0.01f / (float)sqrt(slope);
    for (int64_t i = 0; i < count; i++)
        values[i] += h * g[i];
    OK(f.ctx, firn_session_loss(session, &batch, &up, &n));
    for (int64_t i = 0; i < count; i++)
        values[i] -= 2 * h * g[i];
    OK(f.ctx, firn_session_loss(session, &batch, &down, &n));
    assert_true(fabs((up - down) / (2 * (double)h) / slope - 1) < 1e-2);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_not_finite(void **state)
{
    (void)state;
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    open_case(&f, "qwen3moe", true, 1);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true};
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    for (int i = 0; i < f.adapter->n_entries; i++)
        if (strcmp(f.adapter->entries[i].tensor, "blk.1.attn_v.weight") == 0)
            f.adapter->values[f.adapter->entries[i].b] = NAN;
    const firn_batch batch = batch_of(&f, 2 * N);
    assert_int_equal(firn_session_gradient(session, &batch, 1, &loss, &n), FIRN_ERR_DEVICE);
    assert_non_null(strstr(firn_error(f.ctx), "block 1"));
    if (!strstr(firn_error(f.ctx), "attn_v"))
        fail_msg("no attn_v in: %s", firn_error(f.ctx));
    float *logits = malloc((size_t)(2 * N * firn_model_get_info(f.model)->n_vocab) * sizeof *logits);
    assert_int_equal(firn_session_logits(session, &batch, logits), FIRN_ERR_DEVICE);
    if (!strstr(firn_error(f.ctx), "block 1"))
        fail_msg("no block 1 in: %s", firn_error(f.ctx));
    free(logits);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_logits_not_finite(void **state)
{
    (void)state;
    fixture f;
    firn_generator *generator;
    const float *logits;

    open_case(&f, "qwen3moe", true, 1);
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, N, &generator));
    OK(f.ctx, firn_generator_feed(generator, f.tokens, 2, &logits));
    f.adapter->values[f.adapter->entries[0].b] = NAN;
    assert_int_equal(firn_generator_feed(generator, f.tokens + 2, 1, &logits), FIRN_ERR_DEVICE);
    if (!strstr(firn_error(f.ctx), "the logits after token 2 are not finite"))
        fail_msg("another sentence: %s", firn_error(f.ctx));
    firn_generator_destroy(generator);
    close_fixture(&f);
}

/* ---- models made from a case by changing something ---- */

typedef struct {
    const char *drop, *add, *rename_from, *rename_to; /* tensors */
    const char *reshape;                              /* its rows are halved */
    const char *half;                                 /* becomes F16 (zeros) */
    const char *arch;                                 /* general.architecture */
    const char *drop_key;
    bool fuse;      /* attn_q, k, v of all blocks become attn_qkv */
    bool tie;       /* output.weight goes */
    bool copy_head; /* output.weight becomes a copy of token_embd */
} change;

static bool named(const char *name, const char *wanted)
{
    return wanted && strcmp(name, wanted) == 0;
}

/* Which bytes tensor t of the file gets, piece by piece; returns how many pieces. 0: it goes. */
static int pieces_of(const firn_gguf *g, const firn_gguf_tensor *t, const change *c, const firn_gguf_tensor *piece[3],
                     char name[128], int64_t ne[4])
{
    snprintf(name, 128, "%s", named(t->name, c->rename_from) ? c->rename_to : t->name);
    memcpy(ne, t->ne, sizeof t->ne);
    piece[0] = t;
    if (named(t->name, c->drop) || (c->tie && named(t->name, "output.weight")))
        return 0;
    if (named(t->name, c->reshape))
        ne[1] /= 2;
    if (c->copy_head && named(t->name, "output.weight"))
        piece[0] = firn_gguf_find(g, "token_embd.weight");
    if (c->fuse && (strstr(t->name, ".attn_k.") || strstr(t->name, ".attn_v.")))
        return 0;
    if (c->fuse && strstr(t->name, ".attn_q.")) {
        int block;
        char other[64];
        sscanf(t->name, "blk.%d", &block);
        snprintf(other, sizeof other, "blk.%d.attn_k.weight", block);
        piece[1] = firn_gguf_find(g, other);
        snprintf(other, sizeof other, "blk.%d.attn_v.weight", block);
        piece[2] = firn_gguf_find(g, other);
        snprintf(name, 128, "blk.%d.attn_qkv.weight", block);
        ne[1] += piece[1]->ne[1] + piece[2]->ne[1];
        return 3;
    }
    return 1;
}

static void make_model(const char *name, const change *c, const char *path)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;
    firn_gguf_writer *w;
    char from[512], to[128];
    int64_t ne[4];
    const firn_gguf_tensor *piece[3];
    static const char zeros[1 << 16];

    snprintf(from, sizeof from, CASES "/%s/model.gguf", name);
    OK(ctx, firn_gguf_open(ctx, from, &g));
    OK(ctx, firn_gguf_writer_create(ctx, &w));
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        if (!named(firn_gguf_kv_at(g, i)->key, c->drop_key))
            OK(ctx, firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)));
    if (c->arch)
        OK(ctx, firn_gguf_put_string(w, "general.architecture", c->arch, strlen(c->arch)));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        if (pieces_of(g, t, c, piece, to, ne))
            OK(ctx, firn_gguf_add_tensor(w, to, named(t->name, c->half) ? FIRN_F16 : t->type, t->n_dims, ne));
    }
    if (c->add)
        OK(ctx, firn_gguf_add_tensor(w, c->add, FIRN_F32, 1, (int64_t[]){8}));
    OK(ctx, firn_gguf_writer_begin(w, path));
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        const int n = pieces_of(g, t, c, piece, to, ne);
        for (int j = 0; j < n; j++) {
            if (named(t->name, c->half))
                OK(ctx, firn_gguf_writer_data(w, zeros, t->size / 2));
            else
                OK(ctx,
                   firn_gguf_writer_data(w, piece[j]->data, named(t->name, c->reshape) ? t->size / 2 : piece[j]->size));
        }
    }
    if (c->add)
        OK(ctx, firn_gguf_writer_data(w, zeros, 32));
    OK(ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

static void refused(const char *name, change c, firn_status status, const char *sentence)
{
    make_model(name, &c, in_scratch("changed.gguf"));
    assert_int_equal(model_refused(in_scratch("changed.gguf"), sentence), status);
}

static void test_refused_models(void **state)
{
    (void)state;
    refused("llama", (change){.drop = "blk.1.ffn_up.weight"}, FIRN_ERR_FORMAT,
            "tensor blk.1.ffn_up.weight is missing; llama models have it, [64, 36]");
    refused("llama", (change){.reshape = "blk.0.attn_k.weight"}, FIRN_ERR_FORMAT,
            "tensor blk.0.attn_k.weight should be [64, 32], not [64, 16]");
    refused("llama", (change){.add = "blk.0.attn_extra.weight"}, FIRN_ERR_FORMAT,
            "tensor blk.0.attn_extra.weight has no place in this llama model");
    refused("llama", (change){.add = "blk.7.attn_norm.weight"}, FIRN_ERR_FORMAT, "blk.7.attn_norm.weight has no place");
    refused("llama", (change){.add = "blk.00.attn_norm.weight"}, FIRN_ERR_FORMAT, "blk.00.attn_norm.weight has no");
    refused("llama", (change){.half = "output_norm.weight"}, FIRN_ERR_UNSUPPORTED, "norms and biases are f32");
    refused("llama", (change){.arch = "mamba"}, FIRN_ERR_UNSUPPORTED,
            "architecture 'mamba' is not supported; these are: llama, qwen3moe, olmoe");
    refused("llama", (change){.drop_key = "llama.block_count"}, FIRN_ERR_FORMAT, "llama.block_count");
    refused("olmoe", (change){.tie = true}, FIRN_ERR_FORMAT, "tensor output.weight is missing");
    refused("qwen3moe", (change){.drop = "blk.0.attn_q_norm.weight"}, FIRN_ERR_FORMAT, "blk.0.attn_q_norm.weight");
    refused("qwen3moe", (change){.drop = "blk.0.ffn_gate_exps.weight"}, FIRN_ERR_FORMAT, "blk.0.ffn_gate_exps.weight");
}

static float *logits_of(const char *path)
{
    fixture f;
    firn_session *session;
    float *logits = malloc(sizeof(float) * N * VOCAB);

    open_at(&f, path, NULL, 1);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = N}, &session));
    const firn_batch batch = batch_of(&f, N);
    OK(f.ctx, firn_session_logits(session, &batch, logits));
    firn_session_destroy(session);
    close_fixture(&f);
    return logits;
}

static void test_fused_and_tied(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3moe", "olmoe"};

    for (int i = 0; i < 3; i++) {
        make_model(names[i], &(change){0}, in_scratch("split.gguf"));
        make_model(names[i], &(change){.fuse = true}, in_scratch("fused.gguf"));
        float *a = logits_of(in_scratch("split.gguf")), *b = logits_of(in_scratch("fused.gguf"));
        assert_true(nmse(b, a, N * VOCAB) < 1e-12);
        free(a);
        free(b);
    }
    make_model("llama", &(change){.tie = true}, in_scratch("tied.gguf"));
    make_model("llama", &(change){.copy_head = true}, in_scratch("copied.gguf"));
    float *a = logits_of(in_scratch("tied.gguf")), *b = logits_of(in_scratch("copied.gguf"));
    assert_memory_equal(a, b, sizeof(float) * N * VOCAB);
    free(a);
    free(b);
}

/* ---- adapters ---- */

static void bad_targets(fixture *f, const char *targets, const char *sentence)
{
    firn_adapter *ad = NULL;

    assert_int_not_equal(firn_adapter_create(f->ctx, f->model, targets, 4, 8, 1, &ad), FIRN_OK);
    assert_null(ad);
    if (!strstr(firn_error(f->ctx), sentence))
        fail_msg("%s: expected '%s' in: %s", targets, sentence, firn_error(f->ctx));
}

static int count_targets(fixture *f, const char *targets)
{
    firn_adapter *ad;

    OK(f->ctx, firn_adapter_create(f->ctx, f->model, targets, 4, 8, 1, &ad));
    const int n = ad->n_entries;
    firn_adapter_destroy(ad);
    return n;
}

static void test_targets(void **state)
{
    (void)state;
    fixture f;

    open_case(&f, "qwen3moe", false, 1);
    assert_int_equal(count_targets(&f, NULL), 2 * 7);
    assert_int_equal(count_targets(&f, "attention, router"), 2 * 5);
    assert_int_equal(count_targets(&f, "all"), 2 * 8 + 1);
    assert_int_equal(count_targets(&f, "all,all,all , all"), 2 * 8 + 1);
    assert_int_equal(count_targets(&f, "blk.*.attn_[qk].weight"), 4);
    assert_int_equal(count_targets(&f, "blk.1.*_exps.weight,experts"), 6);
    assert_int_equal(count_targets(&f, "output"), 1);
    bad_targets(&f, "dense", "'dense' matches no tensor");
    bad_targets(&f, "atention", "there is no class of targets 'atention'");
    bad_targets(&f, "blk.9.attn_q.weight", "matches no tensor");
    bad_targets(&f, "attention,,router", "empty");
    bad_targets(&f, "*", "norms and biases are not trained");
    bad_targets(&f, "token_embd.weight", "token_embd.weight cannot be trained");

    firn_adapter *a, *b;
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "attention", 4, 8, 7, &a));
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "attention,router", 4, 8, 7, &b));
    assert_memory_equal(a->values + a->entries[0].a, b->values + b->entries[0].a, 4 * 64 * sizeof(float));
    for (int i = 0; i < 4 * 64; i++) {
        assert_true(fabsf(a->values[a->entries[0].a + i]) <= 1 / 8.0f);
        assert_true(a->values[a->entries[0].b + i] == 0);
    }
    firn_adapter_destroy(b);
    OK(f.ctx, firn_adapter_save(f.ctx, a, NULL, in_scratch("a.gguf")));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, in_scratch("a.gguf"), &b));
    assert_int_equal(a->n_values, b->n_values);
    assert_memory_equal(a->values, b->values, (size_t)a->n_values * sizeof(float));
    assert_true(b->alpha == 8 && b->entries[0].scale == 2);
    firn_adapter_destroy(a);
    firn_adapter_destroy(b);
    close_fixture(&f);

    make_model("llama", &(change){.tie = true}, in_scratch("tied.gguf"));
    open_at(&f, in_scratch("tied.gguf"), NULL, 1);
    bad_targets(&f, "output", "this model's output is its embedding");
    bad_targets(&f, "token_*", "llama.cpp cannot apply");
    assert_int_equal(count_targets(&f, "all"), 2 * 7);
    close_fixture(&f);
}

/* An adapter file with one factor of another shape, or one missing. */
static void refused_adapter(fixture *f, const char *tensor, int64_t a0, int64_t a1, int64_t a2, bool b_too,
                            const char *sentence)
{
    firn_gguf_writer *w;
    firn_adapter *ad = NULL;
    char name[128];
    static const float zeros[4096];

    OK(f->ctx, firn_gguf_writer_create(f->ctx, &w));
    OK(f->ctx, firn_gguf_put_string(w, "general.type", "adapter", 7));
    OK(f->ctx, firn_gguf_put_string(w, "general.architecture", "qwen3moe", 8));
    OK(f->ctx, firn_gguf_put_string(w, "adapter.type", "lora", 4));
    OK(f->ctx, firn_gguf_put_f32(w, "adapter.lora.alpha", 4));
    snprintf(name, sizeof name, "%s.lora_a", tensor);
    OK(f->ctx, firn_gguf_add_tensor(w, name, FIRN_F32, a2 > 1 ? 3 : 2, (int64_t[]){a0, a1, a2}));
    snprintf(name, sizeof name, "%s.lora_b", tensor);
    if (b_too)
        OK(f->ctx, firn_gguf_add_tensor(w, name, FIRN_F32, a2 > 1 ? 3 : 2, (int64_t[]){a1, 64, a2}));
    OK(f->ctx, firn_gguf_writer_begin(w, in_scratch("bad.gguf")));
    OK(f->ctx, firn_gguf_writer_data(w, zeros, (size_t)(a0 * a1 * a2) * sizeof(float)));
    if (b_too)
        OK(f->ctx, firn_gguf_writer_data(w, zeros, (size_t)(a1 * 64 * a2) * sizeof(float)));
    OK(f->ctx, firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    assert_int_not_equal(firn_adapter_load(f->ctx, f->model, in_scratch("bad.gguf"), &ad), FIRN_OK);
    assert_null(ad);
    if (!strstr(firn_error(f->ctx), sentence))
        fail_msg("expected '%s' in: %s", sentence, firn_error(f->ctx));
}

static void test_refused_adapters(void **state)
{
    (void)state;
    fixture f;
    firn_adapter *ad = NULL;

    open_case(&f, "qwen3moe", false, 1);
    refused_adapter(&f, "blk.0.attn_q.weight", 64, 2, 1, false, "blk.0.attn_q.weight.lora_b is missing");
    refused_adapter(&f, "blk.0.attn_q.weight", 32, 2, 1, true, "the factors of blk.0.attn_q.weight");
    refused_adapter(&f, "blk.0.ffn_down_exps.weight", 36, 2, 1, true, "the factors of blk.0.ffn_down_exps.weight");
    refused_adapter(&f, "blk.0.ffn_down_exps.weight", 36, 2, 5, true, "the factors of blk.0.ffn_down_exps.weight");
    refused_adapter(&f, "blk.0.attn_qkv.weight", 64, 2, 1, true, "which this model does not have");
    refused_adapter(&f, "blk.0.attn_norm.weight", 64, 2, 1, true, "which adapters are not applied to");
    refused_adapter(&f, "token_embd.weight", 64, 2, 1, true, "embeddings are not supported");
    assert_int_equal(firn_adapter_load(f.ctx, f.model, CASES "/llama/lora_start.gguf", &ad), FIRN_ERR_FORMAT);
    assert_non_null(strstr(firn_error(f.ctx), "general.architecture should be 'qwen3moe', not 'llama'"));
    assert_int_equal(firn_adapter_load(f.ctx, f.model, CASES "/qwen3moe/model.gguf", &ad), FIRN_ERR_FORMAT);
    close_fixture(&f);
}

/* ---- batches and generation ---- */

static void test_bad_batches(void **state)
{
    (void)state;
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    open_case(&f, "llama", false, 1);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, NULL, &(firn_session_params){.n_tokens = N}, &session));
    firn_batch batch = batch_of(&f, N + 1);
    assert_int_equal(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_ARGUMENT);
    batch = batch_of(&f, N);
    f.tokens[3] = VOCAB;
    assert_int_equal(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_ARGUMENT);
    assert_non_null(strstr(firn_error(f.ctx), "token 3 is 271; the vocabulary has 0 to 270"));
    f.tokens[3] = 1;
    f.first[2] = 3;
    assert_int_equal(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_ARGUMENT);
    f.first[2] = 0;
    assert_int_equal(firn_session_gradient(session, &batch, 1, &loss, &n), FIRN_ERR_ARGUMENT);
    OK(f.ctx, firn_session_loss(session, &batch, &loss, &n));
    for (int i = 0; i < N; i++)
        f.targets[i] = -1;
    OK(f.ctx, firn_session_loss(session, &batch, &loss, &n));
    assert_true(loss == 0 && n == 0);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_generator(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3moe", "mixtral-q4_0"};

    for (int i = 0; i < 3; i++) {
        fixture f;
        firn_session *session;
        firn_generator *generator;
        const float *last;
        float *logits = malloc(sizeof(float) * N * VOCAB);

        open_case(&f, names[i], true, 2);
        OK(f.ctx,
           firn_session_create(f.ctx, f.device, f.model, f.adapter, &(firn_session_params){.n_tokens = N}, &session));
        const firn_batch batch = batch_of(&f, N);
        OK(f.ctx, firn_session_logits(session, &batch, logits));
        OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, N, &generator));
        for (int turn = 0; turn < 2; turn++) {
            OK(f.ctx, firn_generator_feed(generator, f.tokens, 10, &last));
            assert_true(nmse(last, logits + 9 * VOCAB, VOCAB) < 1e-11);
            for (int t = 10; t < N; t++) {
                OK(f.ctx, firn_generator_feed(generator, f.tokens + t, 1, &last));
                assert_true(nmse(last, logits + t * VOCAB, VOCAB) < 1e-11);
            }
            assert_int_equal(firn_generator_length(generator), N);
            assert_int_equal(firn_generator_feed(generator, f.tokens, 1, &last), FIRN_ERR_ARGUMENT);
            firn_generator_reset(generator);
        }
        free(logits);
        firn_generator_destroy(generator);
        firn_session_destroy(session);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_shared_cases),
        cmocka_unit_test(test_verify_can_fail),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_plan_is_kept),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_slope),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_logits_not_finite),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_fused_and_tied),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_refused_adapters),
        cmocka_unit_test(test_bad_batches),
        cmocka_unit_test(test_generator),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
