/* Jinja, as chat templates use it: jinja2 3.1 set up the way transformers does for apply_chat_template.
 *
 *     template text -> lex.c (tokens) -> parse.c, parse_expression.c (tree) -> eval.c, expression.c (text)
 *
 * value.h: values (JSON-like, immutable), number.c their arithmetic, repr.c, format.c, json.c and time.c what prints
 * them, attribute.c what is inside; filter.c, sequence.c, markup.c, test.c, method*.c and global.c are the names that a
 * template may call; unicode.c knows Python's classes and cases of characters. tree.h has tokens and the tree, eval.h
 * the evaluator. The folder knows nothing of firn but core/; the rest of the library needs this header only (and mostly
 * text/chat.h).
 *
 * A template comes from a stranger's file, so that rendering is bounded: in steps (every node and about every 64 bytes
 * that an operation touches), in nesting (of source and of calls), in bytes of output and in memory. What passes a
 * limit fails with FIRN_ERR_MEMORY and a sentence; everything else that a template or its variables can do wrong is
 * FIRN_ERR_FORMAT, and the sentence names the line. The message of raise_exception stands in it word for word. */
#ifndef FIRN_JINJA_JINJA_H
#define FIRN_JINJA_JINJA_H

#include "core/buffer.h"

#include <jansson.h>
#include <time.h>

typedef struct firn_jinja firn_jinja;

/* 0 means the default. */
typedef struct {
    size_t steps;  /* 20 million */
    size_t depth;  /* 400 levels of nested evaluation (at most 1000: the C stack pays for it) */
    size_t output; /* 64 MiB */
    size_t memory; /* 512 MiB for values of one rendering; 32 MiB for the tree of one template */
} firn_jinja_limits;

/* Byte ranges [begin, end) of a text, in order. */
typedef struct {
    size_t begin, end;
} firn_span;

typedef struct {
    firn_context *ctx;
    firn_span *items;
    size_t n, capacity;
} firn_spans;

void firn_spans_init(firn_spans *spans, firn_context *ctx);
void firn_spans_free(firn_spans *spans);
firn_status firn_spans_add(firn_spans *spans, size_t begin, size_t end);

/* Compiles UTF-8 source, which need not outlive the call. limits may be NULL. */
firn_status firn_jinja_compile(firn_context *ctx, const char *source, size_t size, const firn_jinja_limits *limits,
                               firn_jinja **jinja);
/* NULL is fine. */
void firn_jinja_destroy(firn_jinja *jinja);
/* True when the template marks what the assistant wrote ({% generation %}). */
bool firn_jinja_has_generation(const firn_jinja *jinja);

typedef struct {
    const struct tm *now;            /* what strftime_now sees; NULL: the local time */
    const firn_jinja_limits *limits; /* NULL: the template's */
} firn_jinja_options;

/* Appends the text to `out`. `variables` is an object; its values are read only during the call. `generation`, when
 * given, receives the spans of generation blocks, as offsets into `out`; a block whose text does not go straight to the
 * output (inside a macro, a filter...) is FIRN_ERR_UNSUPPORTED then, since nothing says where that text ends up.
 * options may be NULL. A template is immutable and may be shared by contexts. */
firn_status firn_jinja_render(firn_context *ctx, const firn_jinja *jinja, const json_t *variables,
                              const firn_jinja_options *options, firn_text *out, firn_spans *generation);

#endif
