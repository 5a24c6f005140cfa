/* Looking at a run while it runs: the report that is written anew, TensorBoard's event files, firn watch. */
#include "core/crc32c.h"
#include "train/chart.h"
#include "train/events.h"
#include "unit/command.h"

#include <dirent.h>
#include <math.h>

#define TRAIN "finetune --model m.gguf --data d.jsonl --threads 1 --context 32 --accumulate 1 --rank 4 "

static void has(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in '%s'", words, text);
}

static int sh(const char *command)
{
    char line[1024];

    snprintf(line, sizeof line, "cd %s && PATH=%s:$PATH && { %s; }", folder, FIRN_BIN_DIR, command);
    const int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int make_run_input(void **state)
{
    if (make_folder(state) != 0 || firn("init --like tiny-qwen3moe m.gguf") != 0)
        return -1;
    FILE *f = fopen(path_of("d.jsonl"), "w");
    for (int i = 0; i < 40; i++)
        fprintf(f, "{\"prompt\": \"the people %d\", \"completion\": \" of the water %d\"}\n", i, i * 7 % 10);
    return fclose(f);
}

static void curves_are_smoothed_as_they_are_drawn(void **state)
{
    const double loss[] = {100, 0.01, 0.01, 0.01};
    double smooth[4];

    (void)state;
    assert_true(firn_chart_is_log(0.01, 100) && !firn_chart_is_log(1, 20) && !firn_chart_is_log(0, 100));
    firn_chart_smooth(loss, 4, true, smooth);
    assert_true(fabs(smooth[1] - 1) < 1e-12);   /* half way between 100 and 0.01 on the paper */
    assert_true(fabs(smooth[3] - 0.1) < 1e-12); /* the mean of 2, -2, -2, -2 */
    firn_chart_smooth(loss, 4, false, smooth);
    assert_true(fabs(smooth[3] - 25.0075) < 1e-12);
}

static void checksums(void **state)
{
    unsigned char zeros[32] = {0};

    (void)state;
    assert_int_equal(firn_crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(firn_crc32c(zeros, sizeof zeros), 0x8A9136AA); /* RFC 3720, B.4 */
    assert_int_equal(firn_crc32c("", 0), 0);
}

static void check_record(const firn_text *t, const char *hex)
{
    assert_int_equal(t->status, FIRN_OK);
    assert_int_equal(t->size, strlen(hex) / 2);
    for (size_t i = 0; i < t->size; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        assert_int_equal((unsigned char)t->data[i], byte);
    }
}

/* Bytes that the tensorboard package (2.21) makes of the same events. */
static void records_are_those_of_tensorboard(void **state)
{
    const firn_scalar scalars[] = {{"loss/train", 0.25}, {"left out", NAN}, {"lr", 2e-4}};
    firn_context *ctx = firn_context_create(NULL);
    firn_text t;

    (void)state;
    firn_text_init(&t, ctx, 0);
    firn_events_begin_record(&t, 1.5);
    check_record(&t, "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
    t.size = 0;
    firn_events_scalars_record(&t, 1.5, 300, scalars, 3);
    check_record(&t,
                 "2c00000000000000f4aecc4509000000000000f83f10ac022a1e0a110a0a6c6f73732f747261696e150000803e0a090a02"
                 "6c721517b75139baac50fe");
    t.size = 0;
    firn_events_start_record(&t, 1.5, 5);
    check_record(&t, "0f000000000000006d532b0909000000000000f83f10053a020801b2a7e13c");
    firn_text_free(&t);
    firn_context_destroy(ctx);
}

/* The records of a file: how many, each whole; -1 for a damaged one. `tag`: in how many it is. */
static int count_records(const char *path, const char *tag, int *tagged)
{
    static unsigned char data[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t size = fread(data, 1, sizeof data, f), at = 0;
    int n = 0;

    fclose(f);
    for (*tagged = 0; at + 12 <= size; n++) {
        uint64_t length;
        uint32_t crc, wanted;
        memcpy(&length, data + at, 8);
        if (at + 16 + length > size)
            return -1;
        wanted = firn_crc32c(data + at + 12, length);
        wanted = (wanted >> 15 | wanted << 17) + 0xA282EAD8u;
        memcpy(&crc, data + at + 12 + length, 4);
        if (crc != wanted)
            return -1;
        *tagged += memmem(data + at + 12, length, tag, strlen(tag)) != NULL;
        at += 16 + length;
    }
    return at == size ? n : -1;
}

/* The event files of a run, in order. */
static int event_files(const char *run, char names[][256])
{
    DIR *dir = opendir(path_of(run));
    int n = 0;

    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(names[n++], 256, "%.80s/%.40s/%.100s", folder, run, e->d_name);
    closedir(dir);
    if (n == 2 && strcmp(names[0], names[1]) > 0) {
        char swap[256];
        memcpy(swap, names[0], 256);
        memcpy(names[0], names[1], 256);
        memcpy(names[1], swap, 256);
    }
    return n;
}

static void a_run_writes_events(void **state)
{
    char names[4][256];
    int tagged;

    (void)state;
    assert_int_equal(firn(TRAIN "--output e --steps 4 --eval-every 2"), 0);
    assert_int_equal(event_files("e", names), 1);
    assert_int_equal(count_records(names[0], "loss/train", &tagged), 1 + 1 + 4); /* version, step 0, steps */
    assert_int_equal(tagged, 4);
    assert_int_equal(count_records(names[0], "loss/eval", &tagged), 6);
    assert_int_equal(tagged, 3);
    assert_int_equal(firn("finetune --resume e --steps 6"), 0);
    assert_int_equal(event_files("e", names), 2);
    assert_int_equal(count_records(names[1], "loss/train", &tagged), 2 + 2); /* version, start, steps */
    assert_int_equal(tagged, 2);
    char text[256];
    FILE *f = fopen(path_of("read.py"), "w");
    fputs("import sys\n"
          "try:\n"
          "    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
          "except ImportError:\n"
          "    sys.exit(77)\n"
          "a = EventAccumulator('e')\n"
          "a.Reload()\n"
          "assert [s.step for s in a.Scalars('loss/train')] == [1, 2, 3, 4, 5, 6]\n"
          "assert [s.step for s in a.Scalars('loss/eval')] == [0, 2, 4, 6]\n",
          f);
    fclose(f);
    snprintf(text, sizeof text, "${FIRN_TEST_PYTHON:-python3} read.py >/dev/null 2>&1");
    const int status = sh(text); /* where that package is installed, it reads them */
    assert_true(status == 0 || status == 77 || status == 127);
}

static void a_run_is_looked_at(void **state)
{
    static char page[1 << 20];

    (void)state;
    assert_int_equal(firn("watch nothing"), 1);
    has(err, "nothing holds no run");
    /* From its start to its end; the log ends with the whole picture. */
    assert_int_equal(sh("(firn " TRAIN "--output w --steps 12 --eval-every 2 >/dev/null 2>&1 &) ; "
                        "for i in $(seq 6000); do [ -s w/run.json ] && break; sleep 0.02; done; "
                        "firn watch w --interval 0.02 >out 2>err"),
                     0);
    slurp("out", out, sizeof out);
    has(out, "w: step 12 of 12, epoch ");
    has(out, "; finished\n");
    has(out, "loss by step: . training  o evaluation\n");
    has(out, "expert load: darker = more tokens; darkest = 3x average or more\n");
    has(out, "\n  prompt: ");
    has(out, "\n  answer: ");
    slurp("w/report.html", page, sizeof page);
    has(page, "<p>Finished 2");
    has(page, "<h2>Use it</h2>");
    has(page, "Norm of the gradient by step");
    assert_int_equal(firn("watch w --once"), 0);

    /* Killed between two evaluations: the page shows how it was, and watch says that it is over. */
    assert_int_equal(sh("firn " TRAIN "--output k --steps 100000 --eval-every 2 >/dev/null 2>&1 & pid=$!; "
                        "for i in $(seq 6000); do [ -s k/report.html ] && break; sleep 0.02; done; "
                        "firn watch k --interval 0.05 >out 2>err & sleep 0.3; kill -9 $pid; wait $!"),
                     1);
    slurp("err", err, sizeof err);
    has(err, "firn: the run in k has stopped after step ");
    has(err, "; firn finetune --resume k goes on with it\n");
    slurp("k/report.html", page, sizeof page);
    has(page, "<b>Running:</b> step ");
    has(page, "of 100000 at ");
    assert_int_equal(firn("watch k --once"), 0);
    has(out, "; not running\n");
}

/* Marks of an axis end where doubles do: spans of none, of more than there are, numbers that one more does not change.
 */
static void axes_end(void **state)
{
    static const double numbers[][4] = {
        {0, 1e17, 1e17, 1e17},         {-1e17, -1e17, -1e17, -1e17}, {1e17, 1e17 + 100, 1, 2},
        {5e-324, 1, 5e-324, 1e308},    {-1e308, 1e308, -1e308, 1},   {-1e308, 1e308, 1, 1e308},
        {1e-320, 2e-320, 1e-320, 1e3}, {0, 5e-324, -5e-324, 5e-324},
    };
    firn_context *ctx = firn_context_create(NULL);

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int in_log = 0; in_log < 2; in_log++) {
            const firn_curve curve = {.x = numbers[i], .y = numbers[i] + 2, .n = 2, .class_ = "a"};
            firn_text html;
            firn_text_init(&html, ctx, 1 << 20);
            firn_chart_curves(&html, "x", "y", &curve, 1, in_log);
            assert_int_equal(html.status, FIRN_OK);
            firn_text_free(&html);
        }
    firn_context_destroy(ctx);
}

/* A run of somebody else's, made to harm who looks at it. */
static void a_hostile_run_is_looked_at(void **state)
{
    static const char *const harms[] = {
        "printf '{\"step\": 1, \"loss\": 1}\\n{\"step\": 1e9, \"loss\": 2}\\n{\"step\": 2, \"loss\": 3}\\n'",
        "printf '{\"step\": 1e308, \"loss\": 1e308}\\n{\"step\": -1e308, \"loss\": -1e308}\\n'",
        "printf '{\"step\": 2, \"loss\": 5e-324}\\n{\"step\": 1, \"loss\": 1e308}\\n'",
    };
    char command[512];

    (void)state;
    assert_int_equal(sh("rm -rf h; mkdir h; cp w/run.json h"), 0);
    for (size_t i = 0; i < sizeof harms / sizeof *harms; i++) {
        snprintf(command, sizeof command, "%s >h/metrics.jsonl", harms[i]);
        assert_int_equal(sh(command), 0);
        assert_int_equal(firn("watch h --once"), 0);
        has(out, "loss by step");
    }
    write_text("h/latest.json", "{\"expert_load\": [[1e308, 1e308], [-1, 2], [1e-300, 0]], \"talks\": [{\"prompt\": "
                                "\"a\\u009b31m\\u202eb\"}]}");
    assert_int_equal(firn("watch h --once"), 0);
    has(out, "prompt: a?31m?b\n");
    /* pipes and devices in the place of its files hold nobody up */
    assert_int_equal(sh("cd h; rm metrics.jsonl latest.json; mkfifo metrics.jsonl latest.json before.json firn.lock"),
                     0);
    assert_int_equal(sh("timeout 100 firn watch h --once 2>err"), 1);
    slurp("err", err, sizeof err);
    assert_string_equal(err, "firn: cannot read h/metrics.jsonl: it is a pipe, not a file\n");
    assert_int_equal(sh("rm h/metrics.jsonl; timeout 100 firn watch h --once >out"), 0);
    assert_int_equal(sh("mkdir h/checkpoints; cp w/checkpoints/*.gguf h/checkpoints; rm h/run.json; mkfifo h/run.json; "
                        "for c in h/checkpoints/*; do timeout 100 firn info $c >out || exit 9; done"),
                     0);
    assert_int_equal(sh("timeout 100 firn watch h --once 2>err"), 1);
    slurp("err", err, sizeof err);
    has(err, "h/run.json: it is a pipe, not a file\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_are_smoothed_as_they_are_drawn),
        cmocka_unit_test(checksums),
        cmocka_unit_test(records_are_those_of_tensorboard),
        cmocka_unit_test(a_run_writes_events),
        cmocka_unit_test(a_run_is_looked_at),
        cmocka_unit_test(axes_end),
        cmocka_unit_test(a_hostile_run_is_looked_at),
    };
    alarm(1000); /* what hangs fails */
    return cmocka_run_group_tests(tests, make_run_input, remove_folder);
}
