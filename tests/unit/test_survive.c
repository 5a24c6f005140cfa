/* Hostile use and bad luck, as the command meets them: two processes at once, closed descriptors, signals, damaged
 * files, small limits. */
#include "unit/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#define RUN                                                                                                            \
    "finetune --model m.gguf --data d.jsonl --output r --context 64 --rank 2 --save-every 2 --eval-every 2 "           \
    "--schedule constant "                                                                                             \
    "--threads 1"

static int setup(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    FILE *f = fopen(path_of("d.jsonl"), "w");
    if (!f)
        return -1;
    for (int i = 0; i < 30; i++)
        fprintf(f, "{\"prompt\": \"one %d\", \"completion\": \" two %d\"}\n", i % 7, i % 5);
    fclose(f);
    return firn("init --like tiny --seed 1 m.gguf");
}

/* A shell command in the folder; its exit status. */
static int sh(const char *command)
{
    char line[2048];

    snprintf(line, sizeof line, "cd %s && PATH=%s:$PATH && %s", folder, FIRN_BIN_DIR, command);
    const int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* firn in the background, standard error in the file "log". */
static pid_t start(char *const *argv)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (chdir(folder) == 0 && freopen("log", "w", stderr) && freopen("/dev/null", "w", stdout))
            execv(FIRN_BIN_DIR "/firn", argv);
        _exit(99);
    }
    return pid;
}

static int end_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static char *const endless[] = {
    "firn",      "finetune", "--model",      "m.gguf", "--data",       "d.jsonl", "--output",  "r", "--steps", "100000",
    "--context", "64",       "--save-every", "0",      "--eval-every", "0",       "--threads", "1", NULL};

static void await_step(int step)
{
    char command[64];

    snprintf(command, sizeof command, "grep -qs 'step.: %d,' r/metrics.jsonl", step);
    for (int i = 0; i < 6000 && sh(command) != 0; i++)
        usleep(10000);
    assert_int_equal(sh(command), 0);
}

/* ---- one writer at a time ---- */

static void the_second_run_in_a_folder_is_refused(void **state)
{
    char sentence[160];

    (void)state;
    sh("rm -rf r");
    const pid_t pid = start(endless);
    await_step(1);
    snprintf(sentence, sizeof sentence,
             "firn: r is being written by process %ld: wait until that ends, or take another folder\n", (long)pid);
    assert_int_equal(firn(RUN " --steps 4"), 1);
    assert_string_equal(err, sentence);
    assert_int_equal(firn("finetune --resume r"), 1);
    assert_string_equal(err, sentence);
    assert_int_equal(sh("test ! -e r/checkpoints"), 0);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), -SIGKILL);
    assert_true(is_there("r/firn.lock")); /* it holds nobody up */
    assert_int_equal(
        sh("touch r/run.json.tmp7 r/adapter.gguf.tmp123 r/adapter.gguf.lock r/mine.tmp7; mkdir r/checkpoints; "
           "touch r/checkpoints/step-00000001.gguf.tmp99"),
        0);
    assert_int_equal(firn("finetune --resume r --steps 2 --threads 1"), 0);
    assert_int_equal(sh("test \"$(ls -a r r/checkpoints | grep -E 'tmp|lock')\" = mine.tmp7"), 0);
}

/* As another process of this machine would hold it. */
static int hold(const char *lock)
{
    const int fd = open(path_of(lock), O_RDWR | O_CREAT, 0666);
    char host[256] = "", text[300];

    gethostname(host, sizeof host - 1);
    const int n = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && write(fd, text, (size_t)n) == n);
    return fd;
}

static void expect_refused(const char *command, const char *lock, const char *format)
{
    char sentence[256];
    const int fd = hold(lock);

    snprintf(sentence, sizeof sentence, format, (long)getpid());
    assert_int_equal(firn(command), 1);
    if (!strstr(err, sentence))
        fail_msg("expected '%s' in: %s", sentence, err);
    assert_true(is_there(lock));
    close(fd);
    assert_int_equal(firn(command), 0);
    assert_false(is_there(lock));
}

