/* What a person meets in a day with firn: help, names that are nearly right, completion, files of other kinds, plans
 * that do not fit, options from a file, and what a stopped run leaves. */
#include "core/nearest.h"
#include "firn/gguf.h"
#include "unit/command.h"

#include <fcntl.h>
#include <jansson.h>

static void has(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in '%s'", words, text);
}

static void write_lines(const char *name, int n)
{
    FILE *f = fopen(path_of(name), "w");

    for (int i = 0; i < n; i++)
        fprintf(f, "{\"prompt\": \"the people %d\", \"completion\": \" of the water %d\"}\n", i, i * 7 % 10);
    fclose(f);
}

static void names_that_are_near(void **state)
{
    static const char *const names[] = {"learning-rate", "rank", "context", "steps", NULL, "eval-data"};
    const size_t n = sizeof names / sizeof *names;

    (void)state;
    assert_string_equal(firn_nearest("--lr", names, n), "learning-rate");
    assert_string_equal(firn_nearest("contxet", names, n), "context");
    assert_string_equal(firn_nearest("Eval_Data", names, n), "eval-data");
    assert_string_equal(firn_nearest("learn", names, n), "learning-rate");
    assert_string_equal(firn_nearest("rnak", names, n), "rank");
    assert_null(firn_nearest("xyzzy", names, n));
    assert_null(firn_nearest("", names, n));
    assert_null(firn_nearest("a-name-of-more-than-sixty-three-letters-that-nobody-would-ever-type", names, n));
}

static void what_was_meant_is_proposed(void **state)
{
    static const refusal cases[] = {
        {"finetune --lr 1", 2, "firn: there is no option --lr; did you mean --learning-rate? (firn finetune --help)\n"},
        {"finetune --lora_r=8", 2, "firn: there is no option --lora_r; did you mean --rank? (firn finetune --help)\n"},
        {"finetune --max-seq-length 8", 2,
         "firn: there is no option --max-seq-length; did you mean --context? (firn finetune --help)\n"},
        {"finetune --contxt 8", 2,
         "firn: there is no option --contxt; did you mean --context? (firn finetune --help)\n"},
        {"generate m --temperature 1", 2,
         "firn: there is no option --temperature; did you mean --temp? (firn generate --help)\n"},
        {"eval m --xyzzy 1", 2, "firn: there is no option --xyzzy (firn eval --help)\n"},
        {"finetnue", 2, "firn: there is no command 'finetnue'; did you mean finetune? (firn --help lists them)\n"},
        {"train", 2, "firn: there is no command 'train'; did you mean finetune? (firn --help lists them)\n"},
        {"help qantize", 2, "firn: there is no command 'qantize'; did you mean quantize? (firn --help lists them)\n"},
        {"zzz", 2, "firn: there is no command 'zzz' (firn --help lists them)\n"},
    };
    static const char *const targets[][2] = {
        {"q_proj", "did you mean '*.attn_q.weight'?"},
        {"attn_q", "did you mean '*.attn_q.weight'?"},
        {"up_proj", "did you mean '*.ffn_up_exps.weight'?"},
        {"atention", "did you mean 'attention'?"},
        {"lm_head", "did you mean 'output'?"},
        {"all-linear", "did you mean 'all'?"},
    };

    (void)state;
    check_refusals(cases, sizeof cases / sizeof *cases);
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        char args[128];
        snprintf(args, sizeof args, "info m.gguf --targets %s", targets[i][0]);
        assert_int_equal(firn(args), 1);
        has(err, targets[i][1]);
    }
}

static void help_explains_each_command(void **state)
{
    char first[sizeof out], names[32][24];
    int n = 0;

    (void)state;
    assert_int_equal(firn("--help"), 0);
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "  ", 2) == 0 && sscanf(line, "%23s", names[n]) == 1)
            n++;
    assert_true(n > 10);
    for (int i = 0; i < n; i++) {
        char args[64];
        snprintf(args, sizeof args, "help %.23s", names[i]);
        assert_int_equal(firn(args), 0);
        memcpy(first, out, sizeof first);
        snprintf(args, sizeof args, "%.23s --help", names[i]);
        assert_int_equal(firn(args), 0);
        assert_string_equal(out, first);
        assert_memory_equal(out, "usage: firn ", 12);
        for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 80)
                fail_msg("a line of firn help %s is wider than 80 columns: '%s'", names[i], line);
    }
    assert_int_equal(firn("help finetune"), 0);
    has(out, "LoRA updates are scaled by alpha/rank");
    has(out, "  --schedule cosine|linear|constant");
    assert_int_equal(firn("help generate"), 0);
    has(out, "nucleus sampling: smallest set of tokens with");
    assert_int_equal(firn("help upcycle"), 0);
    has(out, "no MoE version computes the same.");
}

