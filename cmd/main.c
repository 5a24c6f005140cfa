/* firn: finds the subcommand and runs it. */
#include "cmd.h"
#include "complete.h"
#include "core/nearest.h"
#include "said.h"

#include "core/file.h"
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
            "usage: firn COMMAND [arguments]     (firn help COMMAND explains one)\n\n",
            firn_version());
    for (int i = 0; commands[i].name; i++)
        fprintf(out, "  %-14s %s\n", commands[i].name, commands[i].line);
}

static int find(const char *name)
{
    for (int i = 0; commands[i].name; i++)
        if (strcmp(commands[i].name, name) == 0)
            return i;
    return -1;
}

/* Other tools' words for a command. */
static const struct {
    const char *theirs, *ours;
} aliases[] = {
    {"train", "finetune"},     {"fine-tune", "finetune"}, {"tune", "finetune"}, {"lora", "finetune"},
    {"sft", "finetune"},       {"chat", "generate"},      {"run", "generate"},  {"infer", "generate"},
    {"inference", "generate"}, {"perplexity", "eval"},    {"evaluate", "eval"}, {"convert", "export"},
    {"show", "info"},          {"inspect", "info"},       {"dataset", "data"},  {"encode", "tokenize"},
    {"decode", "detokenize"},  {"follow", "watch"},       {"monitor", "watch"},
};

static int no_command(const char *name)
{
    const char *names[sizeof commands / sizeof *commands], *near = NULL;
    size_t n = 0;

    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].theirs, name) == 0 && find(aliases[i].ours) >= 0)
            near = aliases[i].ours;
    for (; commands[n].name; n++)
        names[n] = commands[n].name;
    near = near ? near : firn_nearest(name, names, n);
    cmd_said_printf(stderr, "firn: there is no command '%s'", name);
    if (near)
        fprintf(stderr, "; did you mean %s?", near);
    fputs(" (firn --help lists them)\n", stderr);
    return 2;
}

/* "firn help", "firn help COMMAND" */
static int explain(int argc, char **argv)
{
    static char option[] = "--help";

    if (argc < 2) {
        help(stdout);
        return 0;
    }
    const int i = find(argv[1]);
    char *words[] = {argv[1], option, NULL};
    return i < 0 ? no_command(argv[1]) : commands[i].run(2, words);
}

/* "firn --complete WORD...": see complete.h. */
static int complete(int argc, char **argv)
{
    if (argc < 1)
        return 0;
    const char *typed = argv[argc - 1];
    const bool helped = strcmp(argv[0], "help") == 0;
    if (argc == 1 || (argc == 2 && helped)) {
        for (int i = 0; commands[i].name; i++)
            cmd_complete_word(commands[i].name, typed, commands[i].line);
        if (argc == 1) {
            cmd_complete_word("help", typed, "explain a command");
            cmd_complete_word("--help", typed, "list the commands");
            cmd_complete_word("--version", typed, "print the version");
        }
        return 0;
    }
    const int i = find(argv[0]);
    cmd_completing = true;
    return i < 0 ? 0 : commands[i].run(argc, argv);
}

/* What a signal ends leaves nothing half-written behind. */
static void leave(int number)
{
    firn_leftovers_remove();
    raise(number); /* comes when this returns, and finds no handler */
}

/* A mapped file that cannot be read: the library goes on with zeros and fails with a sentence. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code <= 0 || !firn_map_fault(info->si_addr)) { /* sent by somebody, or not a file of ours */
        signal(number, SIG_DFL);
        leave(number);
    }
}

static void catch_faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
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

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return explain(argc - 1, argv + 1);
    if (strcmp(argv[1], "--complete") == 0)
        return complete(argc - 2, argv + 2);
    if (strcmp(argv[1], "--version") == 0) {
        printf("firn %s\n", firn_version());
        return 0;
    }
    const int i = find(argv[1]);
    return i < 0 ? no_command(argv[1]) : commands[i].run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    open_standard();
    catch_signals();
    catch_faults();
    if (check_stack() != 0)
        return 1;
    const int status = run(argc, argv);
    cmd_forget_lists();
    if (fflush(stdout) != 0 || ferror(stdout)) /* a full disk: what was said is not there */
        return status ? status : cmd_fail("cannot write to standard output");
    if (status == 0 && firn_map_last_fault()[0])
        return cmd_fail("%s", firn_map_last_fault());
    return status;
}
