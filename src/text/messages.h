/* One form of messages and tools, for training, asking and `firn chat-template` alike: what a line of a data set or a
 * user gives is brought to the forms that the template takes (template.h), as llama.cpp's server does it before it
 * renders:
 *
 * - a key that is null is absent; content that is absent is empty, and so is a list of calls
 * - content in parts stays in parts where the template takes them; else its texts are joined by line breaks. Where it
 *   takes nothing else, text becomes a part. Parts that are no text are refused
 * - arguments of a call: JSON text becomes an object, or the other way round where the template wants text; a call or a
 *   tool without its wrapper {"type": "function", "function": ...} gets one; function_call becomes a call, tools and
 *   functions that are JSON text become lists
 * - role developer becomes system where the template has no such role, function becomes tool; what a system message
 *   says goes in front of the user's words where the template shows none
 * - reasoning (reasoning_content, thinking, reasoning, or a <think> block at the start of the content) goes under the
 *   name that the template knows; where it knows none, but reads such blocks, beside the message; else it is left out
 * and counted
 * - enable_thinking is true where it is not given */
#ifndef FIRN_TEXT_MESSAGES_H
#define FIRN_TEXT_MESSAGES_H

#include "text/template.h"

/* The variables of a template from what a user gives, as they are: a list of messages, or an object whose keys are the
 * variables (not changed). What is not given: `tools` and `documents` null, `add_generation_prompt` false, `bos_token`
 * and `eos_token` as passed (NULL: empty). The result is the caller's (json_decref). Strings must be valid in the
 * library's sense: json_loads with JSON_ALLOW_NUL is fine. */
firn_status firn_chat_variables(firn_context *ctx, const json_t *given, const char *bos_token, const char *eos_token,
                                json_t **variables);

typedef struct {
    size_t number; /* in what was given, from 1 */
    bool trained;  /* false: "train": false or "weight": 0 */
    /* Reasoning that the template knows by no key, but may ask for (it treats blocks); not in the message, as a server
     * does not show it either. NULL: none. */
    json_t *thought;
} firn_message_mark;

typedef struct {
    json_t *variables;        /* of the template, `messages` among them */
    firn_message_mark *marks; /* [n_marks], at least as many as messages */
    size_t n_marks;
    int64_t left_out; /* messages whose reasoning the template has no place for */
} firn_conversation;

/* The same, in the template's forms. keep_reasoning false: all reasoning is left out (not counted).
 * FIRN_ERR_FORMAT: no list of objects with roles, or what cannot be brought to a form; "message N: ..." */
firn_status firn_conversation_read(const firn_template *template, const json_t *given, bool keep_reasoning,
                                   firn_conversation *conversation);
void firn_conversation_free(firn_context *ctx, firn_conversation *conversation);

/* The <think> block at the start of s: what is thought in it, without white space around; *rest: where the words behind
 * it begin. */
bool firn_thought_block(const char *s, size_t n, const char **thought, size_t *n_thought, size_t *rest);
/* The reasoning of a message in the template's forms: its key's, or that of a block at the start of the content. No
 * white space around it; false: none. */
bool firn_message_reasoning(const firn_template *template, const json_t *message, const char **text, size_t *n);

#endif
