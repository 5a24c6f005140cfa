/* The evaluator: its state, what values can do while it runs (each pays in steps), and the names that a template may
 * call. */
#ifndef FIRN_JINJA_EVAL_H
#define FIRN_JINJA_EVAL_H

#include "jinja/tree.h"

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

/* ---- value.c ---- */
/* Zeroed; its bytes are paid in steps. NULL, with the sentence set, where steps or memory end. */
void *firn_jinja_alloc(jinja_eval *e, size_t count, size_t size);
firn_status firn_jinja_string(jinja_eval *e, const char *data, size_t size, jinja_value *out); /* copies */
firn_status firn_jinja_view(jinja_eval *e, const char *data, size_t size, jinja_value *out);   /* points */
/* The text of a firn_text that is freed; its status is returned. */
firn_status firn_jinja_take(jinja_eval *e, firn_text *text, jinja_value *out);
/* The same where status is FIRN_OK; otherwise frees the text and returns status. */
firn_status firn_jinja_finish(jinja_eval *e, firn_text *text, firn_status status, jinja_value *out);
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

/* ---- number.c ---- */
firn_status firn_jinja_binary(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, jinja_value *out);
firn_status firn_jinja_negate(jinja_eval *e, jinja_value v, jinja_value *out);
/* An argument that must be an integer; `otherwise` where it is missing or None. */
firn_status firn_jinja_int_arg(jinja_eval *e, jinja_value v, const char *what, int64_t otherwise, int64_t *out);
/* An argument that must be a string; NULL with FIRN_OK where it is missing or None and `optional`. */
firn_status firn_jinja_text_arg(jinja_eval *e, jinja_value v, const char *what, bool optional,
                                const jinja_string **out);
/* Python's round(value, digits) for floats. */
double firn_jinja_round(double x, int digits);

/* ---- format.c ---- */
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

/* A row's function, in its own file or (SHARED) for others too. */
#define NATIVE(name)                                                                                                   \
    static firn_status name(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,            \
                            jinja_value *out)
#define SHARED(name)                                                                                                   \
    firn_status name(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw, jinja_value *out)

/* ---- names that a template may call: NULL when there is none ---- */
extern const jinja_row firn_jinja_filters[], firn_jinja_sequence_filters[], firn_jinja_markup_filters[],
    firn_jinja_tests[], firn_jinja_globals[];
extern const jinja_row firn_jinja_text_methods[], firn_jinja_find_methods[], firn_jinja_dict_methods[],
    firn_jinja_list_methods[];
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
/* self[start:end] for the bounds that find, count and their kin take; *begin is its byte offset. */
firn_status firn_jinja_window(jinja_eval *e, jinja_value self, const jinja_value bounds[2], jinja_string *part,
                              size_t *begin);
/* A stable order: order[i] is the number of the key that comes i-th. */
firn_status firn_jinja_sort(jinja_eval *e, const jinja_value *keys, size_t *order, size_t n, bool reverse);
/* Lines of a text, as str.splitlines() cuts them: *next moves on; false at the end. Whoever calls pays JINJA_PER_CHAR
 * for the text. */
bool firn_jinja_next_line(const jinja_string *text, size_t *next, jinja_string *line, size_t *with_end);

#endif
