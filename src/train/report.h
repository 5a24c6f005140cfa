/* The page that a person looks at when a run is done. */
#ifndef FIRN_TRAIN_REPORT_H
#define FIRN_TRAIN_REPORT_H

#include "train/witness.h"

/* Writes DIR/report.html, one page without anything outside it: curves from DIR/metrics.jsonl, expert load and answers
 * before and after, the size of each tensor's update, options and hashes. */
firn_status firn_report_write(firn_run *run, const firn_witness *before, const firn_witness *after);
/* The same while the run goes on: how it went so far. `now` holds the experts' load, without answers yet. */
firn_status firn_report_update(firn_run *run, const firn_witness *before, const firn_witness *now);

#endif
