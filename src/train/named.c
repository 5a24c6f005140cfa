/* Names in a text; see named.h. */
#include "train/named.h"

#include "core/buffer.h"

#include <string.h>

int firn_name_index(const char *name, const char *names)
{
    const size_t size = strlen(name);

    for (int i = 0;; i++) {
        const size_t n = strcspn(names, "|");
        if (n == size && strncmp(name, names, n) == 0)
            return i;
        if (!names[n])
            return -1;
        names += n + 1;
    }
}

firn_status firn_not_named(firn_context *ctx, const char *what, const char *name, const char *names)
{
    firn_text t;

    firn_text_init(&t, ctx, 0);
    for (const char *s = names; *s;) {
        const size_t n = strcspn(s, "|");
        const char *next = s + n + (s[n] == '|');
        firn_text_printf(&t, "%s%.*s", s == names ? "" : strchr(next, '|') || *next ? ", " : " or ", (int)n, s);
        s = next;
    }
    const firn_status s =
        firn_fail(ctx, FIRN_ERR_ARGUMENT, "there is no %s '%.40s': expected %s", what, name, firn_text_cstr(&t));
    firn_text_free(&t);
    return s;
}
