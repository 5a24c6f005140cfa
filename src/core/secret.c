#include "core/secret.h"

#include "core/random.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

firn_secret firn_secret_draw(void)
{
    firn_secret s;

    if (getentropy(&s, sizeof s) != 0) {
        struct timespec t = {0};
        clock_gettime(CLOCK_REALTIME, &t);
        const uint64_t seed = (uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec ^ (uint64_t)(uintptr_t)&s;
        s = (firn_secret){firn_random(seed, 0, 0), firn_random(seed, 0, 1)};
    }
    s.factor |= 1 | (uint64_t)1 << 63;
    return s;
}
