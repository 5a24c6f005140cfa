/* What a file is that is no GGUF, in words for whoever took it for one. */
#ifndef FIRN_GGUF_OTHER_H
#define FIRN_GGUF_OTHER_H

#include <stddef.h>

/* "a safetensors file: convert..."; NULL where nothing is known of files that begin so. */
const char *firn_gguf_other(const void *data, size_t size);

#endif
