/* What no caller should pass: null pointers and absurd sizes to every public call, and random operations on random
 * tensors. Each is refused with a sentence or does what its contract says; none crashes (the sanitizers look). */
#include "core/random.h"
#include "firn/kernels.h"
#include "firn/ops.h"
#include "firn/train.h"
#include "unit/smallest.h"
#include "unit/unit.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static char folder[64] = "/tmp/firn-arguments-XXXXXX";
static firn_context *ctx;
static firn_device *device;
static firn_model *model;
static firn_adapter *adapter;
static firn_gguf *gguf;

/* A pointer that must not be null is: FIRN_ERR_ARGUMENT, and the context says which. */
#define NAMED(call, sentence)                                                                                          \
    do {                                                                                                               \
        assert_int_equal(call, FIRN_ERR_ARGUMENT);                                                                     \
        assert_string_equal(firn_error(ctx), sentence);                                                                \
    } while (0)
/* No context, or nothing that has one: FIRN_ERR_ARGUMENT alone. */
#define SILENT(call) assert_int_equal(call, FIRN_ERR_ARGUMENT)
/* A sentence that has these words. */
#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        if (!strstr(firn_error(ctx), words))                                                                           \
            fail_msg("'%s' in place of '%s'", firn_error(ctx), words);                                                 \
    } while (0)

/* ---- null pointers ---- */

static void null_in_firn_h(void **state)
{
    firn_type type;
    firn_precision precision;

    (void)state;
    assert_string_equal(firn_status_name((firn_status)99), "unknown");
    assert_null(firn_type_name((firn_type)-1));
    assert_false(firn_type_from_name(NULL, &type));
    assert_false(firn_type_from_name("q4_0", NULL));
    assert_int_equal(firn_type_block((firn_type)1000), 0);
    assert_int_equal(firn_type_size((firn_type)1000), 0);
    assert_int_equal(firn_type_align((firn_type)1000), 0);
    assert_int_equal(firn_row_bytes((firn_type)1000, 32), 0);
    assert_int_equal(firn_row_bytes(FIRN_Q4_0, -32), 0);
    assert_false(firn_type_is_weight((firn_type)1000));
    assert_null(firn_precision_name((firn_precision)2));
    assert_false(firn_precision_from_name(NULL, &precision));
    assert_false(firn_precision_from_name("f32", NULL));
    assert_string_equal(firn_error(NULL), "");
    assert_int_equal(firn_context_threads(NULL), 0);
    assert_int_equal(firn_context_precision(NULL), FIRN_PRECISION_F32);
    firn_context_set_precision(NULL, FIRN_PRECISION_BF16);
    SILENT(firn_context_start(NULL));
    firn_context_destroy(NULL);
    firn_context *plain = firn_context_create(NULL),
                 *many = firn_context_create(&(firn_context_params){.n_threads = INT32_MAX});
    assert_non_null(plain);
    assert_true(firn_context_threads(plain) >= 1);
    assert_int_equal(firn_context_threads(many), 1024);
    assert_non_null(firn_version());
    assert_false(firn_map_fault(NULL));
    firn_context_destroy(plain);
    firn_context_destroy(many);
}

static void null_in_graph_h(void **state)
{
    firn_graph *g = NULL;
    firn_buffer *buffer = NULL;
    firn_plan *plan = NULL;
    firn_exec *exec = NULL;
    firn_device *other = NULL;
    const firn_profile_row *rows;
    firn_tensor *grads[1];
    float bytes[16] = {0};
    int n;

    (void)state;
    SILENT(firn_graph_create(NULL, &g));
    NAMED(firn_graph_create(ctx, NULL), "firn_graph_create: graph must not be null");
    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    SILENT(firn_graph_status(NULL));
    assert_int_equal(firn_graph_n_tensors(NULL), 0);
    assert_null(firn_graph_tensor(NULL, 0));
    assert_null(firn_graph_tensor(g, 0));
    assert_null(firn_graph_tensor(g, -1));
    assert_null(firn_slot(NULL, FIRN_F32, 1, (int64_t[]){4}, "x"));
    assert_null(firn_named(NULL, "x"));
    assert_null(firn_output(g, NULL));
    firn_graph_cut(NULL);
    assert_int_equal(firn_n_elements(NULL), 0);
    assert_int_equal(firn_n_rows(NULL), 0);
    assert_int_equal(firn_n_bytes(NULL), 0);
    assert_false(firn_is_contiguous(NULL));
    assert_false(firn_same_shape(NULL, NULL));

    firn_tensor *a = firn_slot(g, FIRN_F32, 1, (int64_t[]){4}, "a"), *y = firn_output(g, firn_sum(g, a));
    SILENT(firn_graph_grad(NULL, y, NULL, &a, 1, grads));
    NAMED(firn_graph_grad(g, NULL, NULL, &a, 1, grads), "the gradient of which tensor? y is NULL");
    NAMED(firn_graph_grad(g, y, NULL, NULL, 1, grads), "firn_graph_grad_all: wanted must not be null");
    NAMED(firn_graph_grad(g, y, NULL, &a, 1, NULL), "firn_graph_grad_all: grads must not be null");
    NAMED(firn_graph_grad_all(g, NULL, &a, 1, &a, 1, grads), "firn_graph_grad_all: y must not be null");
    NAMED(firn_graph_grad_all(g, &y, NULL, 1, &a, 1, grads), "firn_graph_grad_all: dy must not be null");
    REFUSED(firn_graph_grad_all(g, &y, &a, 9, &a, 1, grads), FIRN_ERR_ARGUMENT, "1 to 8 results at once, not of 9");

    SILENT(firn_device_open(NULL, "CPU", &other));
    NAMED(firn_device_open(ctx, NULL, &other), "firn_device_open: name must not be null");
    NAMED(firn_device_open(ctx, "CPU", NULL), "firn_device_open: device must not be null");
    firn_device_close(NULL);
    firn_device_info info = {.size = sizeof info};
    assert_true(firn_device_count() >= 1);
    assert_string_equal(firn_weights_place_name(FIRN_WEIGHTS_STREAMED), "streamed");
    firn_context_set_weights(NULL, FIRN_WEIGHTS_MAPPED, 0);
    SILENT(firn_context_set_weights_text(NULL, "mapped"));
    NAMED(firn_context_set_weights_text(ctx, NULL), "firn_context_set_weights_text: text must not be null");
    SILENT(firn_device_describe(NULL, 0, &info));
    NAMED(firn_device_describe(ctx, 0, NULL), "firn_device_describe: info must not be null");
    SILENT(firn_device_get_info(NULL, &info));
    NAMED(firn_device_get_info(device, NULL), "firn_device_get_info: info must not be null");
    assert_int_equal(firn_device_get_info(device, &info), FIRN_OK);
    assert_string_equal(info.name, "CPU");
    info.size = 7;
    REFUSED(firn_device_get_info(device, &info), FIRN_ERR_ARGUMENT,
            "firn_device_info.size is 7: expected sizeof(firn_device_info), at least");
    assert_string_equal(firn_device_name(NULL), "");
    assert_string_equal(firn_device_about(NULL), "");
    SILENT(firn_device_wait(NULL));
    firn_device_profile(NULL, true);
    SILENT(firn_device_profile_rows(NULL, &rows, &n));
    NAMED(firn_device_profile_rows(device, NULL, &n), "firn_device_profile_rows: rows must not be null");
    NAMED(firn_device_profile_rows(device, &rows, NULL), "firn_device_profile_rows: n must not be null");

    SILENT(firn_buffer_create(NULL, 64, &buffer));
    NAMED(firn_buffer_create(device, 64, NULL), "firn_buffer_create: buffer must not be null");
    SILENT(firn_buffer_wrap(NULL, bytes, 64, &buffer));
    NAMED(firn_buffer_wrap(device, NULL, 64, &buffer), "firn_buffer_wrap: memory must not be null");
    NAMED(firn_buffer_wrap(device, bytes, 64, NULL), "firn_buffer_wrap: buffer must not be null");
    firn_buffer_destroy(NULL);
    assert_int_equal(firn_buffer_size(NULL), 0);
    SILENT(firn_buffer_write(NULL, 0, bytes, 4));
    SILENT(firn_buffer_read(NULL, 0, bytes, 4));
    SILENT(firn_buffer_clear(NULL, 0, 4));
    assert_int_equal(firn_buffer_create(device, 64, &buffer), FIRN_OK);
    NAMED(firn_buffer_write(buffer, 0, NULL, 4), "firn_buffer_write: data must not be null");
    NAMED(firn_buffer_read(buffer, 0, NULL, 4), "firn_buffer_read: data must not be null");

    SILENT(firn_plan_create(NULL, g, &plan));
    NAMED(firn_plan_create(device, NULL, &plan), "firn_plan_create: graph must not be null");
    NAMED(firn_plan_create(device, g, NULL), "firn_plan_create: plan must not be null");
    firn_plan_destroy(NULL);
    assert_int_equal(firn_plan_arena_bytes(NULL), 0);
    assert_int_equal(firn_plan_work_bytes(NULL), 0);
    assert_int_equal(firn_plan_n_parts(NULL), 0);
    assert_int_equal(firn_plan_n_nodes(NULL), 0);
    assert_true(firn_plan_flops(NULL, 0) == 0);
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_OK);
    assert_true(firn_plan_flops(plan, -1) == 0 && firn_plan_flops(plan, 7) == 0);
    SILENT(firn_exec_create(NULL, &exec));
    NAMED(firn_exec_create(plan, NULL), "firn_exec_create: exec must not be null");
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    firn_exec_destroy(NULL);
    SILENT(firn_exec_bind(NULL, a, buffer, 0));
    NAMED(firn_exec_bind(exec, NULL, buffer, 0), "firn_exec_bind: tensor must not be null");
    NAMED(firn_exec_bind(exec, a, NULL, 0), "firn_exec_bind: buffer must not be null");
    SILENT(firn_exec_memory(NULL, buffer, 0, buffer, 0));
    SILENT(firn_exec_run(NULL, 0, 0));
    REFUSED(firn_exec_run(exec, 0, 0), FIRN_ERR_ARGUMENT, "has no memory: it was not bound before the run");
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(buffer);
    firn_graph_destroy(g);
    firn_graph_destroy(NULL);
}

