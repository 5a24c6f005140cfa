/* Every operation by name, and their builders; what an operation is stands in core/op.h. */
#ifndef FIRN_OP_OP_H
#define FIRN_OP_OP_H

#include "core/op.h"
#include "firn/ops.h"

/* src/ops.def, one external struct each: firn_op_add, ... */
#define OP(NAME, name) FIRN_INNER extern const firn_op firn_op_##name;
#include "ops.def"
#undef OP

#endif
