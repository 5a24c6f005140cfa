/* The table of team kernels: which operations have a fast sibling on the CPU.
 *
 * The five matrix products are one: this file says how each node's tensors are the operands of gemm.h. */
#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "cpu/kernel_set.h"
#include "cpu/team.h"
#include "op/util.h"

#include <string.h>

static firn_gemm_view view_of(const firn_tensor *t, const void *data)
{
    firn_gemm_view v = {.data = data};

    memcpy(v.nb, t->nb, sizeof v.nb);
    return v;
}

/* The operands of a node; `call` NULL when only shapes matter (takes, work). */
static firn_gemm describe(const firn_tensor *y, const firn_kernel_set *set, const firn_call *call)
{
    const firn_op *op = y->op;
    const firn_tensor *w = y->src[0], *x = y->src[1];
    const void *src[4] = {NULL};
    firn_gemm g = {.type = w->type, .k = w->ne[0], .m = w->ne[1], .out = call ? call->dst : NULL, .set = set};

    for (int i = 0; call && i < 4; i++)
        src[i] = call->src[i];
    memcpy(g.out_nb, y->nb, sizeof g.out_nb);
    g.w = view_of(w, src[0]);
    g.in1 = view_of(x, src[1]);
    if (op == &firn_op_mul_mat || op == &firn_op_out_prod) {
        g.kind = op == &firn_op_mul_mat ? FIRN_GEMM_FORWARD : FIRN_GEMM_BACK;
        g.n = y->ne[1];
        g.n2 = y->ne[2];
        g.n3 = y->ne[3];
        g.w_n2 = w->ne[2];
        g.w_n3 = w->ne[3];
        if (g.kind == FIRN_GEMM_BACK) { /* b [p, r]: the rows of the product run along p */
            g.in1.nb[0] = x->nb[1];
            g.in1.nb[1] = x->nb[0];
        }
        return g;
    }
    const firn_tensor *ids = y->src[2];
    g.ids = call ? src[2] : (const int32_t *)ids; /* only NULL or not matters without a call */
    g.ids_nb[0] = ids->nb[0];
    g.ids_nb[1] = ids->nb[1];
    g.n_used = ids->ne[0];
    g.n_tokens = ids->ne[1];
    if (op == &firn_op_out_prod_id) { /* sources: x, dy, ids */
        g.kind = FIRN_GEMM_OUTER;
        g.k = y->ne[0];
        g.m = y->ne[1];
        g.n_expert = y->ne[2];
        g.in1 = view_of(w, src[0]);
        g.in2 = view_of(x, src[1]);
        g.x_slots = w->ne[1];
        return g;
    }
    g.kind = op == &firn_op_mul_mat_id ? FIRN_GEMM_FORWARD : FIRN_GEMM_BACK;
    g.n_expert = w->ne[2];
    g.x_slots = x->ne[1];
    if (g.kind == FIRN_GEMM_FORWARD && y->src[3]) {
        g.n_expert = y->src[3]->ne[0];
        g.table = src[3];
        g.table_bytes = (int64_t)firn_n_bytes(w);
    }
    return g;
}

static bool takes_product(const firn_tensor *y, const firn_kernel_set *set)
{
    const firn_tensor *w = y->src[0], *x = y->src[1];

    (void)set;
    return firn_gemm_reads(w->type) && w->nb[0] == (int64_t)firn_type_size(w->type) && x->type == FIRN_F32;
}

static size_t product_work(const firn_tensor *y, const firn_kernel_set *set, int n_threads)
{
    const firn_gemm g = describe(y, set, NULL);

    return firn_gemm_work_bytes(&g, n_threads);
}

static void run_product(const firn_call *call, const firn_kernel_set *set, firn_team team)
{
    const firn_gemm g = describe(call->node, set, call);
    firn_gemm_fault fault = {0};

    firn_gemm_run(&g, call->work, team, &fault);
    if (fault.found && fault.outside)
        firn_fault_set(call->fault, FIRN_FAULT_TABLE, call->node, fault.slot, g.table[fault.id], g.table_bytes);
    else if (fault.found)
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, fault.slot, fault.id, g.n_expert);
}

/* ---- attention, scans ---- */

static const firn_team_kernels *team_kernels(const firn_op *op, const firn_kernel_set *set)
{
    return op == &firn_op_attention || op == &firn_op_attention_back ? set->attention : set->scan;
}

static bool is_back(const firn_op *op)
{
    return op == &firn_op_attention_back || op == &firn_op_gated_delta_back || op == &firn_op_ssm_scan_back;
}

static bool takes_team(const firn_tensor *y, const firn_kernel_set *set)
{
    return team_kernels(y->op, set);
}

static size_t team_work(const firn_tensor *y, const firn_kernel_set *set, int n_threads)
{
    const firn_team_kernels *k = team_kernels(y->op, set);

    return (is_back(y->op) ? k->back_work : k->work)(y, n_threads);
}

static void run_team(const firn_call *call, const firn_kernel_set *set, firn_team team)
{
    const firn_team_kernels *k = team_kernels(call->node->op, set);

    (is_back(call->node->op) ? k->back : k->forward)(call, team);
}

const firn_cpu_kernel firn_cpu_kernels[] = {
    {&firn_op_attention, takes_team, team_work, run_team},
    {&firn_op_attention_back, takes_team, team_work, run_team},
    {&firn_op_mul_mat, takes_product, product_work, run_product},
    {&firn_op_out_prod, takes_product, product_work, run_product},
    {&firn_op_mul_mat_id, takes_product, product_work, run_product},
    {&firn_op_mul_mat_id_back, takes_product, product_work, run_product},
    {&firn_op_out_prod_id, takes_product, product_work, run_product},
    {&firn_op_gated_delta, takes_team, team_work, run_team},
    {&firn_op_gated_delta_back, takes_team, team_work, run_team},
    {&firn_op_ssm_scan, takes_team, team_work, run_team},
    {&firn_op_ssm_scan_back, takes_team, team_work, run_team},
    {NULL, NULL, NULL, NULL},
};
