/* The register-blocked product GP_GEMM for one element type: included once with GP_REAL float and once with double.
 *
 * A tile of mr rows and nv vectors of C stays in registers while k runs: nv loads and mr broadcasts feed mr * nv
 * multiply-adds. Tile heights and widths are compile-time constants of the instances that the switches pick, so every
 * accumulator is a register. Few rows (GP_WIDE_ROWS) take wide tiles instead, which read longer runs of B. */
#define GP_JOIN_(a, b) a##_##b
#define GP_JOIN(a, b) GP_JOIN_(a, b)
#define GP_T(name) GP_JOIN(GP_REAL, name)
#define GP_LANES (GP_VECTOR_NBYTES / (int)sizeof(GP_REAL))

typedef GP_REAL GP_T(vec) __attribute__((vector_size(GP_VECTOR_NBYTES), aligned(sizeof(GP_REAL)), may_alias));

GP_INLINE void GP_T(tile)(const int mr, const int nv, int64_t k, const GP_REAL *a, int64_t a_row, int64_t a_col,
                          const GP_REAL *b, int64_t b_row, GP_REAL *c, int64_t ldc)
{
    GP_T(vec) acc[GP_ROWS][GP_WIDE_VECTORS], before[GP_ROWS][GP_WIDE_VECTORS]; /* the chains before: GP_CHAIN terms each */
    GP_EACH(i, mr)
        GP_EACH(j, nv)
            acc[i][j] = (GP_T(vec)){0};
    for (int64_t p = 0;;) {
        const int is_first = p == 0;
        for (const int64_t end = gp_min(p + GP_CHAIN, k); p < end; ++p) {
            const GP_T(vec) *row = (const GP_T(vec) *)(b + p * b_row);
            GP_T(vec) x[GP_WIDE_VECTORS];
            GP_EACH(j, nv)
                x[j] = row[j];
            GP_EACH(i, mr) {
                GP_REAL y = a[i * a_row + p * a_col];
                GP_EACH(j, nv)
                    acc[i][j] += y * x[j];
            }
        }
        if (!is_first)
            GP_EACH(i, mr)
                GP_EACH(j, nv)
                    acc[i][j] += before[i][j];
        if (p >= k)
            break;
        GP_EACH(i, mr)
            GP_EACH(j, nv) {
                before[i][j] = acc[i][j];
                acc[i][j] = (GP_T(vec)){0};
            }
    }
    GP_EACH(i, mr)
        GP_EACH(j, nv)
            ((GP_T(vec) *)(c + i * ldc))[j] = acc[i][j];
}

#define GP_TILE_CASE(mr, nv)                                                                                           \
    case mr:                                                                                                           \
        if (mr <= GP_ROWS)                                                                                             \
            GP_T(tile)(mr, nv, k, a, a_row, a_col, b, b_row, c, ldc);                                                  \
        return;

#define GP_TILE_ROWS(nv)                                                                                               \
    static __attribute__((noinline)) void GP_JOIN(GP_T(rows), nv)(int rows, int64_t k, const GP_REAL *a, int64_t a_row,\
                                                                  int64_t a_col, const GP_REAL *b, int64_t b_row,      \
                                                                  GP_REAL *c, int64_t ldc)                             \
    {                                                                                                                  \
        switch (rows) {                                                                                                \
            GP_TILE_CASE(1, nv) GP_TILE_CASE(2, nv) GP_TILE_CASE(3, nv) GP_TILE_CASE(4, nv)                            \
            GP_TILE_CASE(5, nv) GP_TILE_CASE(6, nv) GP_TILE_CASE(7, nv) GP_TILE_CASE(8, nv)                            \
        }                                                                                                              \
    }

GP_TILE_ROWS(1)
GP_TILE_ROWS(2)
GP_TILE_ROWS(3)

/* One or two rows by GP_WIDE_VECTORS vectors. */
static void GP_T(wide)(int rows, int64_t k, const GP_REAL *a, int64_t a_row, int64_t a_col, const GP_REAL *b,
                       int64_t b_row, GP_REAL *c, int64_t ldc)
{
    if (rows == 1)
        GP_T(tile)(1, GP_WIDE_VECTORS, k, a, a_row, a_col, b, b_row, c, ldc);
    else
        GP_T(tile)(2, GP_WIDE_VECTORS, k, a, a_row, a_col, b, b_row, c, ldc);
}

