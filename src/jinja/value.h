/* Values of the Jinja engine, their characters, and what Python knows of those. Nothing here runs a template. */
#ifndef FIRN_JINJA_VALUE_H
#define FIRN_JINJA_VALUE_H

#include "core/arena.h"
#include "core/plain.h"
#include "jinja/jinja.h"

/* Small and passed by value; what they point to lives in an arena and never changes once made, except for namespaces,
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
static inline bool jinja_given(jinja_value v)
{
    return v.type != JINJA_MISSING && v.type != JINJA_NONE;
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

bool firn_jinja_same_text(const jinja_string *a, const char *b);

/* ---- UTF-8 (valid by construction) ---- */
size_t firn_jinja_chars(const char *s, size_t size);
size_t firn_jinja_char_size(char lead);
uint32_t firn_jinja_char_at(const char *s);
/* Byte offset of character number i (at most `size`). */
size_t firn_jinja_offset(const char *s, size_t size, size_t i);
/* Size of the character that ends at s + size. */
size_t firn_jinja_last_char(const char *s, size_t size);

/* ---- numbers in texts ---- */
/* Python's int(text, base) and float(text). */
bool firn_jinja_parse_int(const char *s, size_t size, int base, int64_t *value);
bool firn_jinja_parse_float(const char *s, size_t size, double *value);

/* ---- unicode.c: what Python's str knows of a code point ---- */
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

#endif
