/* Character classes and case mappings of Python's str, over the generated tables of unicode_ranges.h. */
#include "jinja/value.h"

typedef struct {
    uint32_t first, last;
} code_range;

typedef struct {
    uint32_t first, last;
    int step, delta;
} case_run;

typedef struct {
    uint32_t code, to[3]; /* ends with 0 */
} case_special;

#include "jinja/unicode_ranges.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool in_ranges(const code_range *table, size_t n, uint32_t c)
{
    size_t low = 0, high = n;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (c > table[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && c >= table[low].first;
}

bool firn_jinja_is_space(uint32_t c)
{
    return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) : in_ranges(white, COUNT(white), c);
}

bool firn_jinja_is_printable(uint32_t c)
{
    return c < 0x80 ? c >= ' ' && c < 0x7F : !in_ranges(not_printable, COUNT(not_printable), c);
}

bool firn_jinja_is_alpha(uint32_t c)
{
    return in_ranges(alphabetic, COUNT(alphabetic), c);
}

bool firn_jinja_is_decimal(uint32_t c)
{
    return in_ranges(decimals, COUNT(decimals), c);
}

bool firn_jinja_is_digit(uint32_t c)
{
    return firn_jinja_is_decimal(c) || in_ranges(digits, COUNT(digits), c);
}

bool firn_jinja_is_numeric(uint32_t c)
{
    return firn_jinja_is_digit(c) || in_ranges(numerics, COUNT(numerics), c);
}

bool firn_jinja_is_upper(uint32_t c)
{
    return in_ranges(uppercase, COUNT(uppercase), c);
}

bool firn_jinja_is_lower(uint32_t c)
{
    return in_ranges(lowercase, COUNT(lowercase), c);
}

static uint32_t simple(const case_run *table, size_t n, uint32_t c)
{
    size_t low = 0, high = n;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (c > table[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    /* Runs of step 2 may lie inside one another by one: look at the next as well. */
    for (size_t i = low; i < n && i < low + 2; i++)
        if (c >= table[i].first && c <= table[i].last && (c - table[i].first) % (uint32_t)table[i].step == 0)
            return (uint32_t)((int64_t)c + table[i].delta);
    return c;
}

static bool put_special(firn_text *out, const case_special *table, size_t n, uint32_t c)
{
    size_t low = 0, high = n;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (c > table[middle].code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == n || table[low].code != c)
        return false;
    for (int k = 0; k < 3 && table[low].to[k]; k++)
        firn_text_codepoint(out, table[low].to[k]);
    return true;
}

void firn_jinja_put_upper(firn_text *out, uint32_t c)
{
    if (c < 0x80)
        firn_text_putc(out, (char)(c >= 'a' && c <= 'z' ? c - 32 : c));
    else if (!put_special(out, special_upper, COUNT(special_upper), c))
        firn_text_codepoint(out, simple(to_upper, COUNT(to_upper), c));
}

void firn_jinja_put_lower(firn_text *out, uint32_t c)
{
    if (c < 0x80)
        firn_text_putc(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
    else if (!put_special(out, special_lower, COUNT(special_lower), c))
        firn_text_codepoint(out, simple(to_lower, COUNT(to_lower), c));
}

void firn_jinja_put_title(firn_text *out, uint32_t c)
{
    if (c < 0x80 || !put_special(out, special_title, COUNT(special_title), c))
        firn_jinja_put_upper(out, c);
}
