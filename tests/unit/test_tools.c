/* firn info, init, upcycle: run as a user runs them. */
#include "unit/command.h"
#include "unit/countdown.h"

#include "core/context.h"
#include "core/pool.h"
#include "firn/gguf.h"
#include "firn/model.h"
#include "model/arch.h"
#include "model/random_model.h"
#include "model/upcycle.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>

static void commands_refuse_in_words(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"info", 2,
         "firn: an argument is missing: firn info MODEL [--context N] [--targets LIST] [--json] | firn info --devices "
         "| "
         "--architectures [--json] (firn info --help)\n"},
        {"info none.gguf", 1, "firn: cannot open none.gguf: No such file or directory\n"},
        {"init --like tiny", 2,
         "firn: an argument is missing: firn init --like NAME [--type TYPE] [--layers N] [--seed S] OUT.gguf | firn "
         "init "
         "--list (firn init --help)\n"},
        {"init x.gguf", 2, "firn: --like is missing (firn init --help)\n"},
        {"init --like tiny --type q9_9 x.gguf", 2, "firn: there is no type 'q9_9' (firn init --help)\n"},
        {"init --like tiny --type i32 x.gguf", 1, "firn: blocks of type i32 cannot be drawn\n"},
        {"init --like huge x.gguf", 2,
         "firn: there is no shape 'huge' (firn init --list shows them) (firn init --help)\n"},
        {"init --like tiny --experts 1 x.gguf", 2,
         "firn: a token cannot use 2 of 1 experts (--used, --experts) (firn init --help)\n"},
        {"init --like tiny-llama --experts 4 x.gguf", 2, "firn: tiny-llama has no experts (firn init --help)\n"},
        {"init --like tiny-llama --width 100 x.gguf", 2,
         "firn: a width of 100 must divide tiny-llama's 128 as its 4 heads divide (firn init --help)\n"},
        {"init --like deepseek-v3 --experts 12 x.gguf", 2,
         "firn: 12 experts cannot be in 8 equal groups of at least 2 (firn init --help)\n"},
        {"init --like deepseek-v3 --experts 8 x.gguf", 2,
         "firn: 8 experts cannot be in 8 equal groups of at least 2 (firn init --help)\n"},
        {"init --like deepseek-v3 --experts 16 --used 9 x.gguf", 2,
         "firn: a token cannot use 9 experts: it chooses 4 groups of 2 (firn init --help)\n"},
        {"init --like tiny none/x.gguf", 1, "firn: cannot write none/x.gguf: No such file or directory\n"},
        {"upcycle none.gguf x.gguf --experts 4 --used 2", 1,
         "firn: cannot open none.gguf: No such file or directory\n"},
        {"upcycle none.gguf x.gguf --experts 4", 2, "firn: --used is missing (firn upcycle --help)\n"},
        {"upcycle none.gguf x.gguf --experts 4 --used 5", 2,
         "firn: --used takes at most the number of experts, 4, not 5 (firn upcycle --help)\n"},
        {"upcycle none.gguf x.gguf --experts 1 --used 1", 2,
         "firn: --experts takes a number from 2 to 1024, not 1 (firn upcycle --help)\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(firn(cases[i].args), cases[i].status);
        assert_string_equal(err, cases[i].sentence);
        assert_string_equal(out, "");
        assert_false(is_there("x.gguf"));
    }
}

