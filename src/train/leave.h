/* What a run leaves besides its adapter, for the programs and people that use it. */
#ifndef FIRN_TRAIN_LEAVE_H
#define FIRN_TRAIN_LEAVE_H

#include "train/run.h"

/* DIR/Modelfile (Ollama: ollama create NAME -f Modelfile), DIR/chat_template.jinja where the model has a template, and
 * DIR/README.md, the adapter's page in the form that hubs show: base, data, options, losses. */
firn_status firn_run_leave(firn_run *run);

#endif
