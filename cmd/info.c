/* firn info: what a GGUF file holds, at a glance, and what training it takes. The file is read from its own keys and
 * tensor table, so that files which firn cannot run (other architectures, adapters, vocabularies) are shown too; what
 * training takes is asked of the plan that firn finetune makes. */
#include "cmd.h"
#include "firn/graph.h"
#include "info_adapter.h"
#include "json.h"
#include "model/model.h"
#include "said.h"
#include "train/run.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

/* The classes of firn/model.h, then what is never trained. */
enum { EMBEDDING = FIRN_CLASS_COUNT, NORMS, OTHER, N_CLASSES };

typedef struct {
    int n[FIRN_TYPE_LIMIT], n_tensors;
    int n_trained, n_served; /* that adapters can be trained on; of these, that llama.cpp applies adapters to */
    int64_t n_weights;
    uint64_t bytes;
} tally;

typedef struct {
    const char *path;
    const firn_gguf *g;
    firn_string arch, name;
    int n_parts;
    int64_t n_block, n_embd, n_ff, n_head, n_head_kv, n_head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_expert_used, n_ff_expert, n_shared, n_group, n_group_used, n_lead, n_nextn, n_router;
    int64_t n_q_lora, n_kv_lora, n_rot, n_window, n_ctx_orig; /* 0: not there */
    firn_string vocab, pre, scaling;
    tally by_class[N_CLASSES];
    int64_t n_weights, n_active; /* active: used by one token */
    const char *why_not;         /* NULL: firn runs it */
    char ignored[256];           /* "attn_q_a, attn_q_b": llama.cpp loads adapters on these and ignores them */
    bool adapter;                /* or a checkpoint, which holds one */
    cmd_adapter lora;
    firn_training_need need; /* where firn runs it */
    const char *no_need;     /* NULL: need is known */
    const char *targets;     /* as given */
    int64_t talk;            /* tokens of the longest conversation */
    uint64_t talk_bytes;     /* of keys and values that it takes */
    const char *warnings[4]; /* firn_model_warning's, the rest NULL */
} summary;

static const char *class_name(int c)
{
    return c == EMBEDDING ? "embedding" : c == NORMS ? "norms" : c == OTHER ? "other" : firn_class_name((firn_class)c);
}

/* An adapter's two tensors belong to the class of the one that they adapt. */
static int class_of(const char *tensor)
{
    char name[256];
    int block, at = 0;

    snprintf(name, sizeof name, "%s", tensor);
    char *rest = strrchr(name, '.');
    if (rest && strncmp(rest, ".lora_", 6) == 0)
        *rest = 0;
    rest = strrchr(name, '.');
    if (rest && strcmp(rest, ".weight") == 0 && sscanf(name, "blk.%9d.%n", &block, &at) == 1 && at) {
        *rest = 0;
        if (strncmp(name + at, "ffn_", 4) == 0 && strchr(name + at, '.')) /* "ffn_up.3": experts kept apart */
            return FIRN_CLASS_EXPERTS;
        for (int i = 0; i < FIRN_T_COUNT; i++)
            if (strcmp(name + at, firn_tensor_rows[i].base) == 0 && firn_tensor_rows[i].class_ != FIRN_CLASS_NONE)
                return (int)firn_tensor_rows[i].class_;
        *rest = '.';
    }
    if (strcmp(name, "output.weight") == 0)
        return FIRN_CLASS_OUTPUT;
    if (strcmp(name, "token_embd.weight") == 0)
        return EMBEDDING;
    return strstr(name, "_norm.weight") ? NORMS : OTHER;
}

/* ---- reading ---- */

static const firn_kv *arch_kv(const summary *s, const char *rest)
{
    char key[160];

    snprintf(key, sizeof key, "%.*s.%s", (int)(s->arch.size < 64 ? s->arch.size : 64), s->arch.data, rest);
    return firn_gguf_kv(s->g, key);
}

/* A u32, or that of block i in an array of them; 0 when there is none. */
static int64_t number_of(const summary *s, const char *rest, uint64_t i)
{
    uint32_t value = 0;
    const firn_kv *kv = arch_kv(s, rest);

    if (kv && (kv->element == FIRN_KV_U32 || kv->element == FIRN_KV_I32) && kv->n > 0) {
        const uint64_t at = kv->type != FIRN_KV_ARRAY ? 0 : i < kv->n ? i : kv->n - 1;
        memcpy(&value, (const char *)kv->data + at * sizeof value, sizeof value);
    }
    return value;
}

