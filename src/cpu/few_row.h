/* What every file of a few rows ends with, over its own forward() and back_rows(). */

INLINE void back(firn_type f, const int n, const uint8_t *w, int64_t row_bytes, int64_t k, int64_t m, int64_t from,
                 int64_t to, const float *const *dy, float *const *dx, bool add)
{
    int64_t r = 0;

    for (; r + 8 <= m; r += 8)
        back_rows(f, 8, n, w + r * row_bytes, row_bytes, k, from, to, dy, dx, r, add);
    for (; r < m; r++)
        back_rows(f, 1, n, w + r * row_bytes, row_bytes, k, from, to, dy, dx, r, add);
}

/* A format's row of functions: the counts become constants, so that the sums live in registers. */
#define FEW_ROW(CODE, name)                                                                                            \
    static void prepare_##name(int64_t k, int n, const float *const *x, float *scratch)                                \
    {                                                                                                                  \
        prepare(FIRN_##CODE, k, n, x, scratch);                                                                        \
    }                                                                                                                  \
    static void forward_##name(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to, int n,        \
                               const float *const *x, const float *scratch, float *const *y, bool add)                 \
    {                                                                                                                  \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            forward(FIRN_##CODE, 1, w, row_bytes, k, from, to, x, scratch, y, add);                                    \
            break;                                                                                                     \
        case 2:                                                                                                        \
            forward(FIRN_##CODE, 2, w, row_bytes, k, from, to, x, scratch, y, add);                                    \
            break;                                                                                                     \
        case 3:                                                                                                        \
            forward(FIRN_##CODE, 3, w, row_bytes, k, from, to, x, scratch, y, add);                                    \
            break;                                                                                                     \
        case 4:                                                                                                        \
            forward(FIRN_##CODE, 4, w, row_bytes, k, from, to, x, scratch, y, add);                                    \
            break;                                                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void back_##name(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t m, int64_t from, int64_t to,       \
                            int n, const float *const *dy, float *const *dx, bool add)                                 \
    {                                                                                                                  \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            back(FIRN_##CODE, 1, w, row_bytes, k, m, from, to, dy, dx, add);                                           \
            break;                                                                                                     \
        case 2:                                                                                                        \
            back(FIRN_##CODE, 2, w, row_bytes, k, m, from, to, dy, dx, add);                                           \
            break;                                                                                                     \
        case 3:                                                                                                        \
            back(FIRN_##CODE, 3, w, row_bytes, k, m, from, to, dy, dx, add);                                           \
            break;                                                                                                     \
        case 4:                                                                                                        \
            back(FIRN_##CODE, 4, w, row_bytes, k, m, from, to, dy, dx, add);                                           \
            break;                                                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    const firn_few_kernels FIRN_SET(few_##name) = {4, 4, prepare_##name, forward_##name, back_##name};
