/* Which devices there are: built in, and in shared objects, good and bad ones (tests/plugin). */
#include "unit/unit.h"

#include "core/backend.h"
#include "firn/ops.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static firn_device_info described(firn_context *ctx, const char *name)
{
    firn_device_info info = {.size = sizeof info};

    for (int i = 0; i < firn_device_count(); i++) {
        assert_int_equal(firn_device_describe(ctx, i, &info), FIRN_OK);
        if (strcmp(info.name, name) == 0)
            return info;
    }
    fail_msg("there is no %s", name);
    return info;
}

static void the_cpu_says_what_it_is(void **state)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 3});
    firn_device_info d = {.size = sizeof d};

    (void)state;
    assert_int_equal(firn_device_describe(ctx, 0, &d), FIRN_OK);
    assert_string_equal(d.name, "CPU");
    assert_string_equal(d.backend, "CPU");
    assert_string_equal(d.error, "");
    assert_true(d.host_memory);
    assert_int_equal(d.units, 3);
    assert_true(d.precisions & 1u << FIRN_PRECISION_F32);
    assert_true(d.memory_total > 1u << 20 && d.memory_free <= d.memory_total);
    assert_non_null(strstr(d.about, "3 threads"));
    assert_int_equal(firn_device_describe(ctx, -1, &d), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_device_describe(ctx, firn_device_count(), &d), FIRN_ERR_ARGUMENT);
    assert_non_null(strstr(firn_error(ctx), "devices are numbered 0 to "));
    firn_context_destroy(ctx);
}

/* A plug-in's device runs a plan of ours. */
static void a_plugin_computes(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;
    firn_buffer *memory;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    float x[4] = {1, 2, 3, 4}, y[4];

    (void)state;
    const firn_device_info d = described(ctx, "TINY1");
    assert_string_equal(d.backend, "Tiny");
    assert_string_equal(d.error, "");
    assert_string_equal(d.about, "the tests' device 1");
    assert_int_equal(d.memory_total, 1 << 20);
    assert_false(d.host_memory);
    assert_int_equal(firn_device_open(ctx, "tiny1", &device), FIRN_OK);
    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    firn_tensor *a = firn_slot(g, FIRN_F32, 1, (int64_t[]){4}, "a");
    firn_tensor *sum = firn_output(g, firn_add(g, a, a));
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, 128, &memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, a, memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, sum, memory, 64), FIRN_OK);
    assert_int_equal(firn_buffer_write(memory, 0, x, sizeof x), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(device), FIRN_OK);
    assert_int_equal(firn_buffer_read(memory, 64, y, sizeof y), FIRN_OK);
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 2 * x[i]);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    /* What it does not have, it says in words that pass through the library. */
    firn_tensor *scaled = firn_output(g, firn_scale(g, a, 2));
    assert_non_null(scaled);
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(ctx), "TINY1 cannot run SCALE: the tests' device adds, and nothing else");
    firn_buffer_destroy(memory);
    firn_graph_destroy(g);
    firn_device_close(device);
    firn_context_destroy(ctx);
}

static void what_cannot_be_used_is_told(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;

    (void)state;
    assert_string_equal(described(ctx, "TINY2").error, "TINY2 is never there");
    assert_string_equal(described(ctx, "TINY2").backend, "Tiny");
    assert_string_equal(described(ctx, "old").error, "libfirn-old.so is of firn 0.0.1, this is firn " FIRN_VERSION);
    const firn_device_info garbage = described(ctx, "garbage");
    assert_memory_equal(garbage.error, "libfirn-garbage.so cannot be loaded: ", 37);
    assert_int_equal(garbage.memory_total, 0);
    assert_string_equal(described(ctx, "pipe").error, "libfirn-pipe.so cannot be loaded: it is not a file");
    assert_memory_equal(described(ctx, "FIRN_BACKENDS").error, "FIRN_BACKENDS names the folder /nowhere, which cannot",
                        52);
    for (int i = 0; i < firn_device_count(); i++) { /* libfirn-group-*.so are no devices */
        firn_device_info d = {.size = sizeof d};
        assert_int_equal(firn_device_describe(ctx, i, &d), FIRN_OK);
        assert_null(strstr(d.name, "group"));
    }
    assert_int_equal(firn_device_open(ctx, "GARBAGE0", &device), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "there is no device 'GARBAGE0' here; there is: CPU, "));
    assert_non_null(strstr(firn_error(ctx), "; libfirn-garbage.so cannot be loaded: "));
    firn_context_destroy(ctx);
}

int main(void)
{
    char folder[] = "/tmp/firn-devices-XXXXXX", path[300];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_says_what_it_is),
        cmocka_unit_test(a_plugin_computes),
        cmocka_unit_test(what_cannot_be_used_is_told),
    };

    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/libfirn-garbage.so", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs("no object", f) < 0 || fclose(f) != 0)
        return 1;
    snprintf(path, sizeof path, "%s/libfirn-group-self.so", folder);
    f = fopen(path, "w");
    if (!f || fclose(f) != 0)
        return 1;
    snprintf(path, sizeof path, "%s/libfirn-pipe.so", folder);
    if (mkfifo(path, 0600) != 0)
        return 1;
    snprintf(path, sizeof path, "/nowhere:%s:" FIRN_PLUGIN_DIR, folder);
    setenv("FIRN_BACKENDS", path, 1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(path, sizeof path, "%s/libfirn-garbage.so", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/libfirn-group-self.so", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/libfirn-pipe.so", folder);
    unlink(path);
    rmdir(folder);
    return failed;
}
