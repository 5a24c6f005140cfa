/* Tokens to a tree, with jinja2's grammar and its precedence:
 *
 *     a if b else c  <  or  <  and  <  not  <  == != < > <= >= in  <  + -  <  ~  <  * / // %  <  ** (to the left)
 *     <  unary + -  <  .name [item] (call)  <  |filter  is test
 *
 * so that `1 + 1 is even` is 1 + (1 is even) and -2 ** 2 is 4. Filters and tests are looked up here: an unknown one is
 * an error at once, but directly inside an `if` (statement or expression) only when it is reached. */
#include "text/jinja_impl.h"

#include <string.h>

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

static firn_status expression(parser *p, jinja_node **out);
static firn_status unary(parser *p, bool with_filter, jinja_node **out);
static firn_status statements(parser *p, const char *ends, node_list *list);
static firn_status tuple(parser *p, bool simple, bool condition, const char *extra_end, bool parentheses,
                         jinja_node **out);

static const char *describe(const jinja_token *token)
{
    static const char *const names[] = {
        "template data",
        "start of a print statement",
        "end of print statement",
        "start of a statement block",
        "end of statement block",
        "a name",
        "a string",
        "a whole number",
        "a number",
        "'+'",
        "'-'",
        "'*'",
        "'/'",
        "'//'",
        "'%'",
        "'**'",
        "'~'",
        "'=='",
        "'!='",
        "'<'",
        "'<='",
        "'>'",
        "'>='",
        "'['",
        "']'",
        "'('",
        "')'",
        "'{'",
        "'}'",
        "'='",
        "'.'",
        "':'",
        "'|'",
        "','",
        "';'",
        "end of template",
    };
    return names[token->type];
}

static firn_status fail_at(parser *p, const char *expected)
{
    if (p->at->type == JINJA_T_NAME)
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: expected %s, got '%.*s'", p->at->line,
                         expected, (int)firn_min_i64((int64_t)p->at->text->size, 60), p->at->text->data);
    return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: expected %s, got %s", p->at->line, expected,
                     describe(p->at));
}

static firn_status enter(parser *p)
{
    if (++p->depth > p->jinja->limits.depth)
        return firn_fail(p->t->ctx, FIRN_ERR_MEMORY, "chat template, line %d: nested more than %zu levels deep",
                         p->at->line, p->jinja->limits.depth);
    return FIRN_OK;
}

static jinja_node *node(parser *p, jinja_kind kind)
{
    jinja_node *n = firn_arena_zeroed(p->t->arena, 1, sizeof *n);

    if (n) {
        n->kind = (uint8_t)kind;
        n->line = p->at->line;
    }
    return n;
}

/* The new node in *out, or FIRN_ERR_MEMORY. */
#define NODE(out, kind)                                                                                                \
    do {                                                                                                               \
        if (!((out) = node(p, (kind))))                                                                                \
            return FIRN_ERR_MEMORY;                                                                                    \
    } while (0)

static node_list *begin(node_list *list)
{
    list->first = NULL;
    list->end = &list->first;
    return list;
}

static void add(node_list *list, jinja_node *n)
{
    *list->end = n;
    list->end = &n->next;
}

static bool is_word(const jinja_token *t, const char *word)
{
    return t->type == JINJA_T_NAME && firn_jinja_same_text(t->text, word);
}

/* True when the name is one of the space-separated words. */
static bool is_one_of(const jinja_token *t, const char *words)
{
    if (t->type != JINJA_T_NAME)
        return false;
    for (const char *w = words; *w;) {
        const size_t n = strcspn(w, " ");
        if (t->text->size == n && memcmp(t->text->data, w, n) == 0)
            return true;
        w += n + (w[n] == ' ');
    }
    return false;
}

static bool skip(parser *p, jinja_token_type type)
{
    if (p->at->type != type)
        return false;
    p->at++;
    return true;
}

static bool skip_word(parser *p, const char *word)
{
    if (!is_word(p->at, word))
        return false;
    p->at++;
    return true;
}

static firn_status expect(parser *p, jinja_token_type type)
{
    const jinja_token wanted = {.type = type};

    return skip(p, type) ? FIRN_OK : fail_at(p, describe(&wanted));
}

static firn_status expect_name(parser *p, const jinja_string **name)
{
    if (p->at->type != JINJA_T_NAME)
        return fail_at(p, "a name");
    *name = p->at++->text;
    return FIRN_OK;
}

