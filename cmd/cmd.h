/* What the subcommands share: one table of them (commands.def), one way to read options, one way to fail.
 *
 * Exit status: 0 done; 1 refused, failed or FAIL; 2 usage; 130 after Ctrl-C, 143 after SIGTERM. */
#ifndef FIRN_CMD_H
#define FIRN_CMD_H

#include "core/context.h"
#include "firn/train.h"

#include <stdio.h>

enum { CMD_CHAT_CONTEXT = 8192 }; /* tokens of a conversation, where the model knows as many */

/* One option. A NULL name ends the list. */
typedef struct {
    const char *name; /* "--steps"; a short one may stand before it: "-n,--tokens" */
    char kind;   /* 's' string, 'i' int64, 'd' steps or a time (train/cadence.h), 'f' double, 'b' flag, 'l' repeatable
                    string */
    void *value; /* const char **, int64_t *, double *, bool *, cmd_list * */
    const char *meta; /* "N"; values that shells complete: "cosine|linear|constant"; NULL for a flag */
    const char *help; /* one line */
    double min, max;  /* numbers: the allowed range, checked when min < max */
} cmd_option;

typedef firn_strings cmd_list; /* its items belong to the process */

typedef struct {
    const char *usage; /* "firn tokenize MODEL TEXT|--file F [options]" */
    const char *about; /* a short paragraph */
    const cmd_option *options;
    int min_args, max_args; /* positional ones; max < 0: any number */
} cmd_spec;

/* Reads options anywhere on the line ("--x v", "--x=v", "--" ends them); positional arguments are moved to argv[1..]
 * and counted in *n. argv[0] is the subcommand. --help prints the page and returns 0 through *status with the result
 * false; an error prints one sentence and sets 2. True: go on. */
bool cmd_parse(const cmd_spec *spec, int argc, char **argv, int *n, int *status);
/* Every command that computes offers these; use the macro inside its option list. */
typedef struct {
    int64_t threads;
    const char *device, *precision, *weights;
    bool force; /* an adapter may be for another model */
} cmd_compute;
#define CMD_COMPUTE_OPTIONS(c)                                                                                         \
    {                                                                                                                  \
        "--device", 's', &(c).device, "NAME", "device that computes (default CPU; firn info --devices lists them)",    \
        0,          0},                                                                                                \
        {"--precision",                                                                                                \
         's',                                                                                                          \
         &(c).precision,                                                                                               \
         "f32|bf16",                                                                                                   \
         "bf16: weights and activations of products rounded to bf16, sums in F32 (default f32)",                       \
         0,                                                                                                            \
         0},                                                                                                           \
        {"--weights",                                                                                                  \
         's',                                                                                                          \
         &(c).weights,                                                                                                 \
         "PLACE",                                                                                                      \
         "mapped, resident or streamed[:BYTES]: read in the file, copied, or brought block by block into a ring",      \
         0,                                                                                                            \
         0},                                                                                                           \
    {                                                                                                                  \
        "--threads", 'i', &(c).threads, "N", "threads (default: all processors; no more than these)", 1, 1024          \
    }

/* Frees what cmd_parse made of lists; when the command is done. */
void cmd_forget_lists(void);
/* Whether `name` (n bytes) is one of the option's spellings. */
bool cmd_option_named(const cmd_option *option, const char *name, size_t n);

/* Columns of the terminal behind a descriptor; 80 where it is none or does not say. */
int cmd_columns(int fd);

/* Prints "firn: sentence" on standard error and returns 1. */
int cmd_fail(const char *format, ...) FIRN_PRINTF(1, 2);
/* The same with the context's sentence. */
int cmd_fail_ctx(const firn_context *ctx);
/* The same with status 2 and a hint at --help. */
int cmd_usage(const char *command, const char *format, ...) FIRN_PRINTF(2, 3);
/* A context with `threads` threads (0: all), cut to the processors that the process may use, with a sentence; prints
 * and returns NULL on failure. */
firn_context *cmd_context(int64_t threads);
/* One for those options. */
firn_context *cmd_compute_context(const cmd_compute *compute);

#endif
