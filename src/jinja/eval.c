/* Walks the tree and writes the text.
 *
 * Scopes follow jinja2: `for` bodies (one scope a round), macros, call blocks, `with`, set and filter blocks and
 * generation blocks open one; `if` does not. A name is sought through the scopes outwards, then among the template's
 * variables, then among the global functions; one that is nowhere is undefined, which prints as nothing. A macro sees
 * the scope it was defined in, as that scope is when the macro is called. */
#include "jinja/walk.h"

#include <string.h>

firn_status firn_jinja_step(jinja_eval *e, size_t n)
{
    const size_t cost = 1 + n / 64;

    if (cost > e->steps) {
        e->steps = 0;
        return firn_fail(e->ctx, FIRN_ERR_MEMORY, "chat template, line %d: more than %zu steps", e->line,
                         e->limits.steps);
    }
    e->steps -= cost;
    return FIRN_OK;
}

firn_status firn_jinja_fail(jinja_eval *e, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    firn_failv(e->ctx, FIRN_ERR_FORMAT, format, args);
    va_end(args);
    return firn_fail_in(e->ctx, FIRN_ERR_FORMAT, "chat template, line %d", e->line);
}

firn_status firn_jinja_fail_undefined(jinja_eval *e, jinja_value v)
{
    const int size = v.string ? (int)firn_min_i64((int64_t)v.string->size, 100) : 0;
    const char *name = v.string ? v.string->data : "";

    if (!v.string)
        return firn_jinja_fail(e, "a value is undefined");
    if (!v.owner)
        return firn_jinja_fail(e, "'%.*s' is undefined", size, name);
    const char *type = firn_jinja_type_name((jinja_value){.type = v.owner - 1, .list = &(jinja_list){.label = "list"}});
    if (v.flag)
        return firn_jinja_fail(e, "the template may not use '%.*s' of a '%s' object", size, name, type);
    return firn_jinja_fail(e, "'%s' object has no attribute '%.*s'", type, size, name);
}

firn_status firn_jinja_enter(jinja_eval *e)
{
    if (++e->depth > e->limits.depth)
        return firn_fail(e->ctx, FIRN_ERR_MEMORY, "chat template, line %d: nested more than %zu levels deep", e->line,
                         e->limits.depth);
    return firn_jinja_step(e, 0);
}

/* ---- scopes ---- */

jinja_scope *firn_jinja_scope_create(jinja_eval *e, jinja_scope *parent)
{
    jinja_scope *scope = firn_jinja_alloc(e, 1, sizeof *scope);

    if (scope)
        scope->parent = parent;
    return scope;
}

firn_status firn_jinja_bind(jinja_eval *e, jinja_scope *scope, const jinja_string *name, jinja_value value)
{
    FIRN_TRY(firn_jinja_step(e, scope->n));
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->entries[i].key.string == name) {
            scope->entries[i].value = value;
            return FIRN_OK;
        }
    }
    if (scope->n == scope->capacity) {
        const size_t capacity = scope->capacity ? 2 * scope->capacity : 4;
        jinja_entry *entries = firn_jinja_alloc(e, capacity, sizeof *entries);
        if (!entries)
            return FIRN_ERR_MEMORY;
        if (scope->n)
            memcpy(entries, scope->entries, scope->n * sizeof *entries);
        scope->entries = entries;
        scope->capacity = capacity;
    }
    scope->entries[scope->n++] = (jinja_entry){{.type = JINJA_STRING, .string = name}, value};
    return FIRN_OK;
}

firn_status firn_jinja_lookup(jinja_eval *e, const jinja_string *name, jinja_value *out)
{
    for (const jinja_scope *s = e->scope; s; s = s->parent) {
        FIRN_TRY(firn_jinja_step(e, s->n));
        for (size_t i = 0; i < s->n; i++) {
            if (s->entries[i].key.string == name) {
                *out = s->entries[i].value;
                return FIRN_OK;
            }
        }
    }
    const jinja_value *variable;
    FIRN_TRY(firn_jinja_dict_text(e, e->variables, name, &variable));
    const jinja_row *row = variable ? NULL : firn_jinja_find_global(name);
    *out = variable ? *variable : row ? (jinja_value){.type = JINJA_FUNCTION, .row = row} : jinja_undefined(name);
    return FIRN_OK;
}

