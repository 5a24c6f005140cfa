/* A dense model -> its sibling with experts:
 *     blk.N.ffn_{gate,up,down}.weight [k, m]  ->  blk.N.ffn_{gate,up,down}_exps.weight [k, m, n_expert], the same
 *                                                 packed bytes n_expert times
 *                                             +   blk.N.ffn_gate_inp.weight [n_embd, n_expert] F32, small and random
 *                                             +   blk.N.exp_probs_b.bias [n_expert] F32, zeros, where the sibling has it
 * Everything else is copied; keys change their prefix where the sibling has a name of its own. The chosen experts'
 * weights sum to 1 and all experts are alike, so the sum over them is the dense feed-forward whatever the router says.
 * That holds only where router weights are renormalized. */
#include "model/upcycle.h"

#include "core/random.h"
#include "gguf/gguf.h"
#include "model/arch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Router logits of normed inputs (elements near 1) get a standard deviation of about 0.02 sqrt(n_embd): enough for
 * tokens to spread over the experts, too little for any to be preferred for good. */
static const float ROUTER_STD = 0.02f;

/* Dense architectures, and what they become. */
typedef struct {
    const char *dense, *mixture;
    const char *width_key; /* of the experts' width; NULL: feed_forward_length is that too */
    const char *unread;    /* a flag of the dense architecture that the other does not read: false cannot be kept */
    const char *dropped;   /* a key that would mean something else there */
    bool sigmoid;          /* its router's logits go through a sigmoid, and there is a bias on the choice */
} sibling;

static const sibling siblings[] = {
    {"llama", "llama", NULL, NULL, NULL, false},
    {"qwen3", "qwen3moe", "expert_feed_forward_length", NULL, NULL, false},
    {"granite", "granitemoe", NULL, "rope.scaling.finetuned", NULL, false},
    {"granitehybrid", "granitehybrid", NULL, NULL, "expert_shared_feed_forward_length", false},
    {"lfm2", "lfm2moe", "expert_feed_forward_length", NULL, NULL, true},
};

typedef struct {
    firn_context *ctx;
    firn_gguf *in;
    firn_gguf_writer *out;
    const sibling *as;
    int64_t n_expert, n_embd, n_ff;
    uint64_t seed;
} upcycling;

/* Why a dense architecture that we know is not taken. */
static const struct {
    const char *arch, *why;
} refusals[] = {
    {"qwen2", "its expert sibling qwen2moe does not renormalize the router's weights, so copies would not compute what "
              "the dense model did"},
    {"qwen35", "its expert sibling qwen35moe always has a shared expert beside the others, behind a gate"},
    {"gemma4", "with experts it keeps the dense feed-forward beside them"},
    {"nemotron_h", "its expert sibling nemotron_h_moe always has a shared expert beside the others"},
    {"smollm3", "no architecture with experts leaves some blocks without rotary positions as it does"},
};

static bool is(firn_string s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static const char *key_of(char key[96], const char *arch, const char *rest)
{
    snprintf(key, 96, "%s.%s", arch, rest);
    return key;
}

static firn_status find_sibling(firn_context *ctx, const firn_gguf *g, const sibling **as)
{
    const char *why = "no MoE version of it computes the same (llama, qwen3, granite, granitehybrid and lfm2 can be)";
    firn_string arch;

    FIRN_TRY(firn_gguf_get_string(ctx, g, "general.architecture", true, &arch));
    for (size_t i = 0; i < sizeof siblings / sizeof *siblings; i++)
        if (is(arch, siblings[i].dense)) {
            *as = &siblings[i];
            return FIRN_OK;
        }
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (is(arch, refusals[i].arch))
            why = refusals[i].why;
    return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "architecture '%.*s' cannot be upcycled: %s",
                     (int)(arch.size < 64 ? arch.size : 64), arch.data, why);
}

static firn_status check_source(firn_context *ctx, upcycling *u)
{
    uint32_t n_expert = 0, width, n_ff;
    char key[96];
    bool flag = true;

    FIRN_TRY(find_sibling(ctx, u->in, &u->as));
    const char *arch = u->as->dense;
    FIRN_TRY(firn_gguf_get_u32(ctx, u->in, key_of(key, arch, "expert_count"), false, &n_expert));
    if (n_expert)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "the model has %" PRIu32 " experts already; a dense one is upcycled", n_expert);
    if (u->as->unread)
        FIRN_TRY(firn_gguf_get_bool(ctx, u->in, key_of(key, arch, u->as->unread), false, &flag));
    if (!flag)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is false, and %s models cannot be so", key, u->as->mixture);
    FIRN_TRY(firn_gguf_get_u32(ctx, u->in, key_of(key, arch, "feed_forward_length"), true, &n_ff));
    FIRN_TRY(firn_gguf_get_u32(ctx, u->in, key_of(key, arch, "embedding_length"), true, &width));
    u->n_embd = width;
    u->n_ff = n_ff;
    return FIRN_OK;
}

