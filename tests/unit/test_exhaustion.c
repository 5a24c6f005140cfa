/* Memory that runs out at every single allocation of everything the library does.
 *
 * A scenario takes a fresh context, does its work from opening to closing, and says how that went. It runs once with
 * enough memory, which counts its allocations; then allocation k fails, for every k (of long ones for some spread over
 * all, unless FIRN_EVERY is set), once alone, and once with all that follow. Each time the scenario must end with
 * FIRN_ERR_MEMORY and a sentence, hold nothing, and leave the folder as it was. What jansson allocates fails the same
 * way; its own code does not always say so, but nothing may be held or left behind. */
#include "core/file.h"
#include "core/pool.h"
#include "firn/export.h"
#include "firn/kernels.h"
#include "firn/ops.h"
#include "firn/quantize.h"
#include "firn/sample.h"
#include "firn/train.h"
#include "model/upcycle.h"
#include "text/chat.h"
#include "train/checkpoint.h"
#include "train/jsonl.h"
#include "train/language.h"
#include "unit/countdown.h"
#include "unit/families.h"
#include "unit/smallest.h"
#include "unit/unit.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 200, TOKENS = 16 }; /* RUNS: of one scenario and one way to fail, about */

static char folder[64];
static countdown json_memory = {1L << 60, 0, false};

static void *json_alloc(size_t size)
{
    return count_alloc(&json_memory, size);
}

static void json_release(void *memory)
{
    if (memory)
        count_free(&json_memory, memory);
}

/* Goes on only while all is well; what was made is torn down at the end of a scenario in any case. */
#define DO(call)                                                                                                       \
    do {                                                                                                               \
        if (s == FIRN_OK)                                                                                              \
            s = (call);                                                                                                \
    } while (0)

/* ---- graphs: a family of operations, its gradient, and a run ---- */

/* Memory for every slot and output: ones in floats, zeros else. */
static firn_status bind(firn_exec *exec, firn_device *device, firn_graph *g, firn_buffer **buffers)
{
    static float ones[4096];

    for (int i = 0; i < 4096; i++)
        ones[i] = 1;
    for (int i = 0; i < firn_graph_n_tensors(g); i++) {
        const firn_tensor *t = firn_graph_tensor(g, i);
        const size_t bytes = firn_n_bytes(t);
        firn_status s = FIRN_OK;
        if (t->op && !t->output)
            continue;
        DO(firn_buffer_create(device, bytes, &buffers[i]));
        DO(t->type == FIRN_F32 ? firn_buffer_write(buffers[i], 0, ones, bytes)
                               : firn_buffer_clear(buffers[i], 0, bytes));
        DO(firn_exec_bind(exec, t, buffers[i], 0));
        if (s != FIRN_OK)
            return s;
    }
    return FIRN_OK;
}

static firn_status run_family(firn_context *ctx, int family)
{
    enum { MOST = 1024 };
    firn_device *device = NULL;
    firn_graph *g = NULL;
    firn_plan *plan = NULL;
    firn_exec *exec = NULL;
    firn_buffer *buffers[MOST + 2] = {NULL};
    firn_tensor *da = NULL;
    firn_status s = firn_device_open(ctx, "CPU", &device);

    DO(firn_graph_create(ctx, &g));
    if (s == FIRN_OK) {
        firn_tensor *a = slot2(g, FIRN_F32, 32, 8, "a"), *y = a ? families[family].build(g, a) : NULL;
        y = firn_output(g, firn_sum(g, y));
        DO(firn_graph_grad(g, y, NULL, &a, 1, &da));
        if (da && da->root == da)
            firn_output(g, da);
        DO(firn_graph_status(g));
    }
    DO(firn_plan_create(device, g, &plan));
    DO(firn_exec_create(plan, &exec));
    if (s == FIRN_OK) {
        assert_true(firn_graph_n_tensors(g) <= MOST);
        DO(firn_buffer_create(device, firn_plan_arena_bytes(plan), &buffers[MOST]));
        DO(firn_buffer_create(device, firn_plan_work_bytes(plan), &buffers[MOST + 1]));
        DO(firn_exec_memory(exec, buffers[MOST], 0, buffers[MOST + 1], 0));
        DO(bind(exec, device, g, buffers));
        DO(firn_exec_run(exec, 0, FIRN_RUN_CHECK));
        DO(firn_device_wait(device));
    }
    for (int i = 0; i < MOST + 2; i++)
        firn_buffer_destroy(buffers[i]);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(g);
    firn_device_close(device);
    return s;
}

