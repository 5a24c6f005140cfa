/* What the files of the Jinja engine share: tokens, the tree, values, the evaluator. Not for anyone else. */
#ifndef FIRN_TEXT_JINJA_IMPL_H
#define FIRN_TEXT_JINJA_IMPL_H

#include "core/arena.h"
#include "core/plain.h"
#include "core/secret.h"
#include "text/jinja.h"

/* ---- values ----
 * Small and passed by value; what they point to lives in an arena and never changes once made, except for namespaces,
 * cyclers, joiners, loops and the position of an iterator. */
typedef enum {
    JINJA_MISSING, /* an argument that was not given; never seen by a template */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_VIEW,     /* what dict.keys() and its like give: a list that can be read again and has a length */
    JINJA_ITERATOR, /* what map and its like give: a list that can be read once and has none */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_LOOP,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_CYCLER,
    JINJA_JOINER,
} jinja_type;

typedef struct {
    const char *data; /* valid UTF-8, not NUL-terminated */
    size_t size;
} jinja_string;

typedef struct jinja_value jinja_value;
typedef struct jinja_node jinja_node;
typedef struct jinja_eval jinja_eval;

typedef struct {
    jinja_value *items;
    size_t n;
    const char *label; /* how a view or an iterator prints */
    bool used;         /* an iterator that was read */
    int64_t range[3];  /* start, stop, step */
} jinja_list;

typedef struct jinja_entry jinja_entry;

typedef struct {
    uint32_t entry, hash; /* its number + 1, 0: none; upper half of its key's hash */
} jinja_slot;

typedef struct {
    jinja_entry *entries; /* in order of insertion */
    size_t n, capacity;
    jinja_slot *index; /* by hash, for dicts of more than a few entries */
    size_t index_size;
} jinja_dict;

typedef struct jinja_scope {
    struct jinja_scope *parent;
    jinja_entry *entries; /* keys are interned names: compared by address */
    size_t n, capacity;
} jinja_scope;

typedef struct {
    const jinja_node *node; /* a macro or a call block */
    jinja_scope *scope;     /* where it was defined */
    jinja_string name;
} jinja_macro;

typedef struct jinja_loop {
    const jinja_node *node; /* for a recursive call */
    jinja_scope *scope;
    jinja_list *list;
    size_t i;
    int depth;
    jinja_list *changed; /* the arguments of the last loop.changed(...) */
} jinja_loop;

typedef struct {
    jinja_list *list;
    size_t i;
} jinja_cycler;

typedef struct {
    jinja_string separator;
    bool used;
} jinja_joiner;

typedef struct jinja_row jinja_row;
typedef struct jinja_method jinja_method;

/* flag of a string: it is marked safe, so that `+` escapes what it is joined with (as markupsafe does).
 * flag of a tuple: it comes from groupby and has .grouper and .list.
 * flag of an undefined value: an attribute that the sandbox denies. `owner` is the type it was looked up in, + 1. */
struct jinja_value {
    uint8_t type, flag, owner;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const jinja_string *string; /* also the name behind an undefined value, NULL when it has none */
        jinja_list *list;
        jinja_dict *dict;
        const jinja_macro *macro;
        jinja_loop *loop;
        const jinja_row *row;
        const jinja_method *method;
        jinja_cycler *cycler;
        jinja_joiner *joiner;
    };
};

struct jinja_entry {
    jinja_value key, value;
};

/* The arguments of a call: positional ones, then named ones (keys are strings). */
typedef struct {
    jinja_value *items;
    size_t n;
    jinja_entry *named;
    size_t n_named;
} jinja_args;

/* A filter, test, method or global function. With `parameters` ("old new count") the arguments are bound to `arg` in
 * that order, missing ones being JINJA_MISSING, the first `required` of them always there; without, `raw` has them.
 * `self` is the filtered value or the method's object. */
