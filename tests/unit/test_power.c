/* Power loss, simulated: the calls that write a run are recorded in order; after every prefix of them a disk is made as
 * it might be found, and the run on it must go on to the same adapter, with no checkpoint or log found damaged.
 *
 * What a disk keeps: bytes of a file that fsync was called for, and names in a folder that fsync was called for. What
 * was not synced may be there or not, so each prefix is tried as three disks: everything is there; nothing but what was
 * synced; names are there and the bytes behind them are not (a rename that overtook its data). Recorded by standing in
 * for the C library's functions, which a program's own definitions come before. */
#include "unit/unit.h"

#include "core/context.h"
#include "firn/train.h"
#include "model/random_model.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVENTS = 4096, NODES = 512, NAMES = 512, STEPS = 3, PATH_BYTES = 256 };

typedef enum { CREATE, WRITE, TRUNCATE, SYNC, RENAME, REMOVE, FOLDER, SYNC_FOLDER } event_kind;
static const char *const kind_names[] = {"create", "write",  "truncate", "sync",
                                         "rename", "remove", "folder",   "sync folder"};

typedef struct {
    event_kind kind;
    int node;                              /* of the file: not its name */
    char path[PATH_BYTES], to[PATH_BYTES]; /* below the folder that is recorded */
    size_t at, size;
    uint8_t *data;
} event;

static event events[EVENTS];
static int n_events, n_nodes;
static bool recording;
static char scratch[] = "/tmp/firn-power-XXXXXX", disk[64];

/* ---- recording ---- */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int node_of_fd[1024];

/* What lies behind the folder's name and a slash; NULL for a path elsewhere, and for locks, which hold no data. */
static const char *inside(const char *path)
{
    const size_t n = strlen(disk);

    if (!recording || strncmp(path, disk, n) != 0 || (path[n] != '/' && path[n]) || strstr(path, "lock"))
        return NULL;
    return path[n] ? path + n + 1 : "";
}

static event *add(event_kind kind, const char *path)
{
    assert_true(n_events < EVENTS);
    event *e = &events[n_events++];
    *e = (event){.kind = kind};
    snprintf(e->path, sizeof e->path, "%s", path ? path : "");
    return e;
}

static bool watched(int fd)
{
    return recording && fd >= 0 && fd < 1024 && node_of_fd[fd];
}

/* The names that files have now, to know which one is opened. */
static struct {
    char path[PATH_BYTES];
    int node;
} now[NAMES];

static int *node_at(const char *path, bool make)
{
    int free_one = -1;

    for (int i = 0; i < NAMES; i++) {
        if (now[i].node && strcmp(now[i].path, path) == 0)
            return &now[i].node;
        if (!now[i].node)
            free_one = i;
    }
    if (!make)
        return NULL;
    assert_true(free_one >= 0);
    snprintf(now[free_one].path, PATH_BYTES, "%s", path);
    return &now[free_one].node;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    const char *name = inside(path);
    const int fd = REAL(open)(path, flags, mode);
    struct stat st;

    if (fd < 0 || fd >= 1024)
        return fd;
    node_of_fd[fd] = 0;
    if (!name || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (flags & O_ACCMODE) == O_RDONLY)
        return fd;
    int *node = node_at(name, true);
    if (!*node) {
        *node = ++n_nodes;
        add(CREATE, name)->node = *node;
    }
    node_of_fd[fd] = *node;
    if (flags & O_TRUNC)
        add(TRUNCATE, NULL)->node = *node;
    return fd;
}

ssize_t write(int fd, const void *data, size_t size)
{
    const off_t at = watched(fd) ? lseek(fd, 0, SEEK_CUR) : 0;
    const ssize_t n = REAL(write)(fd, data, size);

    if (watched(fd) && n > 0) {
        event *e = add(WRITE, NULL);
        e->node = node_of_fd[fd];
        e->at = (size_t)at;
        e->size = (size_t)n;
        e->data = malloc(e->size);
        memcpy(e->data, data, e->size);
    }
    return n;
}

int ftruncate(int fd, off_t size)
{
    if (watched(fd)) {
        event *e = add(TRUNCATE, NULL);
        e->node = node_of_fd[fd];
        e->size = (size_t)size;
    }
    return REAL(ftruncate)(fd, size);
}

int fsync(int fd)
{
    char link[64], path[512] = "";
    struct stat st;

    if (watched(fd)) {
        add(SYNC, NULL)->node = node_of_fd[fd];
    } else if (recording && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        if (inside(path))
            add(SYNC_FOLDER, inside(path));
        else if (strcmp(path, scratch) == 0)
            add(SYNC_FOLDER, "/"); /* the one that the run's folder lies in */
    }
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    const int r = REAL(rename)(from, to);

    if (r == 0 && inside(from) && inside(to)) {
        event *e = add(RENAME, inside(from));
        snprintf(e->to, sizeof e->to, "%s", inside(to));
        const int node = *node_at(inside(from), false);
        *node_at(inside(from), false) = 0;
        *node_at(inside(to), true) = node;
    }
    return r;
}

