#ifndef MDEV_COMPILE_LIBRARY_H
#define MDEV_COMPILE_LIBRARY_H

#include "unit.h"

#include <stdbool.h>

/* A unit from MSL source, with fast math or without; NULL with the compiler's text in *error (the caller frees it). */
const mdev_unit *mdev_compile(const char *source, bool fast, char **error);

#endif
