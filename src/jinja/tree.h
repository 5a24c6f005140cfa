/* Tokens, the tree that they become, and a compiled template. */
#ifndef FIRN_JINJA_TREE_H
#define FIRN_JINJA_TREE_H

#include "core/secret.h"
#include "jinja/value.h"

/* ---- tokens ---- */
typedef enum {
    JINJA_T_DATA,
    JINJA_T_VARIABLE_BEGIN,
    JINJA_T_VARIABLE_END,
    JINJA_T_BLOCK_BEGIN,
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,
    JINJA_T_TEXT,
    JINJA_T_INTEGER,
    JINJA_T_REAL,
    JINJA_T_ADD,
    JINJA_T_SUB,
    JINJA_T_MUL,
    JINJA_T_DIV,
    JINJA_T_FLOORDIV,
    JINJA_T_MOD,
    JINJA_T_POW,
    JINJA_T_TILDE,
    JINJA_T_EQ,
    JINJA_T_NE,
    JINJA_T_LT,
    JINJA_T_LE,
    JINJA_T_GT,
    JINJA_T_GE,
    JINJA_T_LBRACKET,
    JINJA_T_RBRACKET,
    JINJA_T_LPAREN,
    JINJA_T_RPAREN,
    JINJA_T_LBRACE,
    JINJA_T_RBRACE,
    JINJA_T_ASSIGN,
    JINJA_T_DOT,
    JINJA_T_COLON,
    JINJA_T_PIPE,
    JINJA_T_COMMA,
    JINJA_T_SEMICOLON,
    JINJA_T_EOF,
} jinja_token_type;

typedef struct {
    jinja_token_type type;
    int line;
    union {
        const jinja_string *text; /* data, string, name (interned: equal names have one address) */
        int64_t integer;
        double real;
    };
} jinja_token;

typedef struct {
    firn_context *ctx;
    firn_arena *arena;
    jinja_token *tokens;
    size_t n, capacity;
    const jinja_string **names; /* interned: open addressing */
    size_t n_names, names_size;
    firn_secret secret; /* of names */
} jinja_tokens;

/* tokens->ctx, ->arena and ->secret are set; ends with one EOF token. The token array belongs to the context
 * (firn_free), texts and names to the arena. */
firn_status firn_jinja_lex(jinja_tokens *tokens, const char *source, size_t size);
/* NULL with the sentence set when memory is short. */
const jinja_string *firn_jinja_intern(jinja_tokens *tokens, const char *name, size_t size);

/* ---- tree ---- */
typedef enum {
    /* expressions */
    JINJA_CONST,     /* value */
    JINJA_NAME,      /* name */
    JINJA_ARRAY,     /* a: items */
    JINJA_TUPLE_OF,  /* a: items */
    JINJA_MAPPING,   /* a: key, value, key, value... */
    JINJA_CONDITION, /* a if b else c (c may be NULL) */
    JINJA_OR,        /* a or b */
    JINJA_AND,
    JINJA_NOT,
    JINJA_COMPARE, /* a, then b: list of JINJA_OPERAND */
    JINJA_OPERAND, /* op, a */
    JINJA_BINARY,  /* a op b */
    JINJA_CONCAT,  /* a: items joined by ~ */
    JINJA_NEG,
    JINJA_POS,
    JINJA_ATTRIBUTE, /* a.name */
    JINJA_ITEM,      /* a[b] */
    JINJA_SLICE,     /* a[b:c:d], each may be NULL */
    JINJA_CALL,      /* a(b: arguments) */
    JINJA_FILTER,    /* a | name(b); a is NULL in a filter block */
    JINJA_TEST,      /* a is name(b) */
    JINJA_ARGUMENT,  /* a; name for a named one; op '*' or 'd' (**) for an unpacked one */
    /* statements */
    JINJA_OUTPUT,       /* a: expression */
    JINJA_DATA,         /* value */
    JINJA_FOR,          /* a: target, b: iterable, c: filter or NULL, d: body, e: else; op: recursive */
    JINJA_IF,           /* a: test, b: body, c: else; op: c is the JINJA_IF of an elif */
    JINJA_SET,          /* a: target, b: expression */
    JINJA_SET_BLOCK,    /* a: target, b: filter or NULL, d: body */
    JINJA_NSREF,        /* name.value as a target */
    JINJA_WITH,         /* a: target, expression, target...; d: body */
    JINJA_MACRO_DEF,    /* name, a: parameters (JINJA_NAME, its default in b), d: body; op: JINJA_USES_* */
    JINJA_CALL_BLOCK,   /* a: call, c: a JINJA_MACRO_DEF for the body */
    JINJA_FILTER_BLOCK, /* b: filter, d: body */
    JINJA_BLOCK,        /* d: body; op: scoped */
    JINJA_GENERATION,   /* d: body */
    JINJA_BREAK,
    JINJA_CONTINUE,
    JINJA_LOADER, /* include, import, from, extends: there is nothing to load from */
} jinja_kind;

enum { JINJA_USES_CALLER = 1, JINJA_USES_KWARGS = 2, JINJA_USES_VARARGS = 4 };

struct jinja_node {
    uint8_t kind;
    uint8_t op; /* a jinja_token_type, or as said above */
    int line;
    const jinja_string *name;
    union {
        jinja_value value;
        const jinja_row *row; /* of a filter or test; NULL when unknown */
    };
    jinja_node *a, *b, *c, *d, *e;
    jinja_node *next; /* in the list that holds it */
};

enum { JINJA_OP_IN = 100, JINJA_OP_NOT_IN };

struct firn_jinja {
    firn_arena arena;
    firn_jinja_limits limits;
    firn_secret secret; /* of names, and of the dicts of a rendering */
    jinja_node *body;
    bool generation;
    /* names that the evaluator binds itself */
    const jinja_string *loop, *caller, *kwargs, *varargs;
};

/* The rows that a template names: NULL when there is none. */
const jinja_row *firn_jinja_find_filter(const jinja_string *name);
const jinja_row *firn_jinja_find_test(const jinja_string *name);

firn_status firn_jinja_parse(jinja_tokens *tokens, firn_jinja *jinja);

#endif
