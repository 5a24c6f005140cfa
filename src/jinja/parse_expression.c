/* Expressions, with jinja2's grammar and its precedence:
 *
 *     a if b else c  <  or  <  and  <  not  <  == != < > <= >= in  <  + -  <  ~  <  * / // %  <  ** (to the left)
 *     <  unary + -  <  .name [item] (call)  <  |filter  is test
 *
 * so that `1 + 1 is even` is 1 + (1 is even) and -2 ** 2 is 4. Filters and tests are looked up here: an unknown one is
 * an error at once, but directly inside an `if` (statement or expression) only when it is reached. */
#include "jinja/parse.h"

#include <string.h>

static firn_status unary(parser *p, bool with_filter, jinja_node **out);

static firn_status arguments(parser *p, jinja_node **out)
{
    node_list list;
    bool named = false;

    firn_parser_begin(&list);
    FIRN_TRY(firn_parser_expect(p, JINJA_T_LPAREN));
    for (bool first = true; p->at->type != JINJA_T_RPAREN; first = false) {
        if (!first) {
            FIRN_TRY(firn_parser_expect(p, JINJA_T_COMMA));
            if (p->at->type == JINJA_T_RPAREN)
                break;
        }
        jinja_node *n;
        NODE(n, JINJA_ARGUMENT);
        if (firn_parser_skip(p, JINJA_T_MUL)) {
            n->op = '*';
        } else if (firn_parser_skip(p, JINJA_T_POW)) {
            n->op = 'd';
        } else if (p->at->type == JINJA_T_NAME && p->at[1].type == JINJA_T_ASSIGN) {
            n->name = p->at->text;
            p->at += 2;
        } else if (named) {
            return firn_fail(p->t->ctx, FIRN_ERR_FORMAT,
                             "chat template, line %d: an argument without a name stands behind one with a name",
                             p->at->line);
        }
        named |= n->name || n->op == 'd';
        FIRN_TRY(firn_parser_expression(p, &n->a));
        firn_parser_add(&list, n);
    }
    *out = list.first;
    return firn_parser_expect(p, JINJA_T_RPAREN);
}

/* A dotted name. */
static firn_status dotted(parser *p, const jinja_string **name)
{
    FIRN_TRY(firn_parser_expect_name(p, name));
    while (p->at->type == JINJA_T_DOT) {
        const jinja_string *more = NULL;
        p->at++;
        FIRN_TRY(firn_parser_expect_name(p, &more));
        firn_text text;
        firn_text_init(&text, p->t->ctx, 0);
        firn_text_printf(&text, "%s.%s", (*name)->data, more->data);
        *name = text.status == FIRN_OK ? firn_jinja_intern(p->t, text.data, text.size) : NULL;
        firn_text_free(&text);
        if (!*name)
            return FIRN_ERR_MEMORY;
    }
    return FIRN_OK;
}

static firn_status unknown(parser *p, const char *what, const jinja_string *name)
{
    return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: there is no %s named '%.*s'", p->at->line,
                     what, (int)firn_min_i64((int64_t)name->size, 60), name->data);
}

/* The filter after its '|'. */
firn_status firn_parser_filter(parser *p, jinja_node *value, jinja_node **out)
{
    jinja_node *n;

    NODE(n, JINJA_FILTER);
    n->a = value;
    FIRN_TRY(dotted(p, &n->name));
    n->row = firn_jinja_find_filter(n->name);
    if (!n->row && !p->soft)
        return unknown(p, "filter", n->name);
    if (p->at->type == JINJA_T_LPAREN)
        FIRN_TRY(arguments(p, &n->b));
    *out = n;
    return FIRN_OK;
}

