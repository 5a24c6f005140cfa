/* Class lookup; the table is unicode_data.c. */
#include "text/unicode.h"

firn_unicode_class firn_unicode_classify(uint32_t code)
{
    int low = 0, high = firn_unicode_n_ranges; /* the answer's range is in [low, high) */

    if (code > 0x10FFFF)
        return FIRN_UNICODE_OTHER;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (firn_unicode_ranges[middle] >> 8 <= code)
            low = middle;
        else
            high = middle;
    }
    return (firn_unicode_class)(firn_unicode_ranges[low] & 0xFF);
}