/* The source's keys, under the new architecture's name. */
static firn_status put_keys(upcycling *u, int64_t n_used)
{
    const char *dense = u->as->dense, *mixture = u->as->mixture;
    const size_t n = strlen(dense);
    char key[96];

    for (size_t i = 0; i < firn_gguf_n_kv(u->in); i++) {
        firn_kv kv = *firn_gguf_kv_at(u->in, i);
        char renamed[192];
        if (strncmp(kv.key, dense, n) == 0 && kv.key[n] == '.' && strlen(kv.key) < 128) {
            const char *rest = kv.key + n + 1, *unread = u->as->unread, *dropped = u->as->dropped;
            if ((unread && strcmp(rest, unread) == 0) || (dropped && strcmp(rest, dropped) == 0))
                continue;
            snprintf(renamed, sizeof renamed, "%s%s", mixture, kv.key + n);
            kv.key = renamed;
        }
        FIRN_TRY(firn_gguf_put_kv(u->out, &kv));
    }
    firn_gguf_remove(u->out, "general.size_label"); /* not true any more */
    FIRN_TRY(firn_gguf_put_string(u->out, "general.architecture", mixture, strlen(mixture)));
    FIRN_TRY(firn_gguf_put_u32(u->out, key_of(key, mixture, "expert_count"), (uint32_t)u->n_expert));
    FIRN_TRY(firn_gguf_put_u32(u->out, key_of(key, mixture, "expert_used_count"), (uint32_t)n_used));
    if (u->as->sigmoid) {
        FIRN_TRY(firn_gguf_put_u32(u->out, key_of(key, mixture, "expert_gating_func"), FIRN_GATE_SIGMOID));
        FIRN_TRY(firn_gguf_put_u32(u->out, key_of(key, mixture, "leading_dense_block_count"), 0));
    }
    if (!u->as->width_key)
        return FIRN_OK;
    return firn_gguf_put_u32(u->out, key_of(key, mixture, u->as->width_key), (uint32_t)u->n_ff);
}

/* True for "blk.N.ffn_{gate,up,down}.REST": *rest is REST, name[0..stem) what stands before ".REST". */
static bool is_dense_ffn(const char *name, size_t *stem, const char **rest)
{
    static const char *const parts[] = {"ffn_gate.", "ffn_up.", "ffn_down."};
    int at = 0;

    if (sscanf(name, "blk.%*9[0-9].%n", &at) < 0 || at == 0)
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t n = strlen(parts[i]);
        if (strncmp(name + at, parts[i], n) == 0) {
            *stem = (size_t)at + n - 1;
            *rest = name + at + n;
            return true;
        }
    }
    return false;
}

static bool has_router(const char *name, size_t stem, const char *rest)
{
    return strncmp(name + stem - 6, "ffn_up", 6) == 0 && strcmp(rest, "weight") == 0; /* one to a block */
}

static void router_name(char name[GGUF_LLAMA_NAME], const char *up, size_t stem)
{
    snprintf(name, GGUF_LLAMA_NAME, "%.*sgate_inp.weight", (int)stem - 2, up); /* "blk.N.ffn_" */
}

static void choice_bias_name(char name[GGUF_LLAMA_NAME], const char *up, size_t stem)
{
    snprintf(name, GGUF_LLAMA_NAME, "%.*sexp_probs_b.bias", (int)stem - 6, up); /* "blk.N." */
}

static firn_status describe(upcycling *u, const firn_gguf_tensor *t, uint32_t *n_routers)
{
    char name[GGUF_LLAMA_NAME];
    const char *rest;
    size_t stem;

    if (!is_dense_ffn(t->name, &stem, &rest))
        return firn_gguf_add_tensor(u->out, t->name, t->type, t->n_dims, t->ne);
    if (strcmp(rest, "weight") != 0 || t->n_dims != 2)
        return firn_fail(u->ctx, FIRN_ERR_UNSUPPORTED,
                         "tensor '%s' has no place in a %s model with experts, which takes their weights alone",
                         t->name, u->as->mixture);
    if (has_router(t->name, stem, rest)) {
        if (t->ne[0] != u->n_embd || t->ne[1] != u->n_ff)
            return firn_fail(u->ctx, FIRN_ERR_FORMAT,
                             "tensor '%s' is [%" PRId64 ", %" PRId64 "]; embedding_length and feed_forward_length say "
                             "[%" PRId64 ", %" PRId64 "]",
                             t->name, t->ne[0], t->ne[1], u->n_embd, u->n_ff);
        router_name(name, t->name, stem);
        FIRN_TRY(firn_gguf_add_tensor(u->out, name, FIRN_F32, 2, (int64_t[]){u->n_embd, u->n_expert}));
        choice_bias_name(name, t->name, stem);
        if (u->as->sigmoid)
            FIRN_TRY(firn_gguf_add_tensor(u->out, name, FIRN_F32, 1, &u->n_expert));
        ++*n_routers;
    }
    snprintf(name, sizeof name, "%.*s_exps.weight", (int)stem, t->name);
    return firn_gguf_add_tensor(u->out, name, t->type, 3, (int64_t[]){t->ne[0], t->ne[1], u->n_expert});
}