static int64_t number(const summary *s, const char *rest)
{
    return number_of(s, rest, 0);
}

/* Experts that a token uses in a block; the most where that depends on the block. */
static int64_t most_used(const summary *s)
{
    int64_t most = 0;

    for (int64_t i = 0; i < firn_max_i64(s->n_block, 1) && i < 1 << 16; i++)
        most = firn_max_i64(most, number_of(s, "expert_used_count", (uint64_t)i));
    return most;
}

/* Of the n weights of a block's experts, those that a token does not use. */
static int64_t n_idle(const summary *s, const char *tensor, int64_t n)
{
    int block = 0;

    sscanf(tensor, "blk.%9d.", &block);
    const int64_t used = number_of(s, "expert_used_count", (uint64_t)firn_max_i64(block, 0));
    return s->n_expert > 0 && used < s->n_expert ? n / s->n_expert * (s->n_expert - used) : 0;
}

static firn_string string_of(const firn_kv *kv)
{
    return kv && kv->type == FIRN_KV_STRING ? kv->strings[0] : (firn_string){"", 0};
}

static firn_string text(const firn_gguf *g, const char *key)
{
    return string_of(firn_gguf_kv(g, key));
}

static firn_string arch_text(const summary *s, const char *rest)
{
    return string_of(arch_kv(s, rest));
}

static void count_tensors(summary *s)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(s->g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(s->g, i);
        const int class_ = class_of(t->name);
        tally *c = &s->by_class[class_];
        const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        c->n[t->type]++;
        c->n_tensors++;
        c->n_weights += n;
        c->bytes += t->size;
        s->n_weights += n;
        s->n_active += n - (class_ == FIRN_CLASS_EXPERTS ? n_idle(s, t->name, n) : 0);
        int block, at = 0;
        if (sscanf(t->name, "blk.%9d.ffn_gate_inp.weight%n", &block, &at) == 1 && at && block < s->n_block - s->n_nextn)
            s->n_router++;
        if (t->file >= s->n_parts)
            s->n_parts = t->file + 1;
    }
}

static void read_summary(firn_context *ctx, summary *s)
{
    const firn_kv *tokens = firn_gguf_kv(s->g, "tokenizer.ggml.tokens");

    s->arch = text(s->g, "general.architecture");
    s->name = text(s->g, "general.name");
    s->adapter = cmd_adapter_read(ctx, s->path, s->g, &s->lora);
    s->vocab = text(s->g, "tokenizer.ggml.model");
    s->pre = text(s->g, "tokenizer.ggml.pre");
    s->n_vocab = tokens ? (int64_t)tokens->n : 0;
    s->n_block = number(s, "block_count");
    s->n_embd = number(s, "embedding_length");
    s->n_ctx = number(s, "context_length");
    s->n_ff = number(s, "feed_forward_length");
    s->n_head = number(s, "attention.head_count");
    s->n_head_kv = number(s, "attention.head_count_kv");
    s->n_head_dim = number(s, "attention.key_length");
    s->n_expert = number(s, "expert_count");
    s->n_expert_used = most_used(s);
    s->n_ff_expert = number(s, "expert_feed_forward_length");
    s->n_shared = number(s, "expert_shared_count");
    s->n_group = number(s, "expert_group_count");
    s->n_group_used = number(s, "expert_group_used_count");
    s->n_lead = number(s, "leading_dense_block_count");
    s->n_nextn = number(s, "nextn_predict_layers");
    s->n_q_lora = number(s, "attention.q_lora_rank");
    s->n_kv_lora = number(s, "attention.kv_lora_rank");
    s->n_rot = number(s, "rope.dimension_count");
    s->n_window = number(s, "attention.sliding_window");
    s->n_ctx_orig = number(s, "rope.scaling.original_context_length");
    s->scaling = arch_text(s, "rope.scaling.type");
    if (s->n_kv_lora && number(s, "attention.key_length_mla"))
        s->n_head_dim = number(s, "attention.key_length_mla");
    if (s->n_head_kv == 0)
        s->n_head_kv = s->n_head;
    if (s->n_head_dim == 0 && s->n_head)
        s->n_head_dim = s->n_embd / s->n_head;
    if (s->n_expert && s->n_ff_expert == 0)
        s->n_ff_expert = s->n_ff;
    count_tensors(s);
}

