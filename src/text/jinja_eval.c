/* Walks the tree and writes the text.
 *
 * Scopes follow jinja2: `for` bodies (one scope a round), macros, call blocks, `with`, set and filter blocks and
 * generation blocks open one; `if` does not. A name is sought through the scopes outwards, then among the template's
 * variables, then among the global functions; one that is nowhere is undefined, which prints as nothing. A macro sees
 * the scope it was defined in, as that scope is when the macro is called. */
#include "text/jinja_impl.h"

#include <string.h>

static firn_status eval(jinja_eval *e, const jinja_node *n, jinja_value *out);
static firn_status exec(jinja_eval *e, const jinja_node *list, jinja_scope *scope);

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

static firn_status enter(jinja_eval *e)
{
    if (++e->depth > e->limits.depth)
        return firn_fail(e->ctx, FIRN_ERR_MEMORY, "chat template, line %d: nested more than %zu levels deep", e->line,
                         e->limits.depth);
    return firn_jinja_step(e, 0);
}

/* ---- scopes ---- */

static jinja_scope *scope_create(jinja_eval *e, jinja_scope *parent)
{
    jinja_scope *scope = firn_jinja_alloc(e, 1, sizeof *scope);

    if (scope)
        scope->parent = parent;
    return scope;
}

static firn_status bind(jinja_eval *e, jinja_scope *scope, const jinja_string *name, jinja_value value)
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

static firn_status lookup(jinja_eval *e, const jinja_string *name, jinja_value *out)
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

typedef struct {
    firn_text text, *before;
} capture;

static void capture_begin(jinja_eval *e, capture *c)
{
    firn_jinja_text(e, &c->text);
    c->before = e->out;
    e->out = &c->text;
}

static firn_status capture_end(jinja_eval *e, capture *c, firn_status status, jinja_value *out)
{
    e->out = c->before;
    if (status == FIRN_OK)
        return firn_jinja_take(e, &c->text, out);
    firn_text_free(&c->text);
    return status;
}

/* ---- looking inside ---- */

static firn_status method_value(jinja_eval *e, const jinja_row *row, jinja_value self, jinja_value *out)
{
    jinja_method *method = firn_jinja_alloc(e, 1, sizeof *method);

    if (!method)
        return FIRN_ERR_MEMORY;
    *method = (jinja_method){row, self};
    *out = (jinja_value){.type = JINJA_METHOD, .method = method};
    return FIRN_OK;
}

static firn_status loop_attribute(jinja_eval *e, const jinja_loop *loop, const jinja_string *name, jinja_value *out)
{
    const int64_t i = (int64_t)loop->i, n = (int64_t)loop->list->n;
    const struct {
        const char *name;
        jinja_value value;
    } attributes[] = {
        {"index", jinja_int(i + 1)},
        {"index0", jinja_int(i)},
        {"first", jinja_bool(i == 0)},
        {"last", jinja_bool(i + 1 == n)},
        {"length", jinja_int(n)},
        {"revindex", jinja_int(n - i)},
        {"revindex0", jinja_int(n - i - 1)},
        {"depth", jinja_int(loop->depth + 1)},
        {"depth0", jinja_int(loop->depth)},
    };

    (void)e;
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++) {
        if (firn_jinja_same_text(name, attributes[k].name)) {
            *out = attributes[k].value;
            return FIRN_OK;
        }
    }
    if (firn_jinja_same_text(name, "previtem") && i > 0)
        *out = loop->list->items[i - 1];
    else if (firn_jinja_same_text(name, "nextitem") && i + 1 < n)
        *out = loop->list->items[i + 1];
    return FIRN_OK;
}

