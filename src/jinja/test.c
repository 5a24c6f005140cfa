/* Tests: value is name(argument). */
#include "jinja/eval.h"

/* A test that needs nothing but the value. */
#define SIMPLE(name, condition)                                                                                        \
    NATIVE(name)                                                                                                       \
    {                                                                                                                  \
        (void)e, (void)arg, (void)raw;                                                                                 \
        *out = jinja_bool(condition);                                                                                  \
        return FIRN_OK;                                                                                                \
    }

SIMPLE(test_defined, self.type != JINJA_UNDEFINED)
SIMPLE(test_undefined, self.type == JINJA_UNDEFINED)
SIMPLE(test_none, self.type == JINJA_NONE)
SIMPLE(test_boolean, self.type == JINJA_BOOL)
SIMPLE(test_true, self.type == JINJA_BOOL && self.boolean)
SIMPLE(test_false, self.type == JINJA_BOOL && !self.boolean)
SIMPLE(test_integer, self.type == JINJA_INT)
SIMPLE(test_float, self.type == JINJA_FLOAT)
SIMPLE(test_number, jinja_is_number(self))
SIMPLE(test_string, self.type == JINJA_STRING)
SIMPLE(test_mapping, self.type == JINJA_DICT)
SIMPLE(test_escaped, self.type == JINJA_STRING && self.flag)
SIMPLE(test_sequence, self.type == JINJA_STRING || self.type == JINJA_LIST || self.type == JINJA_TUPLE ||
                          self.type == JINJA_RANGE || self.type == JINJA_DICT || self.type == JINJA_UNDEFINED)
SIMPLE(test_iterable, self.type == JINJA_STRING || jinja_is_list(self) || self.type == JINJA_DICT ||
                          self.type == JINJA_UNDEFINED || self.type == JINJA_LOOP)
SIMPLE(test_callable, self.type == JINJA_FUNCTION || self.type == JINJA_METHOD || self.type == JINJA_MACRO ||
                          self.type == JINJA_JOINER || self.type == JINJA_LOOP || self.type == JINJA_UNDEFINED)

/* self % divisor == remainder */
static firn_status divisible(jinja_eval *e, jinja_value self, jinja_value divisor, int remainder, jinja_value *out)
{
    jinja_value rest;
    bool equal;

    FIRN_TRY(firn_jinja_binary(e, JINJA_T_MOD, self, divisor, &rest));
    FIRN_TRY(firn_jinja_equal(e, rest, jinja_int(remainder), 0, &equal));
    *out = jinja_bool(equal);
    return FIRN_OK;
}

NATIVE(test_odd)
{
    (void)arg, (void)raw;
    return divisible(e, self, jinja_int(2), 1, out);
}

NATIVE(test_even)
{
    (void)arg, (void)raw;
    return divisible(e, self, jinja_int(2), 0, out);
}

NATIVE(test_divisibleby)
{
    (void)raw;
    return divisible(e, self, arg[0], 0, out);
}

/* Every cased character of str(self) has the wanted case, and there is one. */
static firn_status cased(jinja_eval *e, jinja_value self, bool upper, jinja_value *out)
{
    bool any = false, all = true;

    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    for (size_t i = 0; i < self.string->size; i += firn_jinja_char_size(self.string->data[i])) {
        const uint32_t c = firn_jinja_char_at(self.string->data + i);
        any |= upper ? firn_jinja_is_upper(c) : firn_jinja_is_lower(c);
        all &= upper ? !firn_jinja_is_lower(c) : !firn_jinja_is_upper(c);
    }
    *out = jinja_bool(any && all);
    return FIRN_OK;
}

NATIVE(test_lower)
{
    (void)arg, (void)raw;
    return cased(e, self, false, out);
}

NATIVE(test_upper)
{
    (void)arg, (void)raw;
    return cased(e, self, true, out);
}

NATIVE(test_filter)
{
    const jinja_string *name;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, self, "a filter's name", false, &name));
    *out = jinja_bool(firn_jinja_find_filter(name) != NULL);
    return FIRN_OK;
}