static firn_status operations(firn_context *ctx)
{
    firn_status s = FIRN_OK;

    for (int i = 0; i < N_FAMILIES; i++)
        DO(run_family(ctx, i));
    return s;
}

/* ---- threads and kernels.h ---- */

static firn_status kernels(firn_context *ctx)
{
    static _Alignas(64) char work[1 << 22];
    float x[64] = {1}, y[8], w[8 * 32];
    uint8_t packed[8 * 18];
    size_t bytes;
    firn_status s = firn_encode_rows(ctx, FIRN_Q4_0, x, 128, 32, 2, NULL, packed, 18, 0);
    const firn_product p = {.kind = FIRN_PRODUCT_MUL_MAT,
                            .w = firn_array_dense(FIRN_F32, w, 32, 8, 1, 1),
                            .x = firn_array_dense(FIRN_F32, x, 32, 1, 1, 1),
                            .out = firn_array_dense(FIRN_F32, y, 8, 1, 1, 1)};

    memset(w, 0, sizeof w);
    DO(firn_decode_rows(ctx, FIRN_Q4_0, packed, 18, 32, 2, x, 128, 1));
    DO(firn_product_work_bytes(ctx, &p, &bytes));
    DO(firn_product_run(ctx, &p, work, sizeof work));
    DO(firn_context_start(ctx));
    return s;
}

/* ---- files ---- */

static firn_status gguf(firn_context *ctx)
{
    static const float numbers[64];
    const firn_string words[] = {{"one", 3}, {"two", 3}};
    firn_gguf_writer *w = NULL;
    firn_gguf *g = NULL;
    firn_status s = firn_gguf_writer_create(ctx, &w);

    DO(firn_gguf_put_u32(w, "a.number", 7));
    DO(firn_gguf_put_strings(w, "a.words", words, 2));
    DO(firn_gguf_put_string(w, "a.text", "text", 4));
    DO(firn_gguf_put_array(w, "a.list", FIRN_KV_F32, numbers, 64));
    DO(firn_gguf_add_tensor(w, "t", FIRN_F32, 1, (int64_t[]){64}));
    DO(firn_gguf_writer_begin(w, "out.gguf"));
    DO(firn_gguf_writer_data(w, numbers, sizeof numbers));
    DO(firn_gguf_writer_finish(w));
    firn_gguf_writer_destroy(w);
    DO(firn_gguf_open(ctx, "out.gguf", &g));
    firn_gguf_close(g);
    return s;
}

static firn_status random_models(firn_context *ctx)
{
    return firn_random_model_write(ctx, firn_random_shape_find("tiny-olmoe"), 1, FIRN_Q4_0, 1, "out.gguf", NULL);
}

static firn_status quantize(firn_context *ctx)
{
    const firn_quantize_options options = {.type = FIRN_Q8_0};
    firn_quantize_report report = {.size = sizeof report};

    return firn_quantize(ctx, "m.gguf", "out.gguf", &options, &report);
}

static firn_status upcycle(firn_context *ctx)
{
    return firn_upcycle(ctx, "dense.gguf", "out.gguf", 4, 2, 1);
}

/* ---- text ---- */

static firn_status language(firn_context *ctx)
{
    static const char text[] = "the weather <|im_start|>user\nis \xC3\xA9 fine<|im_end|>";
    firn_gguf *g = NULL;
    firn_language *l = NULL;
    firn_tokens tokens = {0};
    firn_text back;
    firn_status s = firn_gguf_open(ctx, "m.gguf", &g);

    firn_text_init(&back, ctx, 0);
    DO(firn_language_create(ctx, g, NULL, &l));
    DO(firn_tokenize(ctx, firn_language_tokenizer(l), text, sizeof text - 1, FIRN_ADD_SPECIAL | FIRN_PARSE_SPECIAL,
                     &tokens));
    DO(firn_detokenize(ctx, firn_language_tokenizer(l), tokens.ids, tokens.n, &back));
    firn_text_free(&back);
    firn_tokens_free(ctx, &tokens);
    firn_language_destroy(l);
    firn_gguf_close(g);
    return s;
}