static void null_in_gguf_h(void **state)
{
    firn_gguf *g = NULL;
    firn_gguf_writer *w = NULL;
    firn_string s;
    uint32_t u;
    float f;
    bool b;
    size_t size;
    const int64_t ne[] = {4};

    (void)state;
    SILENT(firn_gguf_open(NULL, "m.gguf", &g));
    NAMED(firn_gguf_open(ctx, NULL, &g), "firn_gguf_open: path must not be null");
    NAMED(firn_gguf_open(ctx, "m.gguf", NULL), "firn_gguf_open: gguf must not be null");
    SILENT(firn_gguf_parse(NULL, "GGUF", 4, &g));
    NAMED(firn_gguf_parse(ctx, NULL, 4, &g), "firn_gguf_parse: data must not be null");
    NAMED(firn_gguf_parse(ctx, "GGUF", 4, NULL), "firn_gguf_parse: gguf must not be null");
    firn_gguf_close(NULL);
    assert_int_equal(firn_gguf_n_kv(NULL), 0);
    assert_null(firn_gguf_kv_at(NULL, 0));
    assert_null(firn_gguf_kv_at(gguf, SIZE_MAX));
    assert_null(firn_gguf_kv(NULL, "a"));
    assert_null(firn_gguf_kv(gguf, NULL));
    assert_int_equal(firn_gguf_n_tensors(NULL), 0);
    assert_null(firn_gguf_tensor_at(NULL, 0));
    assert_null(firn_gguf_tensor_at(gguf, SIZE_MAX));
    assert_null(firn_gguf_find(NULL, "a"));
    assert_null(firn_gguf_find(gguf, NULL));
    assert_int_equal(firn_gguf_version(NULL), 0);
    assert_null(firn_gguf_header(NULL, &size));
    assert_null(firn_gguf_header(gguf, NULL));
    assert_int_equal(firn_gguf_file_bytes(NULL), 0);
    firn_gguf_will_need(NULL, firn_gguf_tensor_at(gguf, 0));
    firn_gguf_will_need(gguf, NULL);
    firn_gguf_release(NULL, firn_gguf_tensor_at(gguf, 0));
    firn_gguf_release(gguf, NULL);
    SILENT(firn_gguf_get_u32(NULL, gguf, "a", false, &u));
    NAMED(firn_gguf_get_u32(ctx, NULL, "a", false, &u), "firn_gguf_get_u32: g must not be null");
    NAMED(firn_gguf_get_u32(ctx, gguf, NULL, false, &u), "firn_gguf_get_u32: key must not be null");
    NAMED(firn_gguf_get_u32(ctx, gguf, "a", false, NULL), "firn_gguf_get_u32: value must not be null");
    SILENT(firn_gguf_get_f32(NULL, gguf, "a", false, &f));
    NAMED(firn_gguf_get_f32(ctx, gguf, NULL, false, &f), "firn_gguf_get_f32: key must not be null");
    SILENT(firn_gguf_get_bool(NULL, gguf, "a", false, &b));
    NAMED(firn_gguf_get_bool(ctx, gguf, NULL, false, &b), "firn_gguf_get_bool: key must not be null");
    SILENT(firn_gguf_get_string(NULL, gguf, "a", false, &s));
    NAMED(firn_gguf_get_string(ctx, gguf, NULL, false, &s), "firn_gguf_get_string: key must not be null");

    SILENT(firn_gguf_writer_create(NULL, &w));
    NAMED(firn_gguf_writer_create(ctx, NULL), "firn_gguf_writer_create: writer must not be null");
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    SILENT(firn_gguf_put_u32(NULL, "a", 1));
    NAMED(firn_gguf_put_u32(w, NULL, 1), "firn_gguf_put_u32: key must not be null");
    SILENT(firn_gguf_put_f32(NULL, "a", 1));
    NAMED(firn_gguf_put_f32(w, NULL, 1), "firn_gguf_put_f32: key must not be null");
    SILENT(firn_gguf_put_bool(NULL, "a", true));
    NAMED(firn_gguf_put_bool(w, NULL, true), "firn_gguf_put_bool: key must not be null");
    SILENT(firn_gguf_put_string(NULL, "a", "b", 1));
    NAMED(firn_gguf_put_string(w, NULL, "b", 1), "firn_gguf_put_string: key must not be null");
    NAMED(firn_gguf_put_string(w, "a", NULL, 1), "text 0 of key 'a' is null");
    SILENT(firn_gguf_put_array(NULL, "a", FIRN_KV_U32, &u, 1));
    NAMED(firn_gguf_put_array(w, NULL, FIRN_KV_U32, &u, 1), "firn_gguf_put_array: key must not be null");
    NAMED(firn_gguf_put_array(w, "a", FIRN_KV_U32, NULL, 1), "key 'a' has no values: null");
    SILENT(firn_gguf_put_strings(NULL, "a", &s, 1));
    NAMED(firn_gguf_put_strings(w, NULL, &s, 1), "firn_gguf_put_strings: key must not be null");
    NAMED(firn_gguf_put_strings(w, "a", NULL, 1), "key 'a' has no values: null");
    SILENT(firn_gguf_put_kv(NULL, firn_gguf_kv_at(gguf, 0)));
    NAMED(firn_gguf_put_kv(w, NULL), "firn_gguf_put_kv: kv must not be null");
    firn_gguf_remove(NULL, "a");
    firn_gguf_remove(w, NULL);
    SILENT(firn_gguf_add_tensor(NULL, "t", FIRN_F32, 1, ne));
    NAMED(firn_gguf_add_tensor(w, NULL, FIRN_F32, 1, ne), "firn_gguf_add_tensor: name must not be null");
    NAMED(firn_gguf_add_tensor(w, "t", FIRN_F32, 1, NULL), "firn_gguf_add_tensor: ne must not be null");
    SILENT(firn_gguf_writer_begin(NULL, "x.gguf"));
    NAMED(firn_gguf_writer_begin(w, NULL), "firn_gguf_writer_begin: path must not be null");
    SILENT(firn_gguf_writer_data(NULL, "", 0));
    NAMED(firn_gguf_writer_data(w, NULL, 1), "firn_gguf_writer_data: data must not be null");
    SILENT(firn_gguf_writer_finish(NULL));
    firn_gguf_writer_destroy(w);
    firn_gguf_writer_destroy(NULL);
}

