/* What every cmocka program of ours includes. */
#ifndef FIRN_TEST_UNIT_H
#define FIRN_TEST_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
