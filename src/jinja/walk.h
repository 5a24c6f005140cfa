/* What the two files that walk the tree share: eval.c has scopes and statements, expression.c expressions and calls. */
#ifndef FIRN_JINJA_WALK_H
#define FIRN_JINJA_WALK_H

#include "jinja/eval.h"

typedef struct { /* output that goes to a text of its own */
    firn_text text, *before;
} capture;

firn_status firn_jinja_enter(jinja_eval *e);
jinja_scope *firn_jinja_scope_create(jinja_eval *e, jinja_scope *parent);
firn_status firn_jinja_bind(jinja_eval *e, jinja_scope *scope, const jinja_string *name, jinja_value value);
firn_status firn_jinja_lookup(jinja_eval *e, const jinja_string *name, jinja_value *out);
void firn_jinja_capture_begin(jinja_eval *e, capture *c);
firn_status firn_jinja_capture_end(jinja_eval *e, capture *c, firn_status status, jinja_value *out);
firn_status firn_jinja_run_loop(jinja_eval *e, const jinja_node *n, jinja_scope *parent, jinja_value iterable,
                                int depth);
firn_status firn_jinja_exec(jinja_eval *e, const jinja_node *list, jinja_scope *scope);
firn_status firn_jinja_arguments(jinja_eval *e, const jinja_node *list, jinja_args *args);
firn_status firn_jinja_apply(jinja_eval *e, const jinja_node *n, jinja_value self, jinja_value *out);
firn_status firn_jinja_eval(jinja_eval *e, const jinja_node *n, jinja_value *out);

#endif
