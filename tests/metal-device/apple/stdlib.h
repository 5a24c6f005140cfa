/* The few functions that the Metal backend uses, for the syntax-only pass: Linux's headers do not read as macOS. */
#include <stddef.h>
void *calloc(size_t count, size_t size);
void *malloc(size_t size);
void free(void *memory);
