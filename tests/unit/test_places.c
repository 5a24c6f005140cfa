/* Where weights are changes no bit: mapped, resident, streamed through a ring of two blocks. And the order of what is
 * enqueued for it is right: on a device that brings nothing before it is waited for, and that has memory of its own. */
#include "unit/model.h"

#include "core/backend.h"
#include "model/random_model.h"
#include "model/weights.h"

#include <stdlib.h>

enum { LAYERS = 5, VOCAB = 512 };

/* ---- the device that looks at the order ----
 * The CPU's, but it says that its memory is its own; what is uploaded on the transfer queue comes when the compute
 * queue waits for it, no sooner. A wrong order is counted: a run that reads a buffer on whose bytes it does not wait,
 * and an upload over bytes that a run reads on which the transfer queue does not wait. */

typedef struct {
    firn_buffer *buffer;
    size_t offset, size;
    const void *data;
    uint64_t number;
} upload;

static struct {
    firn_backend backend, own;
    upload waiting[4096];
    int n;
    uint64_t uploaded, run, awaited; /* runs so far; those that the transfer queue waits for */
    struct {
        firn_buffer *buffer;
        uint64_t run;
    } used[4096]; /* the last run that reads it */
    int n_used, wrong, uploads;
} order;

static void bring_up_to(uint64_t number)
{
    int left = 0;

    for (int i = 0; i < order.n; i++) {
        const upload *u = &order.waiting[i];
        if (u->number <= number)
            order.own.upload(FIRN_QUEUE_COMPUTE, u->buffer, u->offset, u->data, u->size);
        else
            order.waiting[left++] = *u;
    }
    order.n = left;
}

static uint64_t *last_use(firn_buffer *b)
{
    for (int i = 0; i < order.n_used; i++)
        if (order.used[i].buffer == b)
            return &order.used[i].run;
    assert_true(order.n_used < 4096);
    order.used[order.n_used].buffer = b;
    order.used[order.n_used].run = 0;
    return &order.used[order.n_used++].run;
}

static firn_status late_upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    if (queue != FIRN_QUEUE_TRANSFER)
        return order.own.upload(queue, b, offset, data, size);
    order.wrong += *last_use(b) > order.awaited;
    assert_true(order.n < 4096);
    order.waiting[order.n++] = (upload){b, offset, size, data, ++order.uploaded};
    order.uploads++;
    return FIRN_OK;
}

static firn_event event_of(firn_device *device, firn_queue queue)
{
    (void)device;
    return (firn_event){queue, queue == FIRN_QUEUE_TRANSFER ? order.uploaded : order.run};
}

static firn_status after(firn_device *device, firn_queue queue, firn_event event)
{
    (void)device;
    if (queue == FIRN_QUEUE_COMPUTE && event.queue == FIRN_QUEUE_TRANSFER)
        bring_up_to(event.number);
    else if (queue == FIRN_QUEUE_TRANSFER && event.queue == FIRN_QUEUE_COMPUTE && event.number > order.awaited)
        order.awaited = event.number;
    return FIRN_OK;
}

static firn_status finish(firn_device *device, firn_event event)
{
    (void)device;
    if (event.queue == FIRN_QUEUE_TRANSFER)
        bring_up_to(event.number);
    return FIRN_OK;
}

static firn_status run_in_order(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    order.run++;
    for (int i = 0; i < sub->n; i++)
        for (int s = 0; s < FIRN_MAX_SRC; s++) {
            const firn_tensor *t = sub->launches[i].node->src[s];
            const firn_place place = t ? firn_exec_place(sub->exec, t) : (firn_place){0};
            if (!place.buffer)
                continue;
            *last_use(place.buffer) = order.run;
            for (int k = 0; k < order.n; k++)
                order.wrong += order.waiting[k].buffer == place.buffer;
        }
    return order.own.run(device, queue, sub);
}

static void buffer_destroy(firn_buffer *b)
{
    int left = 0;

    for (int i = 0; i < order.n; i++)
        if (order.waiting[i].buffer != b)
            order.waiting[left++] = order.waiting[i];
    order.n = left;
    *last_use(b) = 0; /* another buffer may have its address */
    order.own.buffer_destroy(b);
}

static uint64_t memory_free;

static void own_memory(firn_device *device, firn_device_info *info)
{
    (void)device;
    info->memory_total = info->memory_free = memory_free;
    info->host_memory = false;
}

