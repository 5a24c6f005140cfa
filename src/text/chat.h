/* Conversations to text, with the ranges that the assistant wrote: what a fine-tune trains on.
 *
 * A turn of the assistant is trained from after its header (what add_generation_prompt adds) through its end token;
 * what a template puts behind that (a line break) is not. Where the template marks what the assistant wrote ({%
 * generation %}), its marks are taken as they are. Elsewhere the turns are found by rendering variants of the
 * conversation:
 *
 *     text    ...<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nParis.<|im_end|>\n<|im_start|>user\n...
 *                                                  ^ begin               a     b          ^ end
 *
 * - [a, b) are the bytes that change when the words of that message change. They bound the turn from inside, the words
 *   of the messages before and behind it from outside.
 * - begin: where the conversation up to this turn, rendered with the generation prompt, is a prefix of the text, its
 *   length. Else (the template rewrote an earlier turn, say dropped its reasoning; or prompts for reasoning that it
 * does not keep) the generation prompt, or as much of it as the template writes here, is sought between the previous
 *   message's words and a.
 * - end: behind the first end token between b and the next message's words.
 *
 * What cannot be located like this is refused with a sentence; no turn is ever guessed. */
#ifndef FIRN_TEXT_CHAT_H
#define FIRN_TEXT_CHAT_H

#include "text/jinja.h"

typedef struct {
    /* Texts of the model's end-of-generation tokens ("<|im_end|>", "</s>"...): one closes each turn. A turn that
     * nothing follows may lack it (GLM's end token is the next turn's header); one that ends in something else is
     * refused. */
    const char *const *end_tokens;
    size_t n_end_tokens;
    const struct tm *now;            /* NULL: the local time */
    const firn_jinja_limits *limits; /* of each rendering; NULL: the template's */
} firn_chat_options;

typedef struct {
    firn_context *ctx;
    firn_text text;
    firn_spans spans; /* in order, disjoint, inside of text */
    size_t n_open;    /* spans without an end token (counted only where the template has no generation blocks) */
} firn_chat;

/* The variables of a template from what a user gives: a list of messages, or an object whose keys are the variables
 * (not changed). What is not given: `tools` and `documents` null, `add_generation_prompt` false, `bos_token` and
 * `eos_token` as passed (NULL: empty). The result is the caller's (json_decref). Strings must be valid in the library's
 * sense: json_loads with JSON_ALLOW_NUL is fine. */
firn_status firn_chat_variables(firn_context *ctx, const json_t *given, const char *bos_token, const char *eos_token,
                                json_t **variables);

/* Renders `messages` of `variables` without a generation prompt, whatever `variables` says, and finds the turns.
 * FIRN_ERR_FORMAT: messages are not a list of objects with roles, or the template fails; FIRN_ERR_UNSUPPORTED: a turn
 * cannot be located. `chat` is freed with firn_chat_free only after FIRN_OK. (jansson's own memory does not come from
 * the context.) */
firn_status firn_chat_render(firn_context *ctx, const firn_jinja *jinja, const json_t *variables,
                             const firn_chat_options *options, firn_chat *chat);
void firn_chat_free(firn_chat *chat);

#endif
