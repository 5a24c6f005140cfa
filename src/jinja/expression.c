/* Expressions and calls. */
#include "jinja/walk.h"

#include <string.h>

/* ---- calls ---- */

firn_status firn_jinja_call_row(jinja_eval *e, const jinja_row *row, jinja_value self, const jinja_args *args,
                                jinja_value *out)
{
    jinja_value bound[JINJA_MAX_PARAMETERS] = {{.type = JINJA_MISSING}};
    const jinja_string *names[JINJA_MAX_PARAMETERS];
    jinja_string storage[JINJA_MAX_PARAMETERS];
    size_t n = 0;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (!row->parameters)
        return row->call(e, self, bound, args, out);
    for (const char *p = row->parameters; *p;) {
        storage[n] = (jinja_string){p, strcspn(p, " ")};
        names[n] = &storage[n];
        p += storage[n].size;
        p += *p == ' ';
        n++;
    }
    if (args->n > n)
        return firn_jinja_fail(e, "%s takes at most %zu arguments, but %zu were given", row->name, n, args->n);
    for (size_t i = 0; i < args->n; i++)
        bound[i] = args->items[i];
    for (size_t k = 0; k < args->n_named; k++) {
        const jinja_string *name = args->named[k].key.string;
        size_t i = 0;
        while (i < n && !(names[i]->size == name->size && memcmp(names[i]->data, name->data, name->size) == 0))
            i++;
        if (i == n)
            return firn_jinja_fail(e, "%s has no parameter named '%.*s'", row->name,
                                   (int)firn_min_i64((int64_t)name->size, 60), name->data);
        if (bound[i].type != JINJA_MISSING)
            return firn_jinja_fail(e, "%s got two values for '%.*s'", row->name, (int)name->size, name->data);
        bound[i] = args->named[k].value;
    }
    for (int i = 0; i < row->required; i++)
        if (bound[i].type == JINJA_MISSING)
            return firn_jinja_fail(e, "%s misses its argument '%.*s'", row->name, (int)names[i]->size, names[i]->data);
    return row->call(e, self, bound, args, out);
}

firn_status firn_jinja_arguments(jinja_eval *e, const jinja_node *list, jinja_args *args)
{
    size_t n = 0, n_named = 0;

    *args = (jinja_args){0};
    for (const jinja_node *a = list; a; a = a->next) {
        n += !a->name && !a->op;
        n_named += a->name != NULL;
    }
    if (!(args->items = firn_jinja_alloc(e, n, sizeof *args->items)) ||
        !(args->named = firn_jinja_alloc(e, n_named, sizeof *args->named)))
        return FIRN_ERR_MEMORY;
    for (const jinja_node *a = list; a; a = a->next) {
        jinja_value v;
        FIRN_TRY(firn_jinja_eval(e, a->a, &v));
        if (a->op == '*') {
            jinja_list *more;
            FIRN_TRY(firn_jinja_iterate(e, v, &more));
            jinja_value *items = firn_jinja_alloc(e, args->n + more->n + n, sizeof *items);
            if (!items)
                return FIRN_ERR_MEMORY;
            memcpy(items, args->items, args->n * sizeof *items);
            memcpy(items + args->n, more->items, more->n * sizeof *items);
            args->items = items;
            args->n += more->n;
        } else if (a->op == 'd') {
            if (v.type != JINJA_DICT)
                return firn_jinja_fail(e, "argument after ** must be a mapping, not %s", firn_jinja_type_name(v));
            jinja_entry *named = firn_jinja_alloc(e, args->n_named + v.dict->n + n_named, sizeof *named);
            if (!named)
                return FIRN_ERR_MEMORY;
            memcpy(named, args->named, args->n_named * sizeof *named);
            args->named = named;
            for (size_t i = 0; i < v.dict->n; i++) {
                if (v.dict->entries[i].key.type != JINJA_STRING)
                    return firn_jinja_fail(e, "keywords must be strings");
                args->named[args->n_named++] = v.dict->entries[i];
            }
        } else if (a->name) {
            args->named[args->n_named++] = (jinja_entry){{.type = JINJA_STRING, .string = a->name}, v};
        } else {
            args->items[args->n++] = v;
        }
    }
    return FIRN_OK;
}