static void shells_are_told_what_may_follow(void **state)
{
    (void)state;
    assert_int_equal(firn("--complete fi"), 0);
    assert_memory_equal(out, "finetune\t", 9);
    assert_int_equal(firn("--complete help qu"), 0);
    assert_memory_equal(out, "quantize\t", 9);
    assert_int_equal(firn("--complete finetune --sch"), 0);
    assert_memory_equal(out, "--schedule\t", 11);
    assert_int_equal(firn("--complete finetune --schedule ''"), 0);
    assert_string_equal(out, "cosine\nlinear\nconstant\ninverse-sqrt\nwsd\n");
    assert_int_equal(firn("--complete finetune --rank 8 --targets attention,exp"), 0);
    assert_string_equal(out, "attention,experts\n");
    assert_int_equal(firn("--complete init --like tiny-qwen3m"), 0);
    has(out, "tiny-qwen3moe\tqwen3moe\n");
    assert_int_equal(firn("--complete init --type q4_"), 0);
    assert_string_equal(out, "q4_0\nq4_1\nq4_K\n");
    assert_int_equal(firn("--complete quantize a b q8"), 0);
    assert_string_equal(out, "q8_0\n");
    assert_int_equal(firn("--complete data sh"), 0);
    assert_string_equal(out, "show\n");
    assert_int_equal(firn("--complete generate m.gg"), 0); /* a file */
    assert_string_equal(out, "");
    assert_int_equal(firn("--complete eval m --precision b"), 0);
    assert_string_equal(out, "bf16\n");
    assert_int_equal(firn("--complete eval m --device CP"), 0);
    assert_memory_equal(out, "CPU\t", 4);
    assert_int_equal(firn("--complete nothing x"), 0);
    assert_string_equal(out, "");
    assert_int_equal(firn("--complete"), 0);
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(path_of(name), "wb");

    assert_true(fwrite(bytes, 1, n, f) == n);
    fclose(f);
}