/* ---- showing ---- */

/* "17.3 GB", "30.5 B": four digits and a unit of a thousand. */
static const char *round_number(char out[32], double x, const char *const units[5])
{
    int i = 0;

    while (x >= 999.5 && i < 4) {
        x /= 1000;
        i++;
    }
    snprintf(out, 32, i == 0 ? "%.0f%s" : x < 99.95 ? "%.1f%s" : "%.0f%s", x, units[i]);
    return out;
}

static const char *bytes_text(char out[32], uint64_t n)
{
    return round_number(out, (double)n, (const char *const[]){" bytes", " kB", " MB", " GB", " TB"});
}

static const char *count_text(char out[32], int64_t n)
{
    return round_number(out, (double)n, (const char *const[]){"", " k", " M", " B", " T"});
}

/* Bytes from the file: printable ones only, so that no file plays with the terminal. */
static void print_string(firn_string s)
{
    cmd_said_all(stdout, s.data, s.size < 200 ? s.size : 200);
}

static void print_table(const summary *s)
{
    char weights[32], bytes[32];

    if (s->n_weights == 0)
        return;
    const bool runs = !s->adapter && !s->why_not;
    printf("\n  %-12s %8s %10s %10s  %s%s\n", "class", "tensors", "weights", "size", runs ? "adapters      " : "",
           "formats");
    for (int c = 0; c < N_CLASSES; c++) {
        const tally *t = &s->by_class[c];
        if (t->n_tensors == 0)
            continue;
        printf("  %-12s %8d %10s %10s  ", class_name(c), t->n_tensors, count_text(weights, t->n_weights),
               bytes_text(bytes, t->bytes));
        if (runs)
            printf("%-14s", t->n_trained == 0             ? "-"
                            : t->n_served == 0            ? "firn only"
                            : t->n_served == t->n_trained ? "yes"
                                                          : "yes, in part");
        const char *comma = "";
        for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
            if (t->n[type] == 0)
                continue;
            printf("%s%s", comma, firn_type_name((firn_type)type));
            if (t->n[type] != t->n_tensors)
                printf(" (%d)", t->n[type]);
            comma = ", ";
        }
        putchar('\n');
    }
    putchar('\n');
}

/* Which tensors take adapters, and of which llama.cpp would take no notice. */
static void read_adaptable(summary *s, const firn_model *model)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(s->g); i++) {
        const char *name = firn_gguf_tensor_at(s->g, i)->name;
        tally *t = &s->by_class[class_of(name)];
        char stack[64], part[16];
        int block, at = 0;
        /* Experts kept apart are trained as one stack. */
        if (sscanf(name, "blk.%9d.ffn_%15[a-z].%*d.weight%n", &block, part, &at) == 2 && at) {
            snprintf(stack, sizeof stack, "blk.%d.ffn_%s_exps.weight", block, part);
            name = stack;
        }
        if (firn_model_class(model, name) == FIRN_CLASS_NONE)
            continue;
        t->n_trained++;
        if (firn_model_serves(model, name)) {
            t->n_served++;
            continue;
        }
        const char *base = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') + 1 : name;
        const size_t n = strcspn(base, "."), used = strlen(s->ignored);
        char item[80];
        snprintf(item, sizeof item, "%s%.*s", used ? ", " : "", (int)n, base);
        const char *there = strstr(s->ignored, item + (used ? 2 : 0));
        if ((!there || (there[n] != ',' && there[n] != 0)) && used + strlen(item) < sizeof s->ignored)
            strcat(s->ignored, item);
    }
}

static void read_model(summary *s, const firn_model *model)
{
    read_adaptable(s, model);
    s->talk = firn_min_i64(firn_model_get_info(model)->n_ctx_train, CMD_CHAT_CONTEXT);
    s->talk_bytes = firn_generator_cache_bytes(model, s->talk);
}