static void random_models_open(void **state)
{
    (void)state;
    static const char *const types[] = {"f32", "q4_K", "IQ4_NL", "mxfp4"};
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    int n = 0;
    for (int i = 0; firn_random_shape_at(i); i++) {
        const char *name = firn_random_shape_at(i)->name;
        if (strncmp(name, "tiny", 4) != 0)
            continue;
        n++;
        for (size_t k = 0; k < 4; k++) {
            char args[256];
            firn_model *m;
            snprintf(args, sizeof args, "init --like %s --type %s --seed 3 --layers 3 x.gguf", name, types[k]);
            assert_int_equal(firn(args), 0);
            if (firn_model_open(ctx, path_of("x.gguf"), &m) != FIRN_OK)
                fail_msg("%s %s: %s", name, types[k], firn_error(ctx));
            assert_int_equal(firn_model_get_info(m)->n_layer, 3);
            assert_int_equal(firn_model_get_info(m)->n_vocab, 512);
            firn_model_close(m);
        }
    }
    assert_true(n >= 9);
    /* A large shape, cut down. */
    firn_model *small;
    assert_int_equal(
        firn("init --like qwen3-30b-a3b --layers 1 --width 256 --experts 2 --used 1 --vocabulary 300 --context 64 "
             "x.gguf"),
        0);
    assert_int_equal(firn_model_open(ctx, path_of("x.gguf"), &small), FIRN_OK);
    const firn_model_info *is = firn_model_get_info(small);
    assert_true(is->n_layer == 1 && is->n_expert == 2 && is->n_expert_used == 1 && is->n_vocab == 300 &&
                is->n_ctx_train == 64 && is->n_embd == 256);
    firn_model_close(small);
    /* The same seed gives the same file, another one another. */
    assert_int_equal(firn("init --like tiny --seed 3 a.gguf"), 0);
    assert_int_equal(firn("init --like tiny --seed 3 b.gguf"), 0);
    assert_int_equal(firn("init --like tiny --seed 4 c.gguf"), 0);
    firn_gguf *a, *b, *c;
    assert_int_equal(firn_gguf_open(ctx, path_of("a.gguf"), &a), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, path_of("b.gguf"), &b), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, path_of("c.gguf"), &c), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_tensors(a); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(a, i);
        assert_memory_equal(t->data, firn_gguf_find(b, t->name)->data, t->size);
        assert_memory_not_equal(t->data, firn_gguf_find(c, t->name)->data, t->size);
    }
    /* Tokens are distinct, and every merge gives one of them. */
    const firn_kv *tokens = firn_gguf_kv(a, "tokenizer.ggml.tokens"),
                  *merges = firn_gguf_kv(a, "tokenizer.ggml.merges");
    assert_int_equal(tokens->n, 512);
    assert_true(merges->n > 200);
    for (uint64_t i = 0; i < tokens->n; i++)
        for (uint64_t k = 0; k < i; k++)
            assert_false(tokens->strings[i].size == tokens->strings[k].size &&
                         memcmp(tokens->strings[i].data, tokens->strings[k].data, tokens->strings[k].size) == 0);
    for (uint64_t i = 0; i < merges->n; i++) {
        const firn_string m = merges->strings[i], t = tokens->strings[256 + i];
        const size_t left = (size_t)((const char *)memchr(m.data, ' ', m.size) - m.data);
        assert_int_equal(m.size - 1, t.size);
        assert_memory_equal(m.data, t.data, left);
        assert_memory_equal(m.data + left + 1, t.data + left, t.size - left);
    }
    firn_gguf_close(a);
    firn_gguf_close(b);
    firn_gguf_close(c);
    firn_context_destroy(ctx);
}

/* Every architecture has a real shape, and each of these, cut down, is a model that firn runs and llama.cpp's rules
 * allow. */
static void real_shapes_open_cut_down(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});

    for (int k = 0; firn_archs[k]; k++) {
        int n = 0;
        for (int i = 0; firn_random_shape_at(i); i++) {
            const firn_random_shape *s = firn_random_shape_at(i);
            n += strncmp(s->name, "tiny", 4) != 0 && strcmp(s->arch, firn_archs[k]->name) == 0;
        }
        if (n == 0)
            fail_msg("no real shape of %s", firn_archs[k]->name);
    }
    for (int i = 0; firn_random_shape_at(i); i++) {
        const firn_random_shape *s = firn_random_shape_at(i);
        char args[256];
        firn_model *m;
        int status = 2;
        if (strncmp(s->name, "tiny", 4) == 0)
            continue;
        for (int by = 16; status && by; by /= 2) {
            snprintf(args, sizeof args, "init --like %s --layers %d --width %d --vocabulary 300 --context 64 %s b.gguf",
                     s->name, (int)s->n_lead + 2, (int)(s->n_embd / by), s->n_expert ? "--experts 16 --used 3" : "");
            status = firn(args);
        }
        assert_int_equal(status, 0);
        if (firn_model_open(ctx, path_of("b.gguf"), &m) != FIRN_OK)
            fail_msg("%s: %s", args, firn_error(ctx));
        assert_string_equal(firn_model_get_info(m)->arch, s->arch);
        firn_model_close(m);
    }
    firn_context_destroy(ctx);
}