static firn_status slice(parser *p, jinja_node *value, jinja_node **out)
{
    jinja_node *bound[3] = {NULL}, *n;
    int i = 0;

    NODE(n, JINJA_SLICE);
    for (; i < 3; i++) {
        if (p->at->type != JINJA_T_COLON && p->at->type != JINJA_T_RBRACKET && p->at->type != JINJA_T_COMMA)
            FIRN_TRY(firn_parser_expression(p, &bound[i]));
        if (i == 0 && p->at->type != JINJA_T_COLON) { /* a plain index after all */
            n->kind = JINJA_ITEM;
            n->a = value;
            n->b = bound[0];
            *out = n;
            return n->b ? FIRN_OK : firn_parser_fail_at(p, "an index");
        }
        if (!firn_parser_skip(p, JINJA_T_COLON))
            break;
    }
    n->a = value;
    n->b = bound[0];
    n->c = bound[1];
    n->d = bound[2];
    *out = n;
    return FIRN_OK;
}

static firn_status postfix(parser *p, jinja_node **value)
{
    for (;;) {
        jinja_node *n;
        if (firn_parser_skip(p, JINJA_T_DOT)) {
            if (p->at->type == JINJA_T_NAME) {
                NODE(n, JINJA_ATTRIBUTE);
                n->name = p->at++->text;
            } else if (p->at->type == JINJA_T_INTEGER) {
                NODE(n, JINJA_ITEM);
                NODE(n->b, JINJA_CONST);
                n->b->value = jinja_int(p->at++->integer);
            } else {
                return firn_parser_fail_at(p, "a name or a number after '.'");
            }
            n->a = *value;
            *value = n;
        } else if (firn_parser_skip(p, JINJA_T_LBRACKET)) {
            FIRN_TRY(slice(p, *value, &n));
            if (p->at->type == JINJA_T_COMMA) { /* a[1, 2] is a[(1, 2)] */
                node_list list;
                if (n->kind != JINJA_ITEM)
                    return firn_parser_fail_at(p, "']'");
                firn_parser_add(firn_parser_begin(&list), n->b);
                while (firn_parser_skip(p, JINJA_T_COMMA)) {
                    jinja_node *item;
                    FIRN_TRY(firn_parser_expression(p, &item));
                    firn_parser_add(&list, item);
                }
                NODE(n->b, JINJA_TUPLE_OF);
                n->b->a = list.first;
            }
            FIRN_TRY(firn_parser_expect(p, JINJA_T_RBRACKET));
            *value = n;
        } else if (p->at->type == JINJA_T_LPAREN) {
            NODE(n, JINJA_CALL);
            n->a = *value;
            FIRN_TRY(arguments(p, &n->b));
            *value = n;
        } else {
            return FIRN_OK;
        }
    }
}

static firn_status list_of(parser *p, jinja_token_type end, jinja_node **out)
{
    node_list list;

    firn_parser_begin(&list);
    while (p->at->type != end) {
        jinja_node *item;
        if (list.first) {
            FIRN_TRY(firn_parser_expect(p, JINJA_T_COMMA));
            if (p->at->type == end)
                break;
        }
        FIRN_TRY(firn_parser_expression(p, &item));
        firn_parser_add(&list, item);
        if (end == JINJA_T_RBRACE) {
            FIRN_TRY(firn_parser_expect(p, JINJA_T_COLON));
            FIRN_TRY(firn_parser_expression(p, &item));
            firn_parser_add(&list, item);
        }
    }
    *out = list.first;
    return firn_parser_expect(p, end);
}

