/* From MSL source to a loaded unit: metal2cpp.py and clang make a shared object, kept in a cache under the hash of all
 * that it depends on. The build fills the cache (prepare_kernels), so that programs find their kernels compiled.
 *
 *     MDEV_DEFINES   more compiler options, such as -DMSL_NO_BFLOAT
 *     MDEV_EDIT      a file of FROM, newline, `=>`, newline, TO, newline, `;;`: replaces text in every source before it
 *                    is compiled, to plant defects in kernels without changing the program that uses them */
#include "compile_library.h"
#include "executor.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef MDEV_COUNTERS /* through LLVM's text, where operations are counted */
#define MAKE_OBJECT                                                                                                    \
    "-S -emit-llvm -o $U.ll && python3 $S/count_operations.py $U.ll && " MDEV_CXX                                      \
    " -O1 -fPIC -shared -Wno-override-module $U.ll -o $U.so"
#else
#define MAKE_OBJECT "-shared -o $U.so"
#endif

/* Without fast math. */
#ifdef __x86_64__
#define LIKE_A_GPU "-ffp-contract=fast -mfma -DMSL_GPU"
#else
#define LIKE_A_GPU "-ffp-contract=fast -DMSL_GPU"
#endif

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    long n;
    char *text = NULL;

    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && (text = malloc((size_t)n + 1))) {
        rewind(f);
        text[fread(text, 1, (size_t)n, f)] = 0;
    }
    if (f)
        fclose(f);
    return text;
}

/* Of the tools, so that a cache never holds what others made. */
static uint64_t hash_of_tools(uint64_t h)
{
    static const char *const files[] = {
        "metal2cpp.py", "unit.h",       "msl/metal_stdlib",    "msl/types.h",
        "msl/math.h",   "msl/vector.h", "msl/simd.h",          "msl/simdgroup_matrix.h",
        "msl/launch.h", "msl/words.h",  "count_operations.py", "../../cmake/kernel_text.py"};
    char path[512];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", MDEV_SOURCE, files[i]);
        char *text = read_all(path);
        h = hash(h, text ? text : "");
        free(text);
    }
    return h;
}

/* Every occurrence. */
static char *replaced(char *text, const char *from, const char *to)
{
    for (char *at = text; (at = strstr(at, from));) {
        const size_t before = (size_t)(at - text), n = strlen(text) - strlen(from) + strlen(to);
        char *next = malloc(n + 1);
        memcpy(next, text, before);
        strcpy(next + before, to);
        strcpy(next + before + strlen(to), at + strlen(from));
        free(text);
        text = next;
        at = text + before + strlen(to);
    }
    return text;
}

static char *edited(const char *source)
{
    char *text = strdup(source), *edits = getenv("MDEV_EDIT") ? read_all(getenv("MDEV_EDIT")) : NULL;

    for (char *at = edits; at && *at;) {
        char *arrow = strstr(at, "\n=>\n"), *end = arrow ? strstr(arrow, "\n;;\n") : NULL;
        if (!end)
            break;
        *arrow = *end = 0;
        text = replaced(text, at, arrow + 4 <= end ? arrow + 4 : "");
        at = end + 4;
    }
    free(edits);
    return text;
}

static char *fallible(const char *path, const char *source)
{
    FILE *f = fopen(path, "w");

    if (f && fputs(source, f) >= 0 && fclose(f) == 0)
        return NULL;
    return strdup("the software device cannot write its cache (MDEV_CACHE)");
}

/* Compiles into the cache; the caller's name is taken last, so that two processes may do it at once. */
static char *build(const char *source, const char *object, const char *arithmetic)
{
    char stem[600], path[640], command[2400];
    const char *defines = getenv("MDEV_DEFINES");

    mkdir(MDEV_CACHE, 0777);
    snprintf(stem, sizeof stem, "%s.%ld", object, (long)getpid());
    snprintf(path, sizeof path, "%s.metal", stem);
    char *error = fallible(path, source);
    if (error)
        return error;
    snprintf(
        command, sizeof command,
        "unset LD_PRELOAD LD_LIBRARY_PATH; { S=%s D='%s' U=%s; python3 $S/metal2cpp.py $D $U.metal $U.cpp && " MDEV_CXX
        " " MDEV_FLAGS " $D -std=c++17 -O1 -g -fPIC %s -Wall -Wno-unused -I$S/msl $U.cpp " MAKE_OBJECT
        "; } >%s.log 2>&1",
        MDEV_SOURCE, defines ? defines : "", stem, arithmetic, stem);
    const int status = system(command);
    if (status != 0) {
        snprintf(path, sizeof path, "%s.log", stem);
        error = read_all(path);
    } else {
        snprintf(path, sizeof path, "%s.so", stem);
        if (rename(path, object) != 0)
            error = strdup("the software device cannot rename in its cache");
    }
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s.%s", stem, (const char *[]){"metal", "cpp", "log", "so", "ll"}[i]);
        unlink(path);
    }
    return error;
}

const mdev_unit *mdev_compile(const char *source, bool fast, char **error)
{
    const char *arithmetic =
        fast ? "-ffp-contract=fast -ffinite-math-only -fno-signed-zeros -fassociative-math -fno-trapping-math"
        : mdev_like_a_gpu() ? LIKE_A_GPU
                            : "-ffp-contract=off";
    char object[512];
    char *text = edited(source);
    const char *defines = getenv("MDEV_DEFINES");
    uint64_t h = hash(hash(hash(0xcbf29ce484222325u, text), MDEV_FLAGS), defines ? defines : "");

    h = hash_of_tools(hash(h, arithmetic));
    snprintf(object, sizeof object, "%s/%016llx.so", MDEV_CACHE, (unsigned long long)h);
    *error = access(object, R_OK) == 0 ? NULL : build(text, object, arithmetic);
    free(text);
    if (*error)
        return NULL;
    void *handle = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    const mdev_unit *unit = handle ? dlsym(handle, "mdev_unit_table") : NULL;
    if (!unit)
        *error = strdup(dlerror());
    return unit;
}
