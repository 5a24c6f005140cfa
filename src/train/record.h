/* What a run's folder remembers: run.json (how it was started), metrics.jsonl (what it measured), before.json (what the
 * model did before). */
#ifndef FIRN_TRAIN_RECORD_H
#define FIRN_TRAIN_RECORD_H

#include "core/buffer.h"
#include "train/options.h"

enum { FIRN_PATH_BYTES = 4096 };

/* A file by content. For a model the hash covers header, tensor table, and of each tensor's
 * data 4 KiB at its beginning, at every 16 MiB and at its end: a change anywhere else is not seen. */
typedef struct {
    char path[FIRN_PATH_BYTES]; /* "": there is none */
    char sha256[65];
    uint64_t bytes;
} firn_print;

firn_status firn_print_file(firn_context *ctx, const char *path, firn_print *print);
firn_status firn_print_gguf(firn_context *ctx, const char *path, const firn_gguf *gguf, firn_print *print);
/* Fails when the file is not what `was` says; `what` names it in the sentence: "the model". */
firn_status firn_print_expect(firn_context *ctx, const char *what, const firn_print *was, const firn_print *is);

typedef struct {
    firn_train_options options; /* every one of them decided */
    int64_t steps;              /* of the whole run */
    firn_print model, data, eval_data, adapter;
    char arch[64];
    char kernels[128]; /* the kernel set that computes: other ones round otherwise */
    int64_t n_values;  /* trained */
    bool finished;
    int64_t last_step, adapter_step; /* of a finished run: how far it came, and whose adapter it left; 0: not said */
} firn_run_record;

/* "DIR/name" into path [FIRN_PATH_BYTES]. */
firn_status firn_run_path(firn_context *ctx, const char *folder, const char *name, char *path);
/* Absolute, symbolic links resolved, into path [FIRN_PATH_BYTES]; the file must exist. */
firn_status firn_full_path(firn_context *ctx, const char *name, char *path);
firn_status firn_run_record_write(firn_context *ctx, const char *folder, const firn_run_record *record);
/* Texts of the options go to the arena. */
firn_status firn_run_record_read(firn_arena *arena, const char *folder, firn_run_record *record);

/* Writes JSON whole or not at all; takes the reference to `json` in every case (NULL: memory was short). */
firn_status firn_json_write(firn_context *ctx, const char *path, json_t *json);
firn_status firn_json_read(firn_context *ctx, const char *path, json_t **json);

/* ---- metrics.jsonl ---- */

typedef struct {
    firn_context *ctx;
    int fd;
    uint64_t bytes;
    char path[FIRN_PATH_BYTES];
    char note[FIRN_PATH_BYTES + 256]; /* what had to be repaired, for people; "": nothing */
} firn_metrics;

/* Opens for appending after the first `keep` bytes; what follows them is cut off. A file that is shorter, or whose kept
 * part does not end with a line, keeps its whole lines, and metrics->note says so. */
firn_status firn_metrics_open(firn_context *ctx, const char *folder, uint64_t keep, firn_metrics *metrics);
/* A line that fails (a full disk) leaves the file as it was before it. */
firn_status firn_metrics_line(firn_metrics *metrics, const firn_text *line);
/* Brings what was written to the disk, before a checkpoint counts on it. */
firn_status firn_metrics_sync(firn_metrics *metrics);
void firn_metrics_close(firn_metrics *metrics);

#endif
