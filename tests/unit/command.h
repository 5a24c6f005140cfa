/* Running the firn command as a user runs it, in a folder of its own that is removed behind the tests. */
#ifndef FIRN_TEST_COMMAND_H
#define FIRN_TEST_COMMAND_H

#include "unit/unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static char folder[64];
static char out[1 << 16], err[1 << 14]; /* what the last command said */

UNUSED static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

UNUSED static bool is_there(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

UNUSED static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

UNUSED static void slurp(const char *name, char *to, size_t size)
{
    FILE *f = fopen(path_of(name), "rb");
    assert_non_null(f);
    to[fread(to, 1, size - 1, f)] = 0;
    fclose(f);
}

UNUSED static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/firn-command-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    write_text("in", "");
    return 0;
}

UNUSED static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* The exit status of "firn ARGS", run in the folder; the file "in" goes to it, what it says is in out and err. */
UNUSED static int firn(const char *args)
{
    char command[4096];
    snprintf(command, sizeof command, "cd %s && %s/firn %s <in >out 2>err", folder, FIRN_BIN_DIR, args);
    const int status = system(command);
    slurp("out", out, sizeof out);
    slurp("err", err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What firn says of arguments that it refuses: the whole of its words, newline included. */
typedef struct {
    const char *args;
    int status;
    const char *sentence;
} refusal;

UNUSED static void check_refusals(const refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(firn(cases[i].args), cases[i].status);
        assert_string_equal(err, cases[i].sentence);
    }
}

#endif