typedef void (*GP_T(rows_fn))(int, int64_t, const GP_REAL *, int64_t, int64_t, const GP_REAL *, int64_t, GP_REAL *,
                              int64_t);

/* Columns of B that are contiguous as rows of a panel: squares of four by four in registers, the rest by element. */
static void GP_T(turn)(int64_t k, int64_t cols, const GP_REAL *from, int64_t column, GP_REAL *to, int64_t width)
{
    const int64_t square = sizeof(GP_REAL) == 4 ? 4 : 1; /* gp_transpose_quad moves words of 32 bits */
    const int64_t whole_k = square > 1 ? k / square * square : 0, whole_cols = cols / square * square;
    for (int64_t c = 0; c < whole_cols; c += square)
        for (int64_t p = 0; p < whole_k; p += square) {
            const GP_REAL *at = from + c * column + p;
            GP_REAL *row = to + p * width + c;
            gp_transpose_quad(at, at + column, at + 2 * column, at + 3 * column, row, row + width, row + 2 * width,
                              row + 3 * width);
        }
    gp_copy(to + whole_k * width, 1, width, from + whole_k, column, 1, whole_cols, k - whole_k, sizeof(GP_REAL));
    gp_copy(to + whole_cols, 1, width, from + whole_cols * column, column, 1, cols - whole_cols, k, sizeof(GP_REAL));
}

/* Copy k rows of `cols` columns of B to a panel of whole vectors, zeros behind the last column. Transposing goes by
 * GP_PACK_ROWS rows, so that the lines being written stay in L1. */
static void GP_T(pack_panel)(int64_t k, int64_t cols, int64_t width, gp_matrix b, GP_REAL *panel)
{
    const GP_REAL *from = b.data;
    if (b.col_stride == 1 && cols == width) {
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < width; j += GP_LANES)
                *(GP_T(vec) *)(panel + p * width + j) = *(const GP_T(vec) *)(from + p * b.row_stride + j);
        return;
    }
    if (cols < width)
        memset(panel, 0, (size_t)(k * width) * sizeof(GP_REAL));
    if (b.row_stride != 1) {
        gp_copy(panel, width, 1, from, b.row_stride, b.col_stride, k, cols, sizeof(GP_REAL));
        return;
    }
    for (int64_t p = 0; p < k; p += GP_PACK_ROWS)
        GP_T(turn)(k - p < GP_PACK_ROWS ? k - p : GP_PACK_ROWS, cols, from + p, b.col_stride, panel + p * width, width);
}

/* All rows of C for the columns of one panel: `cols` of them, in tiles of `vectors` vectors. */
static void GP_T(panel_product)(int64_t m, int64_t cols, int64_t k, gp_matrix a, gp_matrix b, GP_REAL *c, int64_t ldc,
                                GP_REAL *panel, int vectors, GP_T(rows_fn) run)
{
    const int height = vectors > GP_VECTORS ? GP_WIDE_ROWS : GP_ROWS;
    const int64_t width = (int64_t)vectors * GP_LANES;
    const int is_dense = b.row_stride <= 4 * width && k * b.row_stride <= GP_DENSE_NBYTES / (int64_t)sizeof(GP_REAL);
    GP_REAL edge[GP_ROWS * GP_VECTORS * GP_LANES];
    if (k > 0 && (b.col_stride != 1 || cols < width || (m >= GP_PACK_FROM && !is_dense))) {
        GP_T(pack_panel)(k, cols, width, b, panel);
        b = (gp_matrix){panel, width, 1};
    }
    for (int64_t i = 0; i < m; i += height) {
        const int rows = m - i < height ? (int)(m - i) : height;
        const GP_REAL *a_rows = (const GP_REAL *)a.data + i * a.row_stride;
        GP_REAL *to = c + i * ldc;
        if (cols == width) {
            run(rows, k, a_rows, a.row_stride, a.col_stride, b.data, b.row_stride, to, ldc);
            continue;
        }
        run(rows, k, a_rows, a.row_stride, a.col_stride, b.data, b.row_stride, edge, width);
        gp_copy(to, ldc, 1, edge, width, 1, rows, cols, sizeof(GP_REAL));
    }
}

