/* Control groups as the kernel documents them (cgroup-v2.rst, cgroup-v1/memory.rst): /proc/self/cgroup says which
 * groups the process is in, /proc/self/mountinfo where their trees are mounted, and from which of their folders on (a
 * container sees only its own part). */
#include "core/room.h"

#include "core/file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Small: they lie on the stack, which may be too (ulimit -s). Files that say more than this are no such files. */
enum { PATH_BYTES = 1024, FILE_BYTES = 4096 };

/* The text of a small file, cut at FILE_BYTES; false when it cannot be read. */
static bool read_text(const char *root, const char *path, char *text)
{
    char full[2 * PATH_BYTES];
    size_t n = 0;

    if (snprintf(full, sizeof full, "%s%s", strcmp(root, "/") ? root : "", path) >= (int)sizeof full)
        return false;
    const int fd = firn_open(full, O_RDONLY, 0);
    if (fd < 0)
        return false;
    for (ssize_t r; n < FILE_BYTES - 1 && (r = read(fd, text + n, FILE_BYTES - 1 - n)) > 0;)
        n += (size_t)r;
    close(fd);
    text[n] = 0;
    return n > 0;
}

/* The number behind `key` and spaces at the start of a line; false when there is none. */
static bool number_at(const char *text, const char *key, uint64_t *value)
{
    const size_t n = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == '\t')) {
            *value = strtoull(line + n, NULL, 10);
            return true;
        }
    }
    return false;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t firn_room_of_host(const char *root)
{
    char text[FILE_BYTES];
    uint64_t kilobytes;

    return read_text(root, "/proc/meminfo", text) && number_at(text, "MemAvailable:", &kilobytes) ? kilobytes * 1024
                                                                                                  : UINT64_MAX;
}

/* ---- control groups ---- */

typedef struct {
    const char *limits[2]; /* files; the second may be absent */
    const char *taken;
    const char *reclaimable[3]; /* keys of memory.stat */
} names;

static const names v1 = {
    {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", {"total_inactive_file", "total_active_file", NULL}};
static const names v2 = {
    {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}};

static bool read_number(const char *root, const char *folder, const char *name, uint64_t *value)
{
    char path[PATH_BYTES + 64], text[FILE_BYTES];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!read_text(root, path, text) || text[0] < '0' || text[0] > '9') /* "max" */
        return false;
    *value = strtoull(text, NULL, 10);
    return true;
}

static uint64_t room_of_group(const char *root, const char *folder, const names *v)
{
    char path[PATH_BYTES + 64], text[FILE_BYTES];
    uint64_t limit = UINT64_MAX, taken = 0, pages = 0, n;

    for (int i = 0; i < 2 && v->limits[i]; i++)
        if (read_number(root, folder, v->limits[i], &n))
            limit = lesser(limit, n);
    if (limit >= (uint64_t)1 << 62) /* v1 says "none" with a number near 2^63 */
        return UINT64_MAX;
    (void)read_number(root, folder, v->taken, &taken);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_text(root, path, text))
        for (int i = 0; i < 3 && v->reclaimable[i]; i++)
            pages += number_at(text, v->reclaimable[i], &n) ? n : 0;
    taken = taken > pages ? taken - pages : 0;
    return limit > taken ? limit - taken : 0;
}

/* A group's folder and its parents up to the mount. */
static uint64_t room_up_to(const char *root, const char *mount, const char *group, const names *v)
{
    char folder[PATH_BYTES];
    const size_t least = strlen(mount);
    uint64_t room = UINT64_MAX;

    if (snprintf(folder, sizeof folder, "%s%s", mount, strcmp(group, "/") ? group : "") >= (int)sizeof folder)
        return UINT64_MAX;
    for (;;) {
        room = lesser(room, room_of_group(root, folder, v));
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= least || !slash)
            return room;
        *slash = 0;
    }
}

