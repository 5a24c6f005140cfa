/* What memory a process may take, from files of control groups: written by hand in the kernel's formats, as a container
 * runtime on v1, a service manager's slices on v2, and a container on v2 with and without a namespace of its own have
 * them. */
#include "unit/unit.h"

#include "core/machine.h"
#include "core/room.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static char root[] = "/tmp/firn-room-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[512], command[600];

    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", full);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int fresh(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s; mkdir %s", root, root);
    return system(command);
}

static void put_group(const char *folder, const char *max, const char *high, const char *current, const char *stat)
{
    char path[300];
    const char *const names[] = {"memory.max", "memory.high", "memory.current", "memory.stat"};
    const char *const texts[] = {max, high, current, stat};

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        put(path, texts[i]);
    }
}

static void no_groups_set_no_limit(void **state)
{
    (void)state;
    assert_true(firn_room_of_cgroups(root) == UINT64_MAX);
    assert_true(firn_room_of_host(root) == UINT64_MAX);
    assert_true(firn_room(root) == 0);
    put("/proc/self/cgroup", "garbage\n1:\n::::\n");
    put("/proc/self/mountinfo", "garbage\n - \n1 2 3:4 / /x rw - cgroup2\n1 2 3:4 / /sys/fs/cgroup - cgroup2 c\n");
    assert_true(firn_room_of_cgroups(root) == UINT64_MAX);
    put("/proc/meminfo", "MemTotal:       24689764 kB\nMemFree:          512 kB\nMemAvailable:    1048576 kB\n");
    assert_true(firn_room_of_host(root) == 1024 * MIB);
    assert_true(firn_room(root) == 1024 * MIB);
}

/* A service in its slice: the slice is what is tight. */
static void parents_count_in_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/user.slice/user-1000.slice/run-17.scope\n");
    put("/proc/self/mountinfo",
        "22 28 0:20 / /proc rw,nosuid - proc proc rw\n"
        "31 24 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    put_group("/sys/fs/cgroup/user.slice/user-1000.slice/run-17.scope", "max\n", "max\n", "104857600\n", "anon 1\n");
    assert_true(firn_room_of_cgroups(root) == UINT64_MAX);
    put_group("/sys/fs/cgroup/user.slice/user-1000.slice", "492830720\n", "max\n", "419430400\n",
              "anon 104857600\nfile 314572800\ninactive_file 209715200\nactive_file 104857600\nslab_reclaimable "
              "0\nslab_unreclaimable 999\n");
    assert_true(firn_room_of_cgroups(root) == 370 * MIB); /* 470 - (400 - 300 of files) */
    put_group("/sys/fs/cgroup/user.slice/user-1000.slice/run-17.scope", "314572800\n", "209715200\n", "104857600\n",
              "anon 104857600\n");
    assert_true(firn_room_of_cgroups(root) == 100 * MIB); /* memory.high, where it begins to be throttled */
    put_group("/sys/fs/cgroup/user.slice/user-1000.slice/run-17.scope", "52428800\n", "max\n", "104857600\n",
              "anon 1\n");
    assert_true(firn_room_of_cgroups(root) == 0);
    assert_true(firn_room(root) == 1); /* 0 would say that nobody knows */
}

static void a_container_sees_its_own_part_of_v2(void **state)
{
    (void)state;
    /* with a namespace: the group is "/", and the limit lies at the mount */
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "1 2 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
    put_group("/sys/fs/cgroup", "492830720\n", "max\n", "20971520\n", "inactive_file 10485760\nactive_file 0\n");
    assert_true(firn_room_of_cgroups(root) == 460 * MIB);
    /* without: the host's path, of which only the end is mounted; or none of it */
    put("/proc/self/cgroup", "0::/system.slice/docker-4f1d.scope\n");
    put("/proc/self/mountinfo", "1 2 0:28 /system.slice/docker-4f1d.scope /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    assert_true(firn_room_of_cgroups(root) == 460 * MIB);
    put("/proc/self/cgroup", "0::/../../elsewhere\n");
    put("/proc/self/mountinfo", "1 2 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    assert_true(firn_room_of_cgroups(root) == 460 * MIB);
}

static void v1_has_a_tree_for_memory(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "12:pids:/docker/4f1d\n5:cpu,cpuacct:/docker/4f1d\n4:memory:/docker/4f1d\n"
                             "1:name=systemd:/docker/4f1d\n0::/system.slice/containerd.service\n");
    put("/proc/self/mountinfo", "40 30 0:31 /docker/4f1d /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                                "41 30 0:32 /docker/4f1d /sys/fs/cgroup/my\\040memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/my memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/my memory/memory.usage_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/my memory/memory.stat",
        "cache 1\nrss 2\nactive_file 777\ntotal_inactive_file 31457280\ntotal_active_file 20971520\n");
    assert_true(firn_room_of_cgroups(root) == UINT64_MAX);
    put("/sys/fs/cgroup/my memory/memory.limit_in_bytes", "492830720\n");
    assert_true(firn_room_of_cgroups(root) == 420 * MIB); /* 470 - (100 - 30 - 20) */
}

static void limits_of_the_process_count(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their shadows take more addresses than any limit leaves */
#endif
    static const struct {
        int resource;
        const char *key;
    } cases[] = {{RLIMIT_AS, "VmSize"}, {RLIMIT_DATA, "VmData"}};

    put("/proc/self/status", "Name:\tfirn\nVmPeak:\t  999999 kB\nVmSize:\t  512000 kB\nVmData:\t  204800 kB\n");
    for (size_t i = 0; i < 2; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            const struct rlimit limit = {600 * MIB, 600 * MIB};
            const uint64_t expected = i ? 400 * MIB : 100 * MIB;
            _exit(setrlimit(cases[i].resource, &limit) != 0 || firn_room_of_limits(root) != expected ||
                  firn_memory_available() > 600 * MIB);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void this_machine_says_something(void **state)
{
    (void)state;
    if (access("/proc/meminfo", R_OK) == 0)
        assert_true(firn_memory_available() > 0 && firn_memory_available() <= firn_memory_total());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(no_groups_set_no_limit, fresh),
        cmocka_unit_test_setup(parents_count_in_v2, fresh),
        cmocka_unit_test_setup(a_container_sees_its_own_part_of_v2, fresh),
        cmocka_unit_test_setup(v1_has_a_tree_for_memory, fresh),
        cmocka_unit_test_setup(limits_of_the_process_count, fresh),
        cmocka_unit_test(this_machine_says_something),
    };
    if (!mkdtemp(root))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command) == 0 ? failed : 1;
}