static void files_of_other_kinds_are_recognized(void **state)
{
    (void)state;
    static const char safetensors[] = "\x40\0\0\0\0\0\0\0{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}";
    write_bytes("m.safetensors", safetensors, sizeof safetensors);
    assert_int_equal(firn("info m.safetensors"), 1);
    assert_string_equal(err,
                        "firn: m.safetensors: this is no GGUF file but a safetensors file: convert the model's folder "
                        "with llama.cpp's convert_hf_to_gguf.py, or download a GGUF of the model\n");
    write_text("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    assert_int_equal(firn("generate lfs.gguf -p x"), 1);
    has(err, "this is no GGUF file but a Git LFS pointer");
    write_bytes("m.bin", "PK\3\4rest", 8);
    assert_int_equal(firn("info m.bin"), 1);
    has(err, "a PyTorch file");
    write_text("page.gguf", "<!DOCTYPE html><html>");
    assert_int_equal(firn("info page.gguf"), 1);
    has(err, "a web page");
    write_text("else.gguf", "something");
    assert_int_equal(firn("info else.gguf"), 1);
    has(err, "it begins with 'some' instead of 'GGUF'");
}

#define TRAIN "finetune --model m.gguf --data d.jsonl --threads 1 --context 32 --accumulate 1 "

static void a_plan_says_what_to_do(void **state)
{
    char args[256];
    long mib = 0;

    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    write_lines("d.jsonl", 40);
    assert_int_equal(firn(TRAIN "--output r --dry-run --epochs 1"), 0);
    has(err, "\ntime     about ");
    has(err, " or more (");
    has(err, " tokens/s at best); an epoch ");
    has(err, "\ndisk     ");
    has(err, ", 3 checkpoints of ");
    assert_false(is_there("r"));

    /* Too little memory: what is needed, and options that fit when they are pasted. */
    assert_int_equal(
        firn("finetune --model m.gguf --data d.jsonl --output r --dry-run --threads 1 --rank 256 --context 512 "
             "--memory-limit 1M"),
        1);
    has(err, "firn: training needs ");
    has(err, " at least, and the memory limit is 1.00 MiB");
    assert_int_equal(sscanf(strstr(err, "needs ") + 6, "%ld MiB", &mib), 1);
    snprintf(args, sizeof args,
             "finetune --model m.gguf --data d.jsonl --output r --dry-run --threads 1 --rank 256 --context 512 "
             "--memory-limit %ldM",
             mib * 55 / 100);
    assert_int_equal(firn(args), 1);
    const char *advice = strstr(err, "; try --rank ");
    assert_non_null(advice);
    char fitting[384];
    snprintf(fitting, sizeof fitting,
             "finetune --model m.gguf --data d.jsonl --output r --dry-run --threads 1 "
             "--context 512 --memory-limit %ldM %.*s",
             mib * 55 / 100, (int)strcspn(advice + 6, "o(\n"), advice + 6);
    assert_int_equal(firn(fitting), 0);

    assert_int_equal(firn("info m.gguf"), 0);
    has(out, "; runs slower with less, down to ");
}

/* A run of six steps that is stopped by its own limit and goes on to more. */
static void a_run_leaves_things_to_use(void **state)
{
    char line[512];
    json_t *j;

    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    write_lines("d.jsonl", 40);
    assert_int_equal(firn(TRAIN "--output run --steps 4 --save-every 2 --rank 4 --learning-rate 1e-3"), 0);
    has(err, "\nbefore   evaluating the model as it is\n");
    has(err, "\nanswers  asking the model ");
    has(err, "\nafter    evaluating the trained model\n");
    assert_null(strstr(err, "1 threads"));
    assert_null(strstr(err, " 1 samples"));

    FILE *f = fopen(path_of("run/metrics.jsonl"), "r"); /* step 1 is not at a whole epoch */
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    j = json_loads(line, 0, NULL);
    const double epoch = json_number_value(json_object_get(j, "epoch"));
    assert_true(epoch > 0 && epoch < 1);
    json_decref(j);

    /* The last checkpoint is the adapter that was written. */
    assert_int_equal(firn("generate m.gguf --adapter run/checkpoints/step-00000004.gguf -p 'the people' -n 8 --json"),
                     0);
    static char said[sizeof out];
    memcpy(said, out, sizeof said);
    assert_int_equal(firn("generate m.gguf --adapter run/adapter.gguf -p 'the people' -n 8 --json"), 0);
    assert_string_equal(out, said);
    assert_int_equal(firn("init --like tiny-llama other.gguf"), 0);
    assert_int_equal(firn("generate other.gguf --adapter run/checkpoints/step-00000004.gguf -p x"), 1);
    has(err, "general.architecture should be 'llama', not 'qwen3moe'");

    assert_int_equal(firn("info run/checkpoints/step-00000002.gguf"), 0);
    has(out, "  checkpoint     LoRA of rank 4, alpha 8, on 14 tensors\n");
    has(out, "  trained        2 steps of 4");
    has(out, "/m.gguf\n");
    assert_int_equal(firn("info run/adapter.gguf"), 0);
    has(out, "  adapter        LoRA of rank 4, alpha 8, on 14 tensors\n");
    has(out, "  trained        4 steps\n");
    assert_int_equal(firn("info run/adapter.gguf --json"), 0);
    j = json_loads(out, 0, NULL);
    const json_t *a = json_object_get(j, "adapter");
    assert_int_equal(json_integer_value(json_object_get(a, "rank")), 4);
    assert_int_equal(json_integer_value(json_object_get(a, "step")), 4);
    json_decref(j);

    assert_int_equal(firn("finetune --resume run --steps 6"), 0);
    has(err, "\nschedule 6 steps in place of 4: the learning rate was 0.00015 at step 4 and goes on with 0.00025\n");
    assert_int_equal(unlink(path_of("run/checkpoints/step-00000006.gguf")), 0); /* as if it was stopped before */
    assert_int_equal(firn("finetune --resume run --steps 8"), 0);
    has(err,
        "\nschedule 8 steps in place of 6 change the learning rate: step 5 has 0.0005, it would have had 0.00025\n");
}

/* On a terminal the progress bar stands there again behind each line that is said. */
static void the_bar_stays(void **state)
{
    static char seen[1 << 16];
    size_t n = 0;

    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    write_lines("d.jsonl", 40);
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    char command[512];
    snprintf(command, sizeof command, "cd %s && %s/firn " TRAIN "--output bar --steps 4 --eval-every 2 2>%s >out",
             folder, FIRN_BIN_DIR, ptsname(master));
    FILE *f = popen(command, "r");
    assert_non_null(f);
    for (ssize_t k; n < sizeof seen - 1 && (k = read(master, seen + n, sizeof seen - 1 - n)) > 0;) /* EIO: it ended */
        n += (size_t)k;
    assert_int_equal(pclose(f), 0);
    close(master);
    const char *bar = strstr(seen, "\r1/4 ["), *said = strstr(seen, "step 2: ");
    assert_non_null(bar);
    assert_true(said && said > bar);
    assert_memory_equal(strchr(said, '\n') + 1, "\r1/4 [", 6);
}

static void options_come_from_a_file(void **state)
{
    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    write_lines("d.jsonl", 40);
    write_text("c.json", "{\"model\": \"m.gguf\", \"data\": \"d.jsonl\", \"rank\": 4, \"learning-rate\": 0.001, "
                         "\"context\": 32, \"steps\": 2}");
    assert_int_equal(firn("finetune --config c.json --output one --rank 8 --threads 1"), 0);
    has(err, " of ranks 4 to 8, alpha 16:");
    has(err, "steps    2, each of 1 x 1 windows of up to 32 tokens; learning rate 0.001, cosine\n");
    /* the run's own record does it again, into another folder */
    assert_int_equal(firn("finetune --config one/run.json --output two --threads 1"), 0);
    has(err, " of ranks 4 to 8, alpha 16:");
    char command[256];
    snprintf(command, sizeof command, "cmp -s %s/one/adapter.gguf %s/two/adapter.gguf", folder, folder);
    assert_int_equal(system(command), 0);
    write_lines("few.jsonl", 7); /* those of the command line take the file's place */
    assert_int_equal(firn("finetune --config one/run.json --data few.jsonl --output three --dry-run --epochs 1"), 0);
    has(err, " 7 samples, ");
    assert_int_equal(firn("finetune --config one/run.json --adapter one/adapter.gguf --output three --dry-run"), 0);
    assert_int_equal(firn("finetune --config one/run.json"), 2);
    has(err, "--output DIR is missing");
    write_text("bad.json", "{\"lr\": 1}");
    assert_int_equal(firn("finetune --config bad.json --output x"), 1);
    assert_string_equal(err, "firn: bad.json: there is no option \"lr\"; did you mean \"learning_rate\"?\n");
    write_text("bad.json", "[1]");
    assert_int_equal(firn("finetune --config=bad.json --output x"), 1);
    has(err, "bad.json: expected an object of options");
    assert_int_equal(firn("finetune --config none.json --output x"), 1);
    has(err, "none.json");
}

/* A key that changes what an adapter means is not passed over. */
static void adapters_that_mean_something_else_are_refused(void **state)
{
    const int32_t tokens[] = {1, 2};
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *in;
    firn_gguf_writer *w;

    (void)state;
    assert_int_equal(firn("init --like tiny-qwen3moe m.gguf"), 0);
    write_lines("d.jsonl", 20);
    assert_int_equal(firn(TRAIN "--output meaning --steps 1 --rank 4"), 0);
    static const struct {
        const char *key;
        int status;
    } cases[] = {{"adapter.alora.invocation_tokens", 1}, {"adapter.other", 1}, {"adapter.lora.task_name", 0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(firn_gguf_open(ctx, path_of("meaning/adapter.gguf"), &in), FIRN_OK);
        assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
        for (size_t k = 0; k < firn_gguf_n_kv(in); k++)
            assert_int_equal(firn_gguf_put_kv(w, firn_gguf_kv_at(in, k)), FIRN_OK);
        if (i == 0)
            assert_int_equal(firn_gguf_put_array(w, cases[i].key, FIRN_KV_I32, tokens, 2), FIRN_OK);
        else
            assert_int_equal(firn_gguf_put_string(w, cases[i].key, "x", 1), FIRN_OK);
        for (size_t k = 0; k < firn_gguf_n_tensors(in); k++) {
            const firn_gguf_tensor *t = firn_gguf_tensor_at(in, k);
            assert_int_equal(firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne), FIRN_OK);
        }
        assert_int_equal(firn_gguf_writer_begin(w, path_of("changed.gguf")), FIRN_OK);
        for (size_t k = 0; k < firn_gguf_n_tensors(in); k++)
            firn_gguf_writer_data(w, firn_gguf_tensor_at(in, k)->data, firn_gguf_tensor_at(in, k)->size);
        assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
        firn_gguf_writer_destroy(w);
        firn_gguf_close(in);
        assert_int_equal(firn("generate m.gguf --adapter changed.gguf -p x -n 1"), cases[i].status);
        if (cases[i].status)
            has(err, cases[i].key);
    }
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_near),
        cmocka_unit_test(what_was_meant_is_proposed),
        cmocka_unit_test(help_explains_each_command),
        cmocka_unit_test(shells_are_told_what_may_follow),
        cmocka_unit_test(files_of_other_kinds_are_recognized),
        cmocka_unit_test(a_plan_says_what_to_do),
        cmocka_unit_test(a_run_leaves_things_to_use),
        cmocka_unit_test(the_bar_stays),
        cmocka_unit_test(options_come_from_a_file),
        cmocka_unit_test(adapters_that_mean_something_else_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
