/* Tensors by class or name; see pattern.h. */
#include "train/pattern.h"

#include <fnmatch.h>
#include <string.h>

bool firn_pattern_split(const char *text, char pattern[FIRN_PATTERN_BYTES], const char **value)
{
    const char *equals = strrchr(text, '=');
    const size_t n = equals ? (size_t)(equals - text) : 0;

    if (n == 0 || n >= FIRN_PATTERN_BYTES || !equals[1])
        return false;
    memcpy(pattern, text, n);
    pattern[n] = 0;
    *value = equals + 1;
    return true;
}

bool firn_pattern_matches(const char *pattern, const char *tensor, firn_class class_)
{
    return strcmp(pattern, firn_class_name(class_)) == 0 || fnmatch(pattern, tensor, 0) == 0;
}
