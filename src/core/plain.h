/* printf and strtod as in the C locale, whatever locale the program has set (programs with windows set the user's,
 * where the point may be a comma): what is written for machines, for templates and for a resume must read the same. */
#ifndef FIRN_CORE_PLAIN_H
#define FIRN_CORE_PLAIN_H

#include "firn/firn.h"

#include <stdarg.h>
#include <stddef.h>

int firn_vsnprintf(char *text, size_t size, const char *format, va_list args);
int firn_snprintf(char *text, size_t size, const char *format, ...) FIRN_PRINTF(3, 4);
double firn_strtod(const char *text, char **end);

#endif