typedef firn_status jinja_native(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                                 jinja_value *out);
enum { JINJA_MAX_PARAMETERS = 6 };
struct jinja_row {
    const char *name;
    jinja_native *call;
    const char *parameters;
    int required;
};

struct jinja_method {
    const jinja_row *row;
    jinja_value self;
};

static inline jinja_value jinja_none(void)
{
    return (jinja_value){.type = JINJA_NONE};
}
static inline jinja_value jinja_bool(bool b)
{
    return (jinja_value){.type = JINJA_BOOL, .boolean = b};
}
static inline jinja_value jinja_int(int64_t i)
{
    return (jinja_value){.type = JINJA_INT, .integer = i};
}
static inline jinja_value jinja_float(double f)
{
    return (jinja_value){.type = JINJA_FLOAT, .real = f};
}
static inline jinja_value jinja_undefined(const jinja_string *name)
{
    return (jinja_value){.type = JINJA_UNDEFINED, .string = name};
}
static inline bool jinja_is_list(jinja_value v) /* one with items behind v.list */
{
    return v.type >= JINJA_LIST && v.type <= JINJA_ITERATOR;
}
static inline bool jinja_is_number(jinja_value v)
{
    return v.type >= JINJA_BOOL && v.type <= JINJA_FLOAT;
}
static inline bool jinja_is_integer(jinja_value v)
{
    return v.type == JINJA_BOOL || v.type == JINJA_INT;
}
static inline int64_t jinja_as_int(jinja_value v) /* of a bool or int */
{
    return v.type == JINJA_BOOL ? v.boolean : v.integer;
}
static inline double jinja_as_double(jinja_value v) /* of a number */
{
    return v.type == JINJA_FLOAT ? v.real : (double)jinja_as_int(v);
}

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

firn_status firn_jinja_parse(jinja_tokens *tokens, firn_jinja *jinja);

/* ---- evaluator ---- */
struct jinja_eval {
    firn_context *ctx;
    const firn_jinja *jinja;
    firn_arena arena;
    firn_jinja_limits limits;
    size_t steps; /* left */
    size_t depth;
    int line;
    jinja_dict *variables;
    jinja_scope *root, *scope; /* outermost; what expressions see now */
    firn_text *out;            /* where output goes now: the caller's, or a capture */
    firn_text *target;
    firn_spans *generation;
    bool in_generation;
    enum { JINJA_GO, JINJA_STOP_LOOP, JINJA_NEXT_ROUND } flow;
    size_t closures; /* made so far: a loop round that made none may reuse its scope */
    struct tm now;
};

/* Renders the template of `e`, whose variables and output are set. */
firn_status firn_jinja_run(jinja_eval *e);
/* Spends steps, one and one more for each 64 of n: bytes that are copied or compared. Work that is native is paid
 * before it is done and in proportion to it, whatever its outcome; tests/unit/test_jinja_cost.c holds every row to
 * that. */
firn_status firn_jinja_step(jinja_eval *e, size_t n);
/* What one byte counts as where characters are looked at one by one, and where each may be printed by a format. */
enum { JINJA_PER_CHAR = 8, JINJA_PER_PRINT = 32 };
/* FIRN_ERR_FORMAT: "chat template, line 12: ..." */
firn_status firn_jinja_fail(jinja_eval *e, const char *format, ...) FIRN_PRINTF(2, 3);
/* What an undefined value says when it is used. */
firn_status firn_jinja_fail_undefined(jinja_eval *e, jinja_value v);
firn_status firn_jinja_call(jinja_eval *e, jinja_value callee, const jinja_args *args, jinja_value *out);
firn_status firn_jinja_call_row(jinja_eval *e, const jinja_row *row, jinja_value self, const jinja_args *args,
                                jinja_value *out);