static void null_in_kernels_h(void **state)
{
    float x[32];
    firn_product p = {0};
    size_t bytes;

    (void)state; /* test_kernels.c has more */
    SILENT(firn_product_work_bytes(NULL, &p, &bytes));
    SILENT(firn_product_run(NULL, &p, x, 0));
    SILENT(firn_decode_rows(NULL, FIRN_F32, x, 128, 32, 1, x, 128, 0));
    SILENT(firn_encode_rows(NULL, FIRN_F32, x, 128, 32, 1, NULL, x, 128, 0));
    NAMED(firn_decode_rows(ctx, FIRN_F32, NULL, 128, 32, 1, x, 128, 0), "src must not be null");
    NAMED(firn_encode_rows(ctx, FIRN_F32, x, 128, 32, 1, NULL, NULL, 128, 0), "dst must not be null");
    assert_false(firn_type_can_decode((firn_type)-1));
    assert_false(firn_type_can_encode((firn_type)1000));
    assert_int_equal(firn_array_dense(FIRN_F32, NULL, INT64_MAX, INT64_MAX, 2, 1).nb[3], -1);
    assert_int_equal(firn_array_dense((firn_type)99, NULL, 4, 4, 1, 1).nb[0], 0);
}

static void null_in_model_h(void **state)
{
    const firn_session_params params = {.n_tokens = 8};
    firn_model *m = NULL;
    firn_adapter *a = NULL;
    firn_session *session = NULL;
    firn_session_memory memory = {.size = sizeof memory};
    firn_generator *generator = NULL;
    const int32_t tokens[8] = {1}, zeros[8] = {0};
    firn_batch batch = {.n_tokens = 8, .tokens = tokens, .targets = tokens, .position = tokens};
    const float *logits;
    float *values = malloc(sizeof(float) * 8 * 300);
    double loss, losses[2];
    int64_t n;

    (void)state;
    assert_non_null(values);
    SILENT(firn_model_open(NULL, "m.gguf", &m));
    NAMED(firn_model_open(ctx, NULL, &m), "firn_model_open: path must not be null");
    NAMED(firn_model_open(ctx, "m.gguf", NULL), "firn_model_open: model must not be null");
    firn_model_close(NULL);
    assert_null(firn_model_get_info(NULL));
    assert_null(firn_model_gguf(NULL));
    assert_false(firn_model_serves(NULL, "a"));
    assert_null(firn_model_warning(NULL, 0));
    assert_null(firn_model_warning(model, -1));
    assert_null(firn_model_warning(model, INT32_MAX));
    assert_false(firn_model_serves(model, NULL));
    assert_string_equal(firn_class_name((firn_class)77), "none");
    SILENT(firn_adapter_create(NULL, model, NULL, 2, 4, 1, &a));
    NAMED(firn_adapter_create(ctx, NULL, NULL, 2, 4, 1, &a), "firn_adapter_create: model must not be null");
    NAMED(firn_adapter_create(ctx, model, NULL, 2, 4, 1, NULL), "firn_adapter_create: adapter must not be null");
    SILENT(firn_adapter_load(NULL, model, "a.gguf", &a));
    NAMED(firn_adapter_load(ctx, NULL, "a.gguf", &a), "firn_adapter_load: model must not be null");
    NAMED(firn_adapter_load(ctx, model, NULL, &a), "firn_adapter_load: path must not be null");
    NAMED(firn_adapter_load(ctx, model, "a.gguf", NULL), "firn_adapter_load: adapter must not be null");
    SILENT(firn_adapter_load_forced(NULL, model, "a.gguf", &a));
    NAMED(firn_adapter_load_forced(ctx, model, NULL, &a), "firn_adapter_load_forced: path must not be null");
    SILENT(firn_adapter_save(NULL, adapter, NULL, "x.gguf"));
    NAMED(firn_adapter_save(ctx, NULL, NULL, "x.gguf"), "firn_adapter_save: adapter must not be null");
    NAMED(firn_adapter_save(ctx, adapter, NULL, NULL), "firn_adapter_save: path must not be null");
    firn_adapter_destroy(NULL);

    SILENT(firn_session_create(NULL, device, model, NULL, &params, &session));
    NAMED(firn_session_create(ctx, NULL, model, NULL, &params, &session),
          "firn_session_create: device must not be null");
    NAMED(firn_session_create(ctx, device, NULL, NULL, &params, &session),
          "firn_session_create: model must not be null");
    NAMED(firn_session_create(ctx, device, model, NULL, NULL, &session),
          "firn_session_create: params must not be null");
    NAMED(firn_session_create(ctx, device, model, NULL, &params, NULL),
          "firn_session_create: session must not be null");
    SILENT(firn_session_plan(NULL, device, model, NULL, &params, &memory));
    NAMED(firn_session_plan(ctx, device, model, NULL, &params, NULL), "firn_session_plan: memory must not be null");
    firn_session_destroy(NULL);
    SILENT(firn_session_loss(NULL, &batch, &loss, &n));
    SILENT(firn_session_gradient(NULL, &batch, 1, &loss, &n));
    SILENT(firn_session_logits(NULL, &batch, values));
    assert_null(firn_session_gradients(NULL));
    firn_session_zero_gradients(NULL);
    SILENT(firn_session_push(NULL));
    SILENT(firn_session_pull(NULL));
    assert_null(firn_session_expert_load(NULL));
    firn_session_router_losses(NULL, losses, &n);
    assert_int_equal(firn_session_create(ctx, device, model, NULL, &params, &session), FIRN_OK);
    firn_session_router_losses(session, NULL, &n);
    firn_session_router_losses(session, losses, NULL);
    NAMED(firn_session_loss(session, NULL, &loss, &n), "firn_session_loss: batch must not be null");
    NAMED(firn_session_loss(session, &batch, NULL, &n), "firn_session_loss: loss must not be null");
    NAMED(firn_session_loss(session, &batch, &loss, NULL), "firn_session_loss: n_targets must not be null");
    NAMED(firn_session_gradient(session, NULL, 1, &loss, &n), "firn_session_gradient: batch must not be null");
    NAMED(firn_session_logits(session, NULL, values), "firn_session_logits: batch must not be null");
    NAMED(firn_session_logits(session, &batch, NULL), "firn_session_logits: logits must not be null");
    NAMED(firn_session_loss(session, &batch, &loss, &n),
          "a batch needs tokens, positions, documents and, for losses, targets: one is null");
    batch.first = zeros;
    batch.targets = NULL;
    NAMED(firn_session_loss(session, &batch, &loss, &n), "a pass needs a batch with targets");
    assert_int_equal(firn_session_logits(session, &batch, values), FIRN_OK);
    assert_int_equal(firn_session_push(session), FIRN_OK); /* there is no adapter to bring anywhere */
    assert_int_equal(firn_session_pull(session), FIRN_OK);
    firn_optimizer *optimizer;
    NAMED(firn_optimizer_create(session, NULL, &optimizer), "an optimizer needs a session with an adapter");
    NAMED(firn_optimizer_create(session, NULL, NULL), "firn_optimizer_create: optimizer must not be null");
    firn_session_destroy(session);

    SILENT(firn_generator_create(NULL, device, model, NULL, 8, &generator));
    NAMED(firn_generator_create(ctx, NULL, model, NULL, 8, &generator),
          "firn_generator_create: device must not be null");
    NAMED(firn_generator_create(ctx, device, NULL, NULL, 8, &generator),
          "firn_generator_create: model must not be null");
    NAMED(firn_generator_create(ctx, device, model, NULL, 8, NULL),
          "firn_generator_create: generator must not be null");
    firn_generator_destroy(NULL);
    SILENT(firn_generator_feed(NULL, tokens, 1, &logits));
    assert_int_equal(firn_generator_length(NULL), 0);
    firn_generator_reset(NULL);
    assert_int_equal(firn_generator_truncate(NULL, 1), 0);
    assert_int_equal(firn_generator_cache_bytes(NULL, 8), 0);
    assert_int_equal(firn_generator_cache_bytes(model, 0), 0);
    assert_int_equal(firn_generator_cache_bytes(model, INT64_MAX), 0);
    assert_int_equal(firn_generator_create(ctx, device, model, NULL, 8, &generator), FIRN_OK);
    NAMED(firn_generator_feed(generator, NULL, 1, &logits), "firn_generator_feed: tokens must not be null");
    NAMED(firn_generator_feed(generator, tokens, 1, NULL), "firn_generator_feed: logits must not be null");
    firn_generator_destroy(generator);
    free(values);
}