firn_status firn_parser_primary(parser *p, jinja_node **out)
{
    const jinja_token *t = p->at;
    jinja_node *n;

    switch (t->type) {
    case JINJA_T_NAME:
        p->at++;
        NODE(n, JINJA_CONST);
        if (firn_parser_is_one_of(t, "true True")) {
            n->value = jinja_bool(true);
        } else if (firn_parser_is_one_of(t, "false False")) {
            n->value = jinja_bool(false);
        } else if (firn_parser_is_one_of(t, "none None")) {
            n->value = jinja_none();
        } else {
            n->kind = JINJA_NAME;
            n->name = t->text;
            if (p->uses)
                *p->uses |= firn_parser_is_word(t, "caller")    ? JINJA_USES_CALLER
                            : firn_parser_is_word(t, "kwargs")  ? JINJA_USES_KWARGS
                            : firn_parser_is_word(t, "varargs") ? JINJA_USES_VARARGS
                                                                : 0;
        }
        break;
    case JINJA_T_TEXT: {
        size_t size = 0, n_parts = 0;
        while (p->at->type == JINJA_T_TEXT) {
            size += p->at++->text->size;
            n_parts++;
        }
        NODE(n, JINJA_CONST);
        n->value = (jinja_value){.type = JINJA_STRING, .string = t->text};
        if (n_parts > 1) {
            jinja_string *joined = firn_arena_alloc(p->t->arena, sizeof *joined);
            char *data = firn_arena_alloc(p->t->arena, size + 1);
            if (!joined || !data)
                return FIRN_ERR_MEMORY;
            *joined = (jinja_string){data, size};
            for (size_t i = 0; i < n_parts; i++) {
                memcpy(data, t[i].text->data, t[i].text->size);
                data += t[i].text->size;
            }
            n->value.string = joined;
        }
        break;
    }
    case JINJA_T_INTEGER:
        p->at++;
        NODE(n, JINJA_CONST);
        n->value = jinja_int(t->integer);
        break;
    case JINJA_T_REAL:
        p->at++;
        NODE(n, JINJA_CONST);
        n->value = jinja_float(t->real);
        break;
    case JINJA_T_LPAREN:
        p->at++;
        FIRN_TRY(firn_parser_tuple(p, false, true, "", true, &n));
        FIRN_TRY(firn_parser_expect(p, JINJA_T_RPAREN));
        break;
    case JINJA_T_LBRACKET:
        p->at++;
        NODE(n, JINJA_ARRAY);
        FIRN_TRY(list_of(p, JINJA_T_RBRACKET, &n->a));
        break;
    case JINJA_T_LBRACE:
        p->at++;
        NODE(n, JINJA_MAPPING);
        FIRN_TRY(list_of(p, JINJA_T_RBRACE, &n->a));
        break;
    default:
        return firn_parser_fail_at(p, "an expression");
    }
    *out = n;
    return FIRN_OK;
}

static firn_status test(parser *p, jinja_node *value, jinja_node **out)
{
    jinja_node *n;
    const bool negated = firn_parser_skip_word(p, "not");

    NODE(n, JINJA_TEST);
    n->a = value;
    FIRN_TRY(dotted(p, &n->name));
    n->row = firn_jinja_find_test(n->name);
    if (!n->row && !p->soft)
        return unknown(p, "test", n->name);
    const jinja_token_type type = p->at->type;
    if (type == JINJA_T_LPAREN) {
        FIRN_TRY(arguments(p, &n->b));
    } else if ((type == JINJA_T_NAME && !firn_parser_is_one_of(p->at, "else or and")) || type == JINJA_T_TEXT ||
               type == JINJA_T_INTEGER || type == JINJA_T_REAL || type == JINJA_T_LBRACKET || type == JINJA_T_LBRACE) {
        if (firn_parser_is_word(p->at, "is"))
            return firn_parser_fail_at(p, "one test only (tests cannot be chained with 'is')");
        NODE(n->b, JINJA_ARGUMENT);
        FIRN_TRY(firn_parser_primary(p, &n->b->a));
        FIRN_TRY(postfix(p, &n->b->a));
    }
    *out = n;
    if (negated) {
        NODE(*out, JINJA_NOT);
        (*out)->a = n;
    }
    return FIRN_OK;
}

