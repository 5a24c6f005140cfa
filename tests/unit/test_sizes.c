/* Structs of the public headers that carry their size: older and newer callers than the library, and callers that set
 * none. And null pointers to the calls of firn/sample.h, firn/quantize.h and firn/export.h. */
#include "core/sized.h"
#include "firn/export.h"
#include "firn/kernels.h"
#include "firn/merge.h"
#include "firn/quantize.h"
#include "firn/sample.h"
#include "firn/train.h"
#include "unit/smallest.h"
#include "unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static firn_context *ctx;
static char folder[] = "/tmp/firn-sizes-XXXXXX", path[64];

#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        if (!strstr(firn_error(ctx), words))                                                                           \
            fail_msg("'%s' in place of '%s'", firn_error(ctx), words);                                                 \
    } while (0)

/* A struct over three releases. */
typedef struct {
    size_t size;
    int32_t a, b;
} first;
typedef struct {
    size_t size;
    int32_t a, b;
    int64_t c;
} second;
typedef struct {
    size_t size;
    int32_t a, b;
    int64_t c;
    const void *d;
} third;

static void callers_are_older_or_newer(void **state)
{
    second ours;
    const first old = {sizeof old, 1, 2}, unset = {0, 3, 4};
    third new = {sizeof new, 5, 6, 7, NULL};

    (void)state;
    memset(&ours, 0xEE, sizeof ours);
    assert_int_equal(FIRN_TAKE(ctx, second, b, &old, &ours), FIRN_OK);
    assert_true(ours.a == 1 && ours.b == 2 && ours.c == 0 && ours.size == sizeof ours);
    assert_int_equal(FIRN_TAKE(ctx, second, b, &unset, &ours), FIRN_OK);
    assert_true(ours.a == 3 && ours.b == 4 && ours.c == 0);
    assert_int_equal(FIRN_TAKE(ctx, second, b, &new, &ours), FIRN_OK);
    assert_true(ours.a == 5 && ours.c == 7);
    new.d = &old;
    REFUSED(FIRN_TAKE(ctx, second, b, &new, &ours), FIRN_ERR_UNSUPPORTED,
            "second has something set behind byte 24, where firn");
    const first short_ = {sizeof short_ - 1, 1, 2};
    REFUSED(FIRN_TAKE(ctx, second, b, &short_, &ours), FIRN_ERR_ARGUMENT,
            "second.size is 15: expected sizeof(second), at least 16");
    new.size = (size_t)1 << 40;
    REFUSED(FIRN_TAKE(ctx, second, b, &new, &ours), FIRN_ERR_ARGUMENT, "second.size is 1099511627776: expected");
}

static void results_are_written_as_far_as_they_go(void **state)
{
    const second ours = {sizeof ours, 1, 2, 3};
    struct {
        first f;
        char guard[16];
    } old = {.f = {.size = sizeof(first)}};
    third new;

    (void)state;
    memset(old.guard, 0x55, sizeof old.guard);
    firn_sized_give(&old.f, &ours);
    assert_true(old.f.size == sizeof(first) && old.f.a == 1 && old.f.b == 2);
    for (size_t i = 0; i < sizeof old.guard; i++)
        assert_int_equal(old.guard[i], 0x55);
    memset(&new, 0xEE, sizeof new);
    new.size = sizeof new;
    firn_sized_give(&new, &ours);
    assert_true(new.size == sizeof new &&new.c == 3 && new.d == NULL);
    new.size = 0;
    REFUSED(FIRN_ROOM(ctx, second, b, &new), FIRN_ERR_ARGUMENT, "second.size is 0: expected sizeof(second)");
}

/* Each public struct, with bytes behind it that this firn does not know. */
#define LONGER(type)                                                                                                   \
    struct {                                                                                                           \
        type known;                                                                                                    \
        unsigned char more[8];                                                                                         \
    }

