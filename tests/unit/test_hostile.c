/* What hostile or unlucky inputs do to the command: pipes and devices where files are expected, bytes that steer
 * terminals, names and lines that nothing holds, numbers that are none. */
#include "unit/command.h"

#include "core/utf8.h"
#include "firn/gguf.h"

#include <sys/stat.h>

static void sh(const char *command)
{
    char line[4096];

    snprintf(line, sizeof line, "cd %s && PATH=%s:$PATH && %s", folder, FIRN_BIN_DIR, command);
    if (system(line) != 0)
        fail_msg("%s", command);
}

static int prepare(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    sh("firn init --like tiny-qwen3moe --layers 1 --width 64 --vocabulary 320 --experts 4 --used 2 m.gguf >/dev/null");
    write_text("d.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"four five six seven\"}\n");
    sh("mkfifo p && mkdir dir");
    return 0;
}

/* ---- pipes and devices ---- */

static void what_is_no_file_is_refused(void **state)
{
    static const char *const whats[][2] = {
        {"p", "p: it is a pipe, not a file"},
        {"dir", "dir: it is a folder, not a file"},
        {"/dev/null", "/dev/null: it is a device, not a file"},
    };
    static const char *const commands[] = {
        "info %s",
        "logits %s --tokens t.json -o o.f32",
        "logits m.gguf --tokens t.json -o o.f32 --adapter %s",
        "quantize %s o.gguf q8_0",
        "finetune --model %s --data d.jsonl --output r",
        "finetune --model m.gguf --data d.jsonl --adapter %s --output r",
        "export m.gguf %s out",
    };

    (void)state;
    write_text("t.json", "[1, 2, 3]");
    for (size_t w = 0; w < 3; w++) {
        for (size_t c = 0; c < sizeof commands / sizeof *commands; c++) {
            char args[256];
            snprintf(args, sizeof args, commands[c], whats[w][0]);
            assert_int_equal(firn(args), 1);
            if (!strstr(err, whats[w][1]))
                fail_msg("firn %s said: %s", args, err);
        }
    }
    assert_int_equal(firn("finetune --model m.gguf --data /dev/null --output r"), 1);
    assert_non_null(strstr(err, "/dev/null: it is a device, not a file"));
    assert_int_equal(firn("finetune --model m.gguf --data p --output r"), 1);
    assert_non_null(strstr(err, "p: it is a pipe, and nobody writes to it"));
    assert_int_equal(firn("logits m.gguf --tokens dir -o o.f32"), 1);
    assert_string_equal(err, "firn: cannot read dir: it is a folder, not a file\n");
    assert_int_equal(firn("generate m.gguf --chat --history dir"), 1);
    assert_int_equal(firn("generate m.gguf --prompts p"), 1); /* after some seconds, in which a writer may come */
    assert_string_equal(err, "firn: cannot read p: it is a pipe, and nobody writes to it\n");
    /* data may be a folder or a pipe, but not an empty one, and no device */
    static const char *const data[][2] = {
        {"p", "cannot read p: it is a pipe, and nobody writes to it"},
        {"dir", "dir holds no data"},
        {"/dev/null", "/dev/null: it is a device, not a file"},
    };
    for (size_t w = 0; w < 3; w++) {
        char args[256];
        snprintf(args, sizeof args, "finetune --model m.gguf --data %s --output r", data[w][0]);
        assert_int_equal(firn(args), 1);
        if (!strstr(err, data[w][1]))
            fail_msg("firn %s said: %s", args, err);
    }
}