/* docs/models.md, against the descriptors and shapes of this build. */
static void the_page_of_models_is_up_to_date(void **state)
{
    char command[512];

    (void)state;
    snprintf(command, sizeof command, "cd %s && FIRN=%s/firn python3 scripts/make_models --check >%s/out 2>&1",
             FIRN_SOURCE_DIR, FIRN_BIN_DIR, folder);
    const int status = system(command);
    slurp("out", out, sizeof out);
    if (status != 0)
        fail_msg("%s", out);
}

/* The ids are llama.cpp's (b11549). */
static void the_made_vocabulary_tokenizes(void **state)
{
    (void)state;
    assert_int_equal(firn("init --like tiny v.gguf"), 0);
    assert_int_equal(firn("tokenize v.gguf --parse-special 'The people of the water took their time.\n\n"
                          "<|im_start|>user \303\234n 42'"),
                     0);
    static const int expected[] = {84, 104, 101, 492, 260, 258, 276, 116, 101, 114, 493, 107, 332, 377, 46,
                                   10, 10,  510, 117, 115, 101, 114, 32,  195, 156, 110, 32,  52,  50};
    json_t *ids = json_loads(out, 0, NULL);
    assert_int_equal(json_array_size(ids), sizeof expected / sizeof *expected);
    for (size_t i = 0; i < json_array_size(ids); i++)
        assert_int_equal(json_integer_value(json_array_get(ids, i)), expected[i]);
    json_decref(ids);
}

static void fallbacks_are_told(void **state)
{
    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe x.gguf"), 0);
    assert_string_equal(out, "x.gguf: 27 tensors, 2233856 weights, 1341440 bytes\n"
                             "2 tensors are q5_0: blocks of q4_K do not divide their rows\n");
    assert_string_equal(err, "");
}

