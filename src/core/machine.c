/* Linux says it in /proc; elsewhere memory figures are 0 and left out. */
#include "core/machine.h"

#include "core/room.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double firn_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The figure in kB behind `key` in a file of /proc, in bytes. */
static uint64_t proc_bytes(const char *path, const char *key)
{
    char text[8192];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

uint64_t firn_memory_anonymous(void)
{
    return proc_bytes("/proc/self/status", "RssAnon:");
}

uint64_t firn_memory_available(void)
{
    return firn_room("/");
}

uint64_t firn_memory_total(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

void firn_text_bytes(firn_text *text, uint64_t bytes)
{
    if (bytes >= 1u << 30)
        firn_text_printf(text, "%.2f GiB", (double)bytes / (1u << 30));
    else if (bytes >= 10u << 20)
        firn_text_printf(text, "%.0f MiB", (double)bytes / (1u << 20));
    else
        firn_text_printf(text, "%.2f MiB", (double)bytes / (1u << 20));
}

void firn_text_duration(firn_text *text, double seconds)
{
    const long long s = (long long)(seconds + 0.5);

    if (s >= 3600)
        firn_text_printf(text, "%lld h %lld min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        firn_text_printf(text, "%lld min %lld s", s / 60, s % 60);
    else
        firn_text_printf(text, "%.*f s", seconds < 10, seconds);
}
