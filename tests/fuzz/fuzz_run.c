/* Any bytes as what a run's folder remembers, run.json and before.json. What must hold: they are refused with a
 * sentence, or what was read is written and read again alike. */
#include "train/record.h"
#include "train/witness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];

static void remove_folder(void)
{
    char path[128];

    snprintf(path, sizeof path, "%s/run.json", folder);
    unlink(path);
    rmdir(folder);
}

static void witness(firn_context *ctx, const uint8_t *data, size_t size)
{
    json_t *json = json_loadb((const char *)data, size, 0, NULL);
    firn_witness w;

    if (!json)
        return;
    if (firn_witness_from_json(ctx, json, &w) == FIRN_OK)
        json_decref(firn_witness_to_json(&w));
    else if (!firn_error(ctx)[0])
        abort();
    firn_witness_clear(&w);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static firn_run_record one, two;
    firn_arena arena;
    char path[128];

    if (!ctx) {
        ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
        snprintf(folder, sizeof folder, "%s/firn-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!ctx || !mkdtemp(folder))
            abort();
        atexit(remove_folder);
    }
    witness(ctx, data, size);
    snprintf(path, sizeof path, "%s/run.json", folder);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    firn_arena_init(&arena, ctx, 0);
    if (firn_run_record_read(&arena, folder, &one) == FIRN_OK) {
        if (firn_run_record_write(ctx, folder, &one) == FIRN_OK &&
            (firn_run_record_read(&arena, folder, &two) != FIRN_OK || one.steps != two.steps ||
             strcmp(one.model.sha256, two.model.sha256) != 0))
            abort();
    } else if (!firn_error(ctx)[0]) {
        abort();
    }
    firn_arena_clear(&arena);
    return 0;
}
