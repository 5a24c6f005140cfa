/* What every cmocka program of ours includes. */
#ifndef FIRN_TEST_UNIT_H
#define FIRN_TEST_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

/* Appends a line to the file that FIRN_CHECKED names, where it is set: what a document says was checked comes from the
 * test that checked it (scripts/make_text_checks). */
__attribute__((format(printf, 1, 2), unused)) static void unit_record(const char *format, ...)
{
    const char *path = getenv("FIRN_CHECKED");
    FILE *f = path ? fopen(path, "a") : NULL;
    va_list args;

    if (!f)
        return;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    fclose(f);
}

#endif
