/* What to change where a run does not fit. */
#ifndef FIRN_TRAIN_ADVICE_H
#define FIRN_TRAIN_ADVICE_H

#include "train/run.h"

/* Fails with FIRN_ERR_MEMORY: what training (or evaluating) takes at least, the limit that it passes, the options that
 * would make it fit, ready to paste, and how many bytes they save. The run is opened; its memory_limit is what it
 * passes. */
firn_status firn_run_too_large(firn_run *run);

#endif