static void the_second_writer_of_a_file_is_refused(void **state)
{
    (void)state;
    write_text("x.gguf.tmp123", "left by a killed process");
    write_text("x.gguf.tmp12a", "somebody else's");
    expect_refused("init --like tiny-llama x.gguf", "x.gguf.lock",
                   "firn: cannot write x.gguf: process %ld is writing it\n");
    assert_false(is_there("x.gguf.tmp123"));
    assert_true(is_there("x.gguf.tmp12a"));
    expect_refused("quantize x.gguf y.gguf q8_0", "y.gguf.lock",
                   "firn: cannot write y.gguf: process %ld is writing it\n");
    expect_refused("upcycle x.gguf y.gguf --experts 2 --used 1", "y.gguf.lock",
                   "firn: cannot write y.gguf: process %ld is writing it\n");
    /* what a conversation goes on from is nobody else's until it ends, also where nothing is being written */
    expect_refused("generate m.gguf --chat -n 2 --history h.json", "h.json.chat.lock",
                   "firn: cannot write h.json: process %ld is writing it\n");
    mkdir(path_of("peft"), 0777);
    expect_refused("export m.gguf r/adapter.gguf peft", "peft/firn.lock",
                   "firn: peft is being written by process %ld: wait until that ends, or take another folder\n");
}

static char *const saving[] = {
    "firn",      "finetune", "--model",      "m.gguf", "--data",       "d.jsonl", "--output",  "r", "--steps", "100000",
    "--context", "64",       "--save-every", "1",      "--eval-every", "0",       "--threads", "1", NULL};

/* A lock that a clean-up removed is taken again with the next checkpoint. */
static void a_removed_lock_comes_back(void **state)
{
    (void)state;
    sh("rm -rf r");
    const pid_t pid = start(saving);
    await_step(1);
    assert_int_equal(
        sh("rm r/firn.lock; for i in $(seq 6000); do [ -s r/firn.lock ] && exit 0; sleep 0.01; done; exit 1"), 0);
    assert_int_equal(firn("finetune --resume r"), 1);
    assert_non_null(strstr(err, "firn: r is being written by process "));
    kill(pid, SIGTERM);
    assert_int_equal(end_of(pid), 128 + SIGTERM);
    assert_false(is_there("r/firn.lock"));
}

/* A folder that was moved away, and in whose place another process has begun a run: the first one leaves it alone. */
static void a_run_does_not_write_into_anothers_folder(void **state)
{
    (void)state;
    sh("rm -rf r r2 new");
    assert_int_equal(mkdir(path_of("new"), 0777), 0);
    const int fd = hold("new/firn.lock");
    const pid_t pid = start(endless);
    await_step(1);
    kill(pid, SIGSTOP); /* it would make r again between the two */
    assert_int_equal(sh("mv r r2 && mv new r"), 0);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    assert_int_equal(end_of(pid), 1);
    assert_int_equal(
        sh("tail -n 1 log | grep '^firn: .*/r is being written by process ' || { tail -n 3 log; exit 1; }"), 0);
    assert_int_equal(sh("test \"$(ls r)\" = firn.lock && test -s r2/metrics.jsonl"), 0);
    close(fd);
}

/* Who is told that a run can be resumed has its checkpoint. */
static void a_stop_without_a_checkpoint_is_an_error(void **state)
{
    (void)state;
    sh("rm -rf r");
    const pid_t pid = start(endless);
    await_step(1);
    assert_int_equal(sh("echo x >r/checkpoints"), 0);
    kill(pid, SIGTERM);
    assert_int_equal(end_of(pid), 1);
    assert_int_equal(sh("tail -n 1 log | grep -q '^firn: .*/r/checkpoints: a file of that name is there'"), 0);
}

/* The first process takes the folder before it writes run.json: the second must hear of the process, not of a folder
 * that holds no run. */
static void a_run_that_begins_is_told_from_none(void **state)
{
    char sentence[160];

    (void)state;
    assert_int_equal(mkdir(path_of("begun"), 0777), 0);
    const int fd = hold("begun/firn.lock");
    snprintf(sentence, sizeof sentence,
             "firn: begun is being written by process %ld: wait until that ends, or take another folder\n",
             (long)getpid());
    assert_int_equal(firn("finetune --resume begun"), 1);
    assert_string_equal(err, sentence);
    close(fd);
    assert_int_equal(firn("finetune --resume begun"), 1);
    assert_string_equal(err, "firn: begun holds no run: there is no run.json in it\n");
    assert_false(is_there("begun/firn.lock"));
    assert_int_equal(firn("finetune --resume nowhere"), 1);
    assert_string_equal(err, "firn: nowhere holds no run: there is no run.json in it\n");
}

