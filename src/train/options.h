/* The options of a run: one table for the command line, run.json, defaults and the report. */
#ifndef FIRN_TRAIN_OPTIONS_H
#define FIRN_TRAIN_OPTIONS_H

#include "core/arena.h"
#include "core/buffer.h"
#include "firn/train.h"
#include "model/model.h"
#include "train/data.h"

#include <jansson.h>

typedef struct {
    const char *name; /* "learning_rate": the field, and the key in run.json; --learning-rate on the command line */
    char kind;        /* 's' const char *, 'i' int64_t, 'd' likewise (train/cadence.h), 'f' double, 'b' bool, 'l'
                       * firn_strings: as cmd_option has it */
    bool resumable;   /* a resumed run may change it */
    size_t offset;    /* of the field */
    const char *meta;
    double min, max; /* of a number */
    const char *help;
} firn_train_option;

extern const firn_train_option firn_train_option_table[];
extern const int firn_n_train_options;

/* The caller's options in our form: see firn/firn.h about sizes. */
firn_status firn_train_options_take(firn_context *ctx, const firn_train_options *given, firn_train_options *options);
bool firn_train_option_is_set(const firn_train_options *options, const firn_train_option *option);
/* One option's value, set or not; texts and lists are shared. */
void firn_train_option_copy(firn_train_options *to, const firn_train_options *from, const firn_train_option *option);
/* Whether the option of that name says what the adapter is: rank, alpha, targets... One to go on from has its own. */
bool firn_train_shapes_adapter(const char *name);
/* The adapter that the options ask for; defaults are in them, expert_rank unset: as the others. */
firn_adapter_spec firn_train_adapter_spec(const firn_train_options *options);
/* Every number in its range, the schedule one that exists, the memory limit readable. */
firn_status firn_train_options_check(firn_context *ctx, const firn_train_options *options);
/* The defaults that do not depend on model or data: rank, alpha (twice the rank), learning rate... */
void firn_train_options_defaults(firn_train_options *options);
/* A router's loss has a coefficient above 0. */
bool firn_router_losses_wanted(const firn_train_options *options);

/* How the options want these data sources to be read. */
firn_status firn_train_data_spec(firn_context *ctx, const firn_train_options *options, firn_strings sources,
                                 firn_data_spec *spec);

/* The device that the options name, with their precision. */
firn_status firn_train_device_open(firn_context *ctx, const firn_train_options *options, firn_device **device);

/* "seed: 1\ncontext: 512\n...": the options that decide the result and that a resumed run must not change, files left
 * out (their contents are known by hashes). Frees nothing: the text is the caller's. */
void firn_train_options_settings(firn_context *ctx, const firn_train_options *options, firn_text *text);

/* {"model": ..., "steps": ...}: unset ones are null. NULL when memory is short. */
json_t *firn_train_options_to_json(firn_context *ctx, const firn_train_options *options);
/* Unknown keys and values of another type are errors; `where` names the file in them. Strings are copied to the arena.
 */
firn_status firn_train_options_from_json(firn_arena *arena, const char *where, const json_t *json,
                                         firn_train_options *options);
/* From a JSON file: an object of options by name ('-' or '_'), or a run's run.json, whose folder is left out. The rest
 * is unset. */
firn_status firn_train_options_read(firn_arena *arena, const char *path, firn_train_options *options);
/* What is unset is taken from `from`, but for what contradicts something that is set: steps beside epochs; evaluation
 * data beside a split; rank, alpha and targets beside an adapter to go on from. */
void firn_train_options_fill(firn_train_options *options, const firn_train_options *from);

#endif
