/* Which rank each adapted tensor gets, and at which scale its update is applied.
 *
 *     y = W x + s B (A x)        s = alpha / rank, the same for every tensor, of whatever rank r its factors are
 *                                s = alpha / sqrt(r) with rslora (Kalajdzievski 2023)
 *
 * llama.cpp knows one alpha, and applies each tensor at alpha / r of its own r. Where s is another, B is multiplied by
 * s r / alpha as it is written (adapter.c), so that what is loaded computes what was trained.
 *
 * Called by train/adapter.c. */
#ifndef FIRN_TRAIN_LOW_RANK_H
#define FIRN_TRAIN_LOW_RANK_H

#include "model/model.h"

enum { FIRN_MAX_RANK = 4096 };

/* The rank of the experts' factors where none is asked for: rank / experts used, 4 at least, `rank` at most. A token
 * passes through that many experts, and each sees that part of the tokens. Of a model without experts: rank. */
int64_t firn_rank_of_experts(const firn_model *model, int64_t rank);
/* Every "PATTERN=R" of the spec has a class of targets or a pattern over names, and an R from 1 to 4096. */
firn_status firn_ranks_check(firn_context *ctx, const firn_adapter_spec *spec);
/* The rank of a tensor: by the last of rank_of that matches, which `used` [n_rank_of] notes (NULL: nobody asks), or by
 * its class. */
int64_t firn_rank_of_tensor(const firn_adapter_spec *spec, const char *tensor, firn_class class_, bool *used);
/* The scale of a tensor whose factors have rank r. */
float firn_rank_scale(const firn_adapter_spec *spec, int64_t r);
/* What B is multiplied by where llama.cpp's scale is not the one that was trained with; 1: nothing. */
double firn_rank_factor(const firn_adapter *adapter, const firn_adapter_entry *entry);

#endif
