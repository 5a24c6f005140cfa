/* The elementary functions of op/elementary.h and op/mathf.h against the C library's in more digits: their errors over
 * the whole range of floats, and what they make of numbers that are none. */
#include "unit/unit.h"

#include "op/mathf.h"

#include <math.h>

enum { STEP = 9973 }; /* every so manieth float, both signs, infinities and NaNs among them */

/* y's distance from the true value in units in the last place of a float. */
static double units_off(float y, double truth)
{
    int exponent;

    if (truth != truth || fabs(truth) > 3.4028235e38 || y != y || isinf(y))
        return (truth != truth && y != y) || (float)truth == y ? 0 : INFINITY;
    frexp(truth, &exponent);
    return fabs((double)y - truth) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static void check(const char *name, float (*ours)(float), double (*theirs)(double), float from, float to, double bound)
{
    double worst = 0;
    float where = 0;

    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STEP) {
        const float x = firn_float_of_bits((uint32_t)bits);
        if (x < from || x > to)
            continue;
        const double off = units_off(ours(x), theirs((double)x));
        if (off > worst) {
            worst = off;
            where = x;
        }
    }
    if (worst > bound || worst < bound / 4) /* a bound that nothing comes near says nothing */
        fail_msg("%s is %g units off at %.9g, bound %g", name, worst, (double)where, bound);
}

static float exp_of(float x)
{
    return firn_expf(x);
}

static float tanh_of(float x)
{
    return firn_tanhf(x);
}

static float log_of(float x)
{
    return firn_logf(x);
}

static float log1p_of(float x)
{
    return firn_log1pf(x);
}

static float erfc_of(float x)
{
    return firn_erfcf(x);
}

static void errors_stay_within_bounds(void **state)
{
    (void)state;
    check("exp", exp_of, exp, -INFINITY, INFINITY, 1);
    check("tanh", tanh_of, tanh, -INFINITY, INFINITY, 1.5);
    check("log", log_of, log, -INFINITY, INFINITY, 1);
    check("log1p", log1p_of, log1p, 0, 3.4028235e38f, 1.5);
    check("erfc", erfc_of, erfc, -INFINITY, 9.1f, 7); /* then it is a denormal number */
}

static void exp_in_double(void **state)
{
    (void)state;
    for (int i = 0; i < 700000; i++) {
        const double x = -1e-3 * i, truth = exp(x), off = fabs(firn_exp_below(x) / truth - 1);
        if (!(off <= 4e-16))
            fail_msg("exp(%g) is off by %g", x, off);
    }
    assert_true(firn_exp_below(-INFINITY) == 0 && firn_exp_below(-800) == 0);
    assert_true(isnan(firn_exp_below(NAN)));
}

static void limits(void **state)
{
    (void)state;
    assert_true(firn_logf(0) == -INFINITY && firn_logf(-0.0f) == -INFINITY && firn_logf(INFINITY) == INFINITY);
    assert_true(isnan(firn_logf(-1)) && isnan(firn_logf(-INFINITY)) && isnan(firn_logf(NAN)));
    assert_true(firn_erfcf(INFINITY) == 0 && firn_erfcf(-INFINITY) == 2 && isnan(firn_erfcf(NAN)));
    assert_true(firn_erfcf(100) == 0 && firn_erfcf(-100) == 2);
    assert_true(firn_log1pf(0) == 0 && isnan(firn_log1pf(NAN)));
}

/* Any length: the lanes' remainder counts as much as the rest. */
static void sums_of_exponentials(void **state)
{
    float x[300];

    (void)state;
    for (int i = 0; i < 300; i++)
        x[i] = (float)(i * 37 % 101) * -0.05f;
    for (int n = 1; n <= 300; n++) {
        double truth = 0;
        for (int i = 0; i < n; i++)
            truth += exp((double)x[i]);
        assert_true(fabs(firn_sum_exp(x, n, 0) / truth - 1) < 1e-6);
        assert_true(fabs(firn_sum_exp_double(x, n, 0) / truth - 1) < 1e-14);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_stay_within_bounds),
        cmocka_unit_test(exp_in_double),
        cmocka_unit_test(limits),
        cmocka_unit_test(sums_of_exponentials),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
