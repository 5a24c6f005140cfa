/* A model's chat template with what belongs to it: the texts of its tokens, and the forms of messages that it takes.
 *
 * Data sets hold OpenAI's form of messages, templates want their own: arguments of calls as an object or as text,
 * content as text or in parts, reasoning under one name or another, no tools as null or as an empty list. Which of them
 * a template takes is found out by asking it: small conversations with probes for words are rendered, and the form
 * whose probes show is the one. messages.h then brings every conversation to these forms. */
#ifndef FIRN_TEXT_TEMPLATE_H
#define FIRN_TEXT_TEMPLATE_H

#include "jinja/jinja.h"

typedef struct {
    bool parts;          /* content may be a list of parts ... */
    bool only_parts;     /* ... and may be nothing else */
    bool text_arguments; /* arguments of a call are JSON text; else an object */
    bool empty_tools;    /* without tools, `tools` is []; else null */
    bool system;         /* what a system message says is shown */
    bool developer;      /* there is a role of that name */
    bool blocks;         /* <think> blocks in the content are the template's affair: it drops those of earlier turns */
    const char *reasoning; /* the key of an assistant's reasoning; NULL: none */
} firn_chat_forms;

/* Texts of tokens; the strings are the caller's and outlive the template. */
typedef struct {
    const char *bos, *eos; /* NULL: none */
    /* Of the model's end-of-generation tokens ("<|im_end|>", "</s>"...): one closes each turn. */
    const char *const *ends;
    size_t n_ends;
} firn_chat_tokens;

typedef struct {
    firn_context *ctx;
    firn_jinja *jinja;
    firn_chat_tokens tokens;
    firn_chat_forms forms;
} firn_template;

/* Compiles the source and asks for the forms. limits may be NULL: the default, for every rendering. A template that
 * refuses what it is asked gets the usual forms; its own sentence comes when a conversation is rendered. */
firn_status firn_template_create(firn_context *ctx, const char *source, size_t size, const firn_chat_tokens *tokens,
                                 const firn_jinja_limits *limits, firn_template **template);
void firn_template_destroy(firn_template *template); /* NULL is fine */

/* Renders variables as they are. now NULL: the local time. marks: see firn_jinja_render. */
firn_status firn_template_render(const firn_template *template, const json_t *variables, const struct tm *now,
                                 firn_text *out, firn_spans *marks);

#endif
