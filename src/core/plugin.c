/* Backends in shared objects: libfirn-<name>.so in the folders of FIRN_BACKENDS (colons between them), then beside the
 * library. libfirn-group-*.so are no devices. The first of a name is the one; what cannot be loaded is kept with the
 * reason, so that it can be shown. Nothing is looked for before someone asks for a device that is not built in. */
#include "core/backend.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 16, PATH_BYTES = 1024 };

static const char prefix[] = "libfirn-", group[] = "libfirn-group-";

static firn_plugin_entry entries[MOST];
static int n_entries;

static firn_plugin_entry *add(const char *name, size_t length)
{
    for (int i = 0; i < n_entries; i++)
        if (strlen(entries[i].name) == length && memcmp(entries[i].name, name, length) == 0)
            return NULL;
    if (n_entries == MOST)
        return NULL;
    firn_plugin_entry *e = &entries[n_entries++];
    snprintf(e->name, sizeof e->name, "%.*s", (int)length, name);
    return e;
}

/* What the object exports, if it fits this library. */
static const firn_backend_row *row_of(void *object, const char *file, char *error, size_t size)
{
    const firn_plugin *p = dlsym(object, "firn_backend_plugin");

    if (!p || !p->version)
        snprintf(error, size, "%s is no backend of firn: it exports no firn_backend_plugin", file);
    else if (strcmp(p->version, FIRN_VERSION) != 0)
        snprintf(error, size, "%s is of firn %.20s, this is firn %s", file, p->version, FIRN_VERSION);
    else if (p->layout != FIRN_PLUGIN_LAYOUT)
        snprintf(error, size, "%s was built from other sources of firn %s: their structures differ", file,
                 FIRN_VERSION);
    else if (!p->row.name || !p->row.prefix || !p->row.count || !p->row.open)
        snprintf(error, size, "%s has a backend without a name, a count or a way to open", file);
    else
        return &p->row;
    return NULL;
}

/* NULL with the reason. What is no file is not opened: dlopen would wait for a pipe's writer. */
static void *open_object(const char *path, int flags, char *why, size_t size)
{
    struct stat st;
    void *object = NULL;
    const char *said = "it is not a file";

    if (stat(path, &st) != 0)
        said = strerror(errno);
    else if (S_ISREG(st.st_mode) && !(object = dlopen(path, flags)))
        said = dlerror();
    if (!object)
        snprintf(why, size, "%.300s", said ? said : "no reason given");
    return object;
}

/* Objects stay loaded as long as the process: their code may be asked for at any time. */
static void load(firn_plugin_entry *e, const char *folder, const char *file)
{
    char path[PATH_BYTES], why[304];

    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) {
        snprintf(e->error, sizeof e->error, "%s: its folder's name is too long", file);
        return;
    }
    void *object = open_object(path, RTLD_NOW | RTLD_LOCAL, why, sizeof why);
    if (!object) {
        snprintf(e->error, sizeof e->error, "%s cannot be loaded: %s", file, why);
        return;
    }
    e->row = row_of(object, file, e->error, sizeof e->error);
    if (!e->row)
        dlclose(object);
}

/* The length of <name> in libfirn-<name>.so or .dylib; 0: the file is none. */
static size_t name_length(const char *file)
{
    static const char *const endings[] = {".so", ".dylib"};
    const size_t n = strlen(file), begin = sizeof prefix - 1;

    if (strncmp(file, prefix, begin) != 0 || strncmp(file, group, sizeof group - 1) == 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        const size_t end = strlen(endings[i]);
        if (n > begin + end && strcmp(file + n - end, endings[i]) == 0)
            return n - begin - end;
    }
    return 0;
}

static int is_plugin(const struct dirent *entry)
{
    return name_length(entry->d_name) > 0;
}

/* In the order of their names. asked: the user named the folder, and hears of one that cannot be read. */
static void search(const char *folder, bool asked)
{
    struct dirent **found;
    const int n = scandir(folder, &found, is_plugin, alphasort);

    if (n < 0 && asked) {
        firn_plugin_entry *e = add("FIRN_BACKENDS", strlen("FIRN_BACKENDS"));
        if (e)
            snprintf(e->error, sizeof e->error, "FIRN_BACKENDS names the folder %.200s, which cannot be read: %s",
                     folder, strerror(errno));
    }
    for (int i = 0; i < n; i++) {
        const char *file = found[i]->d_name;
        firn_plugin_entry *e = add(file + sizeof prefix - 1, name_length(file));
        if (e)
            load(e, folder, file);
        free(found[i]);
    }
    if (n >= 0)
        free(found);
}

/* The folder of the program or shared object that this code is in. */
static bool own_folder(char *folder, size_t size)
{
    Dl_info own;

    if (!dladdr(&n_entries, &own) || !own.dli_fname)
        return false;
    /* Its symbols are to be seen by what is loaded next, where it was itself loaded for its caller's eyes alone. */
    void *object =
        strstr(own.dli_fname, "libfirn") ? dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) : NULL;
    (void)object;
    const char *end = strrchr(own.dli_fname, '/');
    const int length = end ? (int)(end - own.dli_fname) : 1;
    return snprintf(folder, size, "%.*s", length, end ? own.dli_fname : ".") < (int)size;
}

/* Every folder where shared objects may lie, in order; asked: the user named it. Ends when visit returns false. */
static void each_folder(bool (*visit)(const char *folder, bool asked, void *user), void *user)
{
    const char *asked = getenv("FIRN_BACKENDS");
    char folder[PATH_BYTES], lib[PATH_BYTES + 32];
    const bool known = own_folder(folder, sizeof folder);

    for (const char *at = asked; at && *at;) {
        const size_t n = strcspn(at, ":");
        char one[PATH_BYTES];
        if (n > 0 && n < sizeof one) {
            snprintf(one, sizeof one, "%.*s", (int)n, at);
            if (!visit(one, true, user))
                return;
        }
        at += n + (at[n] == ':');
    }
    if (!known || !visit(folder, false, user))
        return;
    snprintf(lib, sizeof lib, "%s/../%s", folder, FIRN_LIBDIR); /* of a program in bin/ */
    visit(lib, false, user);
}

static bool visit_backends(const char *folder, bool asked, void *user)
{
    (void)user;
    search(folder, asked);
    return true;
}

static void find_all(void)
{
    each_folder(visit_backends, NULL);
}

const firn_plugin_entry *firn_plugins(int *n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_all);
    *n = n_entries;
    return entries;
}

/* ---- one object by name ---- */

typedef struct {
    const char *file;
    void *object;
    char *why;
    size_t size;
} wanted_object;

static bool visit_object(const char *folder, bool asked, void *user)
{
    wanted_object *w = user;
    char path[2 * PATH_BYTES], why[304];

    (void)asked;
    snprintf(path, sizeof path, "%s/%s", folder, w->file);
    if (access(path, F_OK) != 0)
        return true;
    w->object = open_object(path, RTLD_NOW | RTLD_GLOBAL, why, sizeof why);
    if (!w->object)
        snprintf(w->why, w->size, "it cannot be loaded: %s", why);
    return false;
}

void *firn_plugin_object(const char *file, char *why, size_t size)
{
    wanted_object w = {file, NULL, why, size};

    snprintf(why, size, "it lies neither beside the program nor in the folders of FIRN_BACKENDS");
    each_folder(visit_object, &w);
    return w.object;
}