static void null_in_train_h(void **state)
{
    firn_train_options o;
    firn_train_result result = {.size = sizeof result};
    firn_eval_result evaluated = {.size = sizeof evaluated};

    (void)state;
    double norm;
    SILENT(firn_optimizer_create(NULL, NULL, NULL));
    SILENT(firn_optimizer_step(NULL, 1, &norm));
    firn_optimizer_destroy(NULL);
    firn_optimizer_params_init_sized(NULL, 1);
    firn_train_options_init(NULL);
    firn_train_options_init(&o);
    SILENT(firn_train(NULL, &o, 0, NULL, &result));
    NAMED(firn_train(ctx, NULL, 0, NULL, &result), "firn_train: options must not be null");
    NAMED(firn_train(ctx, &o, 0, NULL, NULL), "firn_train: result must not be null");
    assert_int_equal(firn_train(ctx, &o, 0, NULL, &result), FIRN_ERR_ARGUMENT); /* no model */
    SILENT(firn_train_resume(NULL, "run", &o, 0, NULL, &result));
    NAMED(firn_train_resume(ctx, NULL, &o, 0, NULL, &result), "firn_train_resume: folder must not be null");
    NAMED(firn_train_resume(ctx, "run", NULL, 0, NULL, &result), "firn_train_resume: options must not be null");
    NAMED(firn_train_resume(ctx, "run", &o, 0, NULL, NULL), "firn_train_resume: result must not be null");
    SILENT(firn_eval(NULL, &o, NULL, &evaluated));
    NAMED(firn_eval(ctx, NULL, NULL, &evaluated), "firn_eval: options must not be null");
    NAMED(firn_eval(ctx, &o, NULL, NULL), "firn_eval: result must not be null");
    assert_int_equal(firn_eval(ctx, &o, NULL, &evaluated), FIRN_ERR_ARGUMENT);
}

