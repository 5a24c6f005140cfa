#ifndef MDEV_COMPILE_LIBRARY_H
#define MDEV_COMPILE_LIBRARY_H

#include "unit.h"

/* A unit from MSL source; NULL with the compiler's text in *error (the caller frees it). */
const mdev_unit *mdev_compile(const char *source, char **error);

#endif
