/* The engine's face (jinja.h): compiling a template and rendering it. */
#include "jinja/eval.h"

void firn_spans_init(firn_spans *spans, firn_context *ctx)
{
    *spans = (firn_spans){.ctx = ctx};
}

void firn_spans_free(firn_spans *spans)
{
    firn_free(spans->ctx, spans->items);
    firn_spans_init(spans, spans->ctx);
}

firn_status firn_spans_add(firn_spans *spans, size_t begin, size_t end)
{
    FIRN_TRY(firn_grow(spans->ctx, (void **)&spans->items, spans->n, &spans->capacity, sizeof *spans->items));
    spans->items[spans->n++] = (firn_span){begin, end};
    return FIRN_OK;
}

/* Defaults where a limit is 0; the depth never passes what the C stack is sure to hold. */
static firn_jinja_limits complete(const firn_jinja_limits *given)
{
    firn_jinja_limits l = given ? *given : (firn_jinja_limits){0};

    l.steps = l.steps ? l.steps : 20 * 1000 * 1000;
    l.depth = l.depth ? l.depth : 400;
    l.depth = l.depth > 1000 ? 1000 : l.depth;
    l.output = l.output ? l.output : (size_t)64 << 20;
    l.memory = l.memory ? l.memory : (size_t)512 << 20;
    return l;
}

firn_status firn_jinja_compile(firn_context *ctx, const char *source, size_t size, const firn_jinja_limits *limits,
                               firn_jinja **out)
{
    enum { TREE_BYTES = 32 << 20 };
    firn_jinja *jinja = firn_alloc_zeroed(ctx, 1, sizeof *jinja);

    *out = NULL;
    if (!jinja)
        return FIRN_ERR_MEMORY;
    jinja->limits = complete(limits);
    firn_arena_init(&jinja->arena, ctx, jinja->limits.memory < TREE_BYTES ? jinja->limits.memory : TREE_BYTES);
    jinja->secret = firn_secret_draw();
    jinja_tokens tokens = {.ctx = ctx, .arena = &jinja->arena, .secret = jinja->secret};
    firn_status status = firn_jinja_lex(&tokens, source, size);
    if (status == FIRN_OK)
        status = firn_jinja_parse(&tokens, jinja);
    firn_free(ctx, tokens.tokens);
    if (status != FIRN_OK) {
        firn_jinja_destroy(jinja);
        return status;
    }
    *out = jinja;
    return FIRN_OK;
}

void firn_jinja_destroy(firn_jinja *jinja)
{
    if (!jinja)
        return;
    firn_context *ctx = jinja->arena.ctx;
    firn_arena_clear(&jinja->arena);
    firn_free(ctx, jinja);
}

bool firn_jinja_has_generation(const firn_jinja *jinja)
{
    return jinja->generation;
}

static firn_status render(jinja_eval *e, const json_t *variables)
{
    jinja_value v;

    FIRN_TRY(firn_jinja_from_json(e, variables, 0, &v));
    e->variables = v.dict;
    return firn_jinja_run(e);
}

firn_status firn_jinja_render(firn_context *ctx, const firn_jinja *jinja, const json_t *variables,
                              const firn_jinja_options *options, firn_text *out, firn_spans *generation)
{
    jinja_eval e = {.ctx = ctx, .jinja = jinja, .generation = generation};
    const size_t limit = out->limit;

    FIRN_EXPECT(ctx, json_is_object(variables), "a template's variables must be an object");
    e.limits = options && options->limits ? complete(options->limits) : jinja->limits;
    e.steps = e.limits.steps;
    if (options && options->now) {
        e.now = *options->now;
    } else {
        const time_t now = time(NULL);
        localtime_r(&now, &e.now);
    }
    firn_arena_init(&e.arena, ctx, e.limits.memory);
    e.out = e.target = out;
    if (!limit || out->size + e.limits.output < limit)
        out->limit = out->size + e.limits.output;
    firn_status status = render(&e, variables);
    out->limit = limit;
    firn_arena_clear(&e.arena);
    return status;
}
