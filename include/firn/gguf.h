/* GGUF files (format versions 2 and 3, little-endian; source: ggml's docs/gguf.md): reading by map, writing by stream.
 *
 * A reader trusts no number in the file: every count, offset, length and shape is checked against the file's size
 * before it is used. Everything that a getter returns points into the map or the reader and lives as long as the
 * reader. A reader is immutable once open and may be shared. */
#ifndef FIRN_GGUF_H
#define FIRN_GGUF_H

#include "firn/firn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { /* the numbers are the file's */
               FIRN_KV_U8 = 0,
               FIRN_KV_I8,
               FIRN_KV_U16,
               FIRN_KV_I16,
               FIRN_KV_U32,
               FIRN_KV_I32,
               FIRN_KV_F32,
               FIRN_KV_BOOL,
               FIRN_KV_STRING,
               FIRN_KV_ARRAY,
               FIRN_KV_U64,
               FIRN_KV_I64,
               FIRN_KV_F64,
} firn_kv_type;

/* Bytes in the map; not NUL-terminated. */
typedef struct {
    const char *data;
    size_t size;
} firn_string;

typedef struct {
    const char *key;            /* NUL-terminated copy */
    firn_kv_type type;          /* FIRN_KV_ARRAY: `element` and `n` count */
    firn_kv_type element;       /* never FIRN_KV_ARRAY: nested arrays are refused */
    uint64_t n;                 /* 1 for a scalar */
    const void *data;           /* scalar or array elements, packed, perhaps unaligned; NULL for strings */
    const firn_string *strings; /* a string, or an array of them */
} firn_kv;

typedef struct {
    const char *name; /* NUL-terminated copy, unique in the file */
    firn_type type;   /* a known one; a file with another is refused with its number */
    int n_dims;
    int64_t ne[FIRN_MAX_DIMS]; /* innermost first, 1 past n_dims; ne[0] is a multiple of the type's block */
    size_t size;               /* bytes */
    const uint8_t *data;       /* in the map, aligned to the file's alignment (at least 8), counted from its start */
    int file;                  /* which part of a split file holds it */
    uint64_t offset;           /* from the start of that part */
} firn_gguf_tensor;

typedef struct firn_gguf firn_gguf;

/* Maps `path`; a split file ("name-00001-of-00003.gguf", key split.count) opens its siblings too, whichever is named.
 */
FIRN_API firn_status firn_gguf_open(firn_context *ctx, const char *path, firn_gguf **gguf);
/* The same from memory that the caller keeps (tests, fuzzing); no split files. */
FIRN_API firn_status firn_gguf_parse(firn_context *ctx, const void *data, size_t size, firn_gguf **gguf);
FIRN_API void firn_gguf_close(firn_gguf *gguf);

FIRN_API size_t firn_gguf_n_kv(const firn_gguf *gguf);
FIRN_API const firn_kv *firn_gguf_kv_at(const firn_gguf *gguf, size_t i);
FIRN_API const firn_kv *firn_gguf_kv(const firn_gguf *gguf, const char *key); /* NULL when absent */
FIRN_API size_t firn_gguf_n_tensors(const firn_gguf *gguf);
FIRN_API const firn_gguf_tensor *firn_gguf_tensor_at(const firn_gguf *gguf, size_t i);
FIRN_API const firn_gguf_tensor *firn_gguf_find(const firn_gguf *gguf, const char *name); /* NULL when absent */
FIRN_API uint32_t firn_gguf_version(const firn_gguf *gguf);
/* Bytes of header, keys and tensor table of the first part: what a fingerprint hashes. */
FIRN_API const void *firn_gguf_header(const firn_gguf *gguf, size_t *size);
/* Bytes of all parts. */
FIRN_API uint64_t firn_gguf_file_bytes(const firn_gguf *gguf);
/* Hints to the system: these tensor bytes will be wanted soon; are not wanted any more (their pages may go). */
FIRN_API void firn_gguf_will_need(const firn_gguf *gguf, const firn_gguf_tensor *tensor);
FIRN_API void firn_gguf_release(const firn_gguf *gguf, const firn_gguf_tensor *tensor);

/* Typed scalars. `required` false: *value stays as it is when the key is absent. The type must match exactly as
 * llama.cpp asks (u32 stored as i32 is an error that says so). */
FIRN_API firn_status firn_gguf_get_u32(firn_context *ctx, const firn_gguf *g, const char *key, bool required,
                                       uint32_t *value);
FIRN_API firn_status firn_gguf_get_f32(firn_context *ctx, const firn_gguf *g, const char *key, bool required,
                                       float *value);
FIRN_API firn_status firn_gguf_get_bool(firn_context *ctx, const firn_gguf *g, const char *key, bool required,
                                        bool *value);
FIRN_API firn_status firn_gguf_get_string(firn_context *ctx, const firn_gguf *g, const char *key, bool required,
                                          firn_string *value);

/* ---- writing ----
 * Keys and tensor descriptions first, then each tensor's bytes in the order described; the file appears under its name
 * only at firn_gguf_writer_finish (temporary file, fsync, rename). Version 3, alignment 32. */
typedef struct firn_gguf_writer firn_gguf_writer;

FIRN_API firn_status firn_gguf_writer_create(firn_context *ctx, firn_gguf_writer **writer);
FIRN_API void firn_gguf_writer_destroy(firn_gguf_writer *writer); /* NULL is fine; an unfinished file is removed */
FIRN_API firn_status firn_gguf_put_u32(firn_gguf_writer *w, const char *key, uint32_t value);
FIRN_API firn_status firn_gguf_put_f32(firn_gguf_writer *w, const char *key, float value);
FIRN_API firn_status firn_gguf_put_bool(firn_gguf_writer *w, const char *key, bool value);
FIRN_API firn_status firn_gguf_put_string(firn_gguf_writer *w, const char *key, const char *value, size_t size);
/* Elements of a fixed-size type, packed. */
FIRN_API firn_status firn_gguf_put_array(firn_gguf_writer *w, const char *key, firn_kv_type element, const void *data,
                                         uint64_t n);
FIRN_API firn_status firn_gguf_put_strings(firn_gguf_writer *w, const char *key, const firn_string *strings,
                                           uint64_t n);
/* Any key as another file has it. Keys that describe a file's own layout (general.alignment, split.*) are left out by
 * every put: this writer's layout is its own. */
FIRN_API firn_status firn_gguf_put_kv(firn_gguf_writer *w, const firn_kv *kv);
/* A key put twice replaces; removing one that is absent is fine. A tensor's name has 1 to 63 bytes, as llama.cpp asks.
 */
FIRN_API void firn_gguf_remove(firn_gguf_writer *w, const char *key);
FIRN_API firn_status firn_gguf_add_tensor(firn_gguf_writer *w, const char *name, firn_type type, int n_dims,
                                          const int64_t *ne);
/* Opens the temporary file and writes header and tensor table. That tensor names are unique and that the file system
 * has room for the whole file is checked first. */
FIRN_API firn_status firn_gguf_writer_begin(firn_gguf_writer *w, const char *path);
/* The next bytes of tensor data; padding between tensors is the writer's affair. A tensor may come in pieces. */
FIRN_API firn_status firn_gguf_writer_data(firn_gguf_writer *w, const void *data, size_t size);
/* Fails when not every tensor's bytes have come. */
FIRN_API firn_status firn_gguf_writer_finish(firn_gguf_writer *w);

#ifdef __cplusplus
}
#endif
#endif
