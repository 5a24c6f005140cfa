#include "core/crc32c.h"

uint32_t firn_crc32c(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;

    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}