/* What training would take. */
static void print_training(const summary *s)
{
    const firn_training_need *n = &s->need;
    char a[32], b[32];

    if (s->ignored[0])
        printf("  %-14s loads adapters on %s but ignores them (firn trains these with --unserved)\n", "llama.cpp",
               s->ignored);
    if (s->no_need) {
        cmd_said_printf(stdout, "  %-14s not so: %s\n", "training", s->no_need);
        return;
    }
    printf("  %-14s %s, rank %" PRId64, "training",
           s->targets                      ? s->targets
           : n->values[FIRN_CLASS_EXPERTS] ? "attention,experts"
                                           : "attention,dense",
           n->rank);
    if (n->values[FIRN_CLASS_EXPERTS] && n->expert_rank != n->rank)
        printf(" (experts %" PRId64 ")", n->expert_rank);
    printf(", %" PRId64 " x %" PRId64 " tokens: %s values", n->batch, n->context, count_text(a, n->n_values));
    const char *comma = " (";
    for (int c = 0; c < FIRN_CLASS_COUNT; c++)
        if (n->values[c]) {
            printf("%s%s %s", comma, firn_class_name((firn_class)c), count_text(a, n->values[c]));
            comma = ", ";
        }
    printf(")\n  %-14s %s; runs slower with less, down to %s", "memory", bytes_text(a, n->total),
           bytes_text(b, n->least));
    printf("\n  %-14s and beside it the data%s weights %s", "", n->session.weights ? "; in it" : ", and",
           firn_weights_place_name(n->session.place));
    if (n->session.place == FIRN_WEIGHTS_STREAMED)
        printf(" from the file, %s, through %d blocks", bytes_text(a, n->mapped), n->session.ring);
    else
        printf(" %s, %s", n->session.place == FIRN_WEIGHTS_MAPPED ? "from the file" : "on the device",
               bytes_text(a, n->mapped));
    if (n->session.weights && n->session.weights != n->mapped)
        printf(", %s", bytes_text(b, n->session.weights));
    putchar('\n');
}

/* What generating would take. */
static void print_generation(const summary *s)
{
    char a[32];

    printf("  %-14s %s of keys and values in a conversation of %" PRId64 " tokens\n", "generation",
           bytes_text(a, s->talk_bytes), s->talk);
}

static void print_shape(const summary *s)
{
    if (s->n_head && s->n_kv_lora) {
        printf("  %-14s %" PRId64 " heads of %" PRId64 " through a latent of %" PRId64, "attention", s->n_head,
               s->n_head_dim, s->n_kv_lora);
        if (s->n_q_lora)
            printf(", queries through one of %" PRId64, s->n_q_lora);
    } else if (s->n_head) {
        printf("  %-14s %" PRId64 " query heads, %" PRId64 " key-value heads of %" PRId64, "attention", s->n_head,
               s->n_head_kv, s->n_head_dim);
    }
    if (s->n_head && s->n_window)
        printf(", a window of %" PRId64 " tokens in some blocks", s->n_window);
    if (s->n_head)
        putchar('\n');
    if (s->n_expert) {
        printf("  %-14s %" PRId64 " in a block, %" PRId64 " used by a token, width %" PRId64, "experts", s->n_expert,
               s->n_expert_used, s->n_ff_expert);
        if (s->n_group > 1)
            printf("; chosen from %" PRId64 " of %" PRId64 " groups", s->n_group_used, s->n_group);
        if (s->n_shared)
            printf("; %" PRId64 " shared by all", s->n_shared);
        if (s->n_lead == 1)
            printf("; the first block is dense, width %" PRId64, s->n_ff);
        else if (s->n_lead)
            printf("; the first %" PRId64 " blocks are dense, width %" PRId64, s->n_lead, s->n_ff);
        putchar('\n');
    } else if (s->n_ff) {
        printf("  %-14s dense, width %" PRId64 "\n", "feed-forward", s->n_ff);
    }
    if (s->n_vocab) {
        printf("  %-14s %" PRId64 " tokens (", "vocabulary", s->n_vocab);
        print_string(s->vocab);
        printf("%s", s->pre.size ? ", " : "");
        print_string(s->pre);
        printf(")\n");
    }
    if (s->n_ctx) {
        printf("  %-14s %" PRId64 " tokens", "context", s->n_ctx);
        if (s->n_ctx_orig && s->scaling.size) {
            printf(" (");
            print_string(s->scaling);
            printf(" from %" PRId64 ")", s->n_ctx_orig);
        }
        putchar('\n');
    }
}