static void pipes_are_read_where_text_is(void **state)
{
    (void)state;
    /* the reader gives up after two seconds: where this machine is so slow that the writer came later, once more */
    sh("firn data show m.gguf d.jsonl >a; for i in 1 2 3 4 5; do (sleep 0.3; exec cat d.jsonl >p) & "
       "firn data show m.gguf p >b && break; kill $!; done; cmp a b");
    sh("firn data show m.gguf - <d.jsonl >b && cmp a b && cat d.jsonl | firn data show m.gguf /dev/stdin >b && cmp a "
       "b");
    sh("firn eval m.gguf --data d.jsonl >a 2>/dev/null; cat d.jsonl | firn eval m.gguf --data - 2>/dev/null >b && cmp "
       "a b");
    sh("echo one >f; firn generate m.gguf --prompts f -n 3 >a && cat f | firn generate m.gguf --prompts - -n 3 >b && "
       "cmp a b");
    sh("firn tokenize m.gguf --file f >a && cat f | firn tokenize m.gguf --file - >b && cmp a b && test -s a");
    sh("echo '[1, 2]' >t; firn logits m.gguf --tokens t -o x && firn logits m.gguf --tokens - -o y <t && cmp x y");
    sh(": | firn generate m.gguf --prompts - >b && test ! -s b");
}

/* ---- bytes that steer terminals ---- */

static void texts_are_tamed(void **state)
{
    static const struct {
        const char *bytes, *tame;
    } cases[] = {
        {"plain é 日本 😀", "plain é 日本 😀"},
        {"\x1b]0;x\x07", "?]0;x?"},
        {"a\x7f\x01z\r", "a??z?"},
        {"\xc2\x9b"
         "31m",
         "?31m"},
        {"\x9b"
         "31m\xff",
         "?31m?"},
        {"\xe2\x80\xae"
         "txt\xe2\x81\xa6\xd8\x9c",
         "?txt??"},
        {"half \xe2\x80", "half ??"},
        {"two\nlines\t", "two\nlines\t"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        strcpy(text, cases[i].bytes);
        text[firn_tame(text, strlen(text))] = 0;
        assert_string_equal(text, cases[i].tame);
        firn_tame_line(text);
        assert_null(strpbrk(text, "\n\t"));
    }
}

static void assert_tame(const char *text)
{
    char copy[sizeof out];

    strcpy(copy, text);
    if (firn_tame(copy, strlen(copy)) != strlen(text) || strcmp(copy, text) != 0)
        fail_msg("it was said: %s", text);
}

static void nothing_from_a_file_steers_a_terminal(void **state)
{
    (void)state;
    write_text("t.json", "[\x1b]0;x");
    assert_int_equal(firn("logits m.gguf --tokens t.json -o o.f32"), 1);
    assert_tame(err);
    write_text("c1.json", "[\x9b"
                          "31m");
    assert_int_equal(firn("logits m.gguf --tokens c1.json -o o.f32"), 1);
    assert_tame(err);
    write_text("e.jsonl", "{\"text\": \"a\\u001b[31m\\u009b\\u202e b \\u65e5\"}\n");
    assert_int_equal(firn("data show m.gguf e.jsonl"), 0);
    assert_tame(out);
    assert_non_null(strstr(out, "{+"));
    assert_non_null(strstr(out, "\xe6\x97\xa5")); /* in pieces of a byte: put together again */
    write_text("prompts", "one \x1b[31m\x9b two\n");
    assert_int_equal(firn("generate m.gguf --prompts prompts -n 1 --json"), 0);
    assert_int_equal(firn("generate m.gguf --prompts prompts -n 1"), 0);
    *strchr(out, '\n') = 0; /* what the model says is its own when it does not go to a terminal */
    assert_string_equal(out, "> one ?[31m? two");
    write_text("bad.jsonl", "{\"text\": 3 \x1b[31m\xc2\x9b}\n");
    assert_int_equal(firn("data show m.gguf bad.jsonl"), 1);
    assert_tame(err);
    assert_int_equal(firn("info 'no\x1b[31m\xc2\x9b.gguf'"), 1);
    assert_tame(err);
    assert_int_equal(firn("'\x1b[31m'"), 2);
    assert_tame(err);
}

/* ---- small ---- */

static void a_full_device_is_noticed(void **state)
{
    static const char *const args[] = {"--help", "--version", "help", "info --help", "init --list"};

    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        char command[128];
        snprintf(command, sizeof command, "firn %s >/dev/full 2>err; test $? = 1", args[i]);
        sh(command);
        sh("grep -q 'cannot write to standard output' err");
    }
    /* nothing more is generated for nobody: --stats tells what was */
    sh("printf 'one\\ntwo\\nthree\\n' >f; for how in '' --json; do firn generate m.gguf --prompts f -n 3 --stats $how "
       ">/dev/full "
       "2>err; test $? = 1 && test $(grep -c tokens/s err) -le 1 && grep -q 'cannot write to standard output' err || "
       "exit 1; done");
}

