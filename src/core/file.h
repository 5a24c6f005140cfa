/* Files: whole-file reads, read-only maps, and writes that happen whole or not at all (temporary file, fsync, rename).
 * Every sentence names the path. */
#ifndef FIRN_CORE_FILE_H
#define FIRN_CORE_FILE_H

#include "core/context.h"

#include <sys/stat.h>
#include <sys/types.h>

/* open(2) with O_CLOEXEC, never one of the descriptors 0 to 2: where a program runs with those closed, what it prints
 * would land in the file. */
int firn_open(const char *path, int flags, mode_t mode);
/* "cannot WHAT PATH: " and what errno says. */
firn_status firn_fail_errno(firn_context *ctx, const char *what, const char *path);
/* Refuses a name that run.json could not hold. */
firn_status firn_expect_utf8_name(firn_context *ctx, const char *name);
/* "cannot WHAT PATH: it is a folder, not a file": for what `mode` (of stat) is instead. */
firn_status firn_no_file(firn_context *ctx, const char *what, const char *path, mode_t mode);

/* Opens a file for reading; what is no regular file is refused. */
struct stat;
firn_status firn_open_regular(firn_context *ctx, const char *path, int *fd, struct stat *st);

/* ---- map.c ---- */

/* A file's bytes, mapped read-only and shared: pages come when touched and belong to the page cache. Of a stream, its
 * bytes in memory. */
typedef struct {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    firn_context *memory; /* of a stream: whose memory data is; NULL: mapped */
    dev_t device;         /* of a file: who it is, whatever its name */
    ino_t inode;
    int place; /* 1 + that in the list of map.c; 0: it is not listed */
} firn_map;

/* Inputs. All are opened without waiting and looked at first: a folder, a device, or a pipe where a file is needed, is
 * refused in words. Where a text is read once and from its start, pipes are read too, to their end, and "-" is standard
 * input: that is what the functions with `stream` do. */

/* A file, a pipe or standard input as a descriptor that the caller closes; reading it waits. *first: a byte of a pipe
 * that was read already, -1: none. A pipe that nobody writes to is refused after some seconds. */
firn_status firn_open_stream(firn_context *ctx, const char *path, int *fd, struct stat *st, int *first);

firn_status firn_map_open(firn_context *ctx, const char *path, firn_map *map);
firn_status firn_map_stream(firn_context *ctx, const char *path, firn_map *map);
void firn_map_close(firn_map *map);
/* Fails where a part of the file could not be read since it was opened (see firn_map_fault). */
firn_status firn_map_check(firn_context *ctx, const firn_map *map);
/* The same for every map that is open. */
firn_status firn_maps_check(firn_context *ctx);
/* Also fails where the file has another size or time than when it was opened. */
firn_status firn_map_unchanged(firn_context *ctx, const firn_map *map);
/* The sentence of the last map that was closed with a part that could not be read; "" if there was none. */
const char *firn_map_last_fault(void);
/* Tells the system that these bytes will be wanted soon, or are not wanted any more (mapped pages are released). */
void firn_map_will_need(const firn_map *map, size_t offset, size_t size);
void firn_map_release(const firn_map *map, size_t offset, size_t size);

/* ---- file.c ---- */

/* The whole file, with a NUL behind it that *size does not count; free with firn_free. More than `limit` bytes is
 * refused (0: no limit). */
firn_status firn_file_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size);
firn_status firn_stream_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size);

/* ---- out.c ---- */

/* A file being written: `path` does not change until firn_out_commit. A folder or device of that name is refused, and
 * so is a file that another process is writing (core/lock.h). What a killed writer of `path` left behind is removed. */
typedef struct firn_out firn_out;

firn_status firn_out_open(firn_context *ctx, const char *path, firn_out **out);
firn_status firn_out_write(firn_out *out, const void *data, size_t size);
/* Bytes written so far. */
uint64_t firn_out_offset(const firn_out *out);
/* Flushes, fsyncs, renames over `path`, fsyncs the folder. Frees `out` in every case; on failure `path` is untouched.
 */
firn_status firn_out_commit(firn_out *out);
/* Removes the temporary file. NULL is fine. */
void firn_out_abort(firn_out *out);
/* open, write, commit. */
firn_status firn_file_write(firn_context *ctx, const char *path, const void *data, size_t size);
/* Removes what killed writers of `path` left; nothing where one is at work. Fails only when memory is short. */
firn_status firn_out_sweep(firn_context *ctx, const char *path);
/* fsyncs the folder that `path` lies in, so that what was done to its names survives a crash. A file system that cannot
 * sync folders is taken as it is. */
void firn_sync_parent(const char *path);

/* ---- space and folders ---- */

/* Free bytes on the file system that holds `path` (or will: its nearest existing parent). */
firn_status firn_file_space(firn_context *ctx, const char *path, uint64_t *bytes);
/* Makes a folder and its parents; one that is there already is fine. *made, unless `made` is NULL: the length of the
 * first that was new in `path`, 0 if none was. Where it fails it leaves none behind. */
firn_status firn_make_folder(firn_context *ctx, const char *path, size_t *made);
/* Takes back what firn_make_folder made, as far as it is empty. */
void firn_unmake_folder(const char *path, size_t made);

#endif
