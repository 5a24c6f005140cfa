/* As much of cmocka as test_gemm.c needs, for a processor that only an emulator stands in for: a failure ends the
 * program with a sentence and status 1. */
#ifndef FIRN_TEST_AARCH64_CMOCKA_H
#define FIRN_TEST_AARCH64_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                                            \
    {                                                                                                                  \
#f, f                                                                                                          \
    }

#define fail_msg(...)          (printf(__VA_ARGS__), printf(" (%s:%d)\n", __FILE__, __LINE__), exit(1))
#define assert_true(c)         ((c) ? (void)0 : fail_msg("not so: %s", #c))
#define assert_null(p)         assert_true((p) == NULL)
#define assert_non_null(p)     assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_ptr_equal(a, b) assert_true((a) == (b))

#define cmocka_run_group_tests(tests, start, finish)                                                                   \
    run_all(tests, (int)(sizeof(tests) / sizeof(tests)[0]), start, finish)

static inline int run_all(const struct CMUnitTest *tests, int n, int (*start)(void **), int (*finish)(void **))
{
    void *state = NULL;

    if (start(&state) != 0)
        return 1;
    for (int i = 0; i < n; i++) {
        tests[i].run(&state);
        printf("ok %s\n", tests[i].name);
        fflush(stdout);
    }
    return finish(&state) != 0;
}

#endif
