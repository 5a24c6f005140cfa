/* What tests of models share: a folder for files, a model opened with what goes with it, reference cases, comparisons.
 */
#ifndef FIRN_TEST_MODEL_H
#define FIRN_TEST_MODEL_H

#include "unit/unit.h"

#include "core/context.h"
#include "model/model.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Not every program uses everything. */
#define UNUSED __attribute__((unused)) static

#define CASES  FIRN_SOURCE_DIR "/tests/data/cases"
#define SHARED FIRN_SOURCE_DIR "/../shared/ref/cases"

enum { N = 24 };

static char scratch[] = "/tmp/firn-test-XXXXXX";

UNUSED const char *in_scratch(const char *name)
{
    static char path[4][256];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

#define OK(ctx, call)                                                                                                  \
    do {                                                                                                               \
        const firn_status ok_ = (call);                                                                                \
        if (ok_ != FIRN_OK)                                                                                            \
            fail_msg("%s: %s", #call, firn_error(ctx));                                                                \
    } while (0)

/* ---- a model opened, with what goes with it ---- */

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_model *model;
    firn_adapter *adapter;
    int32_t tokens[2 * N], targets[2 * N], position[2 * N], first[2 * N];
} fixture;

UNUSED void open_at(fixture *f, const char *model, const char *adapter, int threads)
{
    memset(f, 0, sizeof *f);
    f->ctx = firn_context_create(&(firn_context_params){.n_threads = threads});
    assert_non_null(f->ctx);
    OK(f->ctx, firn_device_open(f->ctx, "CPU", &f->device));
    OK(f->ctx, firn_model_open(f->ctx, model, &f->model));
    if (adapter)
        OK(f->ctx, firn_adapter_load(f->ctx, f->model, adapter, &f->adapter));
    for (int i = 0; i < 2 * N; i++) {
        f->tokens[i] = (i * 37 + 11) % 256;
        f->targets[i] = i % 5 ? (i * 53 + 7) % 271 : -1;
        f->position[i] = i % N;
        f->first[i] = i / N * N;
    }
}

UNUSED void open_case(fixture *f, const char *name, bool adapter, int threads)
{
    char model[512], lora[512];

    snprintf(model, sizeof model, CASES "/%s/model.gguf", name);
    snprintf(lora, sizeof lora, CASES "/%s/lora_start.gguf", name);
    open_at(f, model, adapter ? lora : NULL, threads);
}

UNUSED void close_fixture(fixture *f)
{
    firn_adapter_destroy(f->adapter);
    firn_model_close(f->model);
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
}

UNUSED firn_batch batch_of(const fixture *f, int64_t n)
{
    return (firn_batch){
        .n_tokens = n, .tokens = f->tokens, .targets = f->targets, .position = f->position, .first = f->first};
}

UNUSED double nmse(const float *x, const float *r, int64_t n)
{
    double error = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        error += pow((double)x[i] - (double)r[i], 2);
        norm += pow((double)r[i], 2);
    }
    return error / norm;
}

/* That the file at path is no model, in words that hold the sentence; returns the status. */
UNUSED firn_status model_refused(const char *path, const char *sentence)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_model *model = NULL;
    const firn_status status = firn_model_open(ctx, path, &model);

    assert_int_not_equal(status, FIRN_OK);
    assert_null(model);
    if (!strstr(firn_error(ctx), sentence))
        fail_msg("expected '%s' in: %s", sentence, firn_error(ctx));
    firn_context_destroy(ctx);
    return status;
}

/* ---- reference cases ---- */

UNUSED int verify(const char *folder)
{
    char command[1024];

    snprintf(command, sizeof command, "%s/firn verify --threads 2 %s > %s 2>&1", FIRN_BIN_DIR, folder,
             in_scratch("verify.txt"));
    const int rc = system(command);
    if (rc != 0) {
        snprintf(command, sizeof command, "cat %s >&2", in_scratch("verify.txt"));
        (void)!system(command);
    }
    return rc;
}

UNUSED int set_up(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

UNUSED int tear_down(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

#endif