/* Attributes that Python's objects have; *found says whether there is such a one. */
static firn_status own_attribute(jinja_eval *e, jinja_value v, const jinja_string *name, jinja_value *out, bool *found)
{
    bool denied = false;

    *found = true;
    *out = (jinja_value){.type = JINJA_MISSING};
    if (v.type == JINJA_NAMESPACE) {
        const jinja_value *value;
        FIRN_TRY(firn_jinja_dict_text(e, v.dict, name, &value));
        if (value) {
            *out = *value;
            return FIRN_OK;
        }
    } else if (v.type == JINJA_LOOP) {
        FIRN_TRY(loop_attribute(e, v.loop, name, out));
    } else if (v.type == JINJA_CYCLER && firn_jinja_same_text(name, "current")) {
        *out = v.cycler->list->items[v.cycler->i];
    } else if (v.type == JINJA_MACRO && firn_jinja_same_text(name, "name")) {
        return firn_jinja_view(e, v.macro->name.data, v.macro->name.size, out);
    } else if (v.type == JINJA_TUPLE && v.flag && v.list->n == 2) {
        if (firn_jinja_same_text(name, "grouper"))
            *out = v.list->items[0];
        else if (firn_jinja_same_text(name, "list"))
            *out = v.list->items[1];
    }
    if (out->type != JINJA_MISSING)
        return FIRN_OK;
    const jinja_row *row = firn_jinja_find_method(v, name, &denied);
    if (row)
        return method_value(e, row, v, out);
    *out = jinja_undefined(name);
    out->owner = (uint8_t)(v.type + 1);
    out->flag = denied;
    *found = denied;
    return FIRN_OK;
}

/* obj[key]; *found false where Python raises LookupError or TypeError. */
static firn_status own_item(jinja_eval *e, jinja_value v, jinja_value key, jinja_value *out, bool *found)
{
    *found = false;
    if (v.type == JINJA_DICT) {
        const jinja_value *value;
        if (key.type == JINJA_LIST || key.type == JINJA_DICT) /* not hashable */
            return FIRN_OK;
        FIRN_TRY(firn_jinja_dict_get(e, v.dict, key, &value));
        if (value)
            *out = *value;
        *found = value != NULL;
        return FIRN_OK;
    }
    if (!jinja_is_integer(key))
        return FIRN_OK;
    int64_t i = jinja_as_int(key);
    if (v.type == JINJA_LIST || v.type == JINJA_TUPLE || v.type == JINJA_RANGE) {
        const int64_t n = (int64_t)v.list->n;
        i += i < 0 ? n : 0;
        *found = i >= 0 && i < n;
        if (*found)
            *out = v.list->items[i];
        return FIRN_OK;
    }
    if (v.type == JINJA_STRING) {
        const char *s = v.string->data;
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * v.string->size));
        const int64_t n = (int64_t)firn_jinja_chars(s, v.string->size);
        i += i < 0 ? n : 0;
        *found = i >= 0 && i < n;
        if (!*found)
            return FIRN_OK;
        s += firn_jinja_offset(s, v.string->size, (size_t)i);
        return firn_jinja_view(e, s, firn_jinja_char_size(*s), out);
    }
    return FIRN_OK;
}

firn_status firn_jinja_attribute(jinja_eval *e, jinja_value v, const jinja_string *name, jinja_value *out)
{
    bool found;
    jinja_value value;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    FIRN_TRY(own_attribute(e, v, name, &value, &found));
    if (!found && v.type == JINJA_DICT) {
        const jinja_value *entry;
        FIRN_TRY(firn_jinja_dict_text(e, v.dict, name, &entry));
        if (entry) {
            *out = *entry;
            return FIRN_OK;
        }
    }
    *out = value;
    return FIRN_OK;
}

firn_status firn_jinja_item(jinja_eval *e, jinja_value v, jinja_value key, jinja_value *out)
{
    bool found;
    jinja_value value;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    FIRN_TRY(own_item(e, v, key, &value, &found));
    if (!found && key.type == JINJA_STRING)
        FIRN_TRY(own_attribute(e, v, key.string, &value, &found));
    else if (!found) {
        firn_text text;
        jinja_value name;
        firn_jinja_text(e, &text);
        const firn_status status = firn_jinja_repr(e, &text, key, 0);
        if (status != FIRN_OK) {
            firn_text_free(&text);
            return status;
        }
        FIRN_TRY(firn_jinja_take(e, &text, &name));
        value = jinja_undefined(name.string);
        value.owner = (uint8_t)(v.type + 1);
    }
    *out = value;
    return FIRN_OK;
}

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

