/* Files: whole-file reads, read-only maps, and writes that happen whole or not at all (temporary file, fsync, rename).
 * Every sentence names the path. */
#ifndef FIRN_CORE_FILE_H
#define FIRN_CORE_FILE_H

#include "core/context.h"

/* A file's bytes, mapped read-only and shared: pages come when touched and belong to the page cache. */
typedef struct {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} firn_map;

firn_status firn_map_open(firn_context *ctx, const char *path, firn_map *map);
void firn_map_close(firn_map *map);
/* Tells the system that these bytes will be wanted soon, or are not wanted any more (mapped pages are released). */
void firn_map_will_need(const firn_map *map, size_t offset, size_t size);
void firn_map_release(const firn_map *map, size_t offset, size_t size);

/* The whole file, with a NUL behind it that *size does not count; free with firn_free. More than `limit` bytes is
 * refused (0: no limit). */
firn_status firn_file_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size);

/* A file being written: `path` does not change until firn_out_commit. A folder or device of that name is refused. */
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
/* Removes the temporary files of whatever this process is writing (of the first eight at once), for the handler of a
 * signal that ends it. */
void firn_out_discard(void);
/* open, write, commit. */
firn_status firn_file_write(firn_context *ctx, const char *path, const void *data, size_t size);

/* Free bytes on the file system that holds `path` (or will: its nearest existing parent). */
firn_status firn_file_space(firn_context *ctx, const char *path, uint64_t *bytes);
/* Makes a folder and its parents; one that is there already is fine. */
firn_status firn_make_folder(firn_context *ctx, const char *path);

#endif
