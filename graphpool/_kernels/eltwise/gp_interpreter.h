/* The interpreter of elementwise programs (gp_eltwise.h). A template: no guard, included once for each type of registers
 * by a file that has included core/gp_convert.h and eltwise/gp_eltwise.h and defined
 *
 *     GP_REG             the type of a register's elements
 *     GP_REG_DTYPE       the gp_dtype that is the same
 *     GP_NAME(name)      the name of a static function of this instance
 *     GP_OPS(X)          operations: X(NAME, expression of x, y, z, alpha, beta)
 *     GP_OTHER_OPS(X)    X(NAME, anything) for those that are functions GP_NAME(NAME), defined behind the include
 *     GP_TYPES(X)        elements in memory: X(NAME, C type, value of an element m, element of a value v); without it
 *                        GP_NAME(load_run) and GP_NAME(store_run) must be there
 *     GP_OTHER_TYPES     if GP_NAME(load_other) and GP_NAME(store_other) move the elements of types that GP_TYPES lacks
 *     GP_STORES_RESULTS  if GP_NAME(store_result) is there: stores what an operation gives for its operands r in a type
 *                        other than the registers', or returns 0; `ones` as below
 */

/* Instructions run over a multiple of LANES elements, the widest vector, so that their loops have no remainders: a result
 * does not depend on where it lies in a block, and short blocks (a row of a tile) are as fast as long ones. Loads fill up
 * with zeros to keep what lies behind the end defined. */
enum { GP_NAME(LANES) = 64 / sizeof(GP_REG) };

/* Elements that are read before any of them is written, where operands lie apart from results: memory beyond L1 is a
 * sixth faster so. A register that holds one value everywhere has these alone. */
enum { GP_NAME(GROUP) = sizeof(GP_REG) > 1 ? 64 : 256 };

/* n elements; `ones` has a bit for a, b and c each: whether that register holds one value, in a group. */
typedef void GP_NAME(instr_fn)(const gp_instr *instr, GP_REG *dst, const GP_REG *a, const GP_REG *b, const GP_REG *c,
                               int64_t n, uint32_t ones);

#ifdef GP_TYPES
/* Strides of 1 and 0 have loops of their own, which are loads of vectors and broadcasts. */
#define GP_LOAD(NAME, type, value, element)                                                                            \
    case GP_##NAME: {                                                                                                  \
        const type *restrict from = (const type *)memory + offset;                                                     \
        if (stride == 1) {                                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const type m = from[i];                                                                                \
                to[i] = (GP_REG)(value);                                                                               \
            }                                                                                                          \
        } else if (stride == 0) {                                                                                      \
            const type m = *from;                                                                                      \
            const GP_REG all = (GP_REG)(value);                                                                        \
            for (int64_t i = 0; i < n; i++)                                                                            \
                to[i] = all;                                                                                           \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const type m = from[i * stride];                                                                       \
                to[i] = (GP_REG)(value);                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        break;                                                                                                         \
    }

static void GP_NAME(load_run)(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    GP_REG *restrict to = values;
    switch (dtype) {
        GP_TYPES(GP_LOAD)
#ifdef GP_OTHER_TYPES
    default:
        GP_NAME(load_other)(dtype, to, memory, offset, stride, n);
#endif
    }
}

#define GP_STORE(NAME, type, value, element)                                                                           \
    case GP_##NAME: {                                                                                                  \
        type *to = (type *)memory + offset;                                                                            \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const GP_REG v = from[i];                                                                              \
                to[i] = (type)(element);                                                                               \
            }                                                                                                          \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const GP_REG v = from[i];                                                                              \
                to[i * stride] = (type)(element);                                                                      \
            }                                                                                                          \
        break;                                                                                                         \
    }

static void GP_NAME(store_run)(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    const GP_REG *from = values;
    switch (dtype) {
        GP_TYPES(GP_STORE)
#ifdef GP_OTHER_TYPES
    default:
        GP_NAME(store_other)(dtype, from, memory, offset, stride, n);
#endif
    }
}
#endif

/* Rows of a tile, which are in L1, are too short to ask. */
#define GP_LONG_RUN 256

#define GP_ELEMENTS(n, expression)                                                                                     \
    for (int64_t i = 0; i < (n); i++) {                                                                                \
        const GP_REG x = a[i], y = b[i], z = c[i];                                                                     \
        (void)x, (void)y, (void)z;                                                                                     \
        dst[i] = (GP_REG)(expression);                                                                                 \
    }

