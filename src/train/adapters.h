/* Adapters as algebra: W + sum of scale B A, without the model that they lie on.
 *
 * An update dW = s B A [n_in, n_out] is never formed: inner products of two of them are
 *
 *     <s B A, t D C> = s t sum over (i, j) of (Bt D)[i, j] (A Ct)[i, j]
 *
 * in double, which takes r (n_in + n_out) multiplications for each component of the other.
 *
 * Called by cmd/adapter.c, model/merge.c. */
#ifndef FIRN_TRAIN_ADAPTERS_H
#define FIRN_TRAIN_ADAPTERS_H

#include "model/model.h"

/* An adapter's file by itself: shapes are checked against each other, classes go by the tensors' names, layers are
 * those of the names (-1: none). A checkpoint is refused, it needs its model. */
firn_status firn_adapter_open(firn_context *ctx, const char *path, firn_adapter **adapter);
/* Whether two adapters are of one architecture and, as far as they say, of one model; `names` are those of their files.
 */
firn_status firn_adapters_expect_one_base(firn_context *ctx, const firn_adapter *one, const firn_adapter *other,
                                          const char *const names[2]);
/* sum over i of weights[i] times the update of adapters[i], by laying their factors side by side: ranks add up, alpha
 * is 0 and each B carries its scale, correctly rounded. Tensors are those that any of them has. Shapes must agree. */
firn_status firn_adapters_add(firn_context *ctx, int n, const firn_adapter *const *adapters, const double *weights,
                              firn_adapter **sum);
/* Its update times x, by alpha where it has one (the factors stay the same bits), else by B. x is finite and not 0. */
firn_status firn_adapter_scale(firn_context *ctx, firn_adapter *adapter, double x);
/* <dW, dV> over all experts; both entries of one shape. */
double firn_updates_product(const firn_adapter *ad, const firn_adapter_entry *e, const firn_adapter *other,
                            const firn_adapter_entry *f);
/* The entry for a tensor, or NULL. */
const firn_adapter_entry *firn_adapter_find(const firn_adapter *adapter, const char *tensor);

#endif