/* ---- absurd sizes ---- */

static void absurd_sizes(void **state)
{
    const int64_t big = (int64_t)1 << 40;
    firn_graph *g = NULL;
    firn_buffer *buffer = NULL;
    firn_gguf_writer *w = NULL;
    firn_adapter *a = NULL;
    firn_session *session = NULL;
    firn_generator *generator = NULL;
    const float *logits;
    const int32_t tokens[8] = {0, 1, 2, 3, 4, 5, 6, 300};
    float bytes[4];

    (void)state;
    static const struct {
        firn_type type;
        int n_dims;
        int64_t ne[4];
        const char *words;
    } slots[] = {
        {FIRN_F32, 0, {1}, "1 to 4 dimensions, not 0"},
        {FIRN_F32, 5, {1}, "1 to 4 dimensions, not 5"},
        {FIRN_F32, -1, {1}, "1 to 4 dimensions, not -1"},
        {FIRN_F32, 2, {4, -4}, "cannot have -4 elements"},
        {FIRN_F32, 2, {INT64_MIN, 4}, "cannot have -9223372036854775808 elements"},
        {FIRN_F32, 2, {INT64_MAX, INT64_MAX}, "more than memory can hold"},
        {FIRN_F32, 4, {1 << 30, 1 << 30, 0, 1 << 30}, "more than memory can hold"},
        {FIRN_Q4_0, 1, {33}, "multiple of 32 values, not 33"},
        {(firn_type)5, 1, {32}, "no tensor type 5"},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
        assert_null(firn_slot(g, slots[i].type, slots[i].n_dims, slots[i].ne, "x"));
        REFUSED(firn_graph_status(g), FIRN_ERR_ARGUMENT, slots[i].words);
        firn_graph_destroy(g);
    }

    /* Many tensors, each possible, that are too much together: the arena's size does not wrap around. */
    firn_plan *plan = NULL;
    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    firn_tensor *sum = firn_fill(g, (int64_t[]){big, 32, 1, 1}, 1);
    for (int i = 0; i < 40; i++)
        sum = firn_concat(g, firn_fill(g, (int64_t[]){big, 32, 1, 1}, 1),
                          firn_repeat(g, sum, (int64_t[]){big, 32, 1, 1}), i % 2 ? 2 : 3);
    (void)firn_plan_create(device, g, &plan); /* whatever it says */
    firn_plan_destroy(plan);
    firn_graph_destroy(g);

    REFUSED(firn_buffer_create(device, SIZE_MAX, &buffer), FIRN_ERR_MEMORY, "memory");
    assert_int_equal(firn_buffer_create(device, 16, &buffer), FIRN_OK);
    REFUSED(firn_buffer_write(buffer, SIZE_MAX, bytes, 4), FIRN_ERR_ARGUMENT, "not inside a buffer of 16");
    REFUSED(firn_buffer_read(buffer, 8, bytes, SIZE_MAX), FIRN_ERR_ARGUMENT, "not inside a buffer of 16");
    REFUSED(firn_buffer_clear(buffer, 17, 0), FIRN_ERR_ARGUMENT, "not inside a buffer of 16");
    firn_buffer_destroy(buffer);

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    REFUSED(firn_gguf_add_tensor(w, "t", FIRN_F32, 2, (int64_t[]){big, big}), FIRN_ERR_ARGUMENT,
            "cannot have the shape");
    REFUSED(firn_gguf_add_tensor(w, "t", FIRN_F32, 9, (int64_t[]){4}), FIRN_ERR_ARGUMENT, "9 dimensions");
    REFUSED(firn_gguf_add_tensor(w, "t", (firn_type)99, 1, (int64_t[]){4}), FIRN_ERR_ARGUMENT, "type 99");
    REFUSED(firn_gguf_put_array(w, "a", FIRN_KV_F64, bytes, UINT64_MAX), FIRN_ERR_ARGUMENT, "values");
    REFUSED(firn_gguf_put_array(w, "a", (firn_kv_type)99, bytes, 1), FIRN_ERR_ARGUMENT, "type 99");
    firn_gguf_writer_destroy(w);

    REFUSED(firn_adapter_create(ctx, model, NULL, 0, 4, 1, &a), FIRN_ERR_ARGUMENT, "the rank is");
    REFUSED(firn_adapter_create(ctx, model, NULL, INT64_MAX, 4, 1, &a), FIRN_ERR_ARGUMENT, "the rank is");
    REFUSED(firn_adapter_create(ctx, model, NULL, 2, NAN, 1, &a), FIRN_ERR_ARGUMENT, "alpha");
    for (int i = 0; i < 3; i++) {
        const firn_session_params params = {.n_tokens = (int64_t[]){0, -1, INT64_MAX}[i]};
        REFUSED(firn_session_create(ctx, device, model, NULL, &params, &session), FIRN_ERR_ARGUMENT, "tokens, not");
        assert_null(session);
        REFUSED(firn_generator_create(ctx, device, model, NULL, params.n_tokens, &generator), FIRN_ERR_ARGUMENT,
                "at least 1 token, not");
    }
    const firn_session_params params = {.n_tokens = 8};
    firn_batch batch = {.tokens = tokens, .targets = tokens, .position = tokens, .first = tokens};
    double loss;
    int64_t n;
    assert_int_equal(firn_session_create(ctx, device, model, NULL, &params, &session), FIRN_OK);
    for (int i = 0; i < 4; i++) {
        batch.n_tokens = (int64_t[]){0, -1, 9, INT64_MAX}[i];
        REFUSED(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_ARGUMENT, "tokens");
    }
    batch.n_tokens = 8;
    REFUSED(firn_session_loss(session, &batch, &loss, &n), FIRN_ERR_ARGUMENT, "token 7 is 300");
    REFUSED(firn_session_gradient(session, &batch, 1, &loss, &n), FIRN_ERR_ARGUMENT, "made without gradients");
    firn_session_destroy(session);
    assert_int_equal(firn_generator_create(ctx, device, model, NULL, 8, &generator), FIRN_OK);
    REFUSED(firn_generator_feed(generator, tokens, 0, &logits), FIRN_ERR_ARGUMENT, "no tokens");
    REFUSED(firn_generator_feed(generator, tokens, INT64_MAX, &logits), FIRN_ERR_ARGUMENT, "do not fit");
    REFUSED(firn_generator_feed(generator, tokens, 8, &logits), FIRN_ERR_ARGUMENT, "token 7 is 300");
    assert_int_equal(firn_generator_truncate(generator, -1), 0);
    assert_int_equal(firn_generator_truncate(generator, INT64_MAX), 0);
    assert_int_equal(firn_generator_length(generator), 0);
    firn_generator_destroy(generator);
}

/* ---- operations ---- */

static uint64_t drawn;

