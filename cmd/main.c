/* firn: finds the subcommand and runs it. */
#include "cmd.h"

#include "core/file.h"

#include <signal.h>
#include <string.h>

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
    firn_out_discard();
    raise(number); /* comes when this returns, and finds no handler */
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = leave, .sa_flags = (int)SA_RESETHAND}, old;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

int main(int argc, char **argv)
{
    catch_signals();
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
