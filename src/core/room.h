/* What memory is left to this process, by who limits it; each in bytes, UINT64_MAX where it sets no limit or the system
 * does not say. `root` is "/", or a folder that holds recorded files (tests): root/proc/..., root/sys/fs/cgroup/... */
#ifndef FIRN_CORE_ROOM_H
#define FIRN_CORE_ROOM_H

#include <stdint.h>

/* MemAvailable of /proc/meminfo. */
uint64_t firn_room_of_host(const char *root);
/* The least over the process's control groups (v1 and v2) and their parents, as far as they can be seen: the limit less
 * what is taken; pages of files, which are given back when memory is short, count as free. */
uint64_t firn_room_of_cgroups(const char *root);
/* Address space and data (ulimit -v, -d), less what is taken of them. */
uint64_t firn_room_of_limits(const char *root);
/* The least of them, at least 1; 0 when none of them says anything. */
uint64_t firn_room(const char *root);

#endif