/* a.name and a[key], as jinja2's environment looks them up. */
firn_status firn_jinja_attribute(jinja_eval *e, jinja_value v, const jinja_string *name, jinja_value *out);
firn_status firn_jinja_item(jinja_eval *e, jinja_value v, jinja_value key, jinja_value *out);

/* ---- jinja_value.c ---- */
/* Zeroed; its bytes are paid in steps. NULL, with the sentence set, where steps or memory end. */
void *firn_jinja_alloc(jinja_eval *e, size_t count, size_t size);
firn_status firn_jinja_string(jinja_eval *e, const char *data, size_t size, jinja_value *out); /* copies */
firn_status firn_jinja_view(jinja_eval *e, const char *data, size_t size, jinja_value *out);   /* points */
/* The text of a firn_text that is freed; its status is returned. */
firn_status firn_jinja_take(jinja_eval *e, firn_text *text, jinja_value *out);
void firn_jinja_text(jinja_eval *e, firn_text *text); /* an empty one under the memory limit */
firn_status firn_jinja_list(jinja_eval *e, jinja_type type, size_t n, jinja_value *out); /* items not set */
firn_status firn_jinja_dict(jinja_eval *e, jinja_value *out);
firn_status firn_jinja_dict_set(jinja_eval *e, jinja_dict *dict, jinja_value key, jinja_value value);
/* *found is NULL when absent; fails on a key that cannot be one. */
firn_status firn_jinja_dict_get(jinja_eval *e, const jinja_dict *dict, jinja_value key, const jinja_value **found);
firn_status firn_jinja_dict_text(jinja_eval *e, const jinja_dict *dict, const jinja_string *key,
                                 const jinja_value **found);
firn_status firn_jinja_from_json(jinja_eval *e, const json_t *json, int depth, jinja_value *out);
const char *firn_jinja_type_name(jinja_value v); /* Python's */
bool firn_jinja_truth(jinja_value v);
/* Items to loop over; fails on what cannot be. An iterator is used up. */
firn_status firn_jinja_iterate(jinja_eval *e, jinja_value v, jinja_list **list);
/* len(v), -1 where v has none. */
firn_status firn_jinja_length(jinja_eval *e, jinja_value v, int64_t *n);
firn_status firn_jinja_equal(jinja_eval *e, jinja_value a, jinja_value b, int depth, bool *equal);
/* a < b for JINJA_T_LT and so on. */
firn_status firn_jinja_order(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, bool *result);
firn_status firn_jinja_contains(jinja_eval *e, jinja_value container, jinja_value v, bool *result);
firn_status firn_jinja_slice(jinja_eval *e, jinja_value v, const jinja_value bounds[3], jinja_value *out);
bool firn_jinja_same_text(const jinja_string *a, const char *b);

/* ---- UTF-8 (valid by construction) ---- */
size_t firn_jinja_chars(const char *s, size_t size);
size_t firn_jinja_char_size(char lead);
uint32_t firn_jinja_char_at(const char *s);
/* Byte offset of character number i (at most `size`). */
size_t firn_jinja_offset(const char *s, size_t size, size_t i);
/* Size of the character that ends at s + size. */
size_t firn_jinja_last_char(const char *s, size_t size);

/* ---- jinja_number.c ---- */
firn_status firn_jinja_binary(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, jinja_value *out);
firn_status firn_jinja_negate(jinja_eval *e, jinja_value v, jinja_value *out);
/* Python's int(text, base) and float(text). */
bool firn_jinja_parse_int(const char *s, size_t size, int base, int64_t *value);
bool firn_jinja_parse_float(const char *s, size_t size, double *value);
/* An argument that must be an integer; `otherwise` where it is missing or None. */
firn_status firn_jinja_int_arg(jinja_eval *e, jinja_value v, const char *what, int64_t otherwise, int64_t *out);
/* An argument that must be a string; NULL with FIRN_OK where it is missing or None and `optional`. */
firn_status firn_jinja_text_arg(jinja_eval *e, jinja_value v, const char *what, bool optional,
                                const jinja_string **out);