static void every_call_looks_at_sizes(void **state)
{
    LONGER(firn_context_params) params = {.known = {.size = sizeof params, .n_threads = 1}};
    LONGER(firn_train_options) options;
    LONGER(firn_watch) watch = {.known = {.size = sizeof watch}};
    LONGER(firn_sample_params) sample = {.known = {.size = sizeof sample, .top_p = 1, .repeat_penalty = 1}};
    LONGER(firn_quantize_options) quantize = {.known = {.size = sizeof quantize, .type = FIRN_Q8_0}};
    LONGER(firn_product) product = {.known = {.size = sizeof product}};
    firn_train_result result = {.size = sizeof result};
    firn_eval_result evaluated = {.size = sizeof evaluated};
    firn_quantize_report report = {.size = sizeof report};
    firn_sampler *sampler;
    size_t bytes;

    (void)state;
    firn_context *other = firn_context_create(&params.known);
    assert_int_equal(firn_context_threads(other), 1);
    firn_context_destroy(other);
    params.more[0] = 1;
    assert_null(firn_context_create(&params.known));

    memset(&options, 0xEE, sizeof options);
    firn_train_options_init_sized(&options.known, sizeof options);
    assert_true(options.known.size == sizeof options && isnan(options.known.epochs));
    REFUSED(firn_train(ctx, &options.known, 0, &watch.known, &result), FIRN_ERR_ARGUMENT, "a run needs a model");
    watch.more[7] = 1;
    REFUSED(firn_train(ctx, &options.known, 0, &watch.known, &result), FIRN_ERR_UNSUPPORTED, "firn_watch has");
    REFUSED(firn_eval(ctx, &options.known, &watch.known, &evaluated), FIRN_ERR_UNSUPPORTED, "firn_watch has");
    options.more[7] = 1;
    REFUSED(firn_train(ctx, &options.known, 0, NULL, &result), FIRN_ERR_UNSUPPORTED, "firn_train_options has");
    REFUSED(firn_train_resume(ctx, "x", &options.known, 0, NULL, &result), FIRN_ERR_UNSUPPORTED, "firn_train_options");
    REFUSED(firn_eval(ctx, &options.known, NULL, &evaluated), FIRN_ERR_UNSUPPORTED, "firn_train_options has");
    options.known.size = 7;
    REFUSED(firn_train(ctx, &options.known, 0, NULL, &result), FIRN_ERR_ARGUMENT, "firn_train_options.size is 7");
    options.known.size = 0; /* the first form */
    REFUSED(firn_train(ctx, &options.known, 0, NULL, &result), FIRN_ERR_ARGUMENT, "a run needs a model");
    result.size = evaluated.size = 0;
    REFUSED(firn_train(ctx, &options.known, 0, NULL, &result), FIRN_ERR_ARGUMENT, "firn_train_result.size is 0");
    REFUSED(firn_train_resume(ctx, "x", &options.known, 0, NULL, &result), FIRN_ERR_ARGUMENT, "firn_train_result.size");
    REFUSED(firn_eval(ctx, &options.known, NULL, &evaluated), FIRN_ERR_ARGUMENT, "firn_eval_result.size is 0");

    assert_int_equal(firn_sampler_create(ctx, &sample.known, 4, &sampler), FIRN_OK);
    firn_sampler_destroy(sampler);
    sample.more[0] = 1;
    REFUSED(firn_sampler_create(ctx, &sample.known, 4, &sampler), FIRN_ERR_UNSUPPORTED, "firn_sample_params has");
    quantize.more[0] = 1;
    REFUSED(firn_quantize(ctx, "a", "b", &quantize.known, &report), FIRN_ERR_UNSUPPORTED, "firn_quantize_options");
    quantize.more[0] = 0;
    report.size = 1;
    REFUSED(firn_quantize(ctx, "a", "b", &quantize.known, &report), FIRN_ERR_ARGUMENT,
            "firn_quantize_report.size is 1");
    product.more[0] = 1;
    REFUSED(firn_product_work_bytes(ctx, &product.known, &bytes), FIRN_ERR_UNSUPPORTED, "firn_product has");
    REFUSED(firn_product_run(ctx, &product.known, NULL, 0), FIRN_ERR_UNSUPPORTED, "firn_product has");
}

static void sessions_look_at_sizes(void **state)
{
    const firn_random_shape shape = smallest_shape(1);
    LONGER(firn_session_params) params = {.known = {.size = sizeof params, .n_tokens = 4}};
    const int32_t tokens[4] = {1, 2, 3, 4}, position[4] = {0, 1, 2, 3}, start[4] = {0};
    LONGER(firn_batch)
    batch = {.known = {.size = sizeof batch,
                       .n_tokens = 4,
                       .tokens = tokens,
                       .targets = tokens,
                       .position = position,
                       .first = start}};
    firn_session_memory memory = {.size = sizeof memory};
    firn_random_report made;
    firn_device *device;
    firn_model *model;
    firn_adapter *adapter;
    firn_session *session;
    double loss;
    int64_t n;

    (void)state;
    assert_int_equal(firn_random_model_write(ctx, &shape, 0, FIRN_F32, 1, path, &made), FIRN_OK);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    assert_int_equal(firn_model_open(ctx, path, &model), FIRN_OK);
    assert_int_equal(firn_adapter_create(ctx, model, NULL, 4, 8, 1, &adapter), FIRN_OK);
    assert_ptr_equal(firn_adapter_entry_at(adapter, 1), &adapter->entries[1]);
    assert_null(firn_adapter_entry_at(adapter, -1));
    assert_null(firn_adapter_entry_at(adapter, adapter->n_entries));
    assert_null(firn_adapter_entry_at(NULL, 0));

    assert_int_equal(firn_session_plan(ctx, device, model, NULL, &params.known, &memory), FIRN_OK);
    assert_true(memory.size == sizeof memory && memory.total > 0);
    memory.size = 0;
    REFUSED(firn_session_plan(ctx, device, model, NULL, &params.known, &memory), FIRN_ERR_ARGUMENT,
            "firn_session_memory.size is 0");
    assert_int_equal(firn_session_create(ctx, device, model, NULL, &params.known, &session), FIRN_OK);
    assert_int_equal(firn_session_loss(session, &batch.known, &loss, &n), FIRN_OK);
    assert_int_equal(n, 4);
    batch.more[0] = 1;
    float *logits = calloc((size_t)shape.n_vocab * 4, sizeof *logits);
    REFUSED(firn_session_loss(session, &batch.known, &loss, &n), FIRN_ERR_UNSUPPORTED, "firn_batch has");
    REFUSED(firn_session_logits(session, &batch.known, logits), FIRN_ERR_UNSUPPORTED, "firn_batch has");
    free(logits);
    firn_session_destroy(session);
    params.more[0] = 1;
    REFUSED(firn_session_create(ctx, device, model, NULL, &params.known, &session), FIRN_ERR_UNSUPPORTED,
            "firn_session_params has");
    firn_adapter_destroy(adapter);
    firn_model_close(model);
    firn_device_close(device);
    unlink(path);
}

