/* Tokens to a tree: the statements, and what reads one token after the other. Expressions are in parse_expression.c. */
#include "jinja/parse.h"

#include <string.h>

static firn_status statements(parser *p, const char *ends, node_list *list);

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

firn_status firn_parser_fail_at(parser *p, const char *expected)
{
    if (p->at->type == JINJA_T_NAME)
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: expected %s, got '%.*s'", p->at->line,
                         expected, (int)firn_min_i64((int64_t)p->at->text->size, 60), p->at->text->data);
    return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: expected %s, got %s", p->at->line, expected,
                     describe(p->at));
}

firn_status firn_parser_enter(parser *p)
{
    if (++p->depth > p->jinja->limits.depth)
        return firn_fail(p->t->ctx, FIRN_ERR_MEMORY, "chat template, line %d: nested more than %zu levels deep",
                         p->at->line, p->jinja->limits.depth);
    return FIRN_OK;
}

jinja_node *firn_parser_node(parser *p, jinja_kind kind)
{
    jinja_node *n = firn_arena_zeroed(p->t->arena, 1, sizeof *n);

    if (n) {
        n->kind = (uint8_t)kind;
        n->line = p->at->line;
    }
    return n;
}

node_list *firn_parser_begin(node_list *list)
{
    list->first = NULL;
    list->end = &list->first;
    return list;
}

void firn_parser_add(node_list *list, jinja_node *n)
{
    *list->end = n;
    list->end = &n->next;
}

bool firn_parser_is_word(const jinja_token *t, const char *word)
{
    return t->type == JINJA_T_NAME && firn_jinja_same_text(t->text, word);
}

/* True when the name is one of the space-separated words. */
bool firn_parser_is_one_of(const jinja_token *t, const char *words)
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

bool firn_parser_skip(parser *p, jinja_token_type type)
{
    if (p->at->type != type)
        return false;
    p->at++;
    return true;
}

bool firn_parser_skip_word(parser *p, const char *word)
{
    if (!firn_parser_is_word(p->at, word))
        return false;
    p->at++;
    return true;
}

firn_status firn_parser_expect(parser *p, jinja_token_type type)
{
    const jinja_token wanted = {.type = type};

    return firn_parser_skip(p, type) ? FIRN_OK : firn_parser_fail_at(p, describe(&wanted));
}

firn_status firn_parser_expect_name(parser *p, const jinja_string **name)
{
    if (p->at->type != JINJA_T_NAME)
        return firn_parser_fail_at(p, "a name");
    *name = p->at++->text;
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
        FIRN_TRY(firn_parser_expect_name(p, &attribute));
        (*out)->value = (jinja_value){.type = JINJA_STRING, .string = attribute};
        return FIRN_OK;
    }
    uint8_t *const uses = p->uses; /* a target is no use of the name */
    p->uses = NULL;
    FIRN_TRY(firn_parser_tuple(p, true, false, extra_end, false, out));
    p->uses = uses;
    return check_target(p, *out);
}

/* The statements up to a tag named by one of `ends`, whose name is then current; with `take` it is skipped. */
static firn_status body(parser *p, const char *ends, bool take, jinja_node **out)
{
    node_list list;
    const char *const tag = p->tag;
    const int line = p->at->line;

    firn_parser_skip(p, JINJA_T_COLON);
    FIRN_TRY(firn_parser_expect(p, JINJA_T_BLOCK_END));
    FIRN_TRY(statements(p, ends, firn_parser_begin(&list)));
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
        FIRN_TRY(firn_parser_tuple(p, false, false, "", false, &n->a));
        FIRN_TRY(body(p, "elif else endif", false, &n->b));
        const jinja_token *word = p->at++;
        if (firn_parser_is_word(word, "elif")) {
            n->op = 1;
            slot = &n->c;
            continue;
        }
        if (firn_parser_is_word(word, "else"))
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
    if (!firn_parser_skip_word(p, "in"))
        return firn_parser_fail_at(p, "'in'");
    FIRN_TRY(firn_parser_tuple(p, false, false, "recursive", false, &n->b));
    p->soft = false;
    if (firn_parser_skip_word(p, "if"))
        FIRN_TRY(firn_parser_expression(p, &n->c));
    n->op = firn_parser_skip_word(p, "recursive");
    p->n_loops++;
    FIRN_TRY(body(p, "endfor else", false, &n->d));
    p->n_loops--;
    if (firn_parser_is_word(p->at++, "else"))
        FIRN_TRY(body(p, "endfor", true, &n->e));
    p->soft = soft;
    return FIRN_OK;
}

