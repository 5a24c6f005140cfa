/* Conversations to what a fine-tune trains on: texts with the ranges that the assistant wrote.
 *
 * The rule: a turn is trained on what the model sees when it is asked, and on what it is to say then. Of the turn that
 * is message i,
 *
 *     asked = render(messages before i, with the generation prompt)      full = render(messages through i, without)
 *
 *     asked  ...<|im_end|>\n<|im_start|>assistant\n
 *     full   ...<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nParis.<|im_end|>\n
 *     sample ...<|im_end|>\n<|im_start|>assistant\n{<think>\n\n</think>\n\nParis.<|im_end|>}
 *
 * the sample is `asked`, followed by what `full` adds to it, which is trained, through the first end token behind the
 * message's words (those are the bytes of `full` that change when the message's content, reasoning and arguments do).
 * Turns whose samples are each other's prefix share one; a template that renders earlier turns differently later (drops
 * their reasoning) makes several of a conversation.
 *
 * Where `asked` is no prefix of `full`, what it has beyond it decides. It closes an empty thought: the message's
 * content follows it. It opens a thought: the reasoning, if there is any, follows it; else the turn is trained as
 * `full` has it, and counted. It says something elsewhere (a system message that moves along): its own end is sought in
 * `full` between the previous message's words and this one's. Where the next message's opening ends a turn (GLM's
 * <|user|>), it is trained if a message follows, and the turn is open if none does. {% generation %} marks narrow what
 * is trained.
 *
 * What cannot be located like this is refused with a sentence, as are words that the template does not show; no turn is
 * ever guessed. turn.c does one turn, places.c finds words, tags and end tokens in renderings. */
#ifndef FIRN_TEXT_CHAT_H
#define FIRN_TEXT_CHAT_H

#include "text/messages.h"

typedef enum { FIRN_REASONING_TRAIN, FIRN_REASONING_MASK, FIRN_REASONING_DROP } firn_reasoning;
typedef enum { FIRN_LOSS_ASSISTANT, FIRN_LOSS_ALL, FIRN_LOSS_LAST } firn_loss;

typedef struct {
    const struct tm *now; /* NULL: the local time */
    firn_reasoning reasoning;
    firn_loss loss;
    /* Asked of what comes before a turn: true where it fills the window. From the first answer to a user on where it
     * does, nothing more is rendered. NULL: never. */
    firn_status (*fills)(void *user, const char *text, size_t size, bool *full);
    void *user;
} firn_chat_options;

typedef struct {
    int64_t open;               /* turns without an end token */
    int64_t asked_otherwise;    /* turns that do not begin as the model is asked */
    int64_t reasoning_left_out; /* turns whose reasoning the template does not show */
    int64_t beyond;             /* turns that lie behind the window */
} firn_chat_counts;

typedef struct {
    firn_text text;
    firn_spans turns; /* what the assistant says, in order, disjoint; of --loss all: none */
    firn_spans spans; /* what is trained of it */
} firn_rendering;

typedef struct {
    firn_context *ctx;
    firn_rendering *items;
    size_t n, capacity;
    firn_chat_counts counts;
} firn_renderings;

/* The samples of a conversation: a list of messages, or an object with `messages` whose other keys are the template's
 * variables. At least one, if need be without spans.
 * FIRN_ERR_FORMAT: no such thing, or the template refuses it; FIRN_ERR_UNSUPPORTED: a turn or a message cannot be
 * located. `renderings` is freed with firn_renderings_free only after FIRN_OK. (jansson's own memory does not come from
 * the context.) */
firn_status firn_chat_render(const firn_template *template, const json_t *given, const firn_chat_options *options,
                             firn_renderings *renderings);
void firn_renderings_free(firn_renderings *renderings);

/* What the model is asked: the conversation with the generation prompt, unless the given variables say false. */
firn_status firn_chat_ask(const firn_template *template, const json_t *given, const struct tm *now, bool prompt,
                          firn_text *out);

/* ---- what chat.c, turn.c and places.c share ---- */

typedef struct {
    firn_context *ctx;
    const firn_template *t;
    const firn_chat_options *options;
    json_t *variables, *messages; /* in the template's forms */
    const firn_message_mark *marks;
    size_t n;
    firn_text asked, full; /* of the turn at hand */
    firn_spans generation; /* marks in `full` */
    firn_text tail;        /* what stands behind a plain answer's words, learned from the one before; empty: nothing */
    firn_chat_counts *counts;
} firn_finder;

/* The bytes [begin, end) of a rendering that change with a message's words. */
typedef struct {
    size_t begin, end;
    bool exists;
} firn_region;

/* Renders the first n messages, message `replaced` (if < n) being `other`, into `out`, which is emptied first. */
firn_status firn_finder_render(firn_finder *f, size_t n, bool prompt, size_t replaced, json_t *other, firn_text *out,
                               firn_spans *marks);
/* "message N: " and the sentence. */
firn_status firn_finder_refuse(firn_finder *f, size_t i, const char *format, ...) FIRN_PRINTF(3, 4);

/* Where message j shows in `base`, the rendering of the first n messages. A variant that the template refuses says
 * nothing (exists false). */
firn_status firn_find_region(firn_finder *f, size_t n, bool prompt, size_t j, const firn_text *base, firn_region *r);
/* Whether a rendering shows the words of message j, its content and each of its calls; else it is refused. */
firn_status firn_check_shown(firn_finder *f, size_t n, bool prompt, size_t j);
/* Whether what is asked with n messages shows what each of them says that is no assistant's. */
firn_status firn_check_asked(firn_finder *f, size_t n);

size_t firn_common_prefix(const char *a, size_t n, const char *b, size_t m);
/* Backs up from a place inside of a character, of <a token>, of [A TOKEN] or of a word to where that begins. */
size_t firn_boundary(const char *s, size_t size, size_t at);
const char *firn_last_place(const char *s, size_t size, const char *part, size_t n);
/* The first end token in s: the offset behind it, 0 where there is none; with `last` the last one. */
size_t firn_end_token(const firn_template *t, const char *s, size_t size, bool last);
/* One tag at s: its bytes, 0 for none. */
size_t firn_tag(const char *s, size_t size);
typedef enum { FIRN_THOUGHT_NONE, FIRN_THOUGHT_OPEN, FIRN_THOUGHT_CLOSED } firn_thought;
/* What the end of a prompt does: opens a thought, or closes one (that may have begun before it). */
firn_thought firn_thought_kind(const char *s, size_t size);

/* Whether there are words: not only white space. */
bool firn_has_words(const json_t *text);

/* The sample of the turn that is message i: its text into `sample`, and where what is trained begins. `spans` gets
 * what is trained of it. *skip: what is asked fills the window. */
firn_status firn_find_turn(firn_finder *f, size_t i, firn_text *sample, size_t *begin, firn_spans *spans, bool *skip);

#endif
