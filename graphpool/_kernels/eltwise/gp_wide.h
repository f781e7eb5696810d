/* An interpreter of elementwise programs whose registers are as wide as the widest of their elements. A template: no
 * guard, included once for each type of register by eltwise_wide.c, which defines before it
 *
 *     GP_REG              the type of a register's elements
 *     GP_WIDE(name)       the name of a static function of this instance
 *     GP_WIDE_OPS(X)      the operations: X(NAME, expression of x, y, alpha, beta)
 *     GP_WIDE_TYPES(X)    the elements in memory: X(NAME, C type, value of a register m, value of an element v)
 */

#define GP_LOAD(NAME, type, value, element)                                                                            \
    case GP_##NAME:                                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const type m = ((const type *)memory)[offset + i * stride];                                                \
            to[i] = (GP_REG)(value);                                                                                   \
        }                                                                                                              \
        break;

static void GP_WIDE(load_run)(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    GP_REG *to = values;
    switch (dtype) {
        GP_WIDE_TYPES(GP_LOAD)
    }
}

#define GP_STORE(NAME, type, value, element)                                                                           \
    case GP_##NAME:                                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const GP_REG v = from[i];                                                                                  \
            ((type *)memory)[offset + i * stride] = (type)(element);                                                   \
        }                                                                                                              \
        break;

static void GP_WIDE(store_run)(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    const GP_REG *from = values;
    switch (dtype) {
        GP_WIDE_TYPES(GP_STORE)
    }
}

#define GP_CASE(NAME, expression)                                                                                      \
    case GP_OP_##NAME:                                                                                                 \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                           \
        {                                                                                                              \
            const GP_REG x = a[i], y = b[i];                                                                           \
            (void)x, (void)y;                                                                                          \
            dst[i] = (GP_REG)(expression);                                                                             \
        }                                                                                                              \
        break;

static void GP_WIDE(compute)(const gp_instr *instr, GP_REG (*r)[GP_WIDE_BLOCK], int64_t n)
{
    GP_REG *dst = r[instr->dst];
    const GP_REG *a = r[instr->a], *b = r[instr->b], *c = r[instr->c];
    const float alpha = instr->alpha, beta = instr->beta;
    (void)alpha, (void)beta;
    switch (instr->op) {
        GP_WIDE_OPS(GP_CASE)
    case GP_OP_NARROW: {
        GP_REG elements[GP_WIDE_BLOCK];
        GP_WIDE(store_run)((int)alpha, (void *)a, elements, 0, 1, n);
        GP_WIDE(load_run)((int)alpha, dst, elements, 0, 1, n);
        break;
    }
    case GP_OP_CONST:
        for (int64_t i = 0; i < n; i++)
            dst[i] = (GP_REG)alpha;
        break;
    case GP_OP_SELECT:
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) dst[i] = a[i] != 0 ? b[i] : c[i];
    }
}

static void GP_WIDE(run_block)(const gp_eltwise *program, void *const *args, int64_t first, int64_t n)
{
    GP_REG r[GP_ELTWISE_REGISTERS][GP_WIDE_BLOCK];
    const gp_view *views = gp_eltwise_views(program);
    const gp_instr *instr = gp_eltwise_instrs(program), *const end = instr + program->ninstrs;
    for (; instr < end; instr++) {
        if (instr->op == GP_OP_LOAD)
            gp_move_view(views + instr->a, args, (char *)r[instr->dst], sizeof(GP_REG), first, n, GP_WIDE(load_run));
        else if (instr->op == GP_OP_STORE)
            gp_move_view(views + instr->dst, args, (char *)r[instr->a], sizeof(GP_REG), first, n, GP_WIDE(store_run));
        else
            GP_WIDE(compute)(instr, r, n);
    }
}

GP_DEFINE_KERNEL(GP_WIDE(eltwise))
{
    const gp_eltwise *program = params;
    const int64_t limit = end * GP_ELTWISE_TASK, last = limit < program->size ? limit : program->size;
    for (int64_t at = begin * GP_ELTWISE_TASK; at < last; at += GP_WIDE_BLOCK)
        GP_WIDE(run_block)(program, args, at, last - at < GP_WIDE_BLOCK ? last - at : GP_WIDE_BLOCK);
}

#undef GP_CASE
#undef GP_LOAD
#undef GP_STORE
#undef GP_REG
#undef GP_WIDE
#undef GP_WIDE_OPS
#undef GP_WIDE_TYPES
