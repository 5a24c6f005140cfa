/* What firn info says of adapters and of a run's checkpoints. */
#ifndef FIRN_CMD_INFO_ADAPTER_H
#define FIRN_CMD_INFO_ADAPTER_H

#include "firn/model.h"

#include <jansson.h>

typedef struct {
    bool checkpoint;
    int64_t rank_min, rank_max;
    float alpha;
    int n_tensors;                      /* that it adapts */
    int64_t step;                       /* -1: not known */
    int64_t steps;                      /* of the run beside it; 0: not known */
    double eval_loss_before, eval_loss; /* NAN: not known */
    char base[4096];                    /* the model's file, as the run beside it names it; "": not known */
    firn_adapter_origin origin;
} cmd_adapter;

/* False: the file is neither. What only the run knows is read from run.json in its folder. */
bool cmd_adapter_read(firn_context *ctx, const char *path, const firn_gguf *gguf, cmd_adapter *adapter);
void cmd_adapter_print(const char *path, const cmd_adapter *adapter);
json_t *cmd_adapter_json(const cmd_adapter *adapter);

#endif
