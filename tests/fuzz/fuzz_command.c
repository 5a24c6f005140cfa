/* Any bytes as the input of a command: the first byte chooses the command and what the rest is to it, a model, an
 * adapter, a data set, prompts, token ids, a template, messages. The commands run as `firn` runs them, with a small
 * model of random weights where they need one. What must hold: they come back with 0, 1 or 2, a failure says a
 * sentence, and nothing that they say on standard error steers a terminal. */
#include "cmd.h"

#include "core/file.h"
#include "core/utf8.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMAND(name, function, line) int function(int argc, char **argv);
#include "commands.def"
#undef COMMAND

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ARGS = 16 };

/* X: the input; M: the model; T: a template; C: messages; I: token ids; O: a file to write; D: a folder to write. */
static const struct {
    int (*run)(int, char **);
    const char *args;
    const char *input; /* its name: what some commands tell formats by */
} cases[] = {
    {cmd_info, "info X", "x.gguf"},
    {cmd_info, "info X --json", "x.gguf"},
    {cmd_quantize, "quantize X O q8_0 --threads 1", "x.gguf"},
    {cmd_quantize, "quantize X O f16 --experts q4_K --threads 1", "x.gguf"},
    {cmd_upcycle, "upcycle X O --experts 2 --used 1", "x.gguf"},
    {cmd_export, "export M X D", "x.gguf"},
    {cmd_logits, "logits M --tokens X -o O --threads 1", "x.json"},
    {cmd_detokenize, "detokenize M --file X", "x.json"},
    {cmd_tokenize, "tokenize M --file X", "x.txt"},
    {cmd_generate, "generate M --prompts X -n 2 --threads 1", "x.txt"},
    {cmd_generate, "generate M --prompts X -n 2 --json --threads 1", "x.jsonl"},
    {cmd_data, "data show M X", "x.jsonl"},
    {cmd_eval, "eval M --data X --context 16 --json --threads 1", "x.jsonl"},
    {cmd_chat_template, "chat-template --template X --messages C --now 2026-01-02T03:04:05", "x.jinja"},
    {cmd_chat_template, "chat-template --template T --messages X --now 2026-01-02T03:04:05", "x.json"},
    {cmd_logits, "logits M --tokens I -o O --threads 1 --adapter X", "x.gguf"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static char folder[64];
static int said; /* what standard error goes to */

static char *in_folder(const char *name)
{
    char *path = malloc(128);

    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    char *path = in_folder(name);
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        abort();
    free(path);
}

static void remove_folder(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        _exit(1);
}

/* Splits the words and puts paths for the capitals; what argv points to stays in `words` and `paths`. */
static int arguments(const char *line, const char *input, char words[256], char *argv[MAX_ARGS], char *paths[MAX_ARGS])
{
    int argc = 0;

    snprintf(words, 256, "%s", line);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "), argc++) {
        const char *name = strcmp(w, "X") == 0   ? input
                           : strcmp(w, "M") == 0 ? "m.gguf"
                           : strcmp(w, "T") == 0 ? "t.jinja"
                           : strcmp(w, "C") == 0 ? "c.json"
                           : strcmp(w, "I") == 0 ? "i.json"
                           : strcmp(w, "O") == 0 ? "out"
                           : strcmp(w, "D") == 0 ? "outs"
                                                 : NULL;
        paths[argc] = name ? in_folder(name) : NULL;
        argv[argc] = name ? paths[argc] : w;
    }
    argv[argc] = NULL;
    return argc;
}

static int run(int (*command)(int, char **), const char *line, const char *input)
{
    char words[256], *argv[MAX_ARGS], *paths[MAX_ARGS];
    const int argc = arguments(line, input, words, argv, paths), status = command(argc, argv);

    for (int i = 0; i < argc; i++)
        free(paths[i]);
    return status;
}

static void begin(void)
{
    static const char template[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    static const char ids[] = "[1, 2, 3]";
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"}]";

    snprintf(folder, sizeof folder, "%s/firn-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
    write_bytes("t.jinja", template, sizeof template - 1);
    write_bytes("c.json", messages, sizeof messages - 1);
    write_bytes("i.json", ids, sizeof ids - 1);
    char *err = in_folder("said");
    if (!freopen("/dev/null", "w", stdout) ||
        run(cmd_init, "init --like tiny-qwen3moe --layers 1 --width 64 --vocabulary 320 --experts 4 --used 2 M", "") !=
            0)
        abort();
    said = firn_open(err, O_RDWR | O_CREAT, 0600);
    if (said < 0)
        abort();
    free(err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char words[1 << 16], tame[1 << 16];

    if (!folder[0])
        begin();
    if (size < 1)
        return 0;
    const int which = data[0] % N_CASES;
    write_bytes(cases[which].input, data + 1, size - 1);
    /* While the command runs, standard error is ours. */
    fflush(stderr);
    const int before = dup(STDERR_FILENO);
    if (before < 0 || ftruncate(said, 0) != 0 || lseek(said, 0, SEEK_SET) != 0 || dup2(said, STDERR_FILENO) < 0)
        abort();
    const int status = run(cases[which].run, cases[which].args, cases[which].input);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    const ssize_t n = pread(said, words, sizeof words, 0);
    if (status < 0 || status > 2 || n < 0 || (status != 0 && n == 0))
        abort();
    for (ssize_t i = 0; i < n; i++)
        words[i] = words[i] == '\r' ? '\n' : words[i]; /* of lines that show progress */
    memcpy(tame, words, (size_t)n);
    if (n < (ssize_t)sizeof words && (firn_tame(tame, (size_t)n) != (size_t)n || memcmp(tame, words, (size_t)n) != 0))
        abort();
    return 0;
}