static void print_summary(const summary *s)
{
    char a[32], b[32];

    print_string(s->name.size ? s->name : (firn_string){s->path, strlen(s->path)});
    cmd_said_printf(stdout, "\n  %-14s %s, %s, GGUF version %u", "file", s->path,
                    bytes_text(a, firn_gguf_file_bytes(s->g)), (unsigned)firn_gguf_version(s->g));
    if (s->n_parts > 1)
        printf(", %d parts", s->n_parts);
    printf("\n  %-14s ", "architecture");
    print_string(s->arch);
    if (s->n_block)
        printf(", %" PRId64 " blocks of width %" PRId64, s->n_block - s->n_nextn, s->n_embd);
    if (s->n_nextn)
        printf(", and %" PRId64 " that predict%s further tokens (not run)", s->n_nextn, s->n_nextn > 1 ? "" : "s");
    putchar('\n');
    print_shape(s);
    if (s->n_weights && !s->lora.checkpoint) {
        printf("  %-14s %s", "weights", count_text(a, s->n_weights));
        if (s->n_active != s->n_weights)
            printf(", %s of them used by a token", count_text(b, s->n_active));
        putchar('\n');
    }
    if (!s->lora.checkpoint)
        print_table(s);
    if (s->adapter) {
        cmd_adapter_print(s->path, &s->lora);
    } else if (s->why_not) {
        cmd_said_printf(stdout, "  firn cannot run it: %s\n", s->why_not);
    } else {
        print_training(s);
        print_generation(s);
    }
    for (int i = 0; s->warnings[i]; i++)
        cmd_said_printf(stdout, "  %-14s %s\n", "warning", s->warnings[i]);
}

static json_t *json_text(firn_string s)
{
    return cmd_json_text(s.data, s.size);
}

static json_t *json_training(const summary *s)
{
    const firn_training_need *n = &s->need;
    json_t *values = json_object();

    if (s->no_need) {
        json_decref(values);
        return json_pack("{so}", "reason", cmd_json_text(s->no_need, strlen(s->no_need)));
    }
    for (int c = 0; values && c < FIRN_CLASS_COUNT; c++)
        if (n->values[c])
            json_object_set_new(values, firn_class_name((firn_class)c), json_integer(n->values[c]));
    return json_pack("{sI sI sI sI sI so sI sI sI ss sI si}", "context", (json_int_t)n->context, "batch",
                     (json_int_t)n->batch, "rank", (json_int_t)n->rank, "expert_rank", (json_int_t)n->expert_rank,
                     "trained", (json_int_t)n->n_values, "trained_by_class", values, "bytes", (json_int_t)n->total,
                     "least_bytes", (json_int_t)n->least, "mapped_bytes", (json_int_t)n->mapped, "weights",
                     firn_weights_place_name(n->session.place), "weights_bytes", (json_int_t)n->session.weights, "ring",
                     n->session.ring);
}