static firn_status parse_set(parser *p, jinja_node *n)
{
    FIRN_TRY(target(p, true, "", &n->a));
    if (firn_parser_skip(p, JINJA_T_ASSIGN))
        return firn_parser_tuple(p, false, true, "", false, &n->b);
    n->kind = JINJA_SET_BLOCK;
    while (firn_parser_skip(p, JINJA_T_PIPE))
        FIRN_TRY(firn_parser_filter(p, n->b, &n->b));
    return body(p, "endset", true, &n->d);
}

static firn_status parse_with(parser *p, jinja_node *n)
{
    node_list list;

    firn_parser_begin(&list);
    while (p->at->type != JINJA_T_BLOCK_END) {
        jinja_node *item;
        if (list.first)
            FIRN_TRY(firn_parser_expect(p, JINJA_T_COMMA));
        if (p->at->type == JINJA_T_NAME) { /* one name or a tuple in parentheses: commas part the assignments */
            NODE(item, JINJA_NAME);
            item->name = p->at++->text;
        } else {
            FIRN_TRY(firn_parser_primary(p, &item));
            FIRN_TRY(check_target(p, item));
        }
        firn_parser_add(&list, item);
        FIRN_TRY(firn_parser_expect(p, JINJA_T_ASSIGN));
        FIRN_TRY(firn_parser_expression(p, &item));
        firn_parser_add(&list, item);
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

    firn_parser_begin(&list);
    if (signature) {
        FIRN_TRY(firn_parser_expect(p, JINJA_T_LPAREN));
        bool defaults = false;
        while (p->at->type != JINJA_T_RPAREN) {
            jinja_node *parameter;
            if (list.first)
                FIRN_TRY(firn_parser_expect(p, JINJA_T_COMMA));
            NODE(parameter, JINJA_NAME);
            FIRN_TRY(firn_parser_expect_name(p, &parameter->name));
            if (firn_parser_skip(p, JINJA_T_ASSIGN)) {
                defaults = true;
                FIRN_TRY(firn_parser_expression(p, &parameter->b));
            } else if (defaults) {
                return firn_parser_fail_at(p, "a default, as the parameters before have");
            }
            firn_parser_add(&list, parameter);
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
    FIRN_TRY(firn_parser_expression(p, &n->a));
    if (n->a->kind != JINJA_CALL)
        return firn_parser_fail_at(p, "a call in the call block");
    jinja_node *const parameters = n->c->a;
    FIRN_TRY(parse_macro(p, n->c, false, "endcall"));
    n->c->a = parameters;
    n->c->name = p->jinja->caller;
    return FIRN_OK;
}

static firn_status parse_block(parser *p, jinja_node *n)
{
    FIRN_TRY(firn_parser_expect_name(p, &n->name));
    n->op = firn_parser_skip_word(p, "scoped");
    firn_parser_skip_word(p, "required");
    FIRN_TRY(body(p, "endblock", true, &n->d));
    firn_parser_skip_word(p, n->name->data);
    return FIRN_OK;
}

static firn_status statement(parser *p, node_list *list)
{
    const jinja_token *word = p->at;
    const int n_loops = p->n_loops;
    const bool soft = p->soft;
    jinja_node *n;

    if (word->type != JINJA_T_NAME)
        return firn_parser_fail_at(p, "the name of a tag");
    p->tag = word->text->data;
    NODE(n, JINJA_OUTPUT);
    p->at++;
    if (firn_parser_is_word(word, "print")) {
        for (;; firn_parser_add(list, n)) {
            NODE(n, JINJA_OUTPUT);
            FIRN_TRY(firn_parser_expression(p, &n->a));
            if (!firn_parser_skip(p, JINJA_T_COMMA))
                break;
        }
    } else if (firn_parser_is_word(word, "if")) {
        FIRN_TRY(parse_if(p, &n));
    } else if (firn_parser_is_word(word, "for")) {
        n->kind = JINJA_FOR;
        FIRN_TRY(parse_for(p, n));
    } else if (firn_parser_is_word(word, "set")) {
        n->kind = JINJA_SET;
        FIRN_TRY(parse_set(p, n));
    } else if (firn_parser_is_word(word, "macro")) {
        n->kind = JINJA_MACRO_DEF;
        FIRN_TRY(firn_parser_expect_name(p, &n->name));
        FIRN_TRY(parse_macro(p, n, true, "endmacro"));
    } else if (firn_parser_is_word(word, "call")) {
        n->kind = JINJA_CALL_BLOCK;
        FIRN_TRY(parse_call(p, n));
    } else if (firn_parser_is_word(word, "filter")) {
        n->kind = JINJA_FILTER_BLOCK;
        FIRN_TRY(firn_parser_filter(p, NULL, &n->b));
        while (firn_parser_skip(p, JINJA_T_PIPE))
            FIRN_TRY(firn_parser_filter(p, n->b, &n->b));
        FIRN_TRY(body(p, "endfilter", true, &n->d));
    } else if (firn_parser_is_word(word, "with")) {
        n->kind = JINJA_WITH;
        FIRN_TRY(parse_with(p, n));
    } else if (firn_parser_is_word(word, "block")) {
        n->kind = JINJA_BLOCK;
        p->n_loops = 0;
        FIRN_TRY(parse_block(p, n));
    } else if (firn_parser_is_word(word, "generation")) {
        n->kind = JINJA_GENERATION;
        p->jinja->generation = true;
        p->n_loops = 0;
        p->soft = false;
        FIRN_TRY(body(p, "endgeneration", true, &n->d));
    } else if (firn_parser_is_word(word, "break") || firn_parser_is_word(word, "continue")) {
        n->kind = firn_parser_is_word(word, "break") ? JINJA_BREAK : JINJA_CONTINUE;
        if (n_loops == 0)
            return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: '%s' stands outside of a loop",
                             word->line, p->tag);
    } else if (firn_parser_is_one_of(word, "include import from extends")) {
        n->kind = JINJA_LOADER;
        n->name = word->text;
        while (p->at->type != JINJA_T_BLOCK_END && p->at->type != JINJA_T_EOF)
            p->at++;
    } else if (firn_parser_is_word(word, "autoescape")) {
        return firn_fail(p->t->ctx, FIRN_ERR_UNSUPPORTED, "chat template, line %d: autoescape is not supported",
                         word->line);
    } else {
        return firn_fail(p->t->ctx, FIRN_ERR_FORMAT, "chat template, line %d: unexpected tag '%.*s'", word->line,
                         (int)firn_min_i64((int64_t)word->text->size, 60), word->text->data);
    }
    p->n_loops = n_loops;
    p->soft = soft;
    firn_parser_add(list, n);
    return FIRN_OK;
}

static firn_status statements(parser *p, const char *ends, node_list *list)
{
    FIRN_TRY(firn_parser_enter(p));
    while (p->at->type != JINJA_T_EOF) {
        jinja_node *n;
        if (p->at->type == JINJA_T_DATA) {
            NODE(n, JINJA_DATA);
            n->value = (jinja_value){.type = JINJA_STRING, .string = p->at++->text};
            firn_parser_add(list, n);
        } else if (firn_parser_skip(p, JINJA_T_VARIABLE_BEGIN)) {
            NODE(n, JINJA_OUTPUT);
            FIRN_TRY(firn_parser_tuple(p, false, true, "", false, &n->a));
            FIRN_TRY(firn_parser_expect(p, JINJA_T_VARIABLE_END));
            firn_parser_add(list, n);
        } else {
            FIRN_TRY(firn_parser_expect(p, JINJA_T_BLOCK_BEGIN));
            if (firn_parser_is_one_of(p->at, ends))
                break;
            FIRN_TRY(statement(p, list));
            FIRN_TRY(firn_parser_expect(p, JINJA_T_BLOCK_END));
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
    FIRN_TRY(statements(p, "", firn_parser_begin(&list)));
    jinja->body = list.first;
    return FIRN_OK;
}