NATIVE(test_test)
{
    const jinja_string *name;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, self, "a test's name", false, &name));
    *out = jinja_bool(firn_jinja_find_test(name) != NULL);
    return FIRN_OK;
}

NATIVE(test_sameas)
{
    bool same = self.type == arg[0].type;

    (void)raw;
    if (same && self.type > JINJA_BOOL && self.type <= JINJA_STRING)
        FIRN_TRY(firn_jinja_equal(e, self, arg[0], 0, &same));
    else if (same && self.type == JINJA_BOOL)
        same = self.boolean == arg[0].boolean;
    else if (same && self.type > JINJA_STRING)
        same = self.list == arg[0].list;
    *out = jinja_bool(same);
    return FIRN_OK;
}

NATIVE(test_in)
{
    bool result;

    (void)raw;
    FIRN_TRY(firn_jinja_contains(e, arg[0], self, &result));
    *out = jinja_bool(result);
    return FIRN_OK;
}

static firn_status compare(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, jinja_value *out)
{
    bool result;

    if (op == JINJA_T_EQ || op == JINJA_T_NE)
        FIRN_TRY(firn_jinja_equal(e, a, b, 0, &result));
    else
        FIRN_TRY(firn_jinja_order(e, op, a, b, &result));
    *out = jinja_bool(result ^ (op == JINJA_T_NE));
    return FIRN_OK;
}

#define COMPARISON(name, op)                                                                                           \
    NATIVE(name)                                                                                                       \
    {                                                                                                                  \
        (void)raw;                                                                                                     \
        return compare(e, op, self, arg[0], out);                                                                      \
    }

COMPARISON(test_eq, JINJA_T_EQ)
COMPARISON(test_ne, JINJA_T_NE)
COMPARISON(test_lt, JINJA_T_LT)
COMPARISON(test_le, JINJA_T_LE)
COMPARISON(test_gt, JINJA_T_GT)
COMPARISON(test_ge, JINJA_T_GE)

const jinja_row firn_jinja_tests[] = {
    {"!=", test_ne, "other", 1},
    {"<", test_lt, "other", 1},
    {"<=", test_le, "other", 1},
    {"==", test_eq, "other", 1},
    {">", test_gt, "other", 1},
    {">=", test_ge, "other", 1},
    {"boolean", test_boolean, "", 0},
    {"callable", test_callable, "", 0},
    {"defined", test_defined, "", 0},
    {"divisibleby", test_divisibleby, "num", 1},
    {"eq", test_eq, "other", 1},
    {"equalto", test_eq, "other", 1},
    {"escaped", test_escaped, "", 0},
    {"even", test_even, "", 0},
    {"false", test_false, "", 0},
    {"filter", test_filter, "", 0},
    {"float", test_float, "", 0},
    {"ge", test_ge, "other", 1},
    {"greaterthan", test_gt, "other", 1},
    {"gt", test_gt, "other", 1},
    {"in", test_in, "seq", 1},
    {"integer", test_integer, "", 0},
    {"iterable", test_iterable, "", 0},
    {"le", test_le, "other", 1},
    {"lessthan", test_lt, "other", 1},
    {"lower", test_lower, "", 0},
    {"lt", test_lt, "other", 1},
    {"mapping", test_mapping, "", 0},
    {"ne", test_ne, "other", 1},
    {"none", test_none, "", 0},
    {"number", test_number, "", 0},
    {"odd", test_odd, "", 0},
    {"sameas", test_sameas, "other", 1},
    {"sequence", test_sequence, "", 0},
    {"string", test_string, "", 0},
    {"test", test_test, "", 0},
    {"true", test_true, "", 0},
    {"undefined", test_undefined, "", 0},
    {"upper", test_upper, "", 0},
    {0},
};

const jinja_row *firn_jinja_find_test(const jinja_string *name)
{
    return firn_jinja_find_row(firn_jinja_tests, name);
}