static int64_t below(int64_t n)
{
    return (int64_t)firn_random_below(7, 0, drawn++, (uint64_t)n);
}

/* Mostly small, sometimes absurd. */
static int64_t number(void)
{
    static const int64_t absurd[] = {-1,         INT64_MIN, INT64_MAX, INT32_MAX, INT32_MIN,        (int64_t)1 << 40,
                                     -(1 << 20), 1 << 30,   0,         255,       (int64_t)1 << 62, 65536};
    return below(8) ? below(9) : absurd[below(sizeof absurd / sizeof *absurd)];
}

/* Of as many floats, where that can be said. */
static int64_t in_bytes(int64_t n)
{
    return n > INT64_MAX / 4 || n < INT64_MIN / 4 ? n : 4 * n;
}

static float real(void)
{
    static const float absurd[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e38f, 1e-45f};
    return below(8) ? 0.5f : absurd[below(sizeof absurd / sizeof *absurd)];
}

enum { N_OPERATIONS = 69, MOST = 24 };

static firn_tensor *operation(firn_graph *g, int which, firn_tensor *const t[6])
{
    const int64_t ne[] = {number(), number(), below(4) ? 1 : number(), below(4) ? 1 : number()};
    const int64_t nb[] = {4, in_bytes(number()), in_bytes(number()), in_bytes(number())};
    const firn_rope_params rope = {.n_rot = (int)number(),
                                   .neox = below(2),
                                   .freq_base = below(4) ? 1e4f : real(),
                                   .freq_scale = real(),
                                   .ext_factor = below(4) ? 0 : real(),
                                   .beta_fast = below(4) ? 32 : real(),
                                   .beta_slow = below(4) ? 1 : real(),
                                   .attn_factor = real(),
                                   .n_ctx_orig = (int)number()};
    const bool given = below(20) > 0;

    switch (which) {
    case 0:
        return firn_add(g, t[0], t[1]);
    case 1:
        return firn_sub(g, t[0], t[1]);
    case 2:
        return firn_mul(g, t[0], t[1]);
    case 3:
        return firn_div(g, t[0], t[1]);
    case 4:
        return firn_scale(g, t[0], real());
    case 5:
        return firn_clamp(g, t[0], real(), real());
    case 6:
        return firn_sqr(g, t[0]);
    case 7:
        return firn_sqrt(g, t[0]);
    case 8:
        return firn_exp(g, t[0]);
    case 9:
        return firn_log(g, t[0]);
    case 10:
        return firn_silu(g, t[0]);
    case 11:
        return firn_gelu(g, t[0]);
    case 12:
        return firn_gelu_quick(g, t[0]);
    case 13:
        return firn_gelu_erf(g, t[0]);
    case 14:
        return firn_relu(g, t[0]);
    case 15:
        return firn_sigmoid(g, t[0]);
    case 16:
        return firn_tanh(g, t[0]);
    case 17:
        return firn_softplus(g, t[0]);
    case 18:
        return firn_add_id(g, t[0], t[1], t[2]);
    case 19:
        return firn_swiglu(g, t[0], t[1]);
    case 20:
        return firn_geglu(g, t[0], t[1]);
    case 21:
        return firn_reglu(g, t[0], t[1]);
    case 22:
        return firn_swiglu_oai(g, t[0], t[1], real(), real());
    case 23:
        return firn_cont(g, t[0]);
    case 24:
        return firn_cast(g, t[0], (firn_type)(below(4) ? below(45) : number()));
    case 25:
        return firn_cpy(g, t[0], t[1]);
    case 26:
        return firn_reshape(g, t[0], (int)number(), given ? ne : NULL);
    case 27:
        return firn_view(g, t[0], (int)number(), given ? ne : NULL, below(20) ? nb : NULL, in_bytes(number()));
    case 28:
        return firn_permute(g, t[0], (int)below(4), (int)below(4), (int)below(4), (int)number());
    case 29:
        return firn_transpose(g, t[0]);
    case 30:
        return firn_concat(g, t[0], t[1], (int)number());
    case 31:
        return firn_repeat(g, t[0], given ? ne : NULL);
    case 32:
        return firn_repeat_back(g, t[0], given ? ne : NULL);
    case 33:
        return firn_view_back(g, t[0], given ? ne : NULL, below(20) ? nb : NULL, in_bytes(number()));
    case 34:
        return firn_fill(g, given ? ne : NULL, real());
    case 35:
        return firn_add_into(g, t[0], t[1]);
    case 36:
        return firn_sum(g, t[0]);
    case 37:
        return firn_sum_rows(g, t[0]);
    case 38:
        return firn_mean(g, t[0]);
    case 39:
        return firn_argsort(g, t[0], below(2));
    case 40:
        return firn_top_k(g, t[0], (int)number());
    case 41:
        return firn_get_rows(g, t[0], t[1]);
    case 42:
        return firn_get_rows_back(g, t[0], t[1], number());
    case 43:
        return firn_set_rows(g, t[0], t[1], t[2]);
    case 44:
        return firn_rms_norm(g, t[0], t[1], real());
    case 45:
        return firn_rms_norm_back(g, t[0], t[1], t[2], real());
    case 46:
        return firn_norm(g, t[0], real());
    case 47:
        return firn_l2_norm(g, t[0], real());
    case 48:
        return firn_soft_max(g, t[0], t[1], t[2], real());
    case 49:
        return firn_rope(g, t[0], t[1], t[2], given ? &rope : NULL);
    case 50:
        return firn_rope_back(g, t[0], t[1], t[2], given ? &rope : NULL);
    case 51:
        return firn_attention(g, t[0], t[1], t[2], t[3], t[4], real(), real());
    case 52:
        return firn_mul_mat(g, t[0], t[1]);
    case 53:
        return firn_out_prod(g, t[0], t[1]);
    case 54:
        return firn_mul_mat_id(g, t[0], t[1], t[2], t[3]);
    case 55:
        return firn_mul_mat_id_back(g, t[0], t[1], t[2]);
    case 56:
        return firn_out_prod_id(g, t[0], t[1], t[2], number());
    case 57:
        return firn_sum_slots(g, t[0], number());
    case 58:
        return firn_mix_slots(g, t[0], t[1]);
    case 59:
        return firn_cross_entropy(g, t[0], t[1]);
    case 60:
        return firn_cross_entropy_masked(g, t[0], t[1], t[2], (int32_t)number());
    case 61:
        return firn_router_balance(g, t[0], t[1], t[2]);
    case 62:
        return firn_router_z(g, t[0], t[1]);
    case 63:
        return firn_opt_step_adamw(g, t[0], t[1], t[2], t[3], t[4]);
    case 64:
        return firn_opt_step_sgd(g, t[0], t[1], t[2]);
    case 65:
        return firn_clip_norm(g, t[0], t[1], (int)number(), real());
    case 66:
        return firn_conv_causal(g, t[0], t[1], t[2], t[3], below(2) ? 0 : number(), below(2));
    case 67:
        return firn_gated_delta(g, t[0], t[1], t[2], t[3], t[4], t[5], NULL, below(2), NULL);
    case 68:
        return firn_ssm_scan(g, t[0], t[1], t[2], t[3], t[4], t[5], NULL, below(2), NULL);
    default:
        return NULL;
    }
}