/* The logits of a few tokens, by the library. */
static float *logits_of(firn_context *ctx, const char *name, int64_t *n)
{
    static const int32_t tokens[8] = {1, 300, 77, 20, 9, 400, 256, 31}, position[8] = {0, 1, 2, 3, 4, 5, 6, 7},
                         first[8] = {0};
    const firn_batch batch = {.n_tokens = 8, .tokens = tokens, .position = position, .first = first};
    firn_model *m;
    firn_device *d;
    firn_session *s;
    if (firn_model_open(ctx, path_of(name), &m) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    assert_int_equal(firn_device_open(ctx, "CPU", &d), FIRN_OK);
    *n = 8 * firn_model_get_info(m)->n_vocab;
    float *x = malloc((size_t)*n * sizeof *x);
    if (firn_session_create(ctx, d, m, NULL, &(firn_session_params){.n_tokens = 8}, &s) != FIRN_OK ||
        firn_session_logits(s, &batch, x) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    firn_session_destroy(s);
    firn_device_close(d);
    firn_model_close(m);
    return x;
}

static void an_upcycled_model_computes_what_the_dense_one_did(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    static const char *const shapes[] = {"tiny-qwen3", "tiny-granite", "tiny-granitehybrid-dense",
                                         "tiny-lfm2",  "tiny-llama",   "tiny-llama"};
    static const char *const types[] = {"q4_1", "q4_0", "q4_0", "q4_0", "f32", "q4_1"};
    static const char *const becomes[] = {"qwen3moe", "granitemoe", "granitehybrid", "lfm2moe", "llama", "llama"};
    for (int k = 0; k < 6; k++) {
        char args[256];
        int64_t n, m;
        snprintf(args, sizeof args, "init --like %s --type %s dense.gguf", shapes[k], types[k]);
        assert_int_equal(firn(args), 0);
        assert_int_equal(firn("upcycle dense.gguf moe.gguf --experts 5 --used 3 --seed 7"), 0);
        assert_string_equal(out, "");
        float *dense = logits_of(ctx, "dense.gguf", &n), *moe = logits_of(ctx, "moe.gguf", &m);
        assert_int_equal(firn("info moe.gguf --json"), 0);
        json_t *j = json_loads(out, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(j, "architecture")), becomes[k]);
        assert_int_equal(json_integer_value(json_object_get(j, "experts")), 5);
        json_decref(j);
        assert_int_equal(n, m);
        double error = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            error += pow((double)moe[i] - (double)dense[i], 2);
            size += pow((double)dense[i], 2);
        }
        assert_true(size > 0);
        assert_true(error < 1e-10 * size);
        free(dense);
        free(moe);
    }
    firn_gguf *dense, *moe;
    uint32_t count = 0;
    assert_int_equal(firn_gguf_open(ctx, path_of("dense.gguf"), &dense), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, path_of("moe.gguf"), &moe), FIRN_OK);
    assert_int_equal(firn_gguf_get_u32(ctx, moe, "llama.expert_count", true, &count), FIRN_OK);
    assert_int_equal(count, 5);
    assert_int_equal(firn_gguf_get_u32(ctx, moe, "llama.expert_used_count", true, &count), FIRN_OK);
    assert_int_equal(count, 3);
    const firn_gguf_tensor *d = firn_gguf_find(dense, "blk.1.ffn_down.weight"),
                           *e = firn_gguf_find(moe, "blk.1.ffn_down_exps.weight"),
                           *r0 = firn_gguf_find(moe, "blk.0.ffn_gate_inp.weight"),
                           *r1 = firn_gguf_find(moe, "blk.1.ffn_gate_inp.weight");
    assert_int_equal(e->size, 5 * d->size);
    assert_int_equal(e->type, FIRN_Q4_1);
    for (size_t i = 0; i < 5; i++)
        assert_memory_equal(e->data + i * d->size, d->data, d->size);
    assert_int_equal(r1->ne[1], 5);
    assert_memory_not_equal(r0->data, r1->data, r1->size);
    firn_gguf_close(dense);
    firn_gguf_close(moe);
    assert_int_equal(firn("upcycle moe.gguf x.gguf --experts 2 --used 1"), 1);
    assert_string_equal(err, "firn: the model has 5 experts already; a dense one is upcycled\n");
    assert_int_equal(firn("init --like tiny-olmoe olmoe.gguf"), 0);
    assert_int_equal(firn("upcycle olmoe.gguf x.gguf --experts 2 --used 1"), 1);
    assert_string_equal(err,
                        "firn: architecture 'olmoe' cannot be upcycled: no MoE version of it computes the same (llama, "
                        "qwen3, granite, granitehybrid and lfm2 can be)\n");
    assert_int_equal(firn("init --like tiny-qwen2 q.gguf"), 0);
    assert_int_equal(firn("upcycle q.gguf x.gguf --experts 2 --used 1"), 1);
    assert_non_null(strstr(err, "its expert sibling qwen2moe does not renormalize the router's weights"));
    assert_int_equal(firn("init --like tiny-smollm3 q.gguf"), 0);
    assert_int_equal(firn("upcycle q.gguf x.gguf --experts 2 --used 1"), 1);
    assert_non_null(strstr(err, "leaves some blocks without rotary positions"));
    firn_gguf_writer *w;
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    firn_gguf_put_string(w, "general.architecture", "llama", 5);
    firn_gguf_put_u32(w, "llama.embedding_length", 2);
    firn_gguf_put_u32(w, "llama.feed_forward_length", 3);
    firn_gguf_put_u32(w, "llama.block_count", 1);
    firn_gguf_add_tensor(w, "blk.0.ffn_up.weight", FIRN_F32, 2, (int64_t[]){2, 4});
    assert_int_equal(firn_gguf_writer_begin(w, path_of("q.gguf")), FIRN_OK);
    assert_int_equal(firn_gguf_writer_data(w, (float[8]){0}, 8 * sizeof(float)), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    assert_int_equal(firn("upcycle q.gguf x.gguf --experts 2 --used 1"), 1);
    assert_string_equal(err, "firn: tensor 'blk.0.ffn_up.weight' is [2, 4]; embedding_length and feed_forward_length "
                             "say [2, 3]\n");
    assert_false(is_there("x.gguf.tmp"));
    firn_context_destroy(ctx);
}

