/* Any bytes on their way to a terminal, whole and cut in two. What must hold: what comes out is UTF-8 without anything
 * that steers, taming it again changes nothing, and where the bytes were cut does not matter. */
#include "said.h"

#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t put(const uint8_t *data, size_t cut, size_t size, char *to, size_t room)
{
    FILE *f = fmemopen(to, room, "w");
    cmd_said said = {0};

    if (!f)
        abort();
    cmd_said_put(&said, f, (const char *)data, cut);
    cmd_said_put(&said, f, (const char *)data + cut, size - cut);
    cmd_said_end(&said, f);
    const long n = ftell(f);
    fclose(f);
    return (size_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char one[4096], two[4096];
    size_t bad;

    if (size < 1 || size > 2000)
        return 0;
    const size_t cut = data[0] % size, n = put(data + 1, cut, size - 1, one, sizeof one);
    if (put(data + 1, 0, size - 1, two, sizeof two) != n || memcmp(one, two, n) != 0 ||
        !firn_utf8_valid(one, n, &bad) || firn_tame(one, n) != n || memcmp(one, two, n) != 0)
        abort();
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)one[i] < 0x20 && one[i] != '\n' && one[i] != '\t') || one[i] == 0x7F)
            abort();
    return 0;
}