/* Memory for all that must be bound, filled with small numbers (ids good and bad), and a run. */
static void run(firn_graph *g, firn_plan *plan)
{
    firn_exec *exec = NULL;
    firn_buffer *buffers[2 * MOST + 2] = {NULL};

    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    assert_true(firn_graph_n_tensors(g) <= 2 * MOST);
    for (int i = 0; i < firn_graph_n_tensors(g); i++) {
        const firn_tensor *t = firn_graph_tensor(g, i);
        const size_t bytes = firn_n_bytes(t);
        if (t->op && !t->output)
            continue;
        uint8_t *data = malloc(bytes + 8);
        assert_non_null(data);
        for (size_t j = 0; j < bytes; j += 4)
            if (t->type == FIRN_F32)
                memcpy(data + j, &(float){(float)below(5) - 2}, 4);
            else
                memcpy(data + j, &(int32_t){below(50) ? (int32_t)below(3) : (int32_t)number()}, 4);
        assert_int_equal(firn_buffer_create(device, bytes, &buffers[i]), FIRN_OK);
        assert_int_equal(firn_buffer_write(buffers[i], 0, data, bytes), FIRN_OK);
        assert_int_equal(firn_exec_bind(exec, t, buffers[i], 0), FIRN_OK);
        free(data);
    }
    assert_int_equal(firn_buffer_create(device, firn_plan_arena_bytes(plan), &buffers[2 * MOST]), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, firn_plan_work_bytes(plan), &buffers[2 * MOST + 1]), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, buffers[2 * MOST], 0, buffers[2 * MOST + 1], 0), FIRN_OK);
    for (int part = 0; part < firn_plan_n_parts(plan); part++)
        assert_int_equal(firn_exec_run(exec, part, 0), FIRN_OK);
    const firn_status s = firn_device_wait(device);
    assert_true(s == FIRN_OK || (s == FIRN_ERR_DEVICE && firn_error(ctx)[0]));
    for (int i = 0; i < 2 * MOST + 2; i++)
        firn_buffer_destroy(buffers[i]);
    firn_exec_destroy(exec);
}

/* For operations whose sources rarely fit by chance: sources that do, but for one, now and then. */
static void choose_fitting(firn_graph *g, int which, int64_t a, int64_t b, int64_t c, firn_tensor *t[6])
{
    const firn_type w = below(2) ? FIRN_Q4_0 : FIRN_F32;
    const struct {
        int which, source;
        firn_type type;
        int64_t ne[4];
    } roles[] = {
        {18, 0, FIRN_F32, {a, 2, c, 1}},  {18, 1, FIRN_F32, {a, 3, 1, 1}}, {18, 2, FIRN_I32, {2, c, 1, 1}},
        {43, 0, FIRN_F32, {a, 5, 1, 1}},  {43, 1, FIRN_F32, {a, b, 1, 1}}, {43, 2, FIRN_I32, {b, 1, 1, 1}},
        {49, 0, FIRN_F32, {8, b, c, 1}},  {49, 1, FIRN_I32, {c, 1, 1, 1}}, {49, 2, FIRN_F32, {1 + a, 1, 1, 1}},
        {50, 0, FIRN_F32, {8, b, c, 1}},  {50, 1, FIRN_I32, {c, 1, 1, 1}}, {50, 2, FIRN_F32, {1 + a, 1, 1, 1}},
        {51, 0, FIRN_F32, {8, 4, b, 1}},  {51, 1, FIRN_F32, {8, 2, c, 1}}, {51, 2, FIRN_F32, {a, 2, c, 1}},
        {51, 3, FIRN_I32, {2, b, 1, 1}},  {51, 4, FIRN_F32, {4, 1, 1, 1}}, {54, 0, w, {32, a, 3, 1}},
        {54, 1, FIRN_F32, {32, 1, c, 1}}, {54, 2, FIRN_I32, {2, c, 1, 1}}, {54, 3, FIRN_I64, {1 + b, 1, 1, 1}},
        {55, 0, w, {32, a, 3, 1}},        {55, 1, FIRN_F32, {a, 2, c, 1}}, {55, 2, FIRN_I32, {2, c, 1, 1}},
        {56, 0, FIRN_F32, {a, 1, c, 1}},  {56, 1, FIRN_F32, {b, 2, c, 1}}, {56, 2, FIRN_I32, {2, c, 1, 1}},
        {60, 0, FIRN_F32, {a, b, 1, 1}},  {60, 1, FIRN_I32, {b, 1, 1, 1}}, {60, 2, FIRN_F32, {b, 1, 1, 1}},
        {63, 0, FIRN_F32, {a, b, 1, 1}},  {63, 1, FIRN_F32, {a, b, 1, 1}}, {63, 2, FIRN_F32, {a, b, 1, 1}},
        {63, 3, FIRN_F32, {a, b, 1, 1}},  {63, 4, FIRN_F32, {8, 1, 1, 1}}, {66, 0, FIRN_F32, {a, b, 1, 1}},
        {66, 1, FIRN_F32, {c, a, 1, 1}},  {66, 2, FIRN_I32, {b, 1, 1, 1}}, {66, 3, FIRN_F32, {a, 1, 1, 1}},
        {67, 0, FIRN_F32, {a, 2, c, 1}},  {67, 1, FIRN_F32, {a, 2, c, 1}}, {67, 2, FIRN_F32, {b, 4, c, 1}},
        {67, 3, FIRN_F32, {1, 4, c, 1}},  {67, 4, FIRN_F32, {1, 4, c, 1}}, {67, 5, FIRN_I32, {c, 1, 1, 1}},
        {68, 0, FIRN_F32, {a, 2, c, 1}},  {68, 1, FIRN_F32, {a, 2, c, 1}}, {68, 2, FIRN_F32, {b, 4, c, 1}},
        {68, 3, FIRN_F32, {1, 4, c, 1}},  {68, 4, FIRN_F32, {1, 4, c, 1}}, {68, 5, FIRN_I32, {c, 1, 1, 1}},
    };

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (roles[i].which == which && below(12))
            t[roles[i].source] = firn_slot(g, roles[i].type, 4, roles[i].ne, "role %d", roles[i].source);
        else if (roles[i].which == which && below(2))
            t[roles[i].source] = NULL;
}