/* One column of C, where rows of A lie side by side: GP_DOT_ROWS sums at a time, whose lanes are added up at the end. */
static void GP_T(column)(int64_t m, int64_t k, gp_matrix a, const GP_REAL *b, GP_REAL *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i += GP_DOT_ROWS) {
        const GP_REAL *rows[GP_DOT_ROWS];
        GP_T(vec) acc[GP_DOT_ROWS];
        GP_EACH(r, GP_DOT_ROWS) {
            rows[r] = (const GP_REAL *)a.data + gp_min(i + r, m - 1) * a.row_stride;
            acc[r] = (GP_T(vec)){0};
        }
        const int64_t whole = k / GP_LANES * GP_LANES;
        for (int64_t p = 0; p < whole; p += GP_LANES) {
            const GP_T(vec) x = *(const GP_T(vec) *)(b + p);
            GP_EACH(r, GP_DOT_ROWS)
                acc[r] += x * *(const GP_T(vec) *)(rows[r] + p);
        }
        for (int64_t r = 0; r < gp_min(m - i, GP_DOT_ROWS); r++) {
            GP_REAL lanes[GP_LANES], sum = 0;
            memcpy(lanes, &acc[r], sizeof lanes);
            for (int width = GP_LANES / 2; width > 0; width /= 2)
                for (int j = 0; j < width; j++)
                    lanes[j] += lanes[j + width];
            for (int64_t p = whole; p < k; p++)
                sum += b[p] * rows[r][p];
            c[(i + r) * ldc] = lanes[0] + sum;
        }
    }
}

/* Rows of C, where columns of B lie side by side in memory: dot products too, some columns at a time for all rows. */
static void GP_T(few_rows)(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, GP_REAL *c, int64_t ldc, GP_REAL *panel)
{
    for (int64_t j = 0; j < n; j += GP_DOT_COLUMNS)
        for (int64_t i = 0; i < m; i++) {
            const gp_matrix columns = {(const GP_REAL *)b.data + j * b.col_stride, b.col_stride, 1};
            const GP_REAL *row = (const GP_REAL *)a.data + i * a.row_stride;
            if (a.col_stride != 1)
                gp_copy(panel, 1, 1, row, a.col_stride, 1, k, 1, sizeof(GP_REAL));
            GP_T(column)(gp_min(n - j, GP_DOT_COLUMNS), k, columns, a.col_stride == 1 ? row : panel, c + i * ldc + j, 1);
        }
}

void GP_KERNEL(GP_GEMM)(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, GP_REAL *c, int64_t ldc,
                        GP_REAL *panel)
{
    static const GP_T(rows_fn) rows_fns[] = {GP_JOIN(GP_T(rows), 1), GP_JOIN(GP_T(rows), 2), GP_JOIN(GP_T(rows), 3)};
    const int64_t wide = GP_WIDE_VECTORS * GP_LANES, narrow = GP_VECTORS * GP_LANES;
    int64_t j = 0;
    gp_matrix part = b;
    if (n == 1 && a.col_stride == 1) {
        if (b.row_stride != 1)
            gp_copy(panel, 1, 1, b.data, b.row_stride, 1, k, 1, sizeof(GP_REAL));
        GP_T(column)(m, k, a, b.row_stride == 1 ? b.data : panel, c, ldc);
        return;
    }
    if (m <= GP_WIDE_ROWS && b.row_stride == 1 && b.col_stride != 1 && k >= GP_DOT_LEAST) {
        GP_T(few_rows)(m, n, k, a, b, c, ldc, panel);
        return;
    }
    while (j < n) {
        const int64_t left = n - j;
        const int use_wide = m <= GP_WIDE_ROWS && left >= wide;
        const int64_t cols = use_wide ? wide : left < narrow ? left : narrow;
        const int vectors = use_wide ? GP_WIDE_VECTORS : (int)((cols + GP_LANES - 1) / GP_LANES);
        part.data = (const GP_REAL *)b.data + j * b.col_stride;
        GP_T(panel_product)(m, cols, k, a, part, c + j, ldc, panel, vectors, use_wide ? GP_T(wide) : rows_fns[vectors - 1]);
        j += cols;
    }
}

#undef GP_TILE_CASE
#undef GP_TILE_ROWS
#undef GP_LANES
#undef GP_T
#undef GP_JOIN
#undef GP_JOIN_