static firn_status unary(parser *p, bool with_filter, jinja_node **out)
{
    jinja_node *n;

    FIRN_TRY(firn_parser_enter(p));
    if (p->at->type == JINJA_T_SUB || p->at->type == JINJA_T_ADD) {
        NODE(n, p->at->type == JINJA_T_SUB ? JINJA_NEG : JINJA_POS);
        p->at++;
        FIRN_TRY(unary(p, false, &n->a));
    } else {
        FIRN_TRY(firn_parser_primary(p, &n));
    }
    FIRN_TRY(postfix(p, &n));
    while (with_filter) {
        if (firn_parser_skip(p, JINJA_T_PIPE)) {
            FIRN_TRY(firn_parser_filter(p, n, &n));
        } else if (firn_parser_skip_word(p, "is")) {
            FIRN_TRY(test(p, n, &n));
        } else if (p->at->type == JINJA_T_LPAREN) {
            FIRN_TRY(postfix(p, &n));
        } else {
            break;
        }
    }
    p->depth--;
    *out = n;
    return FIRN_OK;
}

/* Levels of the binary operators, loosest first; ~ (level 1) makes one node of all its operands. */
static int level_of(jinja_token_type type)
{
    switch (type) {
    case JINJA_T_ADD:
    case JINJA_T_SUB:
        return 0;
    case JINJA_T_TILDE:
        return 1;
    case JINJA_T_MUL:
    case JINJA_T_DIV:
    case JINJA_T_FLOORDIV:
    case JINJA_T_MOD:
        return 2;
    case JINJA_T_POW:
        return 3;
    default:
        return -1;
    }
}

static firn_status binary(parser *p, int level, jinja_node **out)
{
    if (level == 4)
        return unary(p, true, out);
    FIRN_TRY(binary(p, level + 1, out));
    if (level == 1 && p->at->type == JINJA_T_TILDE) {
        node_list list;
        jinja_node *n;
        NODE(n, JINJA_CONCAT);
        firn_parser_add(firn_parser_begin(&list), *out);
        while (firn_parser_skip(p, JINJA_T_TILDE)) {
            FIRN_TRY(binary(p, 2, out));
            firn_parser_add(&list, *out);
        }
        n->a = list.first;
        *out = n;
        return FIRN_OK;
    }
    while (level != 1 && level_of(p->at->type) == level) {
        jinja_node *n;
        NODE(n, JINJA_BINARY);
        n->op = (uint8_t)p->at++->type;
        n->a = *out;
        FIRN_TRY(binary(p, level + 1, &n->b));
        *out = n;
    }
    return FIRN_OK;
}

static firn_status comparison(parser *p, jinja_node **out)
{
    node_list list;

    firn_parser_begin(&list);
    FIRN_TRY(binary(p, 0, out));
    for (;;) {
        jinja_node *n;
        int op = p->at->type;
        int width = 1;
        if (firn_parser_is_word(p->at, "in")) {
            op = JINJA_OP_IN;
        } else if (firn_parser_is_word(p->at, "not") && firn_parser_is_word(p->at + 1, "in")) {
            op = JINJA_OP_NOT_IN;
            width = 2;
        } else if (op < JINJA_T_EQ || op > JINJA_T_GE) {
            break;
        }
        NODE(n, JINJA_OPERAND);
        n->op = (uint8_t)op;
        p->at += width;
        FIRN_TRY(binary(p, 0, &n->a));
        firn_parser_add(&list, n);
    }
    if (list.first) {
        jinja_node *n;
        NODE(n, JINJA_COMPARE);
        n->a = *out;
        n->b = list.first;
        *out = n;
    }
    return FIRN_OK;
}

static firn_status negation(parser *p, jinja_node **out)
{
    jinja_node *n;

    if (!firn_parser_is_word(p->at, "not"))
        return comparison(p, out);
    FIRN_TRY(firn_parser_enter(p));
    NODE(n, JINJA_NOT);
    p->at++;
    FIRN_TRY(negation(p, &n->a));
    p->depth--;
    *out = n;
    return FIRN_OK;
}

