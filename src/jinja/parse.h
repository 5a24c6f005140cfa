/* What the two files of the parser share: parse.c has its state and the statements, parse_expression.c the
 * expressions. */
#ifndef FIRN_JINJA_PARSE_H
#define FIRN_JINJA_PARSE_H

#include "jinja/tree.h"

typedef struct {
    jinja_tokens *t;
    firn_jinja *jinja;
    const jinja_token *at;
    size_t depth;
    bool soft;       /* inside an if: unknown filters wait */
    uint8_t *uses;   /* what the innermost macro's body mentions */
    int n_loops;     /* for blocks around */
    const char *tag; /* the statement being read, for error sentences */
} parser;

typedef struct { /* a list under construction */
    jinja_node *first, **end;
} node_list;

/* The new node in *out, or FIRN_ERR_MEMORY. */
#define NODE(out, kind)                                                                                                \
    do {                                                                                                               \
        if (!((out) = firn_parser_node(p, (kind))))                                                                    \
            return FIRN_ERR_MEMORY;                                                                                    \
    } while (0)

firn_status firn_parser_fail_at(parser *p, const char *expected);
jinja_node *firn_parser_node(parser *p, jinja_kind kind); /* NULL when memory is short */
firn_status firn_parser_enter(parser *p);
node_list *firn_parser_begin(node_list *list);
void firn_parser_add(node_list *list, jinja_node *n);
bool firn_parser_is_word(const jinja_token *t, const char *word);
bool firn_parser_is_one_of(const jinja_token *t, const char *words);
bool firn_parser_skip(parser *p, jinja_token_type type);
bool firn_parser_skip_word(parser *p, const char *word);
firn_status firn_parser_expect(parser *p, jinja_token_type type);
firn_status firn_parser_expect_name(parser *p, const jinja_string **name);
firn_status firn_parser_filter(parser *p, jinja_node *value, jinja_node **out);
firn_status firn_parser_primary(parser *p, jinja_node **out);
firn_status firn_parser_expression(parser *p, jinja_node **out);
firn_status firn_parser_tuple(parser *p, bool simple, bool condition, const char *extra_end, bool parentheses,
                              jinja_node **out);

#endif