/* The named argument `name`, taken out of the list; MISSING when it is not there. */
static jinja_value take_named(jinja_args *args, const jinja_string *name)
{
    for (size_t k = 0; k < args->n_named; k++) {
        const jinja_string *key = args->named[k].key.string;
        if (key->size == name->size && memcmp(key->data, name->data, key->size) == 0) {
            const jinja_value v = args->named[k].value;
            args->named[k] = args->named[--args->n_named];
            return v;
        }
    }
    return (jinja_value){.type = JINJA_MISSING};
}

static firn_status call_macro(jinja_eval *e, const jinja_macro *macro, const jinja_args *given, jinja_value *out)
{
    const jinja_node *n = macro->node;
    const int name_size = (int)firn_min_i64((int64_t)macro->name.size, 60);
    jinja_scope *scope = firn_jinja_scope_create(e, macro->scope), *const before = e->scope;
    jinja_args args = *given;
    size_t i = 0;

    if (!scope)
        return FIRN_ERR_MEMORY;
    args.named = firn_jinja_alloc(e, given->n_named, sizeof *args.named);
    if (!args.named)
        return FIRN_ERR_MEMORY;
    if (given->n_named)
        memcpy(args.named, given->named, given->n_named * sizeof *args.named);
    firn_status status = FIRN_OK;
    bool has_caller = false;
    for (const jinja_node *p = n->a; p && status == FIRN_OK; p = p->next, i++) {
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * args.n_named));
        jinja_value v = i < args.n ? args.items[i] : take_named(&args, p->name);
        has_caller |= p->name == e->jinja->caller;
        if (v.type == JINJA_MISSING) {
            v = jinja_undefined(p->name);
            if (p->b) {
                e->scope = scope;
                status = firn_jinja_eval(e, p->b, &v);
                e->scope = before;
            }
        }
        if (status == FIRN_OK)
            status = firn_jinja_bind(e, scope, p->name, v);
    }
    FIRN_TRY(status);
    if ((n->op & JINJA_USES_CALLER) && !has_caller) {
        const jinja_value v = take_named(&args, e->jinja->caller);
        FIRN_TRY(
            firn_jinja_bind(e, scope, e->jinja->caller, v.type <= JINJA_NONE ? jinja_undefined(e->jinja->caller) : v));
    }
    if (n->op & JINJA_USES_KWARGS) {
        jinja_value kwargs;
        FIRN_TRY(firn_jinja_dict(e, &kwargs));
        for (size_t k = 0; k < args.n_named; k++)
            FIRN_TRY(firn_jinja_dict_set(e, kwargs.dict, args.named[k].key, args.named[k].value));
        FIRN_TRY(firn_jinja_bind(e, scope, e->jinja->kwargs, kwargs));
    } else if (args.n_named) {
        return firn_jinja_fail(e, "macro '%.*s' takes no keyword argument '%.*s'", name_size, macro->name.data,
                               (int)firn_min_i64((int64_t)args.named[0].key.string->size, 60),
                               args.named[0].key.string->data);
    }
    if (n->op & JINJA_USES_VARARGS) {
        jinja_value rest;
        FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, args.n > i ? args.n - i : 0, &rest));
        memcpy(rest.list->items, args.items + i * (args.n > i), rest.list->n * sizeof *rest.list->items);
        FIRN_TRY(firn_jinja_bind(e, scope, e->jinja->varargs, rest));
    } else if (args.n > i) {
        return firn_jinja_fail(e, "macro '%.*s' takes not more than %zu argument(s)", name_size, macro->name.data, i);
    }
    const int line = e->line;
    capture c;
    firn_jinja_capture_begin(e, &c);
    status = firn_jinja_capture_end(e, &c, firn_jinja_exec(e, n->d, scope), out);
    e->scope = before;
    if (status == FIRN_OK)
        e->line = line;
    return status;
}

static firn_status call_loop(jinja_eval *e, jinja_loop *loop, const jinja_args *args, jinja_value *out)
{
    jinja_scope *const before = e->scope;
    capture c;

    if (!loop->node->op)
        return firn_jinja_fail(e, "the loop must have the 'recursive' marker to be called");
    if (args->n != 1 || args->n_named)
        return firn_jinja_fail(e, "a recursive loop is called with one iterable");
    firn_jinja_capture_begin(e, &c);
    const firn_status status = firn_jinja_capture_end(
        e, &c, firn_jinja_run_loop(e, loop->node, loop->scope, args->items[0], loop->depth + 1), out);
    e->scope = before;
    return status;
}