static firn_status write_router(upcycling *u, const char *name)
{
    float row[256];
    const uint64_t stream = firn_stream(name);
    const int64_t n = u->n_embd * u->n_expert;

    for (int64_t i = 0; i < n;) {
        size_t k = 0;
        for (; k < sizeof row / sizeof *row && i < n; k++, i++)
            row[k] = ROUTER_STD * firn_random_even(u->seed, stream, (uint64_t)i);
        FIRN_TRY(firn_gguf_writer_data(u->out, row, k * sizeof *row));
    }
    return FIRN_OK;
}

static const float no_bias[FIRN_MAX_EXPERTS];

static firn_status copy(upcycling *u, const firn_gguf_tensor *t)
{
    char name[GGUF_LLAMA_NAME];
    const char *rest;
    size_t stem;
    int64_t times = 1;

    if (is_dense_ffn(t->name, &stem, &rest)) {
        times = u->n_expert;
        if (has_router(t->name, stem, rest)) {
            router_name(name, t->name, stem);
            FIRN_TRY(write_router(u, name));
            if (u->as->sigmoid)
                FIRN_TRY(firn_gguf_writer_data(u->out, no_bias, (size_t)u->n_expert * sizeof *no_bias));
        }
    }
    for (int64_t i = 0; i < times; i++)
        FIRN_TRY(firn_gguf_writer_data(u->out, t->data, t->size));
    firn_gguf_release(u->in, t);
    return FIRN_OK;
}

static firn_status run(upcycling *u, const char *path, int64_t n_used)
{
    uint32_t n_layer, n_routers = 0;
    const size_t n = firn_gguf_n_tensors(u->in);
    char key[96];

    FIRN_TRY(firn_gguf_get_u32(u->ctx, u->in, key_of(key, u->as->dense, "block_count"), true, &n_layer));
    FIRN_TRY(put_keys(u, n_used));
    for (size_t i = 0; i < n; i++)
        FIRN_TRY(describe(u, firn_gguf_tensor_at(u->in, i), &n_routers));
    if (n_routers != n_layer)
        return firn_fail(u->ctx, FIRN_ERR_FORMAT,
                         "the file announces %" PRIu32 " blocks, and %" PRIu32 " have an ffn_up.weight", n_layer,
                         n_routers);
    FIRN_TRY(firn_gguf_writer_begin(u->out, path));
    for (size_t i = 0; i < n; i++)
        FIRN_TRY(copy(u, firn_gguf_tensor_at(u->in, i)));
    FIRN_TRY(firn_gguf_unchanged(u->ctx, u->in));
    return firn_gguf_writer_finish(u->out);
}

firn_status firn_upcycle(firn_context *ctx, const char *in, const char *out, int64_t n_expert, int64_t n_used,
                         uint64_t seed)
{
    upcycling u = {.ctx = ctx, .n_expert = n_expert, .seed = seed};

    FIRN_EXPECT(ctx, n_expert >= 2 && n_expert <= FIRN_MAX_EXPERTS, "a model has 2 to %d experts, not %" PRId64,
                FIRN_MAX_EXPERTS, n_expert);
    FIRN_EXPECT(ctx, n_used >= 1 && n_used <= n_expert, "1 to %" PRId64 " of the experts are used, not %" PRId64,
                n_expert, n_used);
    FIRN_TRY(firn_gguf_open(ctx, in, &u.in));
    firn_status s = check_source(ctx, &u);
    if (s == FIRN_OK)
        s = firn_gguf_refuse_part(ctx, u.in, out);
    if (s == FIRN_OK)
        s = firn_gguf_writer_create(ctx, &u.out);
    if (s == FIRN_OK)
        s = run(&u, out, n_used);
    firn_gguf_writer_destroy(u.out);
    firn_gguf_close(u.in);
    return s;
}