static firn_status conjunction(parser *p, jinja_node **out)
{
    FIRN_TRY(negation(p, out));
    while (firn_parser_is_word(p->at, "and")) {
        jinja_node *n;
        NODE(n, JINJA_AND);
        p->at++;
        n->a = *out;
        FIRN_TRY(negation(p, &n->b));
        *out = n;
    }
    return FIRN_OK;
}

static firn_status disjunction(parser *p, jinja_node **out)
{
    FIRN_TRY(conjunction(p, out));
    while (firn_parser_is_word(p->at, "or")) {
        jinja_node *n;
        NODE(n, JINJA_OR);
        p->at++;
        n->a = *out;
        FIRN_TRY(conjunction(p, &n->b));
        *out = n;
    }
    return FIRN_OK;
}

/* Whether what is read here may wait for an unknown filter is not known until `if` shows up behind it. */
static bool condition_ahead(const parser *p)
{
    int open = 0;

    for (const jinja_token *t = p->at;; t++) {
        if (t->type == JINJA_T_LPAREN || t->type == JINJA_T_LBRACKET || t->type == JINJA_T_LBRACE)
            open++;
        else if (t->type == JINJA_T_RPAREN || t->type == JINJA_T_RBRACKET || t->type == JINJA_T_RBRACE)
            open--;
        if (open < 0 || t->type == JINJA_T_EOF || t->type == JINJA_T_VARIABLE_END || t->type == JINJA_T_BLOCK_END ||
            (open == 0 && t->type == JINJA_T_COMMA))
            return false;
        if (open == 0 && firn_parser_is_word(t, "if"))
            return true;
    }
}

firn_status firn_parser_expression(parser *p, jinja_node **out)
{
    const bool soft = p->soft;

    FIRN_TRY(firn_parser_enter(p));
    if (!soft)
        p->soft = condition_ahead(p);
    FIRN_TRY(disjunction(p, out));
    while (firn_parser_skip_word(p, "if")) {
        jinja_node *n;
        NODE(n, JINJA_CONDITION);
        n->a = *out;
        FIRN_TRY(disjunction(p, &n->b));
        if (firn_parser_skip_word(p, "else"))
            FIRN_TRY(firn_parser_expression(p, &n->c));
        *out = n;
    }
    p->soft = soft;
    p->depth--;
    return FIRN_OK;
}

static bool tuple_ends(const parser *p, const char *extra_end)
{
    const jinja_token_type t = p->at->type;
    return t == JINJA_T_VARIABLE_END || t == JINJA_T_BLOCK_END || t == JINJA_T_RPAREN ||
           firn_parser_is_one_of(p->at, extra_end);
}

/* Expressions with commas between them; one alone is itself. `simple`: targets of an assignment. */
firn_status firn_parser_tuple(parser *p, bool simple, bool condition, const char *extra_end, bool parentheses,
                              jinja_node **out)
{
    node_list list;
    bool is_tuple = false;

    firn_parser_begin(&list);
    for (;;) {
        jinja_node *item;
        if (list.first)
            FIRN_TRY(firn_parser_expect(p, JINJA_T_COMMA));
        if (tuple_ends(p, extra_end))
            break;
        if (simple) {
            FIRN_TRY(firn_parser_enter(p));
            FIRN_TRY(firn_parser_primary(p, &item));
            p->depth--;
        } else {
            FIRN_TRY(condition ? firn_parser_expression(p, &item) : disjunction(p, &item));
        }
        firn_parser_add(&list, item);
        if (p->at->type != JINJA_T_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && list.first) {
        *out = list.first;
        return FIRN_OK;
    }
    if (!is_tuple && !parentheses)
        return firn_parser_fail_at(p, "an expression");
    NODE(*out, JINJA_TUPLE_OF);
    (*out)->a = list.first;
    return FIRN_OK;
}