static void random_operations(void **state)
{
    enum { ROUNDS = 40000 };
    static const firn_type types[] = {FIRN_F32, FIRN_F32, FIRN_F32,  FIRN_F32, FIRN_I32,
                                      FIRN_I32, FIRN_F16, FIRN_BF16, FIRN_I64};
    int made[N_OPERATIONS] = {0}, ran = 0;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        firn_graph *g = NULL;
        firn_tensor *pool[MOST] = {NULL};
        const int which = round % N_OPERATIONS;
        int n = 0;
        assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
        /* Few different shapes, so that some fit. */
        const int64_t a = 1 + below(4), b = 1 + below(4), c = 1 + below(3);
        const int64_t shapes[][4] = {{a, b, c, 1}, {a, b, c, 1}, {a, b, 1, 1}, {b, c, 1, 1}, {a, c, b, 1}, {a, 1, 1, 1},
                                     {c, 1, 1, 1}, {2, b, 1, 1}, {a, 1, c, 1}, {8, 1, 1, 1}, {32, b, c, 1}};
        for (; n < 12; n++) {
            const int64_t *ne = shapes[below(11)];
            pool[n] = firn_slot(g, ne[0] == 32 && below(2) ? FIRN_Q4_0 : types[below(9)], 4, ne, "s%d", n);
        }
        for (; n < MOST - 1 && below(3); n++) { /* views, and results of others */
            firn_tensor *t = pool[below(n)];
            pool[n] = below(2) ? firn_transpose(g, t) : firn_cont(g, t);
        }
        firn_tensor *chosen[6];
        for (int i = 0; i < 6; i++)
            chosen[i] = below(12) ? pool[below(n)] : NULL;
        if (below(4))
            choose_fitting(g, which, a, b, c, chosen);
        firn_tensor *y = operation(g, which, chosen);
        if (y) {
            firn_plan *plan = NULL;
            made[which]++;
            if (y->op && y->root == y)
                firn_output(g, y);
            if (firn_plan_create(device, g, &plan) == FIRN_OK && firn_n_bytes(y) < 1 << 20 &&
                firn_plan_arena_bytes(plan) < 1 << 20 && firn_plan_work_bytes(plan) < 1 << 24) {
                run(g, plan);
                ran++;
            }
            firn_plan_destroy(plan);
        } else if (firn_graph_status(g) != FIRN_OK) {
            assert_true(firn_error(ctx)[0] != 0);
        }
        firn_graph_destroy(g);
    }
    for (int i = 0; i < N_OPERATIONS; i++)
        if (made[i] == 0)
            fail_msg("operation %d was never taken", i);
    assert_true(ran > ROUNDS / 20);
}

/* Null in gives null out, also without a graph. */
static void operations_on_nothing(void **state)
{
    firn_tensor *const none[6] = {NULL};

    (void)state;
    for (int i = 0; i < N_OPERATIONS; i++) {
        firn_graph *g = NULL;
        assert_null(operation(NULL, i, none));
        assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
        firn_tensor *y = operation(g, i, none);
        assert_true(i == 34 || !y); /* FILL has no source */
        firn_graph_destroy(g);
    }
    firn_graph *one = NULL, *two = NULL;
    assert_int_equal(firn_graph_create(ctx, &one), FIRN_OK);
    assert_int_equal(firn_graph_create(ctx, &two), FIRN_OK);
    firn_tensor *a = firn_slot(one, FIRN_F32, 1, (int64_t[]){4}, "a"),
                *b = firn_slot(two, FIRN_F32, 1, (int64_t[]){4}, "b");
    assert_null(firn_add(one, a, b));
    REFUSED(firn_graph_status(one), FIRN_ERR_ARGUMENT, "tensor b is of another graph");
    assert_null(firn_output(two, a));
    REFUSED(firn_graph_status(two), FIRN_ERR_ARGUMENT, "tensor a is of another graph");
    firn_graph_destroy(one);
    firn_graph_destroy(two);
}

/* ---- nothing is forgotten ---- */

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);

    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Every function that include/firn declares is called in this file, in test_null_text.c or in test_sizes.c. */
static void every_call_is_here(void **state)
{
    char *here = slurp(FIRN_SOURCE_DIR "/tests/unit/test_arguments.c"),
         *there = slurp(FIRN_SOURCE_DIR "/tests/unit/test_sizes.c"),
         *texts = slurp(FIRN_SOURCE_DIR "/tests/unit/test_null_text.c");
    DIR *dir = opendir(FIRN_SOURCE_DIR "/include/firn");
    int n = 0;

    (void)state;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        if (!strstr(e->d_name, ".h"))
            continue;
        snprintf(path, sizeof path, "%s/%s", FIRN_SOURCE_DIR "/include/firn", e->d_name);
        char *text = slurp(path);
        for (char *at = text; (at = strstr(at, "\nFIRN_API "));) {
            at += 10;
            char *open = strchr(at, '('), *name = open, call[128];
            while (name > at &&
                   (name[-1] == '_' || (name[-1] >= '0' && name[-1] <= '9') || (name[-1] >= 'a' && name[-1] <= 'z')))
                name--;
            snprintf(call, sizeof call, "%.*s(", (int)(open - name), name);
            if (!strstr(here, call) && !strstr(there, call) && !strstr(texts, call))
                fail_msg("%s%s) is not tried here", e->d_name, call);
            n++;
        }
        free(text);
    }
    closedir(dir);
    free(texts);
    free(here);
    free(there);
    assert_true(n > 180);
}

static int setup(void **state)
{
    const firn_random_shape shape = smallest_shape(1);

    (void)state;
    ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    if (!ctx || !mkdtemp(folder) || chdir(folder) != 0)
        return 1;
    return firn_random_model_write(ctx, &shape, 0, FIRN_Q8_0, 1, "m.gguf", NULL) != FIRN_OK ||
           firn_device_open(ctx, "CPU", &device) != FIRN_OK || firn_model_open(ctx, "m.gguf", &model) != FIRN_OK ||
           firn_gguf_open(ctx, "m.gguf", &gguf) != FIRN_OK ||
           firn_adapter_create(ctx, model, NULL, 2, 4, 1, &adapter) != FIRN_OK;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    firn_adapter_destroy(adapter);
    firn_gguf_close(gguf);
    firn_model_close(model);
    firn_device_close(device);
    firn_context_destroy(ctx);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_in_firn_h),    cmocka_unit_test(null_in_graph_h),
        cmocka_unit_test(null_in_gguf_h),    cmocka_unit_test(null_in_kernels_h),
        cmocka_unit_test(null_in_model_h),   cmocka_unit_test(null_in_train_h),
        cmocka_unit_test(absurd_sizes),      cmocka_unit_test(operations_on_nothing),
        cmocka_unit_test(random_operations), cmocka_unit_test(every_call_is_here),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
