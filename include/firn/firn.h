/* firn: fine-tunes Mixture-of-Experts models through their frozen, quantized experts.
 *
 * This header holds what every part shares: status, context, tensor types. Graphs are in firn/graph.h, operations in
 * firn/ops.h, files in firn/gguf.h, models in firn/model.h, sampling in firn/sample.h, training in firn/train.h, other
 * formats in firn/quantize.h and firn/export.h.
 *
 * The library never exits, aborts or prints. A call that can fail returns a firn_status; one sentence that says what
 * was expected and what came lies in the context, until the next failure on it. One context per thread; what is
 * immutable (an open file, a model) may be shared between contexts.
 *
 * Structs that may grow begin with `size`, so that a program goes on working with a later firn. One that you fill: set
 * it to sizeof the struct; fields behind it count as zero, and 0 stands for the struct as it first was. One that a call
 * fills: set it before the call, which writes no further (0 is refused). New fields come at the end. What the library
 * hands out by pointer (firn_model_info, firn_kv...) grows at its end without a size. */
#ifndef FIRN_FIRN_H
#define FIRN_FIRN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FIRN_API              __attribute__((visibility("default")))
#define FIRN_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))
#else
#define FIRN_API
#define FIRN_PRINTF(fmt, arg)
#endif

#define FIRN_MAX_DIMS 4

typedef enum {
    FIRN_OK = 0,
    FIRN_ERR_ARGUMENT,    /* a call that its contract does not allow: shape, type, null pointer, value out of range */
    FIRN_ERR_MEMORY,      /* an allocation failed, or would pass a limit */
    FIRN_ERR_IO,          /* the system refused: open, read, write, rename, disk full */
    FIRN_ERR_FORMAT,      /* a file or text that is not what it should be */
    FIRN_ERR_UNSUPPORTED, /* valid, but not available here: architecture, type, device, feature */
    FIRN_ERR_DEVICE,      /* found while computing: an id out of range, a value that is not finite, a failed launch */
    FIRN_ERR_CANCELLED,   /* stopped on request */
} firn_status;

/* "ok", "argument", ...: for logs. Never NULL. */
FIRN_API const char *firn_status_name(firn_status status);

/* Tensor types; the numbers are GGUF's (and ggml's), so a file's number is ours. */
typedef enum {
    FIRN_F32 = 0,
    FIRN_F16 = 1,
    FIRN_Q4_0 = 2,
    FIRN_Q4_1 = 3,
    FIRN_Q5_0 = 6,
    FIRN_Q5_1 = 7,
    FIRN_Q8_0 = 8,
    FIRN_Q2_K = 10,
    FIRN_Q3_K = 11,
    FIRN_Q4_K = 12,
    FIRN_Q5_K = 13,
    FIRN_Q6_K = 14,
    FIRN_IQ2_XXS = 16,
    FIRN_IQ2_XS = 17,
    FIRN_IQ3_XXS = 18,
    FIRN_IQ1_S = 19,
    FIRN_IQ4_NL = 20,
    FIRN_IQ3_S = 21,
    FIRN_IQ2_S = 22,
    FIRN_IQ4_XS = 23,
    FIRN_I8 = 24,
    FIRN_I16 = 25,
    FIRN_I32 = 26,
    FIRN_I64 = 27,
    FIRN_F64 = 28,
    FIRN_IQ1_M = 29,
    FIRN_BF16 = 30,
    FIRN_TQ1_0 = 34,
    FIRN_TQ2_0 = 35,
    FIRN_MXFP4 = 39,
    FIRN_NVFP4 = 40,
    FIRN_Q1_0 = 41,
    FIRN_Q2_0 = 42,
    FIRN_TYPE_LIMIT /* one past the largest */
} firn_type;

/* "q4_K", "f32", ... as ggml spells them; NULL for a number that names no type. */
FIRN_API const char *firn_type_name(firn_type type);
/* Letter case does not matter. Returns false when no type has that name. */
FIRN_API bool firn_type_from_name(const char *name, firn_type *type);
/* Elements in one block (1 for scalar types) and its bytes; 0 for a number that names no type. */
FIRN_API int64_t firn_type_block(firn_type type);
FIRN_API size_t firn_type_size(firn_type type);
/* Bytes of a row of n elements; n is a multiple of the block. */
FIRN_API size_t firn_row_bytes(firn_type type, int64_t n);
/* What addresses and strides of such data are multiples of: 8 or 4 bytes for integers and floats of that size, 1 for
 * MXFP4, else 2. */