static int removed(int result, const char *path)
{
    const char *name = inside(path);

    if (result == 0 && name && node_at(name, false)) {
        add(REMOVE, name);
        *node_at(name, false) = 0;
    }
    return result;
}

int unlink(const char *path)
{
    return removed(REAL(unlink)(path), path);
}

int unlinkat(int folder, const char *name, int flags)
{
    char link[64], path[512];
    const int r = REAL(unlinkat)(folder, name, flags);

    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t n = recording ? readlink(link, path, sizeof path - 1) : -1;
    if (n < 0)
        return r;
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    return removed(r, path);
}

int mkdir(const char *path, mode_t mode)
{
    const int r = REAL(mkdir)(path, mode);

    if (r == 0 && inside(path))
        add(FOLDER, inside(path));
    return r;
}

/* ---- disks ---- */

typedef struct {
    uint8_t *data, *synced;
    size_t size, synced_size;
} file;

typedef struct {
    char path[PATH_BYTES];
    int node; /* -1: a folder; 0: unused */
} name;

typedef enum { ALL, SYNCED, NAMES_ONLY, DISKS } disk_kind;

static file files[NODES];
static name names[NAMES], kept[NAMES]; /* as the program sees them; as folders were synced */

static name *find(name *list, const char *path)
{
    for (int i = 0; i < NAMES; i++)
        if (list[i].node && strcmp(list[i].path, path) == 0)
            return &list[i];
    return NULL;
}

static void put(name *list, const char *path, int node)
{
    name *n = find(list, path);

    for (int i = 0; !n; i++) {
        assert_true(i < NAMES);
        n = list[i].node ? NULL : &list[i];
    }
    snprintf(n->path, sizeof n->path, "%s", path);
    n->node = node;
}

static bool lies_in(const char *path, const char *folder)
{
    const size_t n = strlen(folder);

    if (strcmp(folder, "/") == 0)
        return !path[0]; /* the run's folder itself */
    return path[0] && strncmp(path, folder, n) == 0 && (n == 0 || path[n] == '/') && !strchr(path + n + (n > 0), '/');
}

static void happen(const event *e)
{
    file *f = &files[e->node];

    switch (e->kind) {
    case CREATE:
        put(names, e->path, e->node);
        break;
    case FOLDER:
        put(names, e->path, -1);
        break;
    case WRITE:
        if (e->at + e->size > f->size) {
            f->data = realloc(f->data, e->at + e->size);
            f->size = e->at + e->size;
        }
        memcpy(f->data + e->at, e->data, e->size);
        break;
    case TRUNCATE:
        f->size = e->size < f->size ? e->size : f->size;
        break;
    case SYNC:
        f->synced = realloc(f->synced, f->size + 1);
        memcpy(f->synced, f->data ? f->data : (uint8_t *)"", f->size);
        f->synced_size = f->size;
        break;
    case RENAME: {
        const int node = find(names, e->path)->node;
        find(names, e->path)->node = 0;
        put(names, e->to, node);
        break;
    }
    case REMOVE:
        find(names, e->path)->node = 0;
        break;
    case SYNC_FOLDER:
        for (int i = 0; i < NAMES; i++)
            if (kept[i].node && lies_in(kept[i].path, e->path))
                kept[i].node = 0;
        for (int i = 0; i < NAMES; i++)
            if (names[i].node && lies_in(names[i].path, e->path))
                put(kept, names[i].path, names[i].node);
        break;
    }
}

static uint64_t mix(uint64_t h, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return h;
}

/* Whether every folder above a name is there too. */
static bool reachable(name *list, const char *path)
{
    char folder[PATH_BYTES];

    if (!find(list, ""))
        return false;
    memcpy(folder, path, sizeof folder); /* of a name */
    for (char *slash; (slash = strrchr(folder, '/'));) {
        *slash = 0;
        if (!find(list, folder))
            return false;
    }
    return true;
}

/* Makes the disk in `at`; what it is in a number. */
static uint64_t build(disk_kind kind, const char *at)
{
    name *list = kind == SYNCED ? kept : names;
    char path[3 * PATH_BYTES];
    uint64_t sum = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < NAMES; i++) {
            const name *n = &list[i];
            if (!n->node || (n->node < 0) != (pass == 0) || !reachable(list, n->path))
                continue;
            snprintf(path, sizeof path, "%.*s/%.*s", PATH_BYTES, at, PATH_BYTES - 1, n->path);
            sum += mix(0xCBF29CE484222325u, n->path, strlen(n->path));
            if (n->node < 0) {
                if (at[0] && mkdir(path, 0777) < 0 && errno != EEXIST)
                    fail_msg("%s", path);
                continue;
            }
            const file *f = &files[n->node];
            const uint8_t *data = kind == ALL ? f->data : f->synced;
            const size_t size = kind == ALL ? f->size : f->synced_size;
            sum += mix(mix(0xCBF29CE484222325u, n->path, strlen(n->path)), data, size) * 31;
            if (!at[0])
                continue;
            FILE *out = fopen(path, "wb");
            assert_non_null(out);
            assert_int_equal(fwrite(data ? data : (uint8_t *)"", 1, size, out), size);
            fclose(out);
        }
    return sum;
}