static void watch_order(firn_device *device)
{
    memset(&order, 0, sizeof order);
    order.own = order.backend = *device->backend;
    order.backend.buffer_destroy = buffer_destroy;
    order.backend.upload = late_upload;
    order.backend.event = event_of;
    order.backend.after = after;
    order.backend.finish = finish;
    order.backend.run = run_in_order;
    order.backend.info = own_memory;
    device->backend = &order.backend;
}

/* ---- equal bits ---- */

typedef struct {
    double loss[2];
    int64_t n;
    float *gradients, generated[3 * VOCAB];
    firn_session_memory memory;
} outcome;

/* Two training passes that rebuild what they can, one without gradients, a prompt and two tokens. ring: in blocks. */
static outcome run(const char *path, firn_weights_place place, int ring, bool watched)
{
    fixture f;
    firn_session *session;
    firn_generator *generator;
    const float *logits;
    outcome o = {.memory.size = sizeof o.memory};
    int64_t n;

    open_at(&f, path, NULL, 2);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, NULL, 3, 6, 1, &f.adapter));
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        if (f.adapter->values[i] == 0)
            f.adapter->values[i] = 0.02f * sinf((float)i);
    if (watched)
        watch_order(f.device);
    firn_session_params params = {.n_tokens = 2 * N, .train = true};
    firn_context_set_weights(f.ctx, place, 0);
    if (ring) { /* as many bytes as that many blocks */
        OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &o.memory));
        firn_weight_layout layout;
        firn_weight_plan plan;
        OK(f.ctx, firn_weight_layout_create(f.ctx, f.model, 0, &layout));
        OK(f.ctx, firn_weight_plan_of(f.ctx, f.device, &layout, 0, &plan));
        firn_weight_layout_clear(&layout);
        firn_context_set_weights(f.ctx, place, plan.slot_bytes * (uint64_t)ring);
    }
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &o.memory));
    params.memory_limit = o.memory.least;
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    const firn_batch batch = batch_of(&f, 2 * N);
    for (int pass = 0; pass < 2; pass++)
        OK(f.ctx, firn_session_gradient(session, &batch, 1, &o.loss[0], &n));
    OK(f.ctx, firn_session_loss(session, &batch, &o.loss[1], &n));
    o.n = f.adapter->n_values;
    o.gradients = malloc((size_t)o.n * sizeof(float));
    memcpy(o.gradients, firn_session_gradients(session), (size_t)o.n * sizeof(float));
    firn_session_destroy(session);
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, N, &generator));
    for (int i = 0; i < 3; i++) {
        OK(f.ctx, firn_generator_feed(generator, f.tokens + (i ? 9 + i : 0), i ? 1 : 10, &logits));
        memcpy(o.generated + i * VOCAB, logits, sizeof(float) * VOCAB);
    }
    firn_generator_destroy(generator);
    close_fixture(&f);
    return o;
}

static void expect_same(const outcome *a, outcome b, const char *what)
{
    if (a->n != b.n || memcmp(a->loss, b.loss, sizeof a->loss) != 0 ||
        memcmp(a->gradients, b.gradients, (size_t)a->n * sizeof(float)) != 0 ||
        memcmp(a->generated, b.generated, sizeof a->generated) != 0)
        fail_msg("%s: the bits differ", what);
    free(b.gradients);
}

static const char *drawn(const char *shape, firn_type type)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *path = in_scratch("model.gguf");

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), LAYERS, type, 3, path, NULL));
    firn_context_destroy(ctx);
    return path;
}

static void places_change_no_bit(void **state)
{
    static const struct {
        const char *shape;
        firn_type type;
    } cases[] = {{"tiny-qwen3moe", FIRN_Q4_K},
                 {"tiny-deepseek2", FIRN_Q8_0},
                 {"tiny-gpt-oss", FIRN_MXFP4},
                 {"tiny-gemma4-e", FIRN_Q4_0}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!firn_random_shape_find(cases[i].shape))
            fail_msg("there is no shape %s", cases[i].shape);
        char path[256];
        snprintf(path, sizeof path, "%s", drawn(cases[i].shape, cases[i].type));
        const outcome a = run(path, FIRN_WEIGHTS_AUTO, 0, false);
        assert_int_equal(a.memory.place, FIRN_WEIGHTS_MAPPED);
        assert_int_equal(a.memory.weights, 0);
        outcome b = run(path, FIRN_WEIGHTS_RESIDENT, 0, false);
        assert_int_equal(b.memory.place, FIRN_WEIGHTS_RESIDENT);
        assert_true(b.memory.weights >= b.memory.mapped - 64 * LAYERS);
        assert_true(b.memory.total >= a.memory.total + b.memory.weights);
        expect_same(&a, b, "resident");
        b = run(path, FIRN_WEIGHTS_STREAMED, 2, false);
        assert_int_equal(b.memory.place, FIRN_WEIGHTS_STREAMED);
        assert_int_equal(b.memory.ring, 2);
        assert_true(b.memory.weights < b.memory.mapped);
        expect_same(&a, b, "streamed");
        free(a.gradients);
    }
}