/* ---- captured output ---- */

void firn_jinja_capture_begin(jinja_eval *e, capture *c)
{
    firn_jinja_text(e, &c->text);
    c->before = e->out;
    e->out = &c->text;
}

firn_status firn_jinja_capture_end(jinja_eval *e, capture *c, firn_status status, jinja_value *out)
{
    e->out = c->before;
    return firn_jinja_finish(e, &c->text, status, out);
}

/* ---- statements ---- */

static firn_status assign(jinja_eval *e, jinja_scope *scope, const jinja_node *target, jinja_value v)
{
    if (target->kind == JINJA_NAME)
        return firn_jinja_bind(e, scope, target->name, v);
    if (target->kind == JINJA_NSREF) {
        jinja_value ns;
        FIRN_TRY(firn_jinja_lookup(e, target->name, &ns));
        if (ns.type != JINJA_NAMESPACE)
            return firn_jinja_fail(e, "cannot assign attribute on non-namespace object");
        return firn_jinja_dict_set(e, ns.dict, target->value, v);
    }
    jinja_list *list;
    size_t n = 0;
    FIRN_TRY(firn_jinja_enter(e));
    FIRN_TRY(firn_jinja_iterate(e, v, &list));
    for (const jinja_node *t = target->a; t; t = t->next)
        n++;
    if (n != list->n)
        return firn_jinja_fail(e, "expected %zu values to unpack, got %zu", n, list->n);
    n = 0;
    for (const jinja_node *t = target->a; t; t = t->next)
        FIRN_TRY(assign(e, scope, t, list->items[n++]));
    e->depth--;
    return FIRN_OK;
}

/* The items that pass the loop's own `if`. */
static firn_status filtered(jinja_eval *e, const jinja_node *n, jinja_scope *parent, jinja_list *all, jinja_list **out)
{
    jinja_value kept;
    jinja_scope *scope = firn_jinja_scope_create(e, parent);

    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, all->n, &kept));
    if (!scope)
        return FIRN_ERR_MEMORY;
    kept.list->n = 0;
    FIRN_TRY(firn_jinja_bind(e, scope, e->jinja->loop, jinja_undefined(e->jinja->loop)));
    for (size_t i = 0; i < all->n; i++) {
        jinja_value passes;
        FIRN_TRY(assign(e, scope, n->a, all->items[i]));
        e->scope = scope;
        FIRN_TRY(firn_jinja_eval(e, n->c, &passes));
        if (firn_jinja_truth(passes))
            kept.list->items[kept.list->n++] = all->items[i];
    }
    e->scope = parent;
    *out = kept.list;
    return FIRN_OK;
}

firn_status firn_jinja_run_loop(jinja_eval *e, const jinja_node *n, jinja_scope *parent, jinja_value iterable,
                                int depth)
{
    jinja_loop *loop = firn_jinja_alloc(e, 1, sizeof *loop);
    jinja_scope *scope = NULL;
    size_t closures = 0;

    if (!loop)
        return FIRN_ERR_MEMORY;
    *loop = (jinja_loop){.node = n, .scope = parent, .depth = depth};
    FIRN_TRY(firn_jinja_iterate(e, iterable, &loop->list));
    if (n->c)
        FIRN_TRY(filtered(e, n, parent, loop->list, &loop->list));
    for (; loop->i < loop->list->n; loop->i++) {
        /* A scope that no macro holds on to serves the next round too. */
        if (!scope || e->closures != closures)
            scope = firn_jinja_scope_create(e, parent);
        if (!scope)
            return FIRN_ERR_MEMORY;
        scope->n = 0;
        closures = e->closures;
        FIRN_TRY(firn_jinja_bind(e, scope, e->jinja->loop, (jinja_value){.type = JINJA_LOOP, .loop = loop}));
        FIRN_TRY(assign(e, scope, n->a, loop->list->items[loop->i]));
        FIRN_TRY(firn_jinja_exec(e, n->d, scope));
        const bool stop = e->flow == JINJA_STOP_LOOP;
        e->flow = JINJA_GO;
        if (stop)
            return FIRN_OK;
    }
    if (loop->list->n)
        return FIRN_OK;
    if (!(scope = firn_jinja_scope_create(e, parent)))
        return FIRN_ERR_MEMORY;
    return firn_jinja_exec(e, n->e, scope);
}

