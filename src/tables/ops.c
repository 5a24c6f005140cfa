/* The operations that there are (src/ops.def), for core/, which knows none by name. */
#include "op/op.h"

const firn_op *const firn_ops[] = {
#define OP(NAME, name) &firn_op_##name,
#include "ops.def"
#undef OP
    NULL,
};