static void a_refused_command_leaves_no_folder(void **state)
{
    (void)state;
    assert_int_equal(firn("finetune --model m.gguf --data none.jsonl --output a/b/c"), 1);
    assert_false(is_there("a"));
    assert_int_equal(sh("mkdir a"), 0);
    assert_int_equal(firn("finetune --model none.gguf --data d.jsonl --output a/b/"), 1);
    assert_true(is_there("a"));
    assert_false(is_there("a/b"));
}

/* ---- descriptors ---- */

static void closed_descriptors_get_no_text_into_files(void **state)
{
    static const char *const closed[] = {"2>&-", ">&- 2>&-", "<&- >&- 2>&-"};
    char command[512];

    (void)state;
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        snprintf(command, sizeof command, "rm -rf r; firn " RUN " --steps 3 %s", closed[i]);
        assert_int_equal(sh(command), 0);
        assert_int_equal(
            sh("test $(grep -c . r/metrics.jsonl) = 4 && test $(grep -c '^{\"step\": .*}$' r/metrics.jsonl) = 4"), 0);
        assert_int_equal(firn("finetune --resume r --steps 4 --threads 1"), 0);
    }
}

/* ---- logs and checkpoints ---- */

static void logs_never_stop_a_run(void **state)
{
    static const struct {
        const char *harm, *warning;
    } cases[] = {
        {"sed -i '2s/.*/{\"step\": 1, \"lo/' r/metrics.jsonl",
         "warning: the report leaves out 1 damaged line of metrics.jsonl"},
        {"rm r/metrics.jsonl", "r/metrics.jsonl is lost and begun anew"},
        {"truncate -s 150 r/metrics.jsonl", "r/metrics.jsonl is damaged: "},
        {"tr '\\n' ' ' <r/metrics.jsonl >t; mv t r/metrics.jsonl", "r/metrics.jsonl is damaged: 0 of the "},
        {"rm r/metrics.jsonl; mkdir r/metrics.jsonl", "r/metrics.jsonl: Is a directory; the run goes on"},
        {"rm r/metrics.jsonl; mkfifo r/metrics.jsonl", "r/metrics.jsonl: it is a pipe, not a file; the run goes on"},
        {"ln -sf /dev/full r/metrics.jsonl", "r/metrics.jsonl: it is a device, not a file; the run goes on"},
        {"rm r/before.json; echo x >r/report.html", "going on after step 4"},
    };

    (void)state;
    sh("rm -rf r kept");
    assert_int_equal(firn(RUN " --steps 4"), 0);
    assert_int_equal(sh("cp r/adapter.gguf four.gguf; mv r kept; cp -r kept r"), 0);
    assert_int_equal(firn("finetune --resume r --steps 6 --threads 1"), 0);
    assert_int_equal(sh("cp r/adapter.gguf six.gguf"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sh("rm -rf r; cp -r kept r");
        assert_int_equal(sh(cases[i].harm), 0);
        assert_int_equal(firn("finetune --resume r --steps 6 --threads 1"), 0);
        if (!strstr(err, cases[i].warning))
            fail_msg("expected '%s' in: %s", cases[i].warning, err);
        assert_int_equal(sh("cmp r/adapter.gguf six.gguf && test -s r/report.html"), 0);
    }
}

static void a_changed_description_is_noticed(void **state)
{
    static const struct {
        const char *edit, *sentence;
    } cases[] = {
        {"s/\"seed\": 1/\"seed\": 5/", "the run was started with \"seed: 1\", and run.json now says \"seed: 5\""},
        {"s/\"eval_split\": 0.05[0-9]*/\"eval_split\": 0.5/", "and run.json now says \"eval_split: 0.5\""},
        {"s/\"context\": 64/\"context\": 32/", "and run.json now says \"context: 32\""},
        {"s/\"version\": 2/\"version\": 1/", "expected the run of a firn that writes version 2"},
    };
    char command[256];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sh("rm -rf r; cp -r kept r");
        snprintf(command, sizeof command, "sed -i '%s' r/run.json; ! cmp -s r/run.json kept/run.json", cases[i].edit);
        assert_int_equal(sh(command), 0);
        assert_int_equal(firn("finetune --resume r --steps 6 --threads 1"), 1);
        if (!strstr(err, cases[i].sentence))
            fail_msg("expected '%s' in: %s", cases[i].sentence, err);
    }
}