/* The path of the process's group in the tree of `controller` ("": v2), from the text of /proc/self/cgroup. */
static bool group_of(const char *text, const char *controller, char *path)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        const char *list = strchr(line, ':'), *at = list ? strchr(list + 1, ':') : NULL;
        if (!at || memchr(line, '\n', (size_t)(at - line)))
            continue;
        bool found = false;
        for (const char *c = list + 1; c <= at && !found; c += strcspn(c, ",:") + 1)
            found = strcspn(c, ",:") == strlen(controller) && strncmp(c, controller, strlen(controller)) == 0;
        const size_t n = strcspn(at + 1, "\n");
        if (!found || n >= PATH_BYTES)
            continue;
        memcpy(path, at + 1, n);
        path[n] = 0;
        return true;
    }
    return false;
}

/* "\040" and the like, as mountinfo writes spaces. */
static void unescape(char *s)
{
    char *to = s;

    for (; *s; to++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *to = *s++;
        }
    }
    *to = 0;
}

/* One line of mountinfo: "36 35 98:0 ROOT POINT options ... - TYPE source super,options". */
static bool parse_mount(char *line, char **from, char **point, char **type, char **super)
{
    char *dash = strstr(line, " - "), *save = NULL;

    if (!dash)
        return false;
    *dash = 0;
    strtok_r(line, " ", &save);
    strtok_r(NULL, " ", &save);
    strtok_r(NULL, " ", &save);
    *from = strtok_r(NULL, " ", &save);
    *point = strtok_r(NULL, " ", &save);
    *type = strtok_r(dash + 3, " ", &save);
    strtok_r(NULL, " ", &save);
    *super = strtok_r(NULL, " ", &save);
    if (!*from || !*point || !*type)
        return false;
    unescape(*from);
    unescape(*point);
    return true;
}

static bool lists(const char *options, const char *name)
{
    for (const char *o = options; o && *o; o += strcspn(o, ","), o += *o == ',')
        if (strcspn(o, ",") == strlen(name) && strncmp(o, name, strlen(name)) == 0)
            return true;
    return false;
}

uint64_t firn_room_of_cgroups(const char *root)
{
    char groups[FILE_BYTES], line[FILE_BYTES], group[PATH_BYTES];
    uint64_t room = UINT64_MAX;

    snprintf(line, sizeof line, "%s/proc/self/mountinfo", strcmp(root, "/") ? root : "");
    FILE *mounts = read_text(root, "/proc/self/cgroup", groups) ? fopen(line, "re") : NULL;
    while (mounts && fgets(line, sizeof line, mounts)) { /* there may be thousands */
        line[strcspn(line, "\n")] = 0;
        char *from, *point, *type, *super;
        if (!parse_mount(line, &from, &point, &type, &super))
            continue;
        const bool second = strcmp(type, "cgroup2") == 0;
        if ((!second && (strcmp(type, "cgroup") != 0 || !lists(super, "memory"))) ||
            !group_of(groups, second ? "" : "memory", group))
            continue;
        /* What is mounted is the tree from `from` on. A group that lies outside it (the host's path, seen in a
         * container) is at the mount itself. */
        const size_t n = strcmp(from, "/") ? strlen(from) : 0;
        const bool inside = strncmp(group, from, n) == 0 && (group[n] == '/' || !group[n]) && !strstr(group, "/..");
        room = lesser(room, room_up_to(root, point, inside && group[n] ? group + n : "/", second ? &v2 : &v1));
    }
    if (mounts)
        fclose(mounts);
    return room;
}

/* ---- limits ---- */

static uint64_t room_below(int resource, const char *status, const char *key)
{
    struct rlimit limit;
    uint64_t taken;

    if (getrlimit(resource, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY || !number_at(status, key, &taken))
        return UINT64_MAX;
    taken *= 1024;
    return (uint64_t)limit.rlim_cur > taken ? (uint64_t)limit.rlim_cur - taken : 0;
}

uint64_t firn_room_of_limits(const char *root)
{
    char text[FILE_BYTES];

    if (!read_text(root, "/proc/self/status", text))
        return UINT64_MAX;
    return lesser(room_below(RLIMIT_AS, text, "VmSize:"), room_below(RLIMIT_DATA, text, "VmData:"));
}

uint64_t firn_room(const char *root)
{
    const uint64_t room =
        lesser(firn_room_of_host(root), lesser(firn_room_of_cgroups(root), firn_room_of_limits(root)));

    return room == UINT64_MAX ? 0 : room ? room : 1;
}
