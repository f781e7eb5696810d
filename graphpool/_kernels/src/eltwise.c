/* The interpreter of elementwise programs (gp_eltwise.h). */
#include "gp_eltwise.h"

#include <string.h>

typedef struct {
    float values[GP_ELTWISE_REGISTERS][GP_BLOCK];
} registers;

/* Coordinates of a linear index in a view, and the offset that they give. */
typedef struct {
    int64_t at[GP_MAX_NDIM];
    int64_t offset;
} position;

static void locate(const gp_view *view, int64_t linear, position *p)
{
    p->offset = view->offset;
    for (int64_t k = 0; k < view->ndim; k++) {
        const int64_t dim = view->axes[k].dim;
        p->at[k] = k + 1 == view->ndim ? linear : linear % dim;
        linear = k + 1 == view->ndim ? 0 : linear / dim;
        p->offset += p->at[k] * view->axes[k].stride;
    }
}

/* Move on by n elements, which do not reach beyond the current innermost row. */
static void advance(const gp_view *view, int64_t n, position *p)
{
    p->at[0] += n;
    p->offset += n * view->axes[0].stride;
    for (int64_t k = 0; k + 1 < view->ndim && p->at[k] == view->axes[k].dim; k++) {
        p->at[k] = 0;
        p->at[k + 1]++;
        p->offset += view->axes[k + 1].stride - view->axes[k].dim * view->axes[k].stride;
    }
}

static void load_row(float *dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    const float *from = (const float *)src + offset;
    if (stride == 1)
        memcpy(dst, from, n * sizeof(float));
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = from[i * stride];
}

static void store_row(void *dst, int64_t offset, int64_t stride, const float *src, int64_t n)
{
    float *to = (float *)dst + offset;
    if (stride == 1)
        memcpy(to, src, n * sizeof(float));
    else
        for (int64_t i = 0; i < n; i++)
            to[i * stride] = src[i];
}

static void transfer(const gp_view *view, void *const *args, float *values, int64_t first, int64_t n, int is_store)
{
    position p;
    locate(view, first, &p);
    for (int64_t i = 0; i < n;) {
        const int64_t left = view->axes[0].dim - p.at[0], run = left < n - i ? left : n - i;
        if (is_store)
            store_row(args[view->arg], p.offset, view->axes[0].stride, values + i, run);
        else
            load_row(values + i, args[view->arg], p.offset, view->axes[0].stride, run);
        advance(view, run, &p);
        i += run;
    }
}

static void compute(const gp_instr *instr, registers *r, int64_t n)
{
    float *dst = r->values[instr->dst];
    const float *a = r->values[instr->a], *b = r->values[instr->b];
    switch (instr->op) {
    case GP_OP_ADD: for (int64_t i = 0; i < n; i++) dst[i] = a[i] + b[i]; break;
    case GP_OP_MUL: for (int64_t i = 0; i < n; i++) dst[i] = a[i] * b[i]; break;
    case GP_OP_MAX: for (int64_t i = 0; i < n; i++) dst[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]; break;
    case GP_OP_RELU: for (int64_t i = 0; i < n; i++) dst[i] = a[i] < 0 ? 0 : a[i]; break;
    }
}

void GP_KERNEL(eltwise_run)(const gp_eltwise *program, void *const *args, const float *acc, int64_t first, int64_t last)
{
    const gp_view *views = gp_eltwise_views(program);
    const gp_instr *instrs = gp_eltwise_instrs(program);
    registers r;
    for (int64_t at = first; at < last; at += GP_BLOCK) {
        const int64_t n = last - at < GP_BLOCK ? last - at : GP_BLOCK;
        for (int64_t k = 0; k < program->ninstrs; k++) {
            const gp_instr *instr = instrs + k;
            if (instr->op == GP_OP_LOAD)
                transfer(views + instr->a, args, r.values[instr->dst], at, n, 0);
            else if (instr->op == GP_OP_STORE)
                transfer(views + instr->dst, args, r.values[instr->a], at, n, 1);
            else if (instr->op == GP_OP_ACC)
                memcpy(r.values[instr->dst], acc + (at - first), n * sizeof(float));
            else
                compute(instr, &r, n);
        }
    }
}

static void eltwise(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const gp_eltwise *program = params;
    const int64_t last = end * GP_ELTWISE_TASK;
    GP_KERNEL(eltwise_run)(program, args, NULL, begin * GP_ELTWISE_TASK, last < program->size ? last : program->size);
}

const gp_kernel_entry GP_KERNEL(eltwise_table)[] = {
    {"eltwise", eltwise, sizeof(gp_eltwise)},
    {NULL, NULL, 0},
};