/* x, y, z are the operands. dst may be one of them, element on element: `NAME` asks, and has an ivdep. */
#define GP_DEFINE_OP(NAME, expression)                                                                                 \
    static inline __attribute__((always_inline)) void GP_NAME(NAME##_apart)(                                           \
        GP_REG *restrict dst, const GP_REG *restrict a, const GP_REG *restrict b, const GP_REG *restrict c,            \
        const float alpha, const float beta)                                                                           \
    {                                                                                                                  \
        (void)alpha, (void)beta;                                                                                       \
        GP_ELEMENTS(GP_NAME(GROUP), expression)                                                                        \
    }                                                                                                                  \
    static void GP_NAME(NAME)(const gp_instr *instr, GP_REG *dst, const GP_REG *a, const GP_REG *b, const GP_REG *c,   \
                              int64_t n, uint32_t ones)                                                                \
    {                                                                                                                  \
        enum { GROUP = GP_NAME(GROUP) };                                                                               \
        const float alpha = instr->alpha, beta = instr->beta;                                                          \
        (void)alpha, (void)beta;                                                                                       \
        const int is_apart = n >= GP_LONG_RUN && dst != a && dst != b && dst != c;                                     \
        const int64_t a_step = ones & 1 ? 0 : GROUP, b_step = ones & 2 ? 0 : GROUP, c_step = ones & 4 ? 0 : GROUP;     \
        for (; is_apart && n >= GROUP; n -= GROUP, dst += GROUP, a += a_step, b += b_step, c += c_step)                \
            GP_NAME(NAME##_apart)(dst, a, b, c, alpha, beta);                                                          \
        for (; ones && n >= GROUP; n -= GROUP, dst += GROUP, a += a_step, b += b_step, c += c_step)                    \
            _Pragma("GCC ivdep") GP_ELEMENTS(GROUP, expression)                                                        \
        _Pragma("GCC ivdep") GP_ELEMENTS(n & -GP_NAME(LANES), expression)                                              \
    }

GP_OPS(GP_DEFINE_OP)

/* Truth values go to memory at once. */
typedef void GP_NAME(test_fn)(uint8_t *dst, const GP_REG *a, const GP_REG *b, int64_t n, uint32_t ones);

#define GP_TEST_RUN(n, expression)                                                                                     \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < (n); i++)                                                             \
    {                                                                                                                  \
        const GP_REG x = a[i], y = b[i];                                                                               \
        (void)y;                                                                                                       \
        dst[i] = (expression);                                                                                         \
    }

#define GP_DEFINE_TEST(NAME, expression)                                                                               \
    static void GP_NAME(NAME##_test)(uint8_t *dst, const GP_REG *a, const GP_REG *b, int64_t n, uint32_t ones)         \
    {                                                                                                                  \
        const int64_t most = ones ? GP_NAME(GROUP) : n, a_step = ones & 1 ? 0 : most, b_step = ones & 2 ? 0 : most;    \
        for (; ones && n >= most; n -= most, dst += most, a += a_step, b += b_step)                                    \
            GP_TEST_RUN(GP_NAME(GROUP), expression)                                                                    \
        GP_TEST_RUN(n, expression)                                                                                     \
    }
#define GP_TEST_ROW(NAME, expression) [GP_OP_##NAME] = GP_NAME(NAME##_test),

GP_TESTS(GP_DEFINE_TEST)

static GP_NAME(test_fn) *const GP_NAME(tests)[] = { GP_TESTS(GP_TEST_ROW) };

/* Through the memory of the type and back. */
static void GP_NAME(NARROW)(const gp_instr *instr, GP_REG *dst, const GP_REG *a, const GP_REG *b, const GP_REG *c,
                            int64_t n, uint32_t ones)
{
    (void)b, (void)c, (void)ones;
    uint64_t elements[GP_BLOCK]; /* as wide as the widest type */
    GP_NAME(store_run)((int)instr->alpha, (void *)a, elements, 0, 1, n);
    GP_NAME(load_run)((int)instr->alpha, dst, elements, 0, 1, n);
}

#define GP_DECLARE_OP(NAME, expression) static GP_NAME(instr_fn) GP_NAME(NAME);
#define GP_OP_ROW(NAME, expression) [GP_OP_##NAME] = GP_NAME(NAME),

GP_OTHER_OPS(GP_DECLARE_OP)

static GP_NAME(instr_fn) *const GP_NAME(instructions)[] = {
    [GP_OP_NARROW] = GP_NAME(NARROW), GP_OPS(GP_OP_ROW) GP_OTHER_OPS(GP_OP_ROW)
};

/* Zeros from n up to the next multiple of LANES. */
static void GP_NAME(fill_up)(GP_REG *values, int64_t n)
{
    for (int64_t i = n; i & (GP_NAME(LANES) - 1); i++)
        values[i] = 0;
}

/* Rows of a view that are one element each, as of a column beside rows of a few elements; no row is longer than this. */
#define GP_SHORT_ROW 16

#define GP_SPREAD(width, apart)                                                                                        \
    for (int64_t j = 0; j < rows; j++)                                                                                 \
        for (int64_t k = 0; k < (width); k++)                                                                          \
            to[j * (width) + k] = from[j * (apart)];

/* `rows` rows, each `width` times an element; these lie `step` apart. Loops of a known width are vectors. */
static void GP_NAME(spread_rows)(GP_REG *restrict to, const GP_REG *restrict from, int64_t step, int64_t rows,
                                 int64_t width)
{
    switch (step == 1 ? width : 0) {
    case 2: GP_SPREAD(2, 1) break;
    case 3: GP_SPREAD(3, 1) break;
    case 4: GP_SPREAD(4, 1) break;
    case 8: GP_SPREAD(8, 1) break;
    case 16: GP_SPREAD(16, 1) break;
    default: GP_SPREAD(width, step)
    }
}

/* Rows of elements side by side, up to this many, are copied without a call for each. */
#define GP_NARROW_ROW 128

/* `rows` rows of `width` elements, which begin so many elements apart. */
static void GP_NAME(copy_rows)(GP_REG *to, int64_t to_step, const GP_REG *from, int64_t from_step, int64_t rows,
                               int64_t width)
{
    for (int64_t j = 0; j < rows; j++, to += to_step, from += from_step) {
        int64_t k = 0;
        for (; k + GP_NAME(LANES) <= width; k += GP_NAME(LANES))
            memcpy(to + k, from + k, GP_NAME(LANES) * sizeof(GP_REG));
        for (; k < width; k++)
            to[k] = from[k];
    }
}

/* Whether the rows of a view are moved many at a time: those of one element each are only loaded. */
static int GP_NAME(has_short_rows)(const gp_view *view, int is_load)
{
    const int64_t most = view->stride[0] == 1 ? GP_NARROW_ROW : is_load && view->stride[0] == 0 ? GP_SHORT_ROW : 0;
    return view->dim[0] <= most && view->dtype == GP_REG_DTYPE;
}

/* Load or store n elements of such a view. */
static void GP_NAME(move_short_rows)(const gp_view *view, void *const *args, GP_REG *values, int64_t first, int64_t n,
                                     int is_load)
{
    GP_REG *memory = args[view->arg];
    gp_position p;
    gp_locate(view, first, &p);
    for (int64_t i = 0, count; i < n; i += count) {
        const int64_t width = view->dim[0], left = view->ndim > 1 ? view->dim[1] - p.at[1] : 1;
        const int64_t whole = (n - i) / width, most = whole < left ? whole : left, rest = width - p.at[0];
        const int is_part = p.at[0] > 0 || most == 0; /* of a row */
        const int64_t rows = is_part ? 1 : most, row = !is_part ? width : n - i < rest ? n - i : rest;
        const int64_t step = view->ndim > 1 ? view->stride[1] : 0;
        GP_REG *at = memory + p.offset;
        if (!is_load)
            GP_NAME(copy_rows)(at, step, values + i, row, rows, row);
        else if (view->stride[0] == 1)
            GP_NAME(copy_rows)(values + i, row, at, step, rows, row);
        else
            GP_NAME(spread_rows)(values + i, at, is_part ? 0 : step, rows, row);
        if (rows > 1) {
            p.at[1] += rows - 1;
            p.offset += (rows - 1) * step;
        }
        gp_advance(view, row, &p);
        count = rows * row;
    }
}

/* After how many of n elements of a view they repeat, if their first one alone says what they are; else 0. */
static int64_t GP_NAME(find_period)(const gp_view *view, int64_t first, int64_t n, int64_t *offset)
{
    gp_position p;
    gp_locate(view, first, &p);
    *offset = p.offset;
    if (view->stride[0] == 0 && view->dim[0] - p.at[0] >= n)
        return 1;
    const int is_row = view->ndim > 1 && view->stride[1] == 0;
    return is_row && (view->dim[1] - p.at[1]) * view->dim[0] - p.at[0] >= n ? view->dim[0] : 0;
}

/* Load n elements. A row that repeats (a bias along the last axis) is read once and then copied within L1. */
static void GP_NAME(load_view)(const gp_view *view, void *const *args, GP_REG *values, int64_t first, int64_t n,
                               int64_t period)
{
    int64_t done = period > 1 && period < n ? period : n;
    if (GP_NAME(has_short_rows)(view, 1))
        GP_NAME(move_short_rows)(view, args, values, first, done, 1);
    else
        gp_move_view(view, args, (char *)values, sizeof(GP_REG), first, done, GP_NAME(load_run));
    while (done < n) {
        const int64_t more = n - done < done ? n - done : done;
        memcpy(values + done, values, more * sizeof(GP_REG));
        done += more;
    }
    GP_NAME(fill_up)(values, n);
}

static void GP_NAME(store_view)(const gp_view *view, void *const *args, GP_REG *values, int64_t first, int64_t n)
{
    if (GP_NAME(has_short_rows)(view, 0))
        GP_NAME(move_short_rows)(view, args, values, first, n, 0);
    else
        gp_move_view(view, args, (char *)values, sizeof(GP_REG), first, n, GP_NAME(store_run));
}

/* Where n elements of a type that registers hold as it is lie one behind the other, or NULL: the registers' own, and as bytes
 * those with a sign, and truth values that are read. */
static GP_REG *GP_NAME(find_run)(const gp_view *view, void *const *args, int64_t first, int64_t n, int is_read)
{
    const int is_byte = GP_REG_DTYPE == GP_U8 && (view->dtype == GP_S8 || (is_read && view->dtype == GP_BOOLEAN));
    const int64_t offset = is_byte || view->dtype == GP_REG_DTYPE ? gp_find_run(view, first, n) : -1;
    return offset < 0 ? NULL : (GP_REG *)args[view->arg] + offset;
}

/* Stores truth values that a test gives for its operands a and b, or returns 0. */
static int GP_NAME(store_test)(const gp_instr *instr, const gp_view *view, void *const *args, const GP_REG *const *r,
                               uint32_t ones, int64_t first, int64_t n)
{
    const int n_tests = sizeof GP_NAME(tests) / sizeof *GP_NAME(tests);
    GP_NAME(test_fn) *const test = instr->op < n_tests ? GP_NAME(tests)[instr->op] : NULL;
    const int64_t offset = test && view->dtype == GP_BOOLEAN ? gp_find_run(view, first, n) : -1;
    if (offset < 0)
        return 0;
    test((uint8_t *)args[view->arg] + offset, r[instr->a], r[instr->b], n, ones);
    return 1;
}

/* Registers of a run of blocks. */
typedef struct {
    GP_REG *room;
    int64_t block;                        /* elements of each */
    int64_t n[GP_ELTWISE_REGISTERS];      /* elements that one keeps from earlier blocks */
    int64_t offset[GP_ELTWISE_REGISTERS]; /* where these lie in the memory of a LOAD */
    uint32_t ones;                        /* a bit for each that holds one value, in a group */
} GP_NAME(registers);

/* LOAD of n elements where those of an earlier block are not kept: one value, or rows that repeat from the same place on.
 * Returns whether all are one value. */
static int GP_NAME(load)(const gp_instr *instr, const gp_view *view, void *const *args, int64_t first, int64_t n,
                         GP_NAME(registers) *s)
{
    const int32_t dst = instr->dst;
    int64_t offset;
    const int64_t period = GP_NAME(find_period)(view, first, n, &offset);
    if (period == 1 && n > GP_NAME(GROUP))
        n = GP_NAME(GROUP);
    if (!period || s->n[dst] < n || s->offset[dst] != offset) {
        GP_NAME(load_view)(view, args, s->room + dst * s->block, first, n, period);
        s->n[dst] = period && instr->is_kept ? n : 0;
        s->offset[dst] = offset;
    }
    return period == 1;
}

/* A register of one value holds it n times then. */
static void GP_NAME(spread)(const GP_NAME(registers) *s, int32_t number, int64_t n)
{
    GP_REG *values = s->room + number * s->block;
    const GP_REG value = values[0];
    for (int64_t i = 0; s->ones >> number & 1 && i < n; i++)
        values[i] = value;
}

/* The bits of all operands of an operation. */
static uint32_t GP_NAME(operand_bits)(const gp_instr *instr)
{
    return instr->op == GP_OP_CONST ? 0 : instr->op < GP_OP_ADD ? 1 : instr->op < GP_OP_SELECT ? 3 : 7;
}

/* Computes an operation. Returns whether the STORE behind it is done. */
static int GP_NAME(compute)(const gp_eltwise *program, const gp_instr *instr, void *const *args, const GP_REG **r,
                            int64_t first, int64_t n, GP_NAME(registers) *s)
{
    const gp_view *store = gp_eltwise_views(program) + instr[1].dst; /* if it writes memory */
    const uint32_t operands = GP_NAME(operand_bits)(instr);
    const int32_t numbers[3] = {instr->a, instr->b, instr->c};
    uint32_t ones = 0;
    for (int k = 0; k < 3; k++)
        ones |= (s->ones >> numbers[k] & operands >> k & 1) << k;
    const int64_t padded = (n + GP_NAME(LANES) - 1) & -GP_NAME(LANES);
    const int is_one = ones == operands, is_stored = instr->writes_memory && !is_one;
    GP_REG *to = s->room + instr->dst * s->block, *run = NULL;
    if (is_stored && n == padded)
        run = GP_NAME(find_run)(store, args, first, n, 0);
    if (is_stored && !run && GP_NAME(store_test)(instr, store, args, r, ones, first, n))
        return 1;
#ifdef GP_STORES_RESULTS
    if (is_stored && !run && n == padded && GP_NAME(store_result)(instr, store, args, r, ones, first, n))
        return 1;
#endif
    for (int k = 0; k < 3 && !is_one && !run; k++)
        if (ones >> k & 1 && numbers[k] == instr->dst) { /* would be written while it is read */
            GP_NAME(spread)(s, instr->dst, padded);
            ones &= ~(1u << k);
        }
    const int64_t count = is_one && padded > GP_NAME(GROUP) ? GP_NAME(GROUP) : padded;
    const int is_there = instr->op == GP_OP_CONST && s->n[instr->dst] >= count;
    if (!is_there)
        GP_NAME(instructions)[instr->op](instr, run ? run : to, r[instr->a], r[instr->b], r[instr->c], count, ones);
    s->n[instr->dst] = instr->is_kept ? count : 0;
    s->ones = (s->ones & ~(1u << instr->dst)) | (uint32_t)is_one << instr->dst;
    r[instr->dst] = to;
    return run != NULL;
}

/* Registers are read and written in memory where the program says that nothing notices (gp_instr), if whole lanes lie
 * there: an epilogue of one operation then makes one pass over its elements instead of three. */
static void GP_NAME(run_block)(const gp_eltwise *program, void *const *args, const GP_REG *acc, int64_t first, int64_t n,
                               GP_NAME(registers) *s)
{
    const GP_REG *r[GP_ELTWISE_REGISTERS]; /* where the values of a register lie */
    for (int64_t i = 0; i < program->nregisters; i++)
        r[i] = s->room + i * s->block; /* operands that an instruction has not are read too, and thrown away */
    const gp_view *views = gp_eltwise_views(program);
    const gp_instr *instr = gp_eltwise_instrs(program), *const end = instr + program->ninstrs;
    const int is_whole = (n & (GP_NAME(LANES) - 1)) == 0;
    for (; instr < end; instr++) {
        if (instr->op == GP_OP_STORE) {
            GP_NAME(spread)(s, instr->a, n);
            GP_NAME(store_view)(views + instr->dst, args, (GP_REG *)r[instr->a], first, n);
            continue;
        }
        if (instr->op != GP_OP_LOAD && instr->op != GP_OP_ACC) {
            instr += GP_NAME(compute)(program, instr, args, r, first, n, s);
            continue;
        }
        const gp_view *view = instr->op == GP_OP_LOAD ? views + instr->a : NULL;
        const int32_t number = instr->dst;
        GP_REG *to = s->room + number * s->block, *run = NULL;
        int is_one = 0;
        r[number] = to;
        if (is_whole && instr->reads_memory)
            run = view ? GP_NAME(find_run)(view, args, first, n, 1) : (GP_REG *)acc;
        if (run) {
            r[number] = run;
        } else if (acc && !view) {
            memcpy(to, acc, n * sizeof(GP_REG));
            GP_NAME(fill_up)(to, n);
        } else {
            if (is_whole && instr->writes_memory)
                run = GP_NAME(find_run)(views + instr[1].dst, args, first, n, 0);
            if (run)
                GP_NAME(load_view)(view, args, run, first, n, 0);
            else
                is_one = GP_NAME(load)(instr, view, args, first, n, s);
            instr += run != NULL; /* the STORE behind it is done */
        }
        s->ones = (s->ones & ~(1u << number)) | (uint32_t)is_one << number;
    }
}

/* The extent of rows that views have, if blocks that end with a row are whole lanes; else 0. */
static int64_t GP_NAME(find_row)(const gp_eltwise *program)
{
    const gp_view *views = gp_eltwise_views(program);
    for (int64_t i = 0; i < program->nviews; i++)
        if (views[i].ndim > 1)
            return views[i].dim[0] % GP_NAME(LANES) == 0 ? views[i].dim[0] : 0;
    return 0;
}

/* Whether a view has one value for each row of `row` elements, so that blocks of one row need not spread it. */
static int GP_NAME(has_column)(const gp_eltwise *program, int64_t row)
{
    const gp_view *views = gp_eltwise_views(program);
    int found = 0;
    for (int64_t i = 0; i < program->nviews; i++)
        found |= views[i].ndim > 1 && views[i].dim[0] == row && views[i].stride[0] == 0;
    return found && row >= GP_LONG_RUN;
}

/* Elements of a block: all registers have room in twice `most`, and in `most` those that are no kept ones, of which mostly a
 * group is touched. A multiple of 64, which are stored as bytes at once. */
static int64_t GP_NAME(find_block)(const gp_eltwise *program, int64_t most)
{
    const gp_instr *instr = gp_eltwise_instrs(program);
    int64_t nchanging = program->nregisters;
    for (int64_t i = 0; i < program->ninstrs; i++)
        nchanging -= instr[i].is_kept;
    const int64_t room = nchanging > 0 ? most / nchanging : most, all = 2 * most / program->nregisters;
    const int64_t block = all < room ? all : room;
    return (block < GP_BLOCK ? block : GP_BLOCK) & -64;
}

/* Blocks end where rows do, if they hold an end of one, so that few views begin anew within a block. */
static void GP_NAME(run)(const gp_eltwise *program, void *const *args, const GP_REG *acc, int64_t first, int64_t last)
{
    enum { ROOM = GP_ELTWISE_ROOM / sizeof(GP_REG) };
    _Alignas(64) GP_REG room[2 * ROOM];
    const int64_t block = last - first > GP_LONG_RUN ? GP_NAME(find_block)(program, ROOM) : GP_LONG_RUN;
    const int64_t row = last - first > block ? GP_NAME(find_row)(program) : 0;
    int64_t left = row > 0 ? row - first % row : INT64_MAX; /* of the row */
    const int is_by_row = GP_NAME(has_column)(program, row);
    GP_NAME(registers) s;
    s.room = room, s.block = block, s.ones = 0;
    for (int64_t i = 0; i < program->nregisters; i++)
        s.n[i] = 0;
    for (int64_t at = first, n; at < last; at += n) {
        n = last - at < block ? last - at : block;
        if (n < left) {
            left -= n;
        } else {
            n = left + (is_by_row ? 0 : (n - left) / row * row);
            left = row;
        }
        GP_NAME(run_block)(program, args, acc ? acc + (at - first) : NULL, at, n, &s);
    }
}

GP_DEFINE_KERNEL(GP_NAME(eltwise))
{
    const gp_eltwise *program = params;
    const int64_t last = end * GP_ELTWISE_TASK;
    GP_NAME(run)(program, args, NULL, begin * GP_ELTWISE_TASK, last < program->size ? last : program->size);
}

#undef GP_REG
#undef GP_REG_DTYPE
#undef GP_NAME
#undef GP_OPS
#undef GP_OTHER_OPS
#undef GP_TYPES
#undef GP_OTHER_TYPES
#undef GP_STORES_RESULTS