static void a_flipped_bit_goes_back_to_the_checkpoint_before(void **state)
{
    (void)state;
    sh("rm -rf r; cp -r kept r");
    /* a low bit of some value, as a bad disk would turn it */
    assert_int_equal(sh("f=r/checkpoints/step-00000004.gguf; at=$(($(stat -c %s $f) - 4000)); "
                        "printf '\\125' | dd of=$f bs=1 seek=$at conv=notrunc status=none; "
                        "! cmp -s $f kept/checkpoints/step-00000004.gguf"),
                     0);
    assert_int_equal(firn("finetune --resume r --steps 6 --threads 1"), 0);
    assert_non_null(strstr(err, "warning: the checkpoint of step 4 cannot be used: "));
    assert_non_null(strstr(err, "it is damaged"));
    assert_non_null(strstr(err, "going on after step 2"));
    assert_int_equal(sh("cmp r/adapter.gguf six.gguf"), 0);
}

/* ---- files that change while they are mapped ---- */

/* A run on x.gguf, a copy of the model, to which `harm` is done after its first step; its last words must be
 * `sentence`, and its checkpoint whole. */
static void expect_stopped(const char *harm, const char *sentence)
{
    char *argv[] = {"firn",      "finetune", "--model",   "x.gguf", "--data",       "d.jsonl", "--output",     "r",
                    "--steps",   "100000",   "--context", "64",     "--save-every", "1",       "--eval-every", "0",
                    "--threads", "2",        NULL};

    assert_int_equal(sh("rm -rf r; cp m.gguf x.gguf"), 0);
    const pid_t pid = start(argv);
    await_step(1);
    assert_int_equal(sh(harm), 0);
    assert_int_equal(end_of(pid), 1);
    slurp("log", err, sizeof err);
    if (!strstr(err, sentence))
        fail_msg("expected '%s' in: %s", sentence, err);
    assert_int_equal(sh("test $(ls r r/checkpoints | grep -cE 'tmp|lock') = 0"), 0);
    assert_int_equal(firn("finetune --resume r --steps 2 --threads 1"), 1);
    assert_non_null(strstr(err, "x.gguf"));
    assert_int_equal(sh("cp m.gguf x.gguf"), 0);
    char command[128];
    assert_int_equal(sh("ls r/checkpoints | tail -n 1 | sed 's/step-0*//; s/.gguf//' >n"), 0);
    snprintf(command, sizeof command, "finetune --resume r --threads 1 --steps $(($(cat n) + 1))");
    assert_int_equal(firn(command), 0);
}

static void a_model_that_is_cut_short_ends_the_run(void **state)
{
    (void)state;
    expect_stopped("truncate -s 20000 x.gguf",
                   "x.gguf was cut to 20000 bytes while it was in use; expected it to keep its ");
    assert_int_equal(sh("grep -qE '^firn: (block [0-9], (forward|backward)|head, (forward|backward)|embedding): ' log"),
                     0);
}

static void weights_that_are_overwritten_end_the_run(void **state)
{
    (void)state;
    expect_stopped("printf '\\1\\2\\3\\4' | dd of=x.gguf bs=1 conv=notrunc status=none "
                   "seek=$(($(stat -c %s x.gguf) - 100))",
                   "x.gguf was written to while it was in use; expected it to stay as it is");
}

/* ---- signals ---- */

static void a_signal_ends_a_run_with_a_checkpoint(void **state)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sh("rm -rf r");
        const pid_t pid = start(endless);
        await_step(1);
        kill(pid, numbers[i]);
        if (numbers[i] == SIGHUP) /* the terminal's, and then the shell's */
            kill(pid, numbers[i]);
        assert_int_equal(end_of(pid), 128 + numbers[i]);
        assert_int_equal(sh("test $(ls r/checkpoints | wc -l) = 1"), 0);
        assert_int_equal(sh("test $(ls r | grep -c lock) = 0"), 0);
        if (numbers[i] == SIGINT)
            assert_int_equal(sh("test $(grep -c '^stopping: a checkpoint is being written' log) = 1"), 0);
    }
}