static firn_status run_if(jinja_eval *e, const jinja_node *n, jinja_scope *scope)
{
    for (;; n = n->c) { /* one round for each elif */
        jinja_value v;
        FIRN_TRY(firn_jinja_eval(e, n->a, &v));
        if (firn_jinja_truth(v))
            return firn_jinja_exec(e, n->b, scope);
        if (!n->op)
            return firn_jinja_exec(e, n->c, scope);
    }
}

/* Runs the body into a text and puts it through the filters of `filter`. */
static firn_status run_captured(jinja_eval *e, const jinja_node *filter, const jinja_node *body, jinja_scope *parent,
                                jinja_value *out)
{
    jinja_scope *scope = firn_jinja_scope_create(e, parent);
    capture c;

    if (!scope)
        return FIRN_ERR_MEMORY;
    firn_jinja_capture_begin(e, &c);
    FIRN_TRY(firn_jinja_capture_end(e, &c, firn_jinja_exec(e, body, scope), out));
    e->scope = parent;
    const jinja_node *chain[16]; /* the last filter is the root: they apply from the end of the chain on */
    int n = 0;
    for (const jinja_node *f = filter; f; f = f->a) {
        if (n == 16)
            return firn_jinja_fail(e, "more than 16 filters on one block");
        chain[n++] = f;
    }
    while (n--)
        FIRN_TRY(firn_jinja_apply(e, chain[n], *out, out));
    return FIRN_OK;
}

static firn_status put(jinja_eval *e, jinja_value v)
{
    return firn_jinja_str(e, e->out, v);
}

static firn_status define_macro(jinja_eval *e, const jinja_node *n, jinja_scope *scope, jinja_value *out)
{
    jinja_macro *macro = firn_jinja_alloc(e, 1, sizeof *macro);

    if (!macro)
        return FIRN_ERR_MEMORY;
    *macro = (jinja_macro){n, scope, *n->name};
    *out = (jinja_value){.type = JINJA_MACRO, .macro = macro};
    e->closures++;
    return FIRN_OK;
}

static firn_status run_call_block(jinja_eval *e, const jinja_node *n, jinja_scope *scope)
{
    jinja_value callee, caller, result;
    jinja_args args;

    FIRN_TRY(firn_jinja_eval(e, n->a->a, &callee));
    FIRN_TRY(firn_jinja_arguments(e, n->a->b, &args));
    FIRN_TRY(define_macro(e, n->c, scope, &caller));
    jinja_entry *named = firn_jinja_alloc(e, args.n_named + 1, sizeof *named);
    if (!named)
        return FIRN_ERR_MEMORY;
    if (args.n_named)
        memcpy(named, args.named, args.n_named * sizeof *named);
    named[args.n_named++] = (jinja_entry){{.type = JINJA_STRING, .string = e->jinja->caller}, caller};
    args.named = named;
    e->line = n->line;
    FIRN_TRY(firn_jinja_call(e, callee, &args, &result));
    return put(e, result);
}

