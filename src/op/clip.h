/* CLIP_NORM's results, behind each other in its state; see clip.c. */
#ifndef FIRN_OP_CLIP_H
#define FIRN_OP_CLIP_H

enum { FIRN_CLIP_FACTOR, FIRN_CLIP_NORM, FIRN_CLIP_NORM_LOW, FIRN_CLIP_RESULTS };

#endif
