/* What the reader and the writer share: the format's constants (source: ggml's docs/gguf.md).
 *
 *     file     = "GGUF" version:u32 n_tensors:u64 n_kv:u64 kv* tensor* padding data
 *     kv       = key:string type:u32 value
 *     tensor   = name:string n_dims:u32 ne:u64[n_dims] type:u32 offset:u64       offset counts from the start of data
 *     string   = size:u64 bytes
 *     array    = type:u32 n:u64 values
 *     padding  up to a multiple of general.alignment (32 unless the key says otherwise), before data and between
 * tensors */
#ifndef FIRN_GGUF_GGUF_H
#define FIRN_GGUF_GGUF_H

#include "core/context.h"
#include "firn/gguf.h"

enum {
    GGUF_VERSION = 3,
    GGUF_ALIGNMENT = 32,
    GGUF_MIN_KV = 8 + 4 + 1,         /* bytes of the smallest kv: empty key, one-byte value */
    GGUF_MIN_TENSOR = 8 + 4 + 4 + 8, /* bytes of the smallest tensor description: empty name, no dimensions */
    GGUF_MAX_NAME = 65535,           /* bytes of a key or a tensor name */
    GGUF_LLAMA_NAME = 64,            /* llama.cpp refuses tensor names of this many bytes and more */
};

/* Fails where a part of its files could not be read since it was opened. */
firn_status firn_gguf_check(firn_context *ctx, const firn_gguf *gguf);
/* Also where one of its files has another size or time than when it was opened. */
firn_status firn_gguf_unchanged(firn_context *ctx, const firn_gguf *gguf);
/* Refuses to write `path` where that is a part of the split model g: the others would be left without it. */
firn_status firn_gguf_refuse_part(firn_context *ctx, const firn_gguf *g, const char *path);
/* A tensor's bytes as they are, in pieces whose pages of the input are given back. */
firn_status firn_gguf_writer_copy(firn_gguf_writer *w, const firn_gguf *in, const firn_gguf_tensor *tensor);
/* Bytes of one value of a fixed-size type; 0 for strings, arrays and numbers that name no type. */
size_t firn_kv_size(firn_kv_type type);
/* "u32", "string"...; NULL for a number that names no type. */
const char *firn_kv_type_name(firn_kv_type type);
/* Bytes of a tensor, 0 when that passes 2^63 or ne[0] is no multiple of the block. */
size_t firn_tensor_bytes(firn_type type, const int64_t *ne);

#endif