/* ---- expressions ---- */

static firn_status arguments(parser *p, jinja_node **out)
{
    node_list list;
    bool named = false;

    begin(&list);
    FIRN_TRY(expect(p, JINJA_T_LPAREN));
    for (bool first = true; p->at->type != JINJA_T_RPAREN; first = false) {
        if (!first) {
            FIRN_TRY(expect(p, JINJA_T_COMMA));
            if (p->at->type == JINJA_T_RPAREN)
                break;
        }
        jinja_node *n;
        NODE(n, JINJA_ARGUMENT);
        if (skip(p, JINJA_T_MUL)) {
            n->op = '*';
        } else if (skip(p, JINJA_T_POW)) {
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
        FIRN_TRY(expression(p, &n->a));
        add(&list, n);
    }
    *out = list.first;
    return expect(p, JINJA_T_RPAREN);
}

/* A dotted name. */
static firn_status dotted(parser *p, const jinja_string **name)
{
    FIRN_TRY(expect_name(p, name));
    while (p->at->type == JINJA_T_DOT) {
        const jinja_string *more = NULL;
        p->at++;
        FIRN_TRY(expect_name(p, &more));
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
static firn_status filter(parser *p, jinja_node *value, jinja_node **out)
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
            FIRN_TRY(expression(p, &bound[i]));
        if (i == 0 && p->at->type != JINJA_T_COLON) { /* a plain index after all */
            n->kind = JINJA_ITEM;
            n->a = value;
            n->b = bound[0];
            *out = n;
            return n->b ? FIRN_OK : fail_at(p, "an index");
        }
        if (!skip(p, JINJA_T_COLON))
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
        if (skip(p, JINJA_T_DOT)) {
            if (p->at->type == JINJA_T_NAME) {
                NODE(n, JINJA_ATTRIBUTE);
                n->name = p->at++->text;
            } else if (p->at->type == JINJA_T_INTEGER) {
                NODE(n, JINJA_ITEM);
                NODE(n->b, JINJA_CONST);
                n->b->value = jinja_int(p->at++->integer);
            } else {
                return fail_at(p, "a name or a number after '.'");
            }
            n->a = *value;
            *value = n;
        } else if (skip(p, JINJA_T_LBRACKET)) {
            FIRN_TRY(slice(p, *value, &n));
            if (p->at->type == JINJA_T_COMMA) { /* a[1, 2] is a[(1, 2)] */
                node_list list;
                if (n->kind != JINJA_ITEM)
                    return fail_at(p, "']'");
                add(begin(&list), n->b);
                while (skip(p, JINJA_T_COMMA)) {
                    jinja_node *item;
                    FIRN_TRY(expression(p, &item));
                    add(&list, item);
                }
                NODE(n->b, JINJA_TUPLE_OF);
                n->b->a = list.first;
            }
            FIRN_TRY(expect(p, JINJA_T_RBRACKET));
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

    begin(&list);
    while (p->at->type != end) {
        jinja_node *item;
        if (list.first) {
            FIRN_TRY(expect(p, JINJA_T_COMMA));
            if (p->at->type == end)
                break;
        }
        FIRN_TRY(expression(p, &item));
        add(&list, item);
        if (end == JINJA_T_RBRACE) {
            FIRN_TRY(expect(p, JINJA_T_COLON));
            FIRN_TRY(expression(p, &item));
            add(&list, item);
        }
    }
    *out = list.first;
    return expect(p, end);
}

static firn_status primary(parser *p, jinja_node **out)
{
    const jinja_token *t = p->at;
    jinja_node *n;

    switch (t->type) {
    case JINJA_T_NAME:
        p->at++;
        NODE(n, JINJA_CONST);
        if (is_one_of(t, "true True")) {
            n->value = jinja_bool(true);
        } else if (is_one_of(t, "false False")) {
            n->value = jinja_bool(false);
        } else if (is_one_of(t, "none None")) {
            n->value = jinja_none();
        } else {
            n->kind = JINJA_NAME;
            n->name = t->text;
            if (p->uses)
                *p->uses |= is_word(t, "caller")    ? JINJA_USES_CALLER
                            : is_word(t, "kwargs")  ? JINJA_USES_KWARGS
                            : is_word(t, "varargs") ? JINJA_USES_VARARGS
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
        FIRN_TRY(tuple(p, false, true, "", true, &n));
        FIRN_TRY(expect(p, JINJA_T_RPAREN));
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
        return fail_at(p, "an expression");
    }
    *out = n;
    return FIRN_OK;
}

static firn_status test(parser *p, jinja_node *value, jinja_node **out)
{
    jinja_node *n;
    const bool negated = skip_word(p, "not");

    NODE(n, JINJA_TEST);
    n->a = value;
    FIRN_TRY(dotted(p, &n->name));
    n->row = firn_jinja_find_test(n->name);
    if (!n->row && !p->soft)
        return unknown(p, "test", n->name);
    const jinja_token_type type = p->at->type;
    if (type == JINJA_T_LPAREN) {
        FIRN_TRY(arguments(p, &n->b));
    } else if ((type == JINJA_T_NAME && !is_one_of(p->at, "else or and")) || type == JINJA_T_TEXT ||
               type == JINJA_T_INTEGER || type == JINJA_T_REAL || type == JINJA_T_LBRACKET || type == JINJA_T_LBRACE) {
        if (is_word(p->at, "is"))
            return fail_at(p, "one test only (tests cannot be chained with 'is')");
        NODE(n->b, JINJA_ARGUMENT);
        FIRN_TRY(primary(p, &n->b->a));
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

    FIRN_TRY(enter(p));
    if (p->at->type == JINJA_T_SUB || p->at->type == JINJA_T_ADD) {
        NODE(n, p->at->type == JINJA_T_SUB ? JINJA_NEG : JINJA_POS);
        p->at++;
        FIRN_TRY(unary(p, false, &n->a));
    } else {
        FIRN_TRY(primary(p, &n));
    }
    FIRN_TRY(postfix(p, &n));
    while (with_filter) {
        if (skip(p, JINJA_T_PIPE)) {
            FIRN_TRY(filter(p, n, &n));
        } else if (skip_word(p, "is")) {
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
        add(begin(&list), *out);
        while (skip(p, JINJA_T_TILDE)) {
            FIRN_TRY(binary(p, 2, out));
            add(&list, *out);
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

    begin(&list);
    FIRN_TRY(binary(p, 0, out));
    for (;;) {
        jinja_node *n;
        int op = p->at->type;
        int width = 1;
        if (is_word(p->at, "in")) {
            op = JINJA_OP_IN;
        } else if (is_word(p->at, "not") && is_word(p->at + 1, "in")) {
            op = JINJA_OP_NOT_IN;
            width = 2;
        } else if (op < JINJA_T_EQ || op > JINJA_T_GE) {
            break;
        }
        NODE(n, JINJA_OPERAND);
        n->op = (uint8_t)op;
        p->at += width;
        FIRN_TRY(binary(p, 0, &n->a));
        add(&list, n);
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

    if (!is_word(p->at, "not"))
        return comparison(p, out);
    FIRN_TRY(enter(p));
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
    while (is_word(p->at, "and")) {
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
    while (is_word(p->at, "or")) {
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
        if (open == 0 && is_word(t, "if"))
            return true;
    }
}

static firn_status expression(parser *p, jinja_node **out)
{
    const bool soft = p->soft;

    FIRN_TRY(enter(p));
    if (!soft)
        p->soft = condition_ahead(p);
    FIRN_TRY(disjunction(p, out));
    while (skip_word(p, "if")) {
        jinja_node *n;
        NODE(n, JINJA_CONDITION);
        n->a = *out;
        FIRN_TRY(disjunction(p, &n->b));
        if (skip_word(p, "else"))
            FIRN_TRY(expression(p, &n->c));
        *out = n;
    }
    p->soft = soft;
    p->depth--;
    return FIRN_OK;
}

static bool tuple_ends(const parser *p, const char *extra_end)
{
    const jinja_token_type t = p->at->type;
    return t == JINJA_T_VARIABLE_END || t == JINJA_T_BLOCK_END || t == JINJA_T_RPAREN || is_one_of(p->at, extra_end);
}

/* Expressions with commas between them; one alone is itself. `simple`: targets of an assignment. */
static firn_status tuple(parser *p, bool simple, bool condition, const char *extra_end, bool parentheses,
                         jinja_node **out)
{
    node_list list;
    bool is_tuple = false;

    begin(&list);
    for (;;) {
        jinja_node *item;
        if (list.first)
            FIRN_TRY(expect(p, JINJA_T_COMMA));
        if (tuple_ends(p, extra_end))
            break;
        if (simple) {
            FIRN_TRY(enter(p));
            FIRN_TRY(primary(p, &item));
            p->depth--;
        } else {
            FIRN_TRY(condition ? expression(p, &item) : disjunction(p, &item));
        }
        add(&list, item);
        if (p->at->type != JINJA_T_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && list.first) {
        *out = list.first;
        return FIRN_OK;
    }
    if (!is_tuple && !parentheses)
        return fail_at(p, "an expression");
    NODE(*out, JINJA_TUPLE_OF);
    (*out)->a = list.first;
    return FIRN_OK;
}

/* ---- statements ---- */

/* Names, tuples of them, and with `dots` attributes of namespaces. */
static firn_status check_target(parser *p, jinja_node *n)
{
    if (n->kind == JINJA_NAME)
        return FIRN_OK;
    if (n->kind != JINJA_TUPLE_OF)
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: cannot assign to this expression",
                         n->line);
    for (jinja_node *i = n->a; i; i = i->next)
        FIRN_TRY(check_target(p, i));
    return FIRN_OK;
}

static firn_status target(parser *p, bool dots, const char *extra_end, jinja_node **out)
{
    if (dots && p->at->type == JINJA_T_NAME && p->at[1].type == JINJA_T_DOT) {
        NODE(*out, JINJA_NSREF);
        (*out)->name = p->at->text;
        p->at += 2;
        const jinja_string *attribute = NULL;
        FIRN_TRY(expect_name(p, &attribute));
        (*out)->value = (jinja_value){.type = JINJA_STRING, .string = attribute};
        return FIRN_OK;
    }
    uint8_t *const uses = p->uses; /* a target is no use of the name */
    p->uses = NULL;
    FIRN_TRY(tuple(p, true, false, extra_end, false, out));
    p->uses = uses;
    return check_target(p, *out);
}

/* The statements up to a tag named by one of `ends`, whose name is then current; with `take` it is skipped. */
static firn_status body(parser *p, const char *ends, bool take, jinja_node **out)
{
    node_list list;
    const char *const tag = p->tag;
    const int line = p->at->line;

    skip(p, JINJA_T_COLON);
    FIRN_TRY(expect(p, JINJA_T_BLOCK_END));
    FIRN_TRY(statements(p, ends, begin(&list)));
    if (p->at->type == JINJA_T_EOF)
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT,
                         "chat template: the block '%s' of line %d is not closed (expected one of: %s)", tag, line,
                         ends);
    p->at += take;
    *out = list.first;
    return FIRN_OK;
}

static firn_status parse_if(parser *p, jinja_node **out)
{
    jinja_node *n, **slot = out;
    const bool soft = p->soft;

    p->soft = true;
    for (;;) {
        NODE(n, JINJA_IF);
        *slot = n;
        FIRN_TRY(tuple(p, false, false, "", false, &n->a));
        FIRN_TRY(body(p, "elif else endif", false, &n->b));
        const jinja_token *word = p->at++;
        if (is_word(word, "elif")) {
            n->op = 1;
            slot = &n->c;
            continue;
        }
        if (is_word(word, "else"))
            FIRN_TRY(body(p, "endif", true, &n->c));
        break;
    }
    p->soft = soft;
    return FIRN_OK;
}

static firn_status parse_for(parser *p, jinja_node *n)
{
    const bool soft = p->soft;

    FIRN_TRY(target(p, false, "in", &n->a));
    if (!skip_word(p, "in"))
        return fail_at(p, "'in'");
    FIRN_TRY(tuple(p, false, false, "recursive", false, &n->b));
    p->soft = false;
    if (skip_word(p, "if"))
        FIRN_TRY(expression(p, &n->c));
    n->op = skip_word(p, "recursive");
    p->n_loops++;
    FIRN_TRY(body(p, "endfor else", false, &n->d));
    p->n_loops--;
    if (is_word(p->at++, "else"))
        FIRN_TRY(body(p, "endfor", true, &n->e));
    p->soft = soft;
    return FIRN_OK;
}

static firn_status parse_set(parser *p, jinja_node *n)
{
    FIRN_TRY(target(p, true, "", &n->a));
    if (skip(p, JINJA_T_ASSIGN))
        return tuple(p, false, true, "", false, &n->b);
    n->kind = JINJA_SET_BLOCK;
    while (skip(p, JINJA_T_PIPE))
        FIRN_TRY(filter(p, n->b, &n->b));
    return body(p, "endset", true, &n->d);
}

static firn_status parse_with(parser *p, jinja_node *n)
{
    node_list list;

    begin(&list);
    while (p->at->type != JINJA_T_BLOCK_END) {
        jinja_node *item;
        if (list.first)
            FIRN_TRY(expect(p, JINJA_T_COMMA));
        if (p->at->type == JINJA_T_NAME) { /* one name or a tuple in parentheses: commas part the assignments */
            NODE(item, JINJA_NAME);
            item->name = p->at++->text;
        } else {
            FIRN_TRY(primary(p, &item));
            FIRN_TRY(check_target(p, item));
        }
        add(&list, item);
        FIRN_TRY(expect(p, JINJA_T_ASSIGN));
        FIRN_TRY(expression(p, &item));
        add(&list, item);
    }
    n->a = list.first;
    return body(p, "endwith", true, &n->d);
}

/* Parameters and body of a macro or a call block. */
static firn_status parse_macro(parser *p, jinja_node *n, bool signature, const char *end)
{
    node_list list;
    uint8_t *const outer = p->uses;
    const int n_loops = p->n_loops;
    const bool soft = p->soft;

    begin(&list);
    if (signature) {
        FIRN_TRY(expect(p, JINJA_T_LPAREN));
        bool defaults = false;
        while (p->at->type != JINJA_T_RPAREN) {
            jinja_node *parameter;
            if (list.first)
                FIRN_TRY(expect(p, JINJA_T_COMMA));
            NODE(parameter, JINJA_NAME);
            FIRN_TRY(expect_name(p, &parameter->name));
            if (skip(p, JINJA_T_ASSIGN)) {
                defaults = true;
                FIRN_TRY(expression(p, &parameter->b));
            } else if (defaults) {
                return fail_at(p, "a default, as the parameters before have");
            }
            add(&list, parameter);
        }
        p->at++;
    }
    n->a = list.first;
    if (!end)
        return FIRN_OK;
    p->uses = &n->op;
    p->n_loops = 0;
    p->soft = false;
    FIRN_TRY(body(p, end, true, &n->d));
    p->soft = soft;
    p->n_loops = n_loops;
    p->uses = outer;
    if (outer)
        *outer |= n->op;
    return FIRN_OK;
}

static firn_status parse_call(parser *p, jinja_node *n)
{
    NODE(n->c, JINJA_MACRO_DEF);
    FIRN_TRY(parse_macro(p, n->c, p->at->type == JINJA_T_LPAREN, NULL));
    FIRN_TRY(expression(p, &n->a));
    if (n->a->kind != JINJA_CALL)
        return fail_at(p, "a call in the call block");
    jinja_node *const parameters = n->c->a;
    FIRN_TRY(parse_macro(p, n->c, false, "endcall"));
    n->c->a = parameters;
    n->c->name = p->jinja->caller;
    return FIRN_OK;
}

static firn_status parse_block(parser *p, jinja_node *n)
{
    FIRN_TRY(expect_name(p, &n->name));
    n->op = skip_word(p, "scoped");
    skip_word(p, "required");
    FIRN_TRY(body(p, "endblock", true, &n->d));
    skip_word(p, n->name->data);
    return FIRN_OK;
}

static firn_status statement(parser *p, node_list *list)
{
    const jinja_token *word = p->at;
    const int n_loops = p->n_loops;
    const bool soft = p->soft;
    jinja_node *n;

    if (word->type != JINJA_T_NAME)
        return fail_at(p, "the name of a tag");
    p->tag = word->text->data;
    NODE(n, JINJA_OUTPUT);
    p->at++;
    if (is_word(word, "print")) {
        for (;; add(list, n)) {
            NODE(n, JINJA_OUTPUT);
            FIRN_TRY(expression(p, &n->a));
            if (!skip(p, JINJA_T_COMMA))
                break;
        }
    } else if (is_word(word, "if")) {
        FIRN_TRY(parse_if(p, &n));
    } else if (is_word(word, "for")) {
        n->kind = JINJA_FOR;
        FIRN_TRY(parse_for(p, n));
    } else if (is_word(word, "set")) {
        n->kind = JINJA_SET;
        FIRN_TRY(parse_set(p, n));
    } else if (is_word(word, "macro")) {
        n->kind = JINJA_MACRO_DEF;
        FIRN_TRY(expect_name(p, &n->name));
        FIRN_TRY(parse_macro(p, n, true, "endmacro"));
    } else if (is_word(word, "call")) {
        n->kind = JINJA_CALL_BLOCK;
        FIRN_TRY(parse_call(p, n));
    } else if (is_word(word, "filter")) {
        n->kind = JINJA_FILTER_BLOCK;
        FIRN_TRY(filter(p, NULL, &n->b));
        while (skip(p, JINJA_T_PIPE))
            FIRN_TRY(filter(p, n->b, &n->b));
        FIRN_TRY(body(p, "endfilter", true, &n->d));
    } else if (is_word(word, "with")) {
        n->kind = JINJA_WITH;
        FIRN_TRY(parse_with(p, n));
    } else if (is_word(word, "block")) {
        n->kind = JINJA_BLOCK;
        p->n_loops = 0;
        FIRN_TRY(parse_block(p, n));
    } else if (is_word(word, "generation")) {
        n->kind = JINJA_GENERATION;
        p->jinja->generation = true;
        p->n_loops = 0;
        p->soft = false;
        FIRN_TRY(body(p, "endgeneration", true, &n->d));
    } else if (is_word(word, "break") || is_word(word, "continue")) {
        n->kind = is_word(word, "break") ? JINJA_BREAK : JINJA_CONTINUE;
        if (n_loops == 0)
            return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: '%s' stands outside of a loop",
                             word->line, p->tag);
    } else if (is_one_of(word, "include import from extends")) {
        n->kind = JINJA_LOADER;
        n->name = word->text;
        while (p->at->type != JINJA_T_BLOCK_END && p->at->type != JINJA_T_EOF)
            p->at++;
    } else if (is_word(word, "autoescape")) {
        return firn_fail(p->t->ctx, FIRN_ERR_UNSUPPORTED, "chat template, line %d: autoescape is not supported",
                         word->line);
    } else {
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: unexpected tag '%.*s'", word->line,
                         (int)firn_min_i64((int64_t)word->text->size, 60), word->text->data);
    }
    p->n_loops = n_loops;
    p->soft = soft;
    add(list, n);
    return FIRN_OK;
}

static firn_status statements(parser *p, const char *ends, node_list *list)
{
    FIRN_TRY(enter(p));
    while (p->at->type != JINJA_T_EOF) {
        jinja_node *n;
        if (p->at->type == JINJA_T_DATA) {
            NODE(n, JINJA_DATA);
            n->value = (jinja_value){.type = JINJA_STRING, .string = p->at++->text};
            add(list, n);
        } else if (skip(p, JINJA_T_VARIABLE_BEGIN)) {
            NODE(n, JINJA_OUTPUT);
            FIRN_TRY(tuple(p, false, true, "", false, &n->a));
            FIRN_TRY(expect(p, JINJA_T_VARIABLE_END));
            add(list, n);
        } else {
            FIRN_TRY(expect(p, JINJA_T_BLOCK_BEGIN));
            if (is_one_of(p->at, ends))
                break;
            FIRN_TRY(statement(p, list));
            FIRN_TRY(expect(p, JINJA_T_BLOCK_END));
        }
    }
    p->depth--;
    return FIRN_OK;
}

firn_status firn_jinja_parse(jinja_tokens *tokens, firn_jinja *jinja)
{
    parser state = {.t = tokens, .jinja = jinja, .at = tokens->tokens}, *p = &state;
    node_list list;

    if (!(jinja->loop = firn_jinja_intern(tokens, "loop", 4)) ||
        !(jinja->caller = firn_jinja_intern(tokens, "caller", 6)) ||
        !(jinja->kwargs = firn_jinja_intern(tokens, "kwargs", 6)) ||
        !(jinja->varargs = firn_jinja_intern(tokens, "varargs", 7)))
        return FIRN_ERR_MEMORY;
    FIRN_TRY(statements(p, "", begin(&list)));
    jinja->body = list.first;
    return FIRN_OK;
}
