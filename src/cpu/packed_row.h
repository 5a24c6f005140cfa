/* A packed format's functions, from fill_scales(), pack_straight() and pack_transposed() of the including file: the
 * type becomes a constant. */
#define PACKED_ROW(CODE, name)                                                                                         \
    static void scales_##name(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first, int units,           \
                              firn_scale_table *table)                                                                 \
    {                                                                                                                  \
        fill_scales(FIRN_##CODE, w, row_bytes, n_rows, first, units, table);                                           \
    }                                                                                                                  \
    static void straight_##name(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int j,        \
                                const firn_scale_table *table, float *first, float *second)                            \
    {                                                                                                                  \
        pack_straight(FIRN_##CODE, w, row_bytes, n_rows, first_unit, j, table, first, second);                         \
    }                                                                                                                  \
    static void transposed_##name(const uint8_t *w, int64_t row_bytes, int n_rows, int64_t first_unit, int units,      \
                                  firn_scale_table *table, float *panel)                                               \
    {                                                                                                                  \
        pack_transposed(FIRN_##CODE, w, row_bytes, n_rows, first_unit, units, table, panel);                           \
    }                                                                                                                  \
    static void columns_##name(int j, int column[2])                                                                   \
    {                                                                                                                  \
        const unit_place u = place_of(FIRN_##CODE, 0, j);                                                              \
        column[0] = u.column[0];                                                                                       \
        column[1] = u.column[1];                                                                                       \
    }
#define PACKED_KERNELS(name)                                                                                           \
    {                                                                                                                  \
        scales_##name, straight_##name, transposed_##name, columns_##name                                              \
    }