/* Python's round(value, digits) for floats. */
double firn_jinja_round(double x, int digits);

/* ---- jinja_format.c ---- */
enum { JINJA_FLOAT_BYTES = 48 };
void firn_jinja_float_text(double x, char text[JINJA_FLOAT_BYTES]); /* repr(x) */
firn_status firn_jinja_str(jinja_eval *e, firn_text *out, jinja_value v);
firn_status firn_jinja_repr(jinja_eval *e, firn_text *out, jinja_value v, int depth);
/* str(v) as a value. */
firn_status firn_jinja_to_string(jinja_eval *e, jinja_value v, jinja_value *out);
/* `all`: arguments left over are an error. */
firn_status firn_jinja_percent(jinja_eval *e, const jinja_string *format, const jinja_args *args, bool all,
                               jinja_value *out);
firn_status firn_jinja_str_format(jinja_eval *e, const jinja_string *format, const jinja_args *args, jinja_value *out);
firn_status firn_jinja_strftime(jinja_eval *e, const jinja_string *format, jinja_value *out);
firn_status firn_jinja_tojson(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                              jinja_value *out);
firn_status firn_jinja_escape(jinja_eval *e, firn_text *out, const jinja_string *s); /* HTML */

/* ---- jinja_unicode.c: what Python's str knows of a code point ---- */
bool firn_jinja_is_space(uint32_t c);
bool firn_jinja_is_printable(uint32_t c);
bool firn_jinja_is_alpha(uint32_t c);
bool firn_jinja_is_digit(uint32_t c);   /* str.isdigit */
bool firn_jinja_is_decimal(uint32_t c); /* str.isdecimal */
bool firn_jinja_is_numeric(uint32_t c); /* str.isnumeric */
bool firn_jinja_is_upper(uint32_t c);
bool firn_jinja_is_lower(uint32_t c);
/* Appends the mapping, which may be more than one character. */
void firn_jinja_put_upper(firn_text *out, uint32_t c);
void firn_jinja_put_lower(firn_text *out, uint32_t c);
void firn_jinja_put_title(firn_text *out, uint32_t c);

/* ---- names that a template may call: NULL when there is none ---- */
const jinja_row *firn_jinja_find_filter(const jinja_string *name);
extern const jinja_row firn_jinja_filters[], firn_jinja_sequence_filters[], firn_jinja_tests[], firn_jinja_globals[];
extern const jinja_row firn_jinja_str_methods[], firn_jinja_dict_methods[], firn_jinja_list_methods[];
const jinja_row *firn_jinja_find_test(const jinja_string *name);
const jinja_row *firn_jinja_find_global(const jinja_string *name);
/* `denied` is set when the type has such a method that the sandbox refuses. */
const jinja_row *firn_jinja_find_method(jinja_value self, const jinja_string *name, bool *denied);
const jinja_row *firn_jinja_find_row(const jinja_row *rows, const jinja_string *name);
/* Text transformations that a filter and a method share. */
firn_status firn_jinja_upper(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                             jinja_value *out);
firn_status firn_jinja_lower(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                             jinja_value *out);
firn_status firn_jinja_capitalize(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                                  jinja_value *out);
firn_status firn_jinja_strip(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                             jinja_value *out);
firn_status firn_jinja_replace(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                               jinja_value *out);
firn_status firn_jinja_center(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                              jinja_value *out);
/* A stable order: order[i] is the number of the key that comes i-th. */
firn_status firn_jinja_sort(jinja_eval *e, const jinja_value *keys, size_t *order, size_t n, bool reverse);
/* Lines of a text, as str.splitlines() cuts them: *next moves on; false at the end. Whoever calls pays JINJA_PER_CHAR
 * for the text. */
bool firn_jinja_next_line(const jinja_string *text, size_t *next, jinja_string *line, size_t *with_end);

#endif
