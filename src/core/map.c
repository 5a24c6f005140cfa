/* Mapped files, and what may happen to a file while it is mapped.
 *
 * A page that cannot be read (the file was cut short, the disk fails) comes as SIGBUS. Every map is listed here, so
 * that firn_map_fault, called by the program's handler, can tell ours from others': it puts zeros there, so that
 * whoever reads goes on, and marks the map. Whoever computed from it asks firn_map_check before the result counts. */
#include "core/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 1024, PATH_SHOWN = 1024 }; /* a split model has a map for each part */
enum { FREE, BEING_FILLED, LISTED };

typedef struct {
    atomic_int state;
    const uint8_t *data;
    size_t size;
    atomic_size_t bad; /* 1 + offset of a byte that could not be read; 0: none */
    int fd;
    struct stat was;
    char path[PATH_SHOWN];
} entry;

static entry entries[MOST];
static atomic_int n_bad; /* maps, still open, that could not be read */
static char last_bad[PATH_SHOWN + 256];

/* ---- listing ---- */

static entry *entry_of(const firn_map *map)
{
    return map->place ? &entries[map->place - 1] : NULL;
}

/* 1 + the place, 0 when all are taken: the map is then not watched. */
static int list(const uint8_t *data, int fd, const struct stat *st, const char *path)
{
    const size_t n = strlen(path), cut = n < PATH_SHOWN ? 0 : n - PATH_SHOWN + 1;

    for (int i = 0; i < MOST; i++) {
        entry *e = &entries[i];
        int free_one = FREE;
        if (!atomic_compare_exchange_strong(&e->state, &free_one, BEING_FILLED))
            continue;
        e->data = data;
        e->size = (size_t)st->st_size;
        e->fd = fd;
        e->was = *st;
        memcpy(e->path, path + cut, n - cut + 1);
        atomic_store(&e->bad, 0);
        atomic_store(&e->state, LISTED);
        return i + 1;
    }
    return 0;
}

firn_status firn_map_open(firn_context *ctx, const char *path, firn_map *map)
{
    struct stat st;
    int fd;

    *map = (firn_map){0};
    FIRN_TRY(firn_open_regular(ctx, path, &fd, &st));
    *map = (firn_map){.device = st.st_dev, .inode = st.st_ino};
    if (st.st_size == 0) {
        close(fd);
        return FIRN_OK;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        const firn_status s = firn_fail_errno(ctx, "map", path);
        close(fd);
        return s;
    }
    map->data = p;
    map->size = (size_t)st.st_size;
    map->place = list(p, fd, &st, path);
    if (!map->place)
        close(fd);
    return FIRN_OK;
}