static firn_status arguments(jinja_eval *e, const jinja_node *list, jinja_args *args)
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
        FIRN_TRY(eval(e, a->a, &v));
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
    jinja_scope *scope = scope_create(e, macro->scope), *const before = e->scope;
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
                status = eval(e, p->b, &v);
                e->scope = before;
            }
        }
        if (status == FIRN_OK)
            status = bind(e, scope, p->name, v);
    }
    FIRN_TRY(status);
    if ((n->op & JINJA_USES_CALLER) && !has_caller) {
        const jinja_value v = take_named(&args, e->jinja->caller);
        FIRN_TRY(bind(e, scope, e->jinja->caller, v.type <= JINJA_NONE ? jinja_undefined(e->jinja->caller) : v));
    }
    if (n->op & JINJA_USES_KWARGS) {
        jinja_value kwargs;
        FIRN_TRY(firn_jinja_dict(e, &kwargs));
        for (size_t k = 0; k < args.n_named; k++)
            FIRN_TRY(firn_jinja_dict_set(e, kwargs.dict, args.named[k].key, args.named[k].value));
        FIRN_TRY(bind(e, scope, e->jinja->kwargs, kwargs));
    } else if (args.n_named) {
        return firn_jinja_fail(e, "macro '%.*s' takes no keyword argument '%.*s'", name_size, macro->name.data,
                               (int)firn_min_i64((int64_t)args.named[0].key.string->size, 60),
                               args.named[0].key.string->data);
    }
    if (n->op & JINJA_USES_VARARGS) {
        jinja_value rest;
        FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, args.n > i ? args.n - i : 0, &rest));
        memcpy(rest.list->items, args.items + i * (args.n > i), rest.list->n * sizeof *rest.list->items);
        FIRN_TRY(bind(e, scope, e->jinja->varargs, rest));
    } else if (args.n > i) {
        return firn_jinja_fail(e, "macro '%.*s' takes not more than %zu argument(s)", name_size, macro->name.data, i);
    }
    const int line = e->line;
    capture c;
    capture_begin(e, &c);
    status = capture_end(e, &c, exec(e, n->d, scope), out);
    e->scope = before;
    if (status == FIRN_OK)
        e->line = line;
    return status;
}

static firn_status run_loop(jinja_eval *e, const jinja_node *n, jinja_scope *parent, jinja_value iterable, int depth);

static firn_status call_loop(jinja_eval *e, jinja_loop *loop, const jinja_args *args, jinja_value *out)
{
    jinja_scope *const before = e->scope;
    capture c;

    if (!loop->node->op)
        return firn_jinja_fail(e, "the loop must have the 'recursive' marker to be called");
    if (args->n != 1 || args->n_named)
        return firn_jinja_fail(e, "a recursive loop is called with one iterable");
    capture_begin(e, &c);
    const firn_status status =
        capture_end(e, &c, run_loop(e, loop->node, loop->scope, args->items[0], loop->depth + 1), out);
    e->scope = before;
    return status;
}

firn_status firn_jinja_call(jinja_eval *e, jinja_value callee, const jinja_args *args, jinja_value *out)
{
    firn_status status;

    FIRN_TRY(enter(e));
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
        FIRN_TRY(eval(e, i, &out->list->items[n++]));
    return FIRN_OK;
}

static firn_status eval_mapping(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    FIRN_TRY(firn_jinja_dict(e, out));
    for (const jinja_node *i = n->a; i; i = i->next->next) {
        jinja_value key, value;
        FIRN_TRY(eval(e, i, &key));
        FIRN_TRY(eval(e, i->next, &value));
        FIRN_TRY(firn_jinja_dict_set(e, out->dict, key, value));
    }
    return FIRN_OK;
}