static void null_pointers(void **state)
{
    const firn_sample_params greedy = {.top_p = 1, .repeat_penalty = 1};
    const firn_quantize_options options = {.type = FIRN_Q8_0};
    firn_sampler *sampler;
    const float logits[3] = {0, 2, 1};

    (void)state;
    assert_int_equal(firn_sampler_create(NULL, &greedy, 3, &sampler), FIRN_ERR_ARGUMENT);
    REFUSED(firn_sampler_create(ctx, NULL, 3, &sampler), FIRN_ERR_ARGUMENT, "params must not be null");
    REFUSED(firn_sampler_create(ctx, &greedy, 3, NULL), FIRN_ERR_ARGUMENT, "sampler must not be null");
    REFUSED(firn_sampler_create(ctx, &(firn_sample_params){.top_p = NAN, .repeat_penalty = 1}, 3, &sampler),
            FIRN_ERR_ARGUMENT, "top-p is a probability (1: all), not nan");
    REFUSED(firn_sampler_create(ctx, &(firn_sample_params){.top_p = 1, .top_k = -1, .repeat_penalty = 1}, 3, &sampler),
            FIRN_ERR_ARGUMENT, "top-k is at least 0 (all), not -1");
    REFUSED(firn_sampler_create(ctx, &(firn_sample_params){.top_p = 1}, 3, &sampler), FIRN_ERR_ARGUMENT,
            "the repeat penalty is a positive number (1: none), not 0");
    assert_int_equal(firn_sampler_create(ctx, &greedy, 3, &sampler), FIRN_OK);
    assert_int_equal(firn_sampler_next(sampler, logits), 1);
    assert_int_equal(firn_sampler_next(sampler, NULL), -1);
    assert_int_equal(firn_sampler_next(NULL, logits), -1);
    firn_sampler_saw(NULL, 1);
    firn_sampler_destroy(sampler);
    firn_sampler_destroy(NULL);

    assert_int_equal(firn_quantize(NULL, "a", "b", &options, NULL), FIRN_ERR_ARGUMENT);
    REFUSED(firn_quantize(ctx, NULL, "b", &options, NULL), FIRN_ERR_ARGUMENT, "in must not be null");
    REFUSED(firn_quantize(ctx, "a", NULL, &options, NULL), FIRN_ERR_ARGUMENT, "out must not be null");
    REFUSED(firn_quantize(ctx, "a", "b", NULL, NULL), FIRN_ERR_ARGUMENT, "options must not be null");
    REFUSED(firn_quantize(ctx, "a", "b", &(firn_quantize_options){.type = (firn_type)-3}, NULL), FIRN_ERR_ARGUMENT,
            "-3 is no type");
    assert_int_equal(firn_merge(NULL, NULL, NULL, "f", NULL, NULL), FIRN_ERR_ARGUMENT);
    REFUSED(firn_merge(ctx, NULL, NULL, "f", NULL, NULL), FIRN_ERR_ARGUMENT, "model must not be null");
    assert_int_equal(firn_adapter_export_peft(NULL, NULL, NULL, "f", NULL), FIRN_ERR_ARGUMENT);
    REFUSED(firn_adapter_export_peft(ctx, NULL, NULL, "f", NULL), FIRN_ERR_ARGUMENT, "model must not be null");
    REFUSED(firn_adapter_export_peft_named(ctx, NULL, NULL, "f", "b", NULL), FIRN_ERR_ARGUMENT,
            "model must not be null");
    assert_int_equal(firn_adapter_import_peft(NULL, NULL, "f", NULL), FIRN_ERR_ARGUMENT);
    REFUSED(firn_adapter_import_peft(ctx, NULL, "f", NULL), FIRN_ERR_ARGUMENT, "model must not be null");
}

static int make(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    return ctx ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    firn_context_destroy(ctx);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_are_older_or_newer),
        cmocka_unit_test(results_are_written_as_far_as_they_go),
        cmocka_unit_test(every_call_looks_at_sizes),
        cmocka_unit_test(sessions_look_at_sizes),
        cmocka_unit_test(null_pointers),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