static void a_line_that_is_too_long_does_not_end_the_talk(void **state)
{
    (void)state;
    sh("firn init --like tiny-qwen3moe --layers 1 --width 64 --vocabulary 320 --context 512 c.gguf >/dev/null");
    sh("(echo one; yes one | head -c 20000 | tr '\\n' ' '; echo; echo two) | firn generate c.gguf --chat -n 2 --json "
       ">said 2>err");
    sh("test \"$(grep -c prompt_tokens said)\" = 2");
    sh("grep -q 'the context 512: the line is left out' err");
}

static void a_name_that_is_not_utf8_is_named(void **state)
{
    (void)state;
    sh("cp d.jsonl \"$(printf 'd\\351.jsonl')\" && ! firn finetune --model m.gguf --data \"$(printf 'd\\351.jsonl')\" "
       "--output r2 "
       "2>err");
    sh("grep -q 'd?.jsonl is not UTF-8' err");
}

/* The writer makes no split files: "tilps." becomes "split." behind its back. */
static void say_split(const char *name)
{
    char bytes[4096];
    FILE *f = fopen(path_of(name), "r+b");

    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    for (char *at; (at = memmem(bytes, n, "tilps.", 6));)
        memcpy(at, "split.", 6);
    rewind(f);
    fwrite(bytes, 1, n, f);
    fclose(f);
}

static void a_part_of_the_input_is_not_overwritten(void **state)
{
    firn_context *ctx = firn_context_create(NULL);

    (void)state;
    for (int i = 0; i < 2; i++) {
        char name[64];
        firn_gguf_writer *w;
        const float x[32] = {1};
        snprintf(name, sizeof name, "s-0000%d-of-00002.gguf", i + 1);
        assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
        assert_int_equal(firn_gguf_put_string(w, "general.architecture", "llama", 5), FIRN_OK);
        assert_int_equal(firn_gguf_put_u32(w, "tilps.no", (uint32_t)i), FIRN_OK);
        assert_int_equal(firn_gguf_put_u32(w, "tilps.count", 2), FIRN_OK);
        assert_int_equal(firn_gguf_add_tensor(w, i ? "b.weight" : "a.weight", FIRN_F32, 1, (int64_t[]){32}), FIRN_OK);
        assert_int_equal(firn_gguf_writer_begin(w, path_of(name)), FIRN_OK);
        assert_int_equal(firn_gguf_writer_data(w, x, sizeof x), FIRN_OK);
        assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
        firn_gguf_writer_destroy(w);
        say_split(name);
    }
    firn_context_destroy(ctx);
    assert_int_equal(firn("quantize s-00001-of-00002.gguf s-00002-of-00002.gguf q8_0"), 1);
    assert_string_equal(
        err, "firn: s-00002-of-00002.gguf is part 2 of 2 of the model that is read: expected another name\n");
    sh("ln s-00001-of-00002.gguf other.gguf && ! firn quantize s-00001-of-00002.gguf other.gguf q8_0 2>/dev/null");
    assert_int_equal(firn("quantize s-00001-of-00002.gguf whole.gguf q8_0"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(pipes_are_read_where_text_is),
        cmocka_unit_test(texts_are_tamed),
        cmocka_unit_test(nothing_from_a_file_steers_a_terminal),
        cmocka_unit_test(a_full_device_is_noticed),
        cmocka_unit_test(a_line_that_is_too_long_does_not_end_the_talk),
        cmocka_unit_test(a_name_that_is_not_utf8_is_named),
        cmocka_unit_test(a_part_of_the_input_is_not_overwritten),
    };

    return cmocka_run_group_tests(tests, prepare, remove_folder);
}