/* The same where nothing comes before it is waited for. */
static void the_order_is_right(void **state)
{
    char path[256];

    (void)state;
    snprintf(path, sizeof path, "%s", drawn("tiny-qwen3moe", FIRN_Q4_0));
    const outcome a = run(path, FIRN_WEIGHTS_MAPPED, 0, false);
    for (int ring = 2; ring <= LAYERS; ring += LAYERS - 2) {
        memory_free = 1 << 30;
        expect_same(&a, run(path, FIRN_WEIGHTS_STREAMED, ring, true), "streamed, in order");
        assert_int_equal(order.wrong, 0);
        assert_true(order.uploads > (ring < LAYERS ? 2 * LAYERS : LAYERS));
    }
    outcome b = run(path, FIRN_WEIGHTS_AUTO, 0, true); /* there is room */
    assert_int_equal(b.memory.place, FIRN_WEIGHTS_RESIDENT);
    expect_same(&a, b, "resident, in order");
    assert_int_equal(order.wrong, 0);
    free(a.gradients);
}

/* The plan by the device's memory, and its refusals. */
static void what_fits_is_chosen(void **state)
{
    fixture f;
    firn_session_memory m = {.size = sizeof m};
    firn_session_params params = {.n_tokens = N, .train = true};

    (void)state;
    open_at(&f, drawn("tiny-qwen3moe", FIRN_F32), NULL, 1);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, NULL, 3, 6, 1, &f.adapter));
    watch_order(f.device);
    memory_free = (uint64_t)1 << 40;
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m));
    assert_int_equal(m.place, FIRN_WEIGHTS_RESIDENT);
    memory_free = m.total - 1; /* not all that is kept from forward to backward */
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m));
    assert_int_equal(m.place, FIRN_WEIGHTS_RESIDENT);
    assert_true(m.total <= memory_free && m.blocks_kept < LAYERS);
    memory_free = m.least - 1; /* not all weights */
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m));
    assert_int_equal(m.place, FIRN_WEIGHTS_STREAMED);
    assert_in_range(m.ring, 2, LAYERS - 1);
    assert_true(m.total <= memory_free);
    memory_free = 1 << 16;
    assert_int_equal(firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m), FIRN_ERR_MEMORY);
    assert_non_null(strstr(firn_error(f.ctx), "streaming weights takes room for two blocks on the device, "));
    firn_context_set_weights(f.ctx, FIRN_WEIGHTS_MAPPED, 0);
    assert_int_equal(firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(f.ctx), "CPU has memory of its own and cannot read weights in the mapped file: "
                                           "--weights resident or streamed");
    memory_free = (uint64_t)1 << 40;
    firn_context_set_weights(f.ctx, FIRN_WEIGHTS_STREAMED, 1000);
    assert_int_equal(firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &m), FIRN_ERR_MEMORY);
    assert_non_null(strstr(firn_error(f.ctx), "a ring for streamed weights has room for two blocks at least, "));
    close_fixture(&f);
}

static void places_have_names(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    static const char *const wrong[] = {"", "Mapped", "mapped:1G", "streamed:", "streamed:x", "resident:2", "stream"};

    (void)state;
    for (int p = FIRN_WEIGHTS_AUTO; p <= FIRN_WEIGHTS_STREAMED; p++) {
        assert_int_equal(firn_context_set_weights_text(ctx, firn_weights_place_name((firn_weights_place)p)), FIRN_OK);
        assert_int_equal(ctx->weights, p);
        assert_int_equal(ctx->ring_bytes, 0);
    }
    assert_null(firn_weights_place_name((firn_weights_place)4));
    assert_int_equal(firn_context_set_weights_text(ctx, "streamed:1.5G"), FIRN_OK);
    assert_int_equal(ctx->ring_bytes, (uint64_t)3 << 29);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(firn_context_set_weights_text(ctx, wrong[i]), FIRN_ERR_ARGUMENT);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_change_no_bit),
        cmocka_unit_test(the_order_is_right),
        cmocka_unit_test(what_fits_is_chosen),
        cmocka_unit_test(places_have_names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