/* A step that would take minutes is left in its middle. */
static void a_signal_does_not_wait_for_the_step(void **state)
{
    char *argv[] = {"firn",         "finetune", "--model",   "m.gguf", "--data",       "d.jsonl", "--output",     "r",
                    "--steps",      "100000",   "--context", "64",     "--save-every", "0",       "--eval-every", "0",
                    "--accumulate", "65536",    NULL};

    (void)state;
    sh("rm -rf r");
    const pid_t pid = start(argv);
    for (int i = 0; i < 6000 && sh("grep -qs 'step.: 0,' r/metrics.jsonl") != 0; i++)
        usleep(10000);
    usleep(100000);
    kill(pid, SIGINT);
    assert_int_equal(end_of(pid), 130);
    assert_int_equal(sh("grep -q '^stopped after step 0' log && ! grep -q 'step.: 1,' r/metrics.jsonl"), 0);
}

static void a_dead_pipe_ends_a_run_with_a_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(sh("rm -rf r; { firn " RUN " --steps 100000 2>&1; echo $? >rc; } | head -n 12 >/dev/null; "
                        "test $(cat rc) = 141 && ls r/checkpoints/step-*.gguf >/dev/null"),
                     0);
}

static void an_ignored_signal_stays_ignored(void **state)
{
    (void)state;
    assert_int_equal(
        sh("rm -rf r; (trap '' INT HUP; firn " RUN " --steps 12 >out 2>err & p=$!; "
           "while ! grep -qs 'step.: 1,' r/metrics.jsonl; do sleep 0.01; done; kill -INT $p; kill -HUP $p; "
           "wait $p; test $? = 0) && test -s r/adapter.gguf"),
        0);
}

static void a_limit_on_files_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(sh("(ulimit -f 8; firn init --like tiny big.gguf >out 2>err; test $? = 1) && "
                        "grep -q '^firn: cannot write big.gguf: File too large$' err && "
                        "test \"$(ls | grep -c big)\" = 0"),
                     0);
}

/* ---- limits ---- */

static void a_small_stack_is_enough_or_refused(void **state)
{
    (void)state;
    assert_int_equal(sh("(ulimit -s 64; firn --version >out 2>err; test $? = 1) && "
                        "grep -q '^firn: the stack is limited to 64 KiB; expected at least 128 (ulimit -s)$' err"),
                     0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose frames are larger */
    assert_int_equal(sh("rm -rf r; (ulimit -s 128; firn " RUN " --steps 3 >out 2>err) && test -s r/report.html"), 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_run_in_a_folder_is_refused),
        cmocka_unit_test(the_second_writer_of_a_file_is_refused),
        cmocka_unit_test(a_run_that_begins_is_told_from_none),
        cmocka_unit_test(a_removed_lock_comes_back),
        cmocka_unit_test(a_run_does_not_write_into_anothers_folder),
        cmocka_unit_test(a_stop_without_a_checkpoint_is_an_error),
        cmocka_unit_test(a_refused_command_leaves_no_folder),
        cmocka_unit_test(closed_descriptors_get_no_text_into_files),
        cmocka_unit_test(logs_never_stop_a_run),
        cmocka_unit_test(a_changed_description_is_noticed),
        cmocka_unit_test(a_flipped_bit_goes_back_to_the_checkpoint_before),
        cmocka_unit_test(a_model_that_is_cut_short_ends_the_run),
        cmocka_unit_test(weights_that_are_overwritten_end_the_run),
        cmocka_unit_test(a_signal_ends_a_run_with_a_checkpoint),
        cmocka_unit_test(a_signal_does_not_wait_for_the_step),
        cmocka_unit_test(a_dead_pipe_ends_a_run_with_a_checkpoint),
        cmocka_unit_test(an_ignored_signal_stays_ignored),
        cmocka_unit_test(a_limit_on_files_is_an_error),
        cmocka_unit_test(a_small_stack_is_enough_or_refused),
    };
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