static firn_status eval_compare(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value left, right;
    bool result = false;

    FIRN_TRY(eval(e, n->a, &left));
    for (const jinja_node *o = n->b; o; o = o->next) {
        FIRN_TRY(eval(e, o->a, &right));
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
        status = eval(e, i, &v);
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

    FIRN_TRY(eval(e, n->a, &v));
    for (int i = 0; i < 3; i++) {
        bounds[i] = jinja_none();
        if (parts[i])
            FIRN_TRY(eval(e, parts[i], &bounds[i]));
    }
    return firn_jinja_slice(e, v, bounds, out);
}

static firn_status eval_call(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value callee;
    jinja_args args;

    FIRN_TRY(eval(e, n->a, &callee));
    FIRN_TRY(arguments(e, n->b, &args));
    e->line = n->line;
    return firn_jinja_call(e, callee, &args, out);
}

/* A filter or test on a value that is already there. */
static firn_status apply(jinja_eval *e, const jinja_node *n, jinja_value self, jinja_value *out)
{
    jinja_args args;

    FIRN_TRY(arguments(e, n->b, &args));
    e->line = n->line;
    if (!n->row)
        return firn_jinja_fail(e, "there is no %s named '%.*s'", n->kind == JINJA_FILTER ? "filter" : "test",
                               (int)firn_min_i64((int64_t)n->name->size, 60), n->name->data);
    return firn_jinja_call_row(e, n->row, self, &args, out);
}

static firn_status eval_filter(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value self;

    FIRN_TRY(eval(e, n->a, &self));
    return apply(e, n, self, out);
}

/* a.b, a[b], a op b: the operands of what takes two. */
static firn_status eval_pair(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value a, b;

    FIRN_TRY(eval(e, n->a, &a));
    if (n->kind == JINJA_ATTRIBUTE)
        return firn_jinja_attribute(e, a, n->name, out);
    FIRN_TRY(eval(e, n->b, &b));
    e->line = n->line;
    return n->kind == JINJA_ITEM ? firn_jinja_item(e, a, b, out)
                                 : firn_jinja_binary(e, (jinja_token_type)n->op, a, b, out);
}

static firn_status eval_unary(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    jinja_value v;

    FIRN_TRY(eval(e, n->a, &v));
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
        return lookup(e, n->name, out);
    case JINJA_ARRAY:
        return eval_items(e, n->a, JINJA_LIST, out);
    case JINJA_TUPLE_OF:
        return eval_items(e, n->a, JINJA_TUPLE, out);
    case JINJA_MAPPING:
        return eval_mapping(e, n, out);
    case JINJA_CONDITION:
        FIRN_TRY(eval(e, n->b, out));
        if (firn_jinja_truth(*out))
            return eval(e, n->a, out);
        if (n->c)
            return eval(e, n->c, out);
        *out = jinja_undefined(NULL);
        return FIRN_OK;
    case JINJA_OR:
    case JINJA_AND:
        FIRN_TRY(eval(e, n->a, out));
        return firn_jinja_truth(*out) == (n->kind == JINJA_OR) ? FIRN_OK : eval(e, n->b, out);
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

static firn_status eval(jinja_eval *e, const jinja_node *n, jinja_value *out)
{
    FIRN_TRY(enter(e));
    const firn_status status = eval_inner(e, n, out);
    e->depth--;
    return status;
}

/* ---- statements ---- */

static firn_status assign(jinja_eval *e, jinja_scope *scope, const jinja_node *target, jinja_value v)
{
    if (target->kind == JINJA_NAME)
        return bind(e, scope, target->name, v);
    if (target->kind == JINJA_NSREF) {
        jinja_value ns;
        FIRN_TRY(lookup(e, target->name, &ns));
        if (ns.type != JINJA_NAMESPACE)
            return firn_jinja_fail(e, "cannot assign attribute on non-namespace object");
        return firn_jinja_dict_set(e, ns.dict, target->value, v);
    }
    jinja_list *list;
    size_t n = 0;
    FIRN_TRY(enter(e));
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
    jinja_scope *scope = scope_create(e, parent);

    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, all->n, &kept));
    if (!scope)
        return FIRN_ERR_MEMORY;
    kept.list->n = 0;
    FIRN_TRY(bind(e, scope, e->jinja->loop, jinja_undefined(e->jinja->loop)));
    for (size_t i = 0; i < all->n; i++) {
        jinja_value passes;
        FIRN_TRY(assign(e, scope, n->a, all->items[i]));
        e->scope = scope;
        FIRN_TRY(eval(e, n->c, &passes));
        if (firn_jinja_truth(passes))
            kept.list->items[kept.list->n++] = all->items[i];
    }
    e->scope = parent;
    *out = kept.list;
    return FIRN_OK;
}