/* Whatever allocation fails: an error in words, the old files as they were, nothing held. */
static void failed_allocations_lose_nothing(void **state)
{
    (void)state;
    char in[128], to[128];
    bool done = false;
    long n = 0;

    assert_int_equal(firn("init --like tiny-llama --layers 1 in.gguf"), 0);
    strcpy(in, path_of("in.gguf"));
    strcpy(to, path_of("to.gguf"));
    for (; !done; n += 1 + n / 32) { /* the vocabulary alone takes hundreds */
        countdown c = {.left = 1};
        firn_context *ctx = firn_context_create(
            &(firn_context_params){.n_threads = 1, .allocator = {count_alloc, count_realloc, count_free, &c}});
        c.left = n;
        firn_status s = firn_upcycle(ctx, in, to, 2, 1, 1);
        if (s == FIRN_OK)
            s = firn_random_model_write(ctx, firn_random_shape_find("tiny-llama"), 1, FIRN_Q4_0, 1, to, NULL);
        done = s == FIRN_OK;
        if (!done) {
            assert_int_equal(s, FIRN_ERR_MEMORY);
            assert_non_null(strstr(firn_error(ctx), "out of memory"));
        }
        assert_int_equal(c.live, 1); /* the context */
        firn_context_destroy(ctx);
    }
    assert_true(n > 100);
    assert_int_equal(firn("info to.gguf"), 0);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    assert_int_equal(firn("init --like tiny-llama in.gguf"), 0);
    char command[512];
    snprintf(
        command, sizeof command,
        "cd %s && echo old >full.gguf && (ulimit -f 64; trap '' XFSZ; %s/firn init --like tiny full.gguf >out 2>err;"
        " [ $? = 1 ] && %s/firn upcycle in.gguf full.gguf --experts 8 --used 1 >>out 2>>err; [ $? = 1 ]) &&"
        " [ \"$(cat full.gguf)\" = old ] && [ \"$(ls | grep -c tmp)\" = 0 ]",
        folder, FIRN_BIN_DIR, FIRN_BIN_DIR);
    assert_int_equal(system(command), 0);
    slurp("out", out, sizeof out);
    slurp("err", err, sizeof err);
    assert_string_equal(out, "");
    assert_string_equal(err, "firn: cannot write full.gguf: File too large\n"
                             "firn: cannot write full.gguf: File too large\n");
}

static void a_signal_leaves_the_old_file(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    char temporary[64], text[16];

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        int status;
        write_text("s.gguf", "old");
        const pid_t pid = fork();
        if (pid == 0) { /* 3.6 GB, if it were let */
            const int nowhere = open("/dev/null", O_WRONLY);
            signal(signals[i], SIG_DFL);
            if (chdir(folder) == 0 && dup2(nowhere, STDOUT_FILENO) >= 0 && dup2(nowhere, STDERR_FILENO) >= 0)
                execl(FIRN_BIN_DIR "/firn", "firn", "init", "--like", "tiny", "--layers", "16", "--experts", "1024",
                      "s.gguf", (char *)NULL);
            _exit(99);
        }
        assert_true(pid > 0);
        snprintf(temporary, sizeof temporary, "s.gguf.tmp%ld", (long)pid);
        while (!is_there(temporary) && waitpid(pid, &status, WNOHANG) == 0)
            usleep(1000);
        assert_true(is_there(temporary));
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_false(is_there(temporary));
        slurp("s.gguf", text, sizeof text);
        assert_string_equal(text, "old");
    }
}