static int put_json(json_t *list)
{
    json_dumpf(list, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(list);
    return 0;
}

static int print_json(const summary *s)
{
    json_t *classes = json_object();
    json_t *root = json_pack(
        "{so so ss sI si si sI sI sI sI sI sI sI sI sI sI sI sI sI sb}", "architecture", json_text(s->arch), "name",
        json_text(s->name), "file", s->path, "bytes", (json_int_t)firn_gguf_file_bytes(s->g), "version",
        (int)firn_gguf_version(s->g), "parts", s->n_parts, "blocks", (json_int_t)s->n_block, "width",
        (json_int_t)s->n_embd, "heads", (json_int_t)s->n_head, "key_value_heads", (json_int_t)s->n_head_kv, "head_size",
        (json_int_t)s->n_head_dim, "feed_forward", (json_int_t)s->n_ff, "experts", (json_int_t)s->n_expert,
        "experts_used", (json_int_t)s->n_expert_used, "expert_width", (json_int_t)s->n_ff_expert, "vocabulary",
        (json_int_t)s->n_vocab, "context", (json_int_t)s->n_ctx, "weights", (json_int_t)s->n_weights, "active_weights",
        (json_int_t)s->n_active, "supported", s->why_not == NULL);

    for (int c = 0; root && classes && c < N_CLASSES; c++) {
        const tally *t = &s->by_class[c];
        json_t *formats = json_object();
        for (int type = 0; type < FIRN_TYPE_LIMIT; type++)
            if (t->n[type])
                json_object_set_new(formats, firn_type_name((firn_type)type), json_integer(t->n[type]));
        if (t->n_tensors == 0)
            json_decref(formats);
        else
            json_object_set_new(classes, class_name(c),
                                json_pack("{si sI sI si si so}", "tensors", t->n_tensors, "weights",
                                          (json_int_t)t->n_weights, "bytes", (json_int_t)t->bytes, "trainable",
                                          t->n_trained, "served_by_llama_cpp", t->n_served, "formats", formats));
    }
    if (!root || !classes) {
        json_decref(root);
        json_decref(classes);
        return cmd_fail("out of memory, or the file's name is no UTF-8");
    }
    const struct {
        const char *key;
        int64_t value;
    } more[] = {{"expert_groups", s->n_group},
                {"expert_groups_used", s->n_group_used},
                {"experts_shared", s->n_shared},
                {"expert_blocks", s->n_router},
                {"leading_dense_blocks", s->n_lead},
                {"blocks_not_run", s->n_nextn},
                {"query_latent", s->n_q_lora},
                {"latent", s->n_kv_lora},
                {"rotated", s->n_rot},
                {"window", s->n_window},
                {"original_context", s->n_ctx_orig}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        json_object_set_new(root, more[i].key, json_integer(more[i].value));
    json_object_set_new(root, "rope_scaling", json_text(s->scaling));
    json_object_set_new(root, "classes", classes);
    json_t *warnings = json_array();
    for (int i = 0; s->warnings[i]; i++)
        json_array_append_new(warnings, json_string(s->warnings[i]));
    json_object_set_new(root, "warnings", warnings);
    json_object_set_new(root, "ignored_by_llama_cpp", json_string(s->ignored));
    if (!s->adapter && !s->why_not) {
        json_object_set_new(root, "training", json_training(s));
        json_object_set_new(
            root, "generation",
            json_pack("{sI sI}", "context", (json_int_t)s->talk, "cache_bytes", (json_int_t)s->talk_bytes));
    }
    if (s->adapter)
        json_object_set_new(root, "adapter", cmd_adapter_json(&s->lora));
    if (s->why_not)
        json_object_set_new(root, "reason", cmd_json_text(s->why_not, strlen(s->why_not)));
    return put_json(root);
}

/* null for what is not known. */
static json_t *json_count(uint64_t n)
{
    return n ? json_integer((json_int_t)n) : json_null();
}

static json_t *json_device(const firn_device_info *d)
{
    json_t *precisions = json_array();

    for (int p = 0; firn_precision_name((firn_precision)p); p++)
        if (d->precisions >> p & 1)
            json_array_append_new(precisions, json_string(firn_precision_name((firn_precision)p)));
    return json_pack("{so so so so so sb so so so}", "name", cmd_json_text(d->name, strlen(d->name)), "about",
                     cmd_json_text(d->about, strlen(d->about)), "backend",
                     cmd_json_text(d->backend, strlen(d->backend)), "memory_total", json_count(d->memory_total),
                     "memory_free", json_count(d->memory_free), "host_memory", d->host_memory, "precisions", precisions,
                     "units", json_count((uint64_t)d->units), "error",
                     d->error[0] ? cmd_json_text(d->error, strlen(d->error)) : json_null());
}

/* The CPU, then those of other backends; what cannot be used is told, and is no failure. */
static int list_devices(firn_context *ctx, bool json)
{
    const int n = firn_device_count();
    json_t *list = json_array();

    for (int i = 0; i < n; i++) {
        firn_device_info d = {.size = sizeof d};
        if (firn_device_describe(ctx, i, &d) != FIRN_OK) {
            json_decref(list);
            return cmd_fail_ctx(ctx);
        }
        json_array_append_new(list, json_device(&d));
        if (!json)
            cmd_said_printf(stdout, "%-6s %s%s\n", d.name, d.error[0] ? "cannot be used: " : "",
                            d.error[0] ? d.error : d.about);
    }
    if (json)
        return put_json(list);
    json_decref(list);
    return 0;
}

/* What firn can run and train, for people or programs. */
static int list_architectures(bool json)
{
    json_t *list = json_array();

    for (int i = 0; firn_archs[i]; i++) {
        const firn_arch *arch = firn_archs[i];
        json_array_append_new(list,
                              json_pack("{ss ss ss sb}", "name", arch->name, "verified",
                                        arch->verified ? arch->verified : "", "ignored_by_llama_cpp",
                                        arch->unserved ? arch->unserved : "", "experts", arch->experts != FIRN_ABSENT));
        if (!json)
            printf("%s\n", firn_archs[i]->name);
    }
    if (json)
        return put_json(list);
    json_decref(list);
    return 0;
}

/* given: training options were, and a plan that cannot be is then a failure. */
static int show(firn_context *ctx, const char *path, const firn_train_options *options, bool given, bool json)
{
    summary s = {.path = path, .n_parts = 1, .targets = options->targets};
    firn_train_options o = *options;
    firn_model *model = NULL;
    firn_gguf *g;
    int status = 0;

    if (firn_gguf_open(ctx, path, &g) != FIRN_OK)
        return cmd_fail_ctx(ctx);
    s.g = g;
    read_summary(ctx, &s);
    o.model = path;
    if (firn_model_open(ctx, path, &model) != FIRN_OK)
        s.why_not = firn_error(ctx);
    else
        read_model(&s, model);
    for (int i = 0; model && i < 3; i++)
        s.warnings[i] = firn_model_warning(model, i);
    firn_model_close(model);
    if (!s.why_not && firn_training_need_of(ctx, &o, &s.need) != FIRN_OK)
        s.no_need = firn_error(ctx);
    if (given && (s.why_not || s.no_need))
        status = cmd_fail_ctx(ctx);
    else if (json)
        status = print_json(&s);
    else
        print_summary(&s);
    firn_gguf_close(g);
    return status;
}

int cmd_info(int argc, char **argv)
{
    bool json = false, devices = false, architectures = false;
    firn_train_options o;

    firn_train_options_init(&o);
    const cmd_option options[] = {
        {"--context", 'i', &o.context, "N", "training: tokens of a window (default 512, or the model's if less)", 2,
         1 << 24},
        {"--batch", 'i', &o.batch, "N", "training: windows of a pass (default 1)", 1, 65536},
        {"--targets", 's', &o.targets, "LIST", "training: what is trained, as firn finetune has it", 0, 0},
        {"--unserved", 'b', &o.unserved, NULL, "training: also tensors whose adapters llama.cpp ignores", 0, 0},
        {"--rank", 'i', &o.rank, "N", "training: rank of the adapter (default 16)", 1, 4096},
        {"--weights", 's', &o.weights, "PLACE",
         "training: mapped, resident or streamed[:BYTES], as firn finetune has it", 0, 0},
        {"--memory-limit", 's', &o.memory_limit, "6G", "training: refuse what does not fit, saying what would help", 0,
         0},
        {"--json", 'b', &json, NULL, "for programs", 0, 0},
        {"--devices", 'b', &devices, NULL, "list the devices that can compute", 0, 0},
        {"--architectures", 'b', &architectures, NULL, "list the architectures that firn runs", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        "firn info MODEL [--context N] [--targets LIST] [--json] | firn info --devices | --architectures [--json]",
        "Shows what a GGUF file holds (architecture, sizes, experts, tensors by class and format) and what training "
        "it\n"
        "takes: how many values, how much memory, by the plan that firn finetune makes.",
        options, 0, 1};
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (n == 0 && !devices && !architectures)
        return cmd_usage(argv[0], "an argument is missing: %s", spec.usage);
    const bool given = o.context != FIRN_UNSET || o.batch != FIRN_UNSET || o.targets || o.rank != FIRN_UNSET ||
                       o.weights || o.memory_limit;
    firn_context *ctx = cmd_context(devices ? 0 : 1);
    if (!ctx)
        return 1;
    if (devices)
        status = list_devices(ctx, json);
    if (status == 0 && architectures)
        status = list_architectures(json);
    if (status == 0 && n)
        status = show(ctx, argv[1], &o, given, json);
    firn_context_destroy(ctx);
    return status;
}
