/* Conversations through a template, as text that a test can hold up. */
#ifndef FIRN_TEST_CHAT_H
#define FIRN_TEST_CHAT_H

#include "unit/unit.h"

#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline firn_template *compiled(firn_context *ctx, const char *source, size_t size, const char *const *ends,
                                      size_t n_ends)
{
    const firn_chat_tokens tokens = {.bos = "<s>", .eos = "</s>", .ends = ends, .n_ends = n_ends};
    firn_template *t;

    if (firn_template_create(ctx, source, size, &tokens, NULL, &t) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    return t;
}

/* What is trained of each sample, "[turn][turn]", samples apart by " / "; or the sentence of a refusal. whole: samples
 * with what is not trained too. */
static inline void show(firn_context *ctx, const firn_template *t, const char *messages,
                        const firn_chat_options *options, bool whole, firn_text *out, firn_chat_counts *counts)
{
    json_t *given = json_loads(messages, 0, NULL);
    firn_renderings r;

    assert_non_null(given);
    firn_text_init(out, ctx, 0);
    *counts = (firn_chat_counts){0};
    if (firn_chat_render(t, given, options, &r) == FIRN_OK) {
        *counts = r.counts;
        for (size_t k = 0; k < r.n; k++) {
            const firn_rendering *x = &r.items[k];
            size_t at = 0;
            if (k)
                firn_text_puts(out, " / ");
            for (size_t i = 0; i < x->spans.n; i++) {
                const firn_span s = x->spans.items[i];
                assert_true(s.begin >= at && s.begin <= s.end && s.end <= x->text.size);
                if (whole)
                    firn_text_append(out, x->text.data + at, s.begin - at);
                firn_text_putc(out, '[');
                firn_text_append(out, x->text.data + s.begin, s.end - s.begin);
                firn_text_putc(out, ']');
                at = s.end;
            }
            if (whole)
                firn_text_append(out, x->text.data + at, x->text.size - at);
        }
        firn_renderings_free(&r);
    } else {
        firn_text_puts(out, firn_error(ctx));
    }
    json_decref(given);
}

#endif