static void info_shows_the_file(void **state)
{
    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe --type q4_K i.gguf"), 0);
    assert_int_equal(firn("info i.gguf"), 0);
    static const char shown[] = "tiny-qwen3moe (random weights)\n"
                                "  file           i.gguf, 1.4 MB, GGUF version 3\n"
                                "  architecture   qwen3moe, 2 blocks of width 256\n"
                                "  attention      4 query heads, 2 key-value heads of 64\n"
                                "  experts        8 in a block, 3 used by a token, width 128\n"
                                "  vocabulary     512 tokens (gpt2, qwen2)\n"
                                "  context        512 tokens\n"
                                "  weights        2.2 M, 1.3 M of them used by a token\n"
                                "\n"
                                "  class         tensors    weights       size  adapters      formats\n"
                                "  attention           8      393 k     221 kB  yes           q4_K\n"
                                "  experts             6      1.6 M     950 kB  yes           q5_0 (2), q4_K (4)\n"
                                "  router              2      4.1 k    16.4 kB  yes           f32\n"
                                "  output              1      131 k    73.7 kB  yes           q4_K\n"
                                "  embedding           1      131 k    73.7 kB  -             q4_K\n"
                                "  norms               9      1.5 k     6.1 kB  -             f32\n"
                                "\n"
                                "  training       attention,experts, rank 16 (experts 5), 1 x 512 tokens: 150 k values "
                                "(attention 57.3 k, experts 92.2 k)\n"
                                "  memory         ";
    assert_memory_equal(out, shown, sizeof shown - 1);
    assert_non_null(strstr(out, "  generation     1.0 MB of keys and values in a conversation of 512 tokens\n"));
    assert_int_equal(firn("info --json i.gguf"), 0);
    json_t *j = json_loads(out, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "architecture")), "qwen3moe");
    assert_int_equal(json_integer_value(json_object_get(j, "experts_used")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "weights")), 2233856);
    assert_true(json_is_true(json_object_get(j, "supported")));
    json_t *experts = json_object_get(json_object_get(j, "classes"), "experts");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(experts, "formats"), "q5_0")), 2);
    assert_int_equal(json_integer_value(json_object_get(j, "active_weights")), 2233856 - 6 * 262144 * 5 / 8);
    json_t *generation = json_object_get(j, "generation");
    assert_int_equal(json_integer_value(json_object_get(generation, "context")), 512);
    assert_int_equal(json_integer_value(json_object_get(generation, "cache_bytes")), 2 * 2 * 2 * 64 * 512 * 4);
    json_decref(j);
    assert_int_equal(firn("init --like tiny-deepseek2 d.gguf"), 0);
    assert_int_equal(firn("info d.gguf"), 0);
    assert_non_null(strstr(out, "yes, in part"));
    assert_non_null(strstr(out, "  llama.cpp      loads adapters on attn_q_a, attn_q_b, attn_kv_a_mqa, attn_k_b, "
                                "attn_v_b, output but ignores them (firn trains these with --unserved)\n"));
    assert_non_null(strstr(out, " through a latent of 64, queries through one of 96\n"));
    assert_non_null(strstr(out, "; chosen from 2 of 4 groups; 2 shared by all; the first block is dense, width 160\n"));
    assert_int_equal(firn("info --devices"), 0);
    assert_memory_equal(out, "CPU ", 4);

    /* What firn cannot run is shown all the same, with the reason. */
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf_writer *w;
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    firn_gguf_put_string(w, "general.architecture", "strange\33[2J", 11);
    firn_gguf_put_u32(w, "strange.block_count", 3);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("s.gguf")), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    firn_context_destroy(ctx);
    assert_int_equal(firn("info s.gguf"), 0);
    assert_non_null(strstr(out, "  architecture   strange?[2J\n"));
    assert_non_null(strstr(out, "firn cannot run it: s.gguf: architecture 'strange?[2J' is not supported"));
    assert_int_equal(truncate(path_of("i.gguf"), 1000000), 0);
    assert_int_equal(firn("info i.gguf"), 1);
    assert_memory_equal(err, "firn: i.gguf: the file is truncated: tensor 'blk.1.", 51);
}