FIRN_API size_t firn_type_align(firn_type type);
/* True for the float types that weights come in, packed or not (not for integers). */
FIRN_API bool firn_type_is_weight(firn_type type);

/* ---- context ---- */

typedef struct firn_context firn_context;

/* Where memory comes from. All three are given, or none (then malloc's family). `alloc` returns memory aligned for any
 * type, or NULL; `size` is never 0. Large arenas are asked for with `alloc` too. */
typedef struct {
    void *(*alloc)(void *user, size_t size);
    void *(*realloc)(void *user, void *old, size_t size);
    void (*free)(void *user, void *memory);
    void *user;
} firn_allocator;

/* How matrix products of weights and activations are computed. F32: operands as they are. BF16: weights and activations
 * are rounded to bf16 (to nearest, ties to even), their products summed in F32; everything else is as with F32. */
typedef enum { FIRN_PRECISION_F32 = 0, FIRN_PRECISION_BF16 } firn_precision;

/* "f32", "bf16"; NULL for a number that names none. */
FIRN_API const char *firn_precision_name(firn_precision precision);
/* Returns false when no precision has that name. */
FIRN_API bool firn_precision_from_name(const char *name, firn_precision *precision);

typedef struct {
    size_t size;              /* sizeof(firn_context_params) */
    int n_threads;            /* 0: as many as the machine (or this process's affinity) has; 1024 at most */
    firn_allocator allocator; /* all NULL: malloc */
} firn_context_params;

/* params may be NULL for defaults. Starts no threads yet. NULL when memory is short, or params have a size that
 * cannot be or set what this firn does not know (no context, no sentence). */
FIRN_API firn_context *firn_context_create(const firn_context_params *params);
/* NULL is fine. Everything made from it must be gone. */
FIRN_API void firn_context_destroy(firn_context *ctx);
/* The sentence of the last failure, "" if there was none. Lives until the next failure. */
FIRN_API const char *firn_error(const firn_context *ctx);
FIRN_API int firn_context_threads(const firn_context *ctx);
/* Starts the context's threads now; else the first call that needs them does, and allocates for them then. */
FIRN_API firn_status firn_context_start(firn_context *ctx);
/* The precision of devices that are opened on the context from now on; F32 until it is set. A device that has no
 * kernels for it says so when it is opened. */
FIRN_API void firn_context_set_precision(firn_context *ctx, firn_precision precision);
FIRN_API firn_precision firn_context_precision(const firn_context *ctx);

/* ---- files that cannot be read any more ----
 * Models, adapters and data are mapped. Where a mapped file is cut short, or its disk fails, the system sends SIGBUS to
 * the thread that reads. The library installs no handlers; without one the program ends by the signal. A program that
 * wants a sentence instead installs a handler with SA_SIGINFO and calls this from it with si_addr (async-signal-safe).
 * True: the address lies in a file that firn has mapped. The handler returns, the reader goes on with zeros, and the
 * call that was reading fails with FIRN_ERR_IO and the file's name; no file is written from now on until what mapped
 * the file is closed. False: the fault is not firn's. */
FIRN_API bool firn_map_fault(const void *address);

/* Where a model's weights are while sessions and generators use them. Mapped: read in the file by the device itself.
 * Resident: copied to the device once. Streamed: brought block by block into a ring of blocks on the device, the next
 * one while one computes. Auto: mapped where the device reads the host's memory in place, else resident where they fit
 * beside the rest, else streamed. No bit of a result depends on it. */
typedef enum {
    FIRN_WEIGHTS_AUTO = 0,
    FIRN_WEIGHTS_MAPPED,
    FIRN_WEIGHTS_RESIDENT,
    FIRN_WEIGHTS_STREAMED
} firn_weights_place;

/* "auto", "mapped", ...; NULL for a number that names none. */
FIRN_API const char *firn_weights_place_name(firn_weights_place place);
/* The place of what is made on the context from now on; AUTO until it is set. ring_bytes: of the device's memory that a
 * ring may take; 0: for three blocks, or with AUTO what there is room for. A device that cannot says so when a session
 * or generator is made. */
FIRN_API void firn_context_set_weights(firn_context *ctx, firn_weights_place place, uint64_t ring_bytes);
/* The same from "auto", "mapped", "resident", "streamed" or "streamed:2G" (K, M, G, T: powers of 1024). */
FIRN_API firn_status firn_context_set_weights_text(firn_context *ctx, const char *text);

/* "0.1.0" */
FIRN_API const char *firn_version(void);

#ifdef __cplusplus
}
#endif
#endif