firn_status firn_jinja_call(jinja_eval *e, jinja_value callee, const jinja_args *args, jinja_value *out)
{
    firn_status status;

    FIRN_TRY(firn_jinja_enter(e));
    switch (callee.type) {
    case JINJA_FUNCTION:
        status = firn_jinja_call_row(e, callee.row, callee, args, out);
        break;
    case JINJA_METHOD:
        status = firn_jinja_call_row(e, callee.method->row, callee.method->self, args, out);
        break;
    case JINJA_MACRO:
        status = call_macro(e, callee.macro, args, out);
        break;
    case JINJA_LOOP:
        status = call_loop(e, callee.loop, args, out);
        break;
    case JINJA_JOINER:
        status = callee.joiner->used
                     ? firn_jinja_view(e, callee.joiner->separator.data, callee.joiner->separator.size, out)
                     : firn_jinja_view(e, "", 0, out);
        callee.joiner->used = true;
        break;
    case JINJA_UNDEFINED:
        status = firn_jinja_fail_undefined(e, callee);
        break;
    default:
        status = firn_jinja_fail(e, "'%s' object is not callable", firn_jinja_type_name(callee));
    }
    e->depth--;
    return status;
}

/* ---- expressions ---- */

static firn_status eval_items(jinja_eval *e, const jinja_node *list, jinja_type type, jinja_value *out)
{
    size_t n = 0;

    for (const jinja_node *i = list; i; i = i->next)
        n++;
    FIRN_TRY(firn_jinja_list(e, type, n, out));
    n = 0;
    for (const jinja_node *i = list; i; i = i->next)
        FIRN_TRY(firn_jinja_eval(e, i, &out->list->items[n++]));
    return FIRN_OK;
}

static firn_status eval_mapping(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    FIRN_TRY(firn_jinja_dict(e, out));
    for (const jinja_node *i = n->a; i; i = i->next->next) {
        jinja_value key, value;
        FIRN_TRY(firn_jinja_eval(e, i, &key));
        FIRN_TRY(firn_jinja_eval(e, i->next, &value));
        FIRN_TRY(firn_jinja_dict_set(e, out->dict, key, value));
    }
    return FIRN_OK;
}

static firn_status eval_compare(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value left, right;
    bool result = false;

    FIRN_TRY(firn_jinja_eval(e, n->a, &left));
    for (const jinja_node *o = n->b; o; o = o->next) {
        FIRN_TRY(firn_jinja_eval(e, o->a, &right));
        switch (o->op) {
        case JINJA_T_EQ:
        case JINJA_T_NE:
            FIRN_TRY(firn_jinja_equal(e, left, right, 0, &result));
            result ^= o->op == JINJA_T_NE;
            break;
        case JINJA_OP_IN:
        case JINJA_OP_NOT_IN:
            FIRN_TRY(firn_jinja_contains(e, right, left, &result));
            result ^= o->op == JINJA_OP_NOT_IN;
            break;
        default:
            FIRN_TRY(firn_jinja_order(e, (jinja_token_type)o->op, left, right, &result));
        }
        if (!result)
            break;
        left = right;
    }
    *out = jinja_bool(result);
    return FIRN_OK;
}

static firn_status eval_concat(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    firn_text text;
    firn_status status = FIRN_OK;

    firn_jinja_text(e, &text);
    for (const jinja_node *i = n->a; i && status == FIRN_OK; i = i->next) {
        jinja_value v;
        status = firn_jinja_eval(e, i, &v);
        if (status == FIRN_OK)
            status = firn_jinja_str(e, &text, v);
    }
    if (status == FIRN_OK)
        return firn_jinja_take(e, &text, out);
    firn_text_free(&text);
    return status;
}

static firn_status eval_slice(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    const jinja_node *const parts[3] = {n->b, n->c, n->d};
    jinja_value v, bounds[3];

    FIRN_TRY(firn_jinja_eval(e, n->a, &v));
    for (int i = 0; i < 3; i++) {
        bounds[i] = jinja_none();
        if (parts[i])
            FIRN_TRY(firn_jinja_eval(e, parts[i], &bounds[i]));
    }
    return firn_jinja_slice(e, v, bounds, out);
}