static int64_t training(const char *key)
{
    json_t *j = json_loads(out, 0, NULL);
    const int64_t n = json_integer_value(json_object_get(json_object_get(j, "training"), key));

    json_decref(j);
    return n;
}

/* Counts that differ from block to block. */
static json_t *info_json(const char *args)
{
    assert_int_equal(firn(args), 0);
    json_t *j = json_loads(out, 0, NULL);
    assert_non_null(j);
    return j;
}

/* Names that are no UTF-8 are told all the same, and so is why such a file does not run. */
static void info_is_json(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf_writer *w;

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_put_string(w, "general.architecture", "bad\xff", 4), FIRN_OK);
    assert_int_equal(firn_gguf_put_string(w, "general.name", "\xfe-name", 6), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("bytes.gguf")), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    firn_context_destroy(ctx);
    json_t *j = info_json("info bytes.gguf --json"), *devices = info_json("info --devices --json");
    assert_string_equal(json_string_value(json_object_get(j, "name")), "\xef\xbf\xbd-name");
    const char *reason = json_string_value(json_object_get(j, "reason"));
    assert_non_null(reason);
    assert_non_null(strstr(reason, "architecture 'bad?' is not supported"));
    json_t *cpu = json_array_get(devices, 0);
    assert_string_equal(json_string_value(json_object_get(cpu, "name")), "CPU");
    assert_string_equal(json_string_value(json_object_get(cpu, "backend")), "CPU");
    assert_string_equal(json_string_value(json_array_get(json_object_get(cpu, "precisions"), 0)), "f32");
    assert_true(json_integer_value(json_object_get(cpu, "units")) > 0);
    assert_true(json_integer_value(json_object_get(cpu, "memory_total")) > 0);
    assert_true(json_is_true(json_object_get(cpu, "host_memory")));
    assert_true(json_is_null(json_object_get(cpu, "error")));
    json_decref(j);
    json_decref(devices);
}

/* A backend that cannot be loaded is an entry like others, and no failure. */
static void devices_that_cannot_be_used_are_listed(void **state)
{
    (void)state;
    setenv("FIRN_BACKENDS", "/no/such/folder", 1);
    assert_int_equal(firn("info --devices"), 0);
    assert_non_null(
        strstr(out, "\nFIRN_BACKENDS cannot be used: FIRN_BACKENDS names the folder /no/such/folder, which "));
    json_t *devices = info_json("info --devices --json");
    unsetenv("FIRN_BACKENDS");
    json_t *last = json_array_get(devices, json_array_size(devices) - 1);
    assert_non_null(strstr(json_string_value(json_object_get(last, "error")), "/no/such/folder"));
    assert_true(json_is_null(json_object_get(last, "memory_total")));
    assert_int_equal(json_array_size(json_object_get(last, "precisions")), 0);
    json_decref(devices);
}

/* Threads that share a processor wait for each other at every node: two steps took ten minutes with 1000 on 2. */
static void threads_are_cut_to_the_processors(void **state)
{
    char note[160];
    const int n = firn_cpu_count();

    (void)state;
    snprintf(note, sizeof note, "firn: note: 1000 threads on %d processor%s that this process may use: taking %d\n", n,
             n == 1 ? "" : "s", n);
    assert_int_equal(firn("init --like tiny-llama t.gguf"), 0);
    assert_int_equal(firn("quantize t.gguf u.gguf q8_0 --threads 1000"), 0);
    assert_non_null(strstr(err, note));
    assert_int_equal(firn("generate t.gguf -p a -n 1 --threads 1000"), 0);
    assert_non_null(strstr(err, note));
    assert_int_equal(firn("generate t.gguf -p a -n 1 --threads 1"), 0);
    assert_null(strstr(err, "threads"));
}