/* ---- the run ---- */

/* Whether a file whose name begins like that, but for `not_this`, would be there after a power loss now, as it is. */
static bool is_safe(const char *begin, const char *not_this)
{
    for (int i = 0; i < NAMES; i++) {
        const name *n = find(kept, names[i].path);
        if (names[i].node > 0 && n && n->node == names[i].node && strncmp(n->path, begin, strlen(begin)) == 0 &&
            (!not_this || strcmp(n->path, not_this) != 0) && reachable(kept, n->path) &&
            files[n->node].synced_size == files[n->node].size)
            return true;
    }
    return false;
}

static char said[1 << 14];

static void say(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

/* A new run in `folder`, or the one there to its end. */
static void run_in(const char *folder)
{
    char path[PATH_BYTES];
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    const firn_watch watch = {.size = sizeof watch, .say = say};
    firn_train_result result = {.size = sizeof result};
    firn_train_options o;

    firn_train_options_init(&o);
    snprintf(path, sizeof path, "%s/run.json", folder);
    said[0] = 0;
    firn_status s;
    if (access(path, F_OK) == 0) {
        s = firn_train_resume(ctx, folder, &o, 0, &watch, &result);
    } else {
        o.model = "m.gguf";
        o.data = FIRN_STRINGS("d.jsonl");
        o.cache = "none";
        o.output = folder;
        o.steps = STEPS;
        o.save_every = 1;
        o.keep = 1;
        o.context = 32;
        o.rank = 1;
        o.eval_split = 0;
        s = firn_train(ctx, &o, 0, &watch, &result);
    }
    if (s != FIRN_OK || !result.finished)
        fail_msg("%s: %s\n%s", folder, firn_error(ctx), said);
    firn_context_destroy(ctx);
}

static void slurp(const char *folder, const char *file_name, char *text, size_t size, size_t *n)
{
    char path[PATH_BYTES];

    snprintf(path, sizeof path, "%s/%s", folder, file_name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("there is no %s", path);
    *n = fread(text, 1, size - 1, f);
    text[*n] = 0;
    fclose(f);
}

static void a_run_survives_power_loss_at_any_moment(void **state)
{
    static char whole[1 << 18], again[1 << 18];
    uint64_t seen[3 * EVENTS];
    size_t n_whole, n_again, n_seen = 0;

    (void)state;
    snprintf(disk, sizeof disk, "%s/r", scratch);
    recording = true;
    run_in(disk);
    recording = false;
    slurp(disk, "adapter.gguf", whole, sizeof whole, &n_whole);
    assert_true(n_events > 50);
    for (int k = 0; k <= n_events; k++) {
        for (disk_kind kind = ALL; kind < DISKS; kind++) {
            const uint64_t sum = build(kind, "");
            bool old = false;
            for (size_t i = 0; i < n_seen && !old; i++)
                old = seen[i] == sum;
            if (old)
                continue;
            seen[n_seen++] = sum;
            assert_int_equal(system("rm -rf state; mkdir state"), 0);
            build(kind, "state");
            run_in("state");
            slurp("state", "adapter.gguf", again, sizeof again, &n_again);
            if (n_again != n_whole || memcmp(again, whole, n_whole) != 0 || strstr(said, "warning"))
                fail_msg("disk %d after %d of %d events, the last of them %s of %s: %s", (int)kind, k, n_events,
                         k ? kind_names[events[k - 1].kind] : "", k ? events[k - 1].path : "", said);
            slurp("state", "metrics.jsonl", again, sizeof again, &n_again);
            int lines = 0;
            for (const char *c = again; (c = strchr(c, '\n')); c++)
                lines++;
            assert_int_equal(lines, STEPS + 1);
        }
        if (k < n_events && events[k].kind == REMOVE && strncmp(events[k].path, "checkpoints/", 12) == 0)
            assert_true(is_safe("checkpoints/step-", events[k].path)); /* the one that takes its place */
        if (k < n_events)
            happen(&events[k]);
    }
    for (size_t i = 0; i < 3; i++)
        assert_true(is_safe((const char *const[]){"adapter.gguf", "report.html", "run.json"}[i], NULL));
    print_message("%d events, %zu different disks\n", n_events, n_seen);
    assert_true(n_seen > 30);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(scratch) || chdir(scratch) != 0)
        return 1;
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    const firn_status s =
        firn_random_model_write(ctx, firn_random_shape_find("tiny-llama"), 1, FIRN_Q8_0, 1, "m.gguf", NULL);
    firn_context_destroy(ctx);
    FILE *f = fopen("d.jsonl", "w");
    if (!f)
        return 1;
    fputs("{\"prompt\": \"red\", \"completion\": \" one\"}\n{\"prompt\": \"blue\", \"completion\": \" two\"}\n", f);
    fclose(f);
    return s != FIRN_OK;
}

static int teardown(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_survives_power_loss_at_any_moment)};

    return cmocka_run_group_tests(tests, setup, teardown);
}