static firn_status run_loop(jinja_eval *e, const jinja_node *n, jinja_scope *parent, jinja_value iterable, int depth)
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
            scope = scope_create(e, parent);
        if (!scope)
            return FIRN_ERR_MEMORY;
        scope->n = 0;
        closures = e->closures;
        FIRN_TRY(bind(e, scope, e->jinja->loop, (jinja_value){.type = JINJA_LOOP, .loop = loop}));
        FIRN_TRY(assign(e, scope, n->a, loop->list->items[loop->i]));
        FIRN_TRY(exec(e, n->d, scope));
        const bool stop = e->flow == JINJA_STOP_LOOP;
        e->flow = JINJA_GO;
        if (stop)
            return FIRN_OK;
    }
    if (loop->list->n)
        return FIRN_OK;
    if (!(scope = scope_create(e, parent)))
        return FIRN_ERR_MEMORY;
    return exec(e, n->e, scope);
}

static firn_status run_if(jinja_eval *e, const jinja_node *n, jinja_scope *scope)
{
    for (;; n = n->c) { /* one round for each elif */
        jinja_value v;
        FIRN_TRY(eval(e, n->a, &v));
        if (firn_jinja_truth(v))
            return exec(e, n->b, scope);
        if (!n->op)
            return exec(e, n->c, scope);
    }
}

/* Runs the body into a text and puts it through the filters of `filter`. */
static firn_status run_captured(jinja_eval *e, const jinja_node *filter, const jinja_node *body, jinja_scope *parent,
                                jinja_value *out)
{
    jinja_scope *scope = scope_create(e, parent);
    capture c;

    if (!scope)
        return FIRN_ERR_MEMORY;
    capture_begin(e, &c);
    FIRN_TRY(capture_end(e, &c, exec(e, body, scope), out));
    e->scope = parent;
    const jinja_node *chain[16]; /* the last filter is the root: they apply from the end of the chain on */
    int n = 0;
    for (const jinja_node *f = filter; f; f = f->a) {
        if (n == 16)
            return firn_jinja_fail(e, "more than 16 filters on one block");
        chain[n++] = f;
    }
    while (n--)
        FIRN_TRY(apply(e, chain[n], *out, out));
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

    FIRN_TRY(eval(e, n->a->a, &callee));
    FIRN_TRY(arguments(e, n->a->b, &args));
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
    jinja_scope *scope = scope_create(e, parent);
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
    FIRN_TRY(exec(e, n->d, scope));
    e->in_generation = false;
    return e->generation ? firn_spans_add(e->generation, begin, e->out->size) : FIRN_OK;
}

static firn_status run_with(jinja_eval *e, const jinja_node *n, jinja_scope *parent)
{
    jinja_scope *scope = scope_create(e, parent);

    if (!scope)
        return FIRN_ERR_MEMORY;
    for (const jinja_node *t = n->a; t; t = t->next->next) {
        jinja_value v;
        e->scope = parent; /* values see the outer names only */
        FIRN_TRY(eval(e, t->next, &v));
        FIRN_TRY(assign(e, scope, t, v));
    }
    return exec(e, n->d, scope);
}

static firn_status exec_one(jinja_eval *e, const jinja_node *n, jinja_scope *scope)
{
    jinja_value v;

    switch (n->kind) {
    case JINJA_DATA:
        return put(e, n->value);
    case JINJA_OUTPUT:
        FIRN_TRY(eval(e, n->a, &v));
        return put(e, v);
    case JINJA_IF:
        return run_if(e, n, scope);
    case JINJA_FOR:
        FIRN_TRY(eval(e, n->b, &v));
        return run_loop(e, n, scope, v, 0);
    case JINJA_SET:
        FIRN_TRY(eval(e, n->b, &v));
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
        return bind(e, scope, n->name, v);
    case JINJA_CALL_BLOCK:
        return run_call_block(e, n, scope);
    case JINJA_BLOCK: {
        jinja_scope *inner = scope_create(e, n->op ? scope : e->root);
        return inner ? exec(e, n->d, inner) : FIRN_ERR_MEMORY;
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

static firn_status exec(jinja_eval *e, const jinja_node *list, jinja_scope *scope)
{
    jinja_scope *const before = e->scope;
    firn_status status = enter(e);

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
    e->root = scope_create(e, NULL);
    return e->root ? exec(e, e->jinja->body, e->root) : FIRN_ERR_MEMORY;
}