static firn_status run_generation(jinja_eval *e, const jinja_node *n, jinja_scope *parent)
{
    jinja_scope *scope = firn_jinja_scope_create(e, parent);
    const size_t begin = e->out->size;

    if (!scope)
        return FIRN_ERR_MEMORY;
    if (e->generation && e->out != e->target)
        return firn_fail(e->ctx, FIRN_ERR_UNSUPPORTED,
                         "chat template, line %d: a generation block inside of a macro or another captured block says "
                         "nothing about where its text ends up",
                         n->line);
    if (e->in_generation)
        return firn_jinja_fail(e, "generation blocks cannot be nested");
    e->in_generation = true;
    FIRN_TRY(firn_jinja_exec(e, n->d, scope));
    e->in_generation = false;
    return e->generation ? firn_spans_add(e->generation, begin, e->out->size) : FIRN_OK;
}

static firn_status run_with(jinja_eval *e, const jinja_node *n, jinja_scope *parent)
{
    jinja_scope *scope = firn_jinja_scope_create(e, parent);

    if (!scope)
        return FIRN_ERR_MEMORY;
    for (const jinja_node *t = n->a; t; t = t->next->next) {
        jinja_value v;
        e->scope = parent; /* values see the outer names only */
        FIRN_TRY(firn_jinja_eval(e, t->next, &v));
        FIRN_TRY(assign(e, scope, t, v));
    }
    return firn_jinja_exec(e, n->d, scope);
}

static firn_status exec_one(jinja_eval *e, const jinja_node *n, jinja_scope *scope)
{
    jinja_value v;

    switch (n->kind) {
    case JINJA_DATA:
        return put(e, n->value);
    case JINJA_OUTPUT:
        FIRN_TRY(firn_jinja_eval(e, n->a, &v));
        return put(e, v);
    case JINJA_IF:
        return run_if(e, n, scope);
    case JINJA_FOR:
        FIRN_TRY(firn_jinja_eval(e, n->b, &v));
        return firn_jinja_run_loop(e, n, scope, v, 0);
    case JINJA_SET:
        FIRN_TRY(firn_jinja_eval(e, n->b, &v));
        return assign(e, scope, n->a, v);
    case JINJA_SET_BLOCK:
        FIRN_TRY(run_captured(e, n->b, n->d, scope, &v));
        return assign(e, scope, n->a, v);
    case JINJA_FILTER_BLOCK:
        FIRN_TRY(run_captured(e, n->b, n->d, scope, &v));
        return put(e, v);
    case JINJA_WITH:
        return run_with(e, n, scope);
    case JINJA_MACRO_DEF:
        FIRN_TRY(define_macro(e, n, scope, &v));
        return firn_jinja_bind(e, scope, n->name, v);
    case JINJA_CALL_BLOCK:
        return run_call_block(e, n, scope);
    case JINJA_BLOCK: {
        jinja_scope *inner = firn_jinja_scope_create(e, n->op ? scope : e->root);
        return inner ? firn_jinja_exec(e, n->d, inner) : FIRN_ERR_MEMORY;
    }
    case JINJA_GENERATION:
        return run_generation(e, n, scope);
    case JINJA_BREAK:
        e->flow = JINJA_STOP_LOOP;
        return FIRN_OK;
    case JINJA_CONTINUE:
        e->flow = JINJA_NEXT_ROUND;
        return FIRN_OK;
    default: /* JINJA_LOADER */
        return firn_jinja_fail(e, "'%s': a chat template has no other templates to load", n->name->data);
    }
}

firn_status firn_jinja_exec(jinja_eval *e, const jinja_node *list, jinja_scope *scope)
{
    jinja_scope *const before = e->scope;
    firn_status status = firn_jinja_enter(e);

    for (const jinja_node *n = list; n && status == FIRN_OK && e->flow == JINJA_GO; n = n->next) {
        e->scope = scope;
        e->line = n->line;
        status = firn_jinja_step(e, 0);
        if (status == FIRN_OK)
            status = exec_one(e, n, scope);
    }
    e->scope = before;
    e->depth--;
    return status;
}

firn_status firn_jinja_run(jinja_eval *e)
{
    e->root = firn_jinja_scope_create(e, NULL);
    return e->root ? firn_jinja_exec(e, e->jinja->body, e->root) : FIRN_ERR_MEMORY;
}