firn_status firn_map_stream(firn_context *ctx, const char *path, firn_map *map)
{
    struct stat st;
    char *data;
    size_t size;

    if (strcmp(path, "-") != 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        return firn_map_open(ctx, path, map);
    *map = (firn_map){0};
    FIRN_TRY(firn_stream_read(ctx, path, 0, &data, &size));
    *map = (firn_map){.data = (const uint8_t *)data, .size = size, .memory = ctx};
    return FIRN_OK;
}

/* ---- faults ---- */

static void describe(const entry *e, char *text, size_t size)
{
    const size_t at = atomic_load(&e->bad) - 1;
    struct stat now;

    if (fstat(e->fd, &now) == 0 && (uint64_t)now.st_size <= at)
        snprintf(text, size, "%s was cut to %lld bytes while it was in use; expected it to keep its %zu", e->path,
                 (long long)now.st_size, e->size);
    else
        snprintf(text, size, "%s cannot be read at byte %zu: its disk reports an error", e->path, at);
}

void firn_map_close(firn_map *map)
{
    entry *e = entry_of(map);

    if (e) {
        if (atomic_load(&e->bad)) {
            describe(e, last_bad, sizeof last_bad);
            atomic_fetch_sub(&n_bad, 1);
        }
        atomic_store(&e->state, BEING_FILLED); /* before the addresses may become another's */
    }
    if (map->memory)
        firn_free(map->memory, (void *)(uintptr_t)map->data);
    else if (map->data)
        munmap((void *)map->data, map->size);
    if (e) {
        close(e->fd);
        atomic_store(&e->state, FREE);
    }
    *map = (firn_map){0};
}

bool firn_map_fault(const void *address)
{
    const uintptr_t at = (uintptr_t)address;
    const int error = errno;

    for (int i = 0; i < MOST; i++) {
        entry *e = &entries[i];
        const uintptr_t begin = (uintptr_t)e->data, size = e->size;
        size_t none = 0;
        if (atomic_load(&e->state) != LISTED || at < begin || at - begin >= size)
            continue;
        /* Zeros to the end: what lies behind the fault is lost too, or will not be asked for. */
        const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = at / page * page;
        if (mmap((void *)from, begin + size - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            return false;
        if (atomic_compare_exchange_strong(&e->bad, &none, at - begin + 1))
            atomic_fetch_add(&n_bad, 1);
        errno = error;
        return true;
    }
    return false;
}

static firn_status fail_bad(firn_context *ctx, const entry *e)
{
    char text[sizeof last_bad];

    describe(e, text, sizeof text);
    return firn_fail(ctx, FIRN_ERR_IO, "%s", text);
}

firn_status firn_map_check(firn_context *ctx, const firn_map *map)
{
    const entry *e = entry_of(map);

    return e && atomic_load(&e->bad) ? fail_bad(ctx, e) : FIRN_OK;
}

firn_status firn_maps_check(firn_context *ctx)
{
    if (atomic_load(&n_bad) == 0)
        return FIRN_OK;
    for (int i = 0; i < MOST; i++)
        if (atomic_load(&entries[i].state) == LISTED && atomic_load(&entries[i].bad))
            return fail_bad(ctx, &entries[i]);
    return FIRN_OK;
}

const char *firn_map_last_fault(void)
{
    return last_bad;
}

#ifdef __APPLE__
#define MODIFIED st_mtimespec
#else
#define MODIFIED st_mtim
#endif

firn_status firn_map_unchanged(firn_context *ctx, const firn_map *map)
{
    const entry *e = entry_of(map);
    struct stat now;

    FIRN_TRY(firn_map_check(ctx, map));
    if (!e || fstat(e->fd, &now) < 0)
        return FIRN_OK;
    if (now.st_size != e->was.st_size)
        return firn_fail(ctx, FIRN_ERR_IO,
                         "%s went from %lld to %lld bytes while it was in use; expected it to stay as it is", e->path,
                         (long long)e->was.st_size, (long long)now.st_size);
    if (now.MODIFIED.tv_sec != e->was.MODIFIED.tv_sec || now.MODIFIED.tv_nsec != e->was.MODIFIED.tv_nsec)
        return firn_fail(ctx, FIRN_ERR_IO, "%s was written to while it was in use; expected it to stay as it is",
                         e->path);
    return FIRN_OK;
}

/* ---- hints ---- */

/* madvise over the whole pages inside [offset, offset + size) (outward: also the pages that it touches). */
static void advise(const firn_map *map, size_t offset, size_t size, int advice, bool outward)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = offset, to = offset + size;

    if (!map->data || map->memory || offset > map->size || size > map->size - offset)
        return;
    if (outward) {
        from = from / page * page;
    } else {
        from = (from + page - 1) / page * page;
        to = to / page * page;
    }
    if (from < to)
        (void)madvise((uint8_t *)map->data + from, to - from, advice); /* a wish, not a need */
}

void firn_map_will_need(const firn_map *map, size_t offset, size_t size)
{
    advise(map, offset, size, MADV_WILLNEED, true);
}

void firn_map_release(const firn_map *map, size_t offset, size_t size)
{
    advise(map, offset, size, MADV_DONTNEED, false);
}
