/* The command on a Metal device (here: the software one) beside the CPU: what it trains, verifies and generates. A plan
 * lies on one device whole, so that a run that ends has had no node elsewhere. */
#include "unit/command.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

static size_t size_of(const char *name)
{
    struct stat s;

    assert_int_equal(stat(path_of(name), &s), 0);
    return (size_t)s.st_size;
}

static void one_model(const char *shape)
{
    char args[200];

    snprintf(args, sizeof args, "init --like %s --type q4_0 --seed 3 model.gguf", shape);
    assert_int_equal(firn(args), 0);
    write_text("data.jsonl", "{\"prompt\": \"Hello there, who\", \"completion\": \" are you?\"}\n"
                             "{\"prompt\": \"Two and\", \"completion\": \" two are four\"}\n");
}

static void train(const char *device, const char *to)
{
    char args[400];

    snprintf(args, sizeof args,
             "finetune --device %s --model model.gguf --data data.jsonl --output %s --targets all --rank 2 --steps 2 "
             "--context 32 --learning-rate 1e-2 --seed 1 --eval-every 1",
             device, to);
    if (firn(args) != 0)
        fail_msg("%s: %s", args, err);
}

/* Every number of metrics.jsonl that does not depend on the machine's speed. */
static json_t *metrics_of(const char *device)
{
    char name[64], line[1024];
    json_t *all = json_array();

    train(device, device);
    snprintf(name, sizeof name, "%s/metrics.jsonl", device);
    FILE *f = fopen(path_of(name), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *step = json_loads(line, 0, NULL);
        assert_non_null(step);
        const char *const machine[] = {"seconds", "tokens_per_second", "memory"};
        for (int i = 0; i < 3; i++)
            json_object_del(step, machine[i]);
        json_array_append_new(all, step);
    }
    fclose(f);
    return all;
}

static void train_both(const char *shape)
{
    one_model(shape);
    json_t *cpu = metrics_of("CPU"), *metal = metrics_of("MTL0"), *value;
    const char *key;
    int n = 0;

    assert_true(json_array_size(cpu) >= 3);
    assert_int_equal(json_array_size(cpu), json_array_size(metal));
    for (size_t i = 0; i < json_array_size(cpu); i++)
        json_object_foreach(json_array_get(cpu, i), key, value)
        {
            const double want = json_number_value(value);
            const double got = json_number_value(json_object_get(json_array_get(metal, i), key));
            /* AdamW's first step is the gradient's sign: what is 1e-9 beside the others may go either way. */
            const double bound = i == 0 || (i == 1 && strcmp(key, "eval_loss") != 0) ? 1e-5 : 2e-4;
            if (!(fabs(got - want) <= bound * fabs(want)))
                fail_msg("%s, line %zu: %s is %.9g, on the CPU %.9g", shape, i, key, got, want);
            n++;
        }
    assert_true(n > 10);
    json_decref(cpu);
    json_decref(metal);
}

static void trains_experts_as_the_cpu_does(void **state)
{
    (void)state;
    train_both("tiny-qwen3moe --width 64");
}

/* The software device runs lanes, simdgroups and threadgroups in the order that MDEV_ORDER says. */
static void the_order_of_threads_changes_no_bit(void **state)
{
    static char forward[1 << 17], random[1 << 17];

    (void)state;
    one_model("tiny-qwen3moe --width 64");
    train("MTL0", "forward");
    setenv("MDEV_ORDER", "random", 1);
    train("MTL0", "random");
    unsetenv("MDEV_ORDER");
    slurp("forward/adapter.gguf", forward, sizeof forward);
    slurp("random/adapter.gguf", random, sizeof random);
    const size_t n = size_of("forward/adapter.gguf");
    assert_true(n > 10000 && n < sizeof forward);
    assert_int_equal(size_of("random/adapter.gguf"), n);
    assert_memory_equal(forward, random, n);
}

static void says_the_same(void **state)
{
    char said[sizeof out];

    (void)state;
    one_model("tiny-olmoe");
    assert_int_equal(firn("generate model.gguf -p Hello -n 6"), 0);
    strcpy(said, out);
    if (firn("generate model.gguf -p Hello -n 6 --device MTL0") != 0)
        fail_msg("%s", err);
    assert_string_equal(out, said);
}

static void is_listed(void **state)
{
    (void)state;
    assert_int_equal(firn("info --devices"), 0);
    assert_non_null(strstr(out, "CPU "));
    assert_non_null(strstr(out, "\nMTL0 "));
}

static void other_devices_are_refused_by_name(void **state)
{
    static const char *const commands[] = {
        "generate model.gguf -p Hello -n 1 --device MTL9",
        "eval model.gguf --data data.jsonl --device MTL9",
        "finetune --model model.gguf --data data.jsonl --output no --device MTL9",
    };

    (void)state;
    one_model("tiny-olmoe");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_int_equal(firn(commands[i]), 1);
        if (!strstr(err, "there is no device 'MTL9' here; there is: CPU, MTL0"))
            fail_msg("%s: %s", commands[i], err);
    }
}

/* The reference cases lie outside the repository. */
static void verifies_reference_cases(void **state)
{
    static const char *const cases[] = {"llama", "mixtral-q4_0"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char args[300];
        snprintf(args, sizeof args, "%s/../shared/ref/cases/%s", FIRN_SOURCE_DIR, cases[i]);
        if (access(args, F_OK) != 0)
            skip();
        snprintf(args, sizeof args, "verify --device MTL0 %s/../shared/ref/cases/%s", FIRN_SOURCE_DIR, cases[i]);
        if (firn(args) != 0)
            fail_msg("%s: %s%s", cases[i], out, err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_listed),
        cmocka_unit_test(other_devices_are_refused_by_name),
        cmocka_unit_test(trains_experts_as_the_cpu_does),
        cmocka_unit_test(the_order_of_threads_changes_no_bit),
        cmocka_unit_test(says_the_same),
        cmocka_unit_test(verifies_reference_cases),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