static void info_counts_the_experts_of_each_block(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *in;
    firn_gguf_writer *w;

    assert_int_equal(firn("init --like tiny-qwen3moe i.gguf"), 0);
    assert_int_equal(firn_gguf_open(ctx, path_of("i.gguf"), &in), FIRN_OK);
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_kv(in); i++)
        assert_int_equal(firn_gguf_put_kv(w, firn_gguf_kv_at(in, i)), FIRN_OK);
    firn_gguf_put_array(w, "qwen3moe.expert_used_count", FIRN_KV_U32, (const uint32_t[]){1, 3}, 2);
    for (size_t i = 0; i < firn_gguf_n_tensors(in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(in, i);
        assert_int_equal(firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne), FIRN_OK);
    }
    assert_int_equal(firn_gguf_writer_begin(w, path_of("differ.gguf")), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_tensors(in); i++)
        assert_int_equal(firn_gguf_writer_data(w, firn_gguf_tensor_at(in, i)->data, firn_gguf_tensor_at(in, i)->size),
                         FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    firn_gguf_close(in);
    firn_context_destroy(ctx);
    assert_int_equal(firn("info differ.gguf --json"), 0);
    json_t *j = json_loads(out, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "experts_used")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "active_weights")), 2233856 - 3 * 262144 * (7 + 5) / 8);
    json_decref(j);
}

/* What info says of memory is what finetune asks for: with the least it would start, with less it refuses. */
static void info_knows_what_training_takes(void **state)
{
    enum { SLACK = 2 << 20 }; /* the data, and what the allocator holds */
    static const char *const targets[] = {"attention,experts", "all"};
    static const int context[] = {64, 448};
    int64_t least[2][2], most[2][2];
    char args[256];

    (void)state;
    FILE *f = fopen(path_of("d.jsonl"), "w");
    fputs("{\"prompt\": \"the people\", \"completion\": \" of the water\"}\n", f);
    fclose(f);
    assert_int_equal(firn("init --like tiny-qwen3moe i.gguf"), 0);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(args, sizeof args, "info i.gguf --json --targets %s --context %d", targets[i], context[k]);
            assert_int_equal(firn(args), 0);
            assert_int_equal(training("context"), context[k]);
            least[i][k] = training("least_bytes");
            most[i][k] = training("bytes");
            assert_true(least[i][k] <= most[i][k]);
            for (int more = -1; more <= 1; more += 2) {
                snprintf(args, sizeof args,
                         "finetune --model i.gguf --data d.jsonl --output run --targets %s --context %d --dry-run "
                         "--memory-limit %lld",
                         targets[i], context[k], (long long)(least[i][k] + more * SLACK));
                assert_int_equal(firn(args), more < 0);
            }
        }
    for (int i = 0; i < 2; i++) {
        assert_true(least[i][0] + SLACK < least[i][1] && most[i][0] < most[i][1]);
        assert_true(least[0][i] < least[1][i]);
    }
    assert_int_equal(firn("info i.gguf --context 513"), 1);
    assert_string_equal(err, "firn: a context of 513 tokens is longer than the model's 512\n");
    assert_int_equal(firn("info i.gguf --targets shared"), 1);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_refuse_in_words),
        cmocka_unit_test(random_models_open),
        cmocka_unit_test(real_shapes_open_cut_down),
        cmocka_unit_test(the_page_of_models_is_up_to_date),
        cmocka_unit_test(the_made_vocabulary_tokenizes),
        cmocka_unit_test(fallbacks_are_told),
        cmocka_unit_test(an_upcycled_model_computes_what_the_dense_one_did),
        cmocka_unit_test(failed_allocations_lose_nothing),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(a_signal_leaves_the_old_file),
        cmocka_unit_test(info_shows_the_file),
        cmocka_unit_test(info_is_json),
        cmocka_unit_test(devices_that_cannot_be_used_are_listed),
        cmocka_unit_test(threads_are_cut_to_the_processors),
        cmocka_unit_test(info_counts_the_experts_of_each_block),
        cmocka_unit_test(info_knows_what_training_takes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
