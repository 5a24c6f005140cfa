/* firn: finds the subcommand and runs it. */
#include "cmd.h"

#include "core/leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define COMMAND(name, function, line) int function(int argc, char **argv);
#include "commands.def"
#undef COMMAND

static const struct {
    const char *name;
    int (*run)(int, char **);
    const char *line;
} commands[] = {
#define COMMAND(name, function, line) {name, function, line},
#include "commands.def"
#undef COMMAND
    {NULL, NULL, NULL},
};

static void help(FILE *out)
{
    fprintf(out,
            "firn %s: fine-tunes Mixture-of-Experts models through their frozen, quantized experts\n\n"
            "usage: firn COMMAND [arguments]     (firn COMMAND --help explains one)\n\n",
            firn_version());
    for (int i = 0; commands[i].name; i++)
        fprintf(out, "  %-14s %s\n", commands[i].name, commands[i].line);
}

/* What a signal ends leaves nothing half-written behind. */
static void leave(int number)
{
    firn_leftovers_remove();
    raise(number); /* comes when this returns, and finds no handler */
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGXCPU};
    struct sigaction action = {.sa_handler = leave, .sa_flags = (int)SA_RESETHAND}, old;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit of size is an error with a sentence */
}

/* A program that is started with one of the descriptors 0 to 2 closed would get it for the next file that it opens, and
 * what is printed would go there. */
static void open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", O_RDWR); /* gets the lowest free number: this one */
}

enum { LEAST_STACK_KB = 128 };

/* 0, or the exit status after a printed sentence. */
static int check_stack(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < LEAST_STACK_KB * 1024)
        return cmd_fail("the stack is limited to %llu KiB; expected at least %d (ulimit -s)",
                        (unsigned long long)limit.rlim_cur / 1024, LEAST_STACK_KB);
    return 0;
}

int main(int argc, char **argv)
{
    open_standard();
    catch_signals();
    if (check_stack() != 0)
        return 1;
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("firn %s\n", firn_version());
        return 0;
    }
    for (int i = 0; commands[i].name; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            const int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout))
                return status ? status : cmd_fail("cannot write to standard output");
            return status;
        }
    }
    fprintf(stderr, "firn: there is no command '%s' (firn --help lists them)\n", argv[1]);
    return 2;
}
