/* What the machine has and what the process takes: for plans, progress and metrics, never for results. */
#ifndef FIRN_CORE_MACHINE_H
#define FIRN_CORE_MACHINE_H

#include "core/buffer.h"

double firn_seconds(void); /* of a clock that only goes forward */
/* Anonymous memory of this process in bytes; 0 where the system does not say. */
uint64_t firn_memory_anonymous(void);
/* Bytes that this process could take without swapping or being killed: the least that the machine, its control groups
 * and its limits (ulimit) leave; 0 where the system does not say. */
uint64_t firn_memory_available(void);
/* All memory that the machine has; 0 where the system does not say. */
uint64_t firn_memory_total(void);
/* "1.25 GiB", "830 MiB" */
void firn_text_bytes(firn_text *text, uint64_t bytes);
/* "2 h 5 min", "3 min 20 s", "0.8 s" */
void firn_text_duration(firn_text *text, double seconds);

#endif