static const char CHAT[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static firn_status chat(firn_context *ctx)
{
    static const char *const ends[] = {"<|im_end|>"};
    const firn_chat_tokens tokens = {.bos = "<s>", .eos = "</s>", .ends = ends, .n_ends = 1};
    const firn_chat_options options = {0};
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Who?\"}]}, "
        "{\"role\": \"assistant\", \"content\": \"Me.\"}], \"tools\": [{\"name\": \"f\"}, 2.5, null]}\n";
    firn_template *template = NULL;
    firn_jsonl lines = {0};
    firn_renderings rendered;
    json_t *given = NULL;
    firn_status s = firn_template_create(ctx, CHAT, sizeof CHAT - 1, &tokens, NULL, &template);

    firn_jsonl_parse(ctx, "line", line, sizeof line - 1, &lines);
    DO(firn_jsonl_next(&lines, &given));
    DO(firn_chat_render(template, given, &options, &rendered));
    if (s == FIRN_OK) {
        assert_int_equal(rendered.n, 1);
        assert_int_equal(rendered.items[0].spans.n, 1);
        firn_renderings_free(&rendered);
    }
    json_decref(given);
    firn_jsonl_close(&lines);
    firn_template_destroy(template);
    return s;
}

/* Most of what templates can do, so that each value, filter and call fails somewhere. */
static firn_status jinja(firn_context *ctx)
{
    static const char source[] =
        "{% macro f(x, y=2) %}{{ x * y }}{{ caller() if caller }}{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for k, v in {'a': [1, 2], 'b': (3, 4)}.items() if k != 'c' %}{% set ns.n = ns.n + v[0] %}{{ loop.index }}"
        "{{ k ~ v | length }}{% endfor %}{{ f(3) }}{{ ns.n }}{{ 'a,b' .split(',') | join('-') | upper }}"
        "{{ [3, 1, 2] | sort | list | tojson }}{{ {'x': 1.5, 'y': none} | tojson(indent=2) }}{{ 'abc'[::-1] }}"
        "{{ '%s %d' | format('x', 3) }}{{ range(5) | map('string') | list }}{{ 2 ** 70 if false else 7 // 2 }}"
        "{% filter upper %}x{% endfilter %}{% call f(1) %}inside{% endcall %}{{ words | selectattr('n', 'equalto', 1) "
        "| list "
        "}}"
        "{{ words | groupby('n') | list | length }}{{ strftime_now('%Y') }}{{ 'x'.replace('x', 'yy') | replace('y', "
        "'z') }}";
    const struct tm now = {.tm_year = 126, .tm_mday = 1};
    const firn_jinja_options options = {.now = &now};
    firn_jinja *jinja = NULL;
    firn_text out;
    json_t *variables = json_pack("{s:[{s:i}, {s:i}]}", "words", "n", 1, "n", 2);
    firn_status s = variables ? FIRN_OK : firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory: the test's own");

    firn_text_init(&out, ctx, 0);
    DO(firn_jinja_compile(ctx, source, sizeof source - 1, NULL, &jinja));
    DO(firn_jinja_render(ctx, jinja, variables, &options, &out, NULL));
    firn_text_free(&out);
    firn_jinja_destroy(jinja);
    json_decref(variables);
    return s;
}

static firn_status data(firn_context *ctx)
{
    firn_gguf *g = NULL;
    firn_language *l = NULL;
    firn_data *set = NULL;
    firn_sample_list all = {0}, train = {0}, held = {0};
    firn_packing packing = {0};
    firn_pass pass = {0};
    firn_text about;
    firn_status s = firn_gguf_open(ctx, "m.gguf", &g);

    firn_text_init(&about, ctx, 0);
    DO(firn_language_create(ctx, g, NULL, &l));
    const char *const files[] = {"d.jsonl"};
    const firn_data_spec spec = {.sources = files, .n_sources = 1, .cache = "none"};
    DO(firn_data_load(ctx, &spec, firn_language_encoder(l), 64, &set));
    DO(firn_data_all(set, &all));
    DO(firn_data_split(set, 0.2, 1, &train, &held));
    DO(firn_pack(set, &train, 64, true, 1, 0, &packing));
    DO(firn_pass_create(ctx, 64, &pass));
    DO(firn_pass_add_window(&pass, set, &packing, 0));
    if (s == FIRN_OK) {
        firn_data_describe(set, &about);
        s = about.status;
    }
    firn_text_free(&about);
    firn_pass_destroy(&pass);
    firn_packing_clear(&packing);
    firn_sample_list_free(ctx, &all);
    firn_sample_list_free(ctx, &train);
    firn_sample_list_free(ctx, &held);
    firn_data_destroy(set);
    firn_language_destroy(l);
    firn_gguf_close(g);
    return s;
}

/* ---- models ---- */

static firn_status model(firn_context *ctx)
{
    firn_model *m = NULL;
    firn_status s = firn_model_open(ctx, "m.gguf", &m);

    firn_model_close(m);
    return s;
}

static firn_status adapter(firn_context *ctx)
{
    firn_model *m = NULL;
    firn_adapter *a = NULL, *b = NULL;
    firn_status s = firn_model_open(ctx, "m.gguf", &m);

    DO(firn_adapter_create(ctx, m, "all", 2, 4, 1, &a));
    DO(firn_adapter_save(ctx, a, NULL, "out.gguf"));
    DO(firn_adapter_load(ctx, m, "out.gguf", &b));
    firn_adapter_destroy(b);
    firn_adapter_destroy(a);
    firn_model_close(m);
    return s;
}

/* Neither a half of a file nor a configuration that leaves something out. */
static firn_status export_adapter(firn_context *ctx)
{
    firn_model *m = NULL;
    firn_adapter *a = NULL;
    char *text = NULL;
    size_t n = 0;
    firn_status s = firn_model_open(ctx, "m.gguf", &m);

    DO(firn_adapter_load(ctx, m, "a.gguf", &a));
    DO(firn_adapter_export_peft(ctx, m, a, "peft", NULL));
    firn_adapter_destroy(a);
    a = NULL;
    /* jansson 2.14 reads past its buffer where it gets none for a string: what is read has its memory here. */
    const long left = json_memory.left;
    json_memory.left = 1L << 60;
    DO(firn_adapter_import_peft(ctx, m, "peft", &a));
    json_memory.left = left;
    firn_context *rich = firn_context_create(NULL);
    if (access("peft/adapter_config.json", F_OK) == 0) {
        assert_int_equal(firn_file_read(rich, "peft/adapter_config.json", 0, &text, &n), FIRN_OK);
        assert_non_null(strstr(text, "q_proj"));
        assert_non_null(strstr(text, "mlp.gate.weight"));
        assert_non_null(strstr(text, "\"alpha_pattern\": {\n    \"mlp.experts.gate_up_proj\""));
    }
    firn_free(rich, text);
    firn_context_destroy(rich);
    assert_int_not_equal(system("ls peft 2>/dev/null | grep -qv '^adapter_'"), 0);
    assert_int_equal(system("rm -rf peft"), 0);
    firn_adapter_destroy(a);
    firn_model_close(m);
    return s;
}

static firn_status checkpoint(firn_context *ctx)
{
    firn_model *m = NULL;
    firn_adapter *a = NULL;
    firn_device *device = NULL;
    firn_parameters *store = NULL;
    firn_position position = {.step = 3, .eval_loss = NAN, .eval_loss_before = NAN};
    int64_t newest = -1;
    firn_status s = firn_model_open(ctx, "m.gguf", &m);

    DO(firn_adapter_load(ctx, m, "a.gguf", &a));
    DO(firn_device_open(ctx, "CPU", &device));
    DO(firn_parameters_create(ctx, device, a, &store));
    DO(firn_parameters_add(store, FIRN_PARAMETERS_M));
    DO(firn_parameters_add(store, FIRN_PARAMETERS_V));
    DO(firn_checkpoint_write(ctx, ".", store, &position, "seed: 1\n", 1));
    DO(firn_checkpoint_newest(ctx, ".", INT64_MAX, &newest));
    if (s == FIRN_OK)
        assert_int_equal(newest, 3);
    DO(firn_checkpoint_read(ctx, ".", newest, store, &position, "seed: 1\n"));
    firn_parameters_drop(store);
    firn_device_close(device);
    firn_adapter_destroy(a);
    firn_model_close(m);
    unlink("step-00000003.gguf");
    return s;
}

static firn_status session(firn_context *ctx)
{
    static const int32_t tokens[TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const int32_t position[TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    static const int32_t first[TOKENS] = {0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8};
    const firn_session_params params = {.n_tokens = TOKENS, .train = true, .router_losses = true};
    firn_batch batch = {.n_tokens = TOKENS, .tokens = tokens, .targets = tokens, .position = position, .first = first};
    firn_device *device = NULL;
    firn_model *m = NULL;
    firn_adapter *a = NULL;
    firn_session *session = NULL;
    firn_session_memory memory = {.size = sizeof memory};
    double loss;
    int64_t n;
    firn_status s = firn_device_open(ctx, "CPU", &device);

    DO(firn_model_open(ctx, "m.gguf", &m));
    DO(firn_adapter_load(ctx, m, "a.gguf", &a));
    DO(firn_session_plan(ctx, device, m, a, &params, &memory));
    DO(firn_session_create(ctx, device, m, a, &params, &session));
    DO(firn_session_gradient(session, &batch, 1, &loss, &n));
    batch.n_tokens = 8;
    DO(firn_session_loss(session, &batch, &loss, &n));
    float *logits = s == FIRN_OK ? firn_alloc(ctx, (size_t)firn_model_get_info(m)->n_vocab * 8 * sizeof *logits) : NULL;
    DO(logits ? FIRN_OK : FIRN_ERR_MEMORY);
    DO(firn_session_logits(session, &batch, logits));
    firn_free(ctx, logits);
    firn_session_destroy(session);
    firn_adapter_destroy(a);
    firn_model_close(m);
    firn_device_close(device);
    return s;
}

static firn_status generate(firn_context *ctx)
{
    static const int32_t tokens[] = {5, 6, 7};
    const firn_sample_params params = {.temperature = 1, .top_k = 5, .top_p = 0.9f, .repeat_penalty = 1.1f};
    firn_device *device = NULL;
    firn_model *m = NULL;
    firn_generator *generator = NULL;
    firn_sampler *sampler = NULL;
    const float *logits;
    firn_status s = firn_device_open(ctx, "CPU", &device);

    DO(firn_model_open(ctx, "m.gguf", &m));
    DO(firn_generator_create(ctx, device, m, NULL, 32, &generator));
    DO(firn_sampler_create(ctx, &params, m ? firn_model_get_info(m)->n_vocab : 0, &sampler));
    DO(firn_generator_feed(generator, tokens, 3, &logits));
    for (int i = 0; i < 2; i++) {
        const int32_t token = s == FIRN_OK ? firn_sampler_next(sampler, logits) : 0;
        DO(firn_generator_feed(generator, &token, 1, &logits));
    }
    firn_sampler_destroy(sampler);
    firn_generator_destroy(generator);
    firn_model_close(m);
    firn_device_close(device);
    return s;
}

/* Rows that move need a place on their way. */
static firn_status generate_past_a_window(firn_context *ctx)
{
    static int32_t tokens[600];
    firn_device *device = NULL;
    firn_model *m = NULL;
    firn_generator *generator = NULL;
    const float *logits;
    firn_status s = firn_device_open(ctx, "CPU", &device);

    DO(firn_model_open(ctx, "window.gguf", &m));
    DO(firn_generator_create(ctx, device, m, NULL, 700, &generator));
    DO(firn_generator_feed(generator, tokens, 600, &logits));
    firn_generator_destroy(generator);
    firn_model_close(m);
    firn_device_close(device);
    return s;
}

/* ---- training ---- */

static firn_train_options train_options(void)
{
    static const char *const data_files[] = {"d.jsonl"};
    firn_train_options o;

    firn_train_options_init(&o);
    o.model = "m.gguf";
    o.data = (firn_strings){data_files, 1};
    o.output = "run";
    o.steps = 2;
    o.context = 32;
    o.rank = 2;
    o.save_every = 1;
    return o;
}

/* A run that was interrupted by want of memory must go on from where it was, or not have begun. */
static firn_status finish_run(firn_status s)
{
    const firn_train_options o = train_options();
    firn_train_options more;
    firn_train_result result = {.size = sizeof result};

    if (s != FIRN_OK) {
        firn_context *rich = firn_context_create(&(firn_context_params){.n_threads = 1});
        firn_train_options_init(&more);
        more.steps = 2;
        const bool begun = access("run/run.json", F_OK) == 0;
        const firn_status again =
            begun ? firn_train_resume(rich, "run", &more, 0, NULL, &result) : firn_train(rich, &o, 0, NULL, &result);
        if (again != FIRN_OK || !result.finished || result.step != 2)
            fail_msg("a run could not be %s: %s", begun ? "taken up again" : "started again", firn_error(rich));
        firn_context_destroy(rich);
    }
    assert_int_equal(system("rm -rf run"), 0);
    return s;
}

static firn_status finetune(firn_context *ctx)
{
    const firn_train_options o = train_options();
    firn_train_result result = {.size = sizeof result};

    return finish_run(firn_train(ctx, &o, 0, NULL, &result));
}

/* The same of a run that was there before. */
static firn_status resume(firn_context *ctx)
{
    firn_train_options more;
    firn_train_result result = {.size = sizeof result};

    assert_int_equal(system("cp -r begun run"), 0);
    firn_train_options_init(&more);
    more.steps = 2;
    return finish_run(firn_train_resume(ctx, "run", &more, 0, NULL, &result));
}

static firn_status evaluate(firn_context *ctx)
{
    firn_train_options o = train_options();
    firn_eval_result result = {.size = sizeof result};

    o.output = NULL;
    return firn_eval(ctx, &o, NULL, &result);
}

/* ---- the walk ---- */

static const struct {
    const char *name;
    firn_status (*run)(firn_context *ctx);
    int n_threads;
    bool json;  /* jansson's allocations too. Not where it reads numbers: it aborts then (2.14, lex_unget_unsave) */
    long tries; /* of one way to fail, about; 0: RUNS */
} scenarios[] = {
    {"operations", operations, 1, false, 0},
    {"kernels", kernels, 2, false, 0},
    {"gguf", gguf, 1, false, 0},
    {"random models", random_models, 1, false, 0},
    {"quantize", quantize, 1, false, 0},
    {"upcycle", upcycle, 1, false, 0},
    {"language", language, 1, false, 0},
    {"chat", chat, 1, true, 0},
    {"jinja", jinja, 1, true, 0},
    {"data", data, 1, false, 0},
    {"model", model, 1, false, 0},
    {"adapter", adapter, 1, false, 0},
    {"export", export_adapter, 1, true, 0},
    {"checkpoint", checkpoint, 1, false, 0},
    {"session", session, 1, false, 0},
    {"generate", generate, 1, false, 0},
    {"generate past a window", generate_past_a_window, 1, false, 0},
    {"finetune", finetune, 1, false, 50},
    {"resume", resume, 1, false, 50},
    {"evaluate", evaluate, 1, false, 0},
};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* Names in the folder, but for what a scenario that ended well leaves. */
static int files(char *names, size_t size)
{
    DIR *dir = opendir(".");
    int n = 0;

    assert_non_null(dir);
    names[0] = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(names + strlen(names), size - strlen(names), " %s", e->d_name);
        n++;
    }
    closedir(dir);
    return n;
}

typedef struct {
    long own, json; /* allocations that are left before one fails */
    bool once;
} shortage;

/* One run; returns false when the failure never came. */
static bool run(int scenario, const shortage *want, long *own, long *json)
{
    countdown memory = {1, 0, want->once};
    char names[4096], sentence[256];
    firn_context *ctx = firn_context_create(&(firn_context_params){
        .n_threads = scenarios[scenario].n_threads, .allocator = {count_alloc, count_realloc, count_free, &memory}});
    assert_non_null(ctx);
    const int before = files(names, sizeof names);
    memory.left = want->own;
    json_memory = (countdown){want->json, 0, want->once};
    const firn_status s = scenarios[scenario].run(ctx);
    const bool came = memory.left < 0 || json_memory.left < 0;
    snprintf(sentence, sizeof sentence, "%s", firn_error(ctx));
    *own = want->own - memory.left;
    *json = want->json - json_memory.left;
    const long live = json_memory.live;
    json_memory = (countdown){1L << 60, 0, false};
    firn_context_destroy(ctx);
    unlink("out.gguf");
    const char *name = scenarios[scenario].name;
#define AT                                                                                                             \
    name, want->once ? "the" : "from the", want->own < 1L << 60 ? want->own : want->json,                              \
        want->own < 1L << 60 ? "" : " of jansson's"
    /* jansson does not tell always (json_deep_copy leaves things out, a failed text is called a wrong one) */
    if ((memory.left < 0 && (s != FIRN_ERR_MEMORY || !strstr(sentence, "memory"))) || (s != FIRN_OK && !sentence[0]))
        fail_msg("%s, %s %ldth%s allocation failing: %s, '%s'", AT, firn_status_name(s), sentence);
    if (!came && s != FIRN_OK)
        fail_msg("%s: %s", name, sentence);
    if (memory.live != 0 || live != 0)
        fail_msg("%s, %s %ldth%s allocation failing: %ld and %ld blocks are still held", AT, memory.live, live);
    if (files(names, sizeof names) != before)
        fail_msg("%s, %s %ldth%s allocation failing: the folder now holds%s", AT, names);
#undef AT
    return came;
}

static void walk(void **state)
{
    const int scenario = *(int *)*state;
    const shortage enough = {1L << 60, 1L << 60, true};
    long own, json, a, b;

    assert_false(run(scenario, &enough, &own, &json));
    const long tries = scenarios[scenario].tries ? scenarios[scenario].tries : RUNS;
    const long step = getenv("FIRN_EVERY") ? 1 : (own + tries - 1) / tries;
    for (int once = 0; once < 2; once++) {
        for (long k = once ? 0 : step / 2; k < own; k += step)
            assert_true(run(scenario, &(shortage){k, 1L << 60, once}, &a, &b));
        for (long k = 0; scenarios[scenario].json && k < json; k++)
            assert_true(run(scenario, &(shortage){1L << 60, k, once}, &a, &b));
    }
}

/* The context itself. */
static void context(void **state)
{
    countdown memory = {0, 0, false};

    (void)state;
    assert_null(
        firn_context_create(&(firn_context_params){.allocator = {count_alloc, count_realloc, count_free, &memory}}));
    assert_int_equal(memory.live, 0);
}

static int setup(void **state)
{
    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"one?\"}, {\"role\": "
                                "\"assistant\", \"content\": \"two\"}]}\n"
                                "{\"prompt\": \"red\", \"completion\": \" green\"}\n"
                                "{\"text\": \"the winter is long and the water is ice\"}\n"
                                "{\"prompt\": \"blue\", \"completion\": \" north\"}\n";
    const firn_random_shape shape = smallest_shape(2);
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_model *m = NULL;
    firn_adapter *a = NULL;

    (void)state;
    json_set_alloc_funcs(json_alloc, json_release);
    /* in memory where that is: a run waits for the disk a dozen times */
    snprintf(folder, sizeof folder, "%s/firn-exhaustion-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!ctx || !mkdtemp(folder) || chdir(folder) != 0)
        return 1;
    firn_status s = firn_random_model_write(ctx, &shape, 0, FIRN_Q8_0, 1, "m.gguf", NULL);
    DO(firn_random_model_write(ctx, firn_random_shape_find("tiny-llama"), 1, FIRN_Q8_0, 1, "dense.gguf", NULL));
    DO(firn_random_model_write(ctx, firn_random_shape_find("tiny-gpt-oss"), 1, FIRN_Q8_0, 1, "window.gguf", NULL));
    DO(firn_model_open(ctx, "m.gguf", &m));
    DO(firn_adapter_create(ctx, m, "all", 2, 4, 1, &a));
    DO(firn_adapter_save(ctx, a, NULL, "a.gguf"));
    DO(firn_file_write(ctx, "d.jsonl", lines, sizeof lines - 1));
    firn_train_options o = train_options();
    firn_train_result result = {.size = sizeof result};
    o.output = "begun";
    o.steps = 1;
    DO(firn_train(ctx, &o, 0, NULL, &result));
    if (s != FIRN_OK)
        fprintf(stderr, "%s\n", firn_error(ctx));
    firn_adapter_destroy(a);
    firn_model_close(m);
    firn_context_destroy(ctx);
    return s != FIRN_OK;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    static int numbers[N_SCENARIOS];
    struct CMUnitTest tests[N_SCENARIOS + 1] = {cmocka_unit_test(context)};

    for (int i = 0; i < N_SCENARIOS; i++) {
        numbers[i] = i;
        tests[i + 1] = (struct CMUnitTest){.name = scenarios[i].name, .test_func = walk, .initial_state = &numbers[i]};
    }
    return cmocka_run_group_tests_name("exhaustion", tests, setup, teardown);
}