static firn_status eval_call(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value callee;
    jinja_args args;

    FIRN_TRY(firn_jinja_eval(e, n->a, &callee));
    FIRN_TRY(firn_jinja_arguments(e, n->b, &args));
    e->line = n->line;
    return firn_jinja_call(e, callee, &args, out);
}

/* A filter or test on a value that is already there. */
firn_status firn_jinja_apply(jinja_eval *e, const jinja_node *n, jinja_value self, jinja_value *out)
{
    jinja_args args;

    FIRN_TRY(firn_jinja_arguments(e, n->b, &args));
    e->line = n->line;
    if (!n->row)
        return firn_jinja_fail(e, "there is no %s named '%.*s'", n->kind == JINJA_FILTER ? "filter" : "test",
                               (int)firn_min_i64((int64_t)n->name->size, 60), n->name->data);
    return firn_jinja_call_row(e, n->row, self, &args, out);
}

static firn_status eval_filter(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value self;

    FIRN_TRY(firn_jinja_eval(e, n->a, &self));
    return firn_jinja_apply(e, n, self, out);
}

/* a.b, a[b], a op b: the operands of what takes two. */
static firn_status eval_pair(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value a, b;

    FIRN_TRY(firn_jinja_eval(e, n->a, &a));
    if (n->kind == JINJA_ATTRIBUTE)
        return firn_jinja_attribute(e, a, n->name, out);
    FIRN_TRY(firn_jinja_eval(e, n->b, &b));
    e->line = n->line;
    return n->kind == JINJA_ITEM ? firn_jinja_item(e, a, b, out)
                                 : firn_jinja_binary(e, (jinja_token_type)n->op, a, b, out);
}

static firn_status eval_unary(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value v;

    FIRN_TRY(firn_jinja_eval(e, n->a, &v));
    if (n->kind == JINJA_NOT) {
        *out = jinja_bool(!firn_jinja_truth(v));
        return FIRN_OK;
    }
    if (n->kind == JINJA_NEG)
        return firn_jinja_negate(e, v, out);
    if (!jinja_is_number(v))
        return firn_jinja_fail(e, "bad operand type for unary +: '%s'", firn_jinja_type_name(v));
    *out = v.type == JINJA_BOOL ? jinja_int(v.boolean) : v;
    return FIRN_OK;
}

static firn_status eval_inner(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    switch (n->kind) {
    case JINJA_CONST:
        *out = n->value;
        return FIRN_OK;
    case JINJA_NAME:
        return firn_jinja_lookup(e, n->name, out);
    case JINJA_ARRAY:
        return eval_items(e, n->a, JINJA_LIST, out);
    case JINJA_TUPLE_OF:
        return eval_items(e, n->a, JINJA_TUPLE, out);
    case JINJA_MAPPING:
        return eval_mapping(e, n, out);
    case JINJA_CONDITION:
        FIRN_TRY(firn_jinja_eval(e, n->b, out));
        if (firn_jinja_truth(*out))
            return firn_jinja_eval(e, n->a, out);
        if (n->c)
            return firn_jinja_eval(e, n->c, out);
        *out = jinja_undefined(NULL);
        return FIRN_OK;
    case JINJA_OR:
    case JINJA_AND:
        FIRN_TRY(firn_jinja_eval(e, n->a, out));
        return firn_jinja_truth(*out) == (n->kind == JINJA_OR) ? FIRN_OK : firn_jinja_eval(e, n->b, out);
    case JINJA_NOT:
    case JINJA_NEG:
    case JINJA_POS:
        return eval_unary(e, n, out);
    case JINJA_COMPARE:
        return eval_compare(e, n, out);
    case JINJA_BINARY:
    case JINJA_ATTRIBUTE:
    case JINJA_ITEM:
        return eval_pair(e, n, out);
    case JINJA_CONCAT:
        return eval_concat(e, n, out);
    case JINJA_SLICE:
        return eval_slice(e, n, out);
    case JINJA_CALL:
        return eval_call(e, n, out);
    default: /* JINJA_FILTER, JINJA_TEST */
        return eval_filter(e, n, out);
    }
}

firn_status firn_jinja_eval(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    FIRN_TRY(firn_jinja_enter(e));
    const firn_status status = eval_inner(e, n, out);
    e->depth--;
    return status;
}
