/* CRC-32C (Castagnoli), as RFC 3720 has it: reflected polynomial 0x82F63B78, start and end inverted. */
#ifndef FIRN_CORE_CRC32C_H
#define FIRN_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t firn_crc32c(const void *data, size_t size);

#endif
