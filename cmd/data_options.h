/* The options of every command that reads data sets; `o` is a firn_train_options. */
#ifndef FIRN_CMD_DATA_OPTIONS_H
#define FIRN_CMD_DATA_OPTIONS_H

#define CMD_FORMAT_OPTIONS(o)                                                                                            \
    {"--format",                                                                                                         \
     's',                                                                                                                \
     &(o).format,                                                                                                        \
     "NAME",                                                                                                             \
     "what the data is: auto, chat, sharegpt, alpaca, completion, text, tokens, csv or preference (default auto)",       \
     0,                                                                                                                  \
     0},                                                                                                                 \
        {"--field", 'l', &(o).field, "NAME=THEIRS", "the data calls NAME THEIRS, as in messages=dialog; repeatable",     \
         0,         0},                                                                                                  \
        {"--reasoning",                                                                                                  \
         's',                                                                                                            \
         &(o).reasoning,                                                                                                 \
         "HOW",                                                                                                          \
         "what the assistant thinks: train, mask or drop (default train)",                                               \
         0,                                                                                                              \
         0},                                                                                                             \
        {"--loss", 's', &(o).loss, "WHAT", "what of messages counts: assistant, all or last (default assistant)", 0, 0}, \
        {"--skip-bad", 'i', &(o).skip_bad, "N", "pass over at most N bad lines, and list them (default 0)", 0, 1e15},    \
    {                                                                                                                    \
        "--cache", 's', &(o).cache, "DIR", "folder of the cache of tokens, or none (default ~/.cache/firn)", 0, 0        \
    }

#endif
