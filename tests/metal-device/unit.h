/* What a compiled unit of kernels and the software device tell each other. */
#ifndef MDEV_UNIT_H
#define MDEV_UNIT_H

#ifdef __cplusplus
extern "C" {
#endif

enum { MDEV_MAX_BUFFERS = 31, MDEV_MAX_THREADGROUP = 31 };

/* Where a kernel's parameter comes from. */
enum {
    MDEV_BUFFER,
    MDEV_THREADGROUP,
    MDEV_THREADGROUP_POSITION_IN_GRID,
    MDEV_THREADGROUPS_PER_GRID,
    MDEV_THREAD_POSITION_IN_THREADGROUP,
    MDEV_THREADS_PER_THREADGROUP,
    MDEV_THREAD_POSITION_IN_GRID,
    MDEV_THREADS_PER_GRID,
    MDEV_THREAD_INDEX_IN_THREADGROUP,
    MDEV_THREAD_INDEX_IN_SIMDGROUP,
    MDEV_SIMDGROUP_INDEX_IN_THREADGROUP,
    MDEV_SIMDGROUPS_PER_THREADGROUP,
    MDEV_THREADS_PER_SIMDGROUP,
    MDEV_KINDS
};

/* One thread's arguments. */
typedef struct {
    void *buffer[MDEV_MAX_BUFFERS], *shared[MDEV_MAX_THREADGROUP];
    unsigned position[MDEV_KINDS][3];
} mdev_env;

typedef struct {
    unsigned char kind, index, is_constant; /* in that address space */
    unsigned char align;                    /* of what it points to */
    unsigned least;                         /* bytes that must be bound */
    const char *name;
} mdev_param;

typedef struct {
    const char *name;
    void (*launch)(const mdev_env *);
    const mdev_param *params;
    int n_params;
} mdev_kernel;

typedef struct {
    const char *name;
    int index;
    void *address;
    int size;
} mdev_constant; /* a function constant: set before each dispatch */

/* Every unit has one, called mdev_unit_table. */
typedef struct {
    const mdev_kernel *kernels;
    int n_kernels;
    const mdev_constant *constants;
    int n_constants;
} mdev_unit;

#ifdef __cplusplus
}
#endif
#endif
