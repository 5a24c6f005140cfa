/* Pictures of a report, as SVG inside HTML: curves over steps, and maps of shaded cells. Colours come from the page's
 * style (classes grid, label, line, dots, cell), so that a page has one place for them. */
#ifndef FIRN_TRAIN_CHART_H
#define FIRN_TRAIN_CHART_H

#include "core/buffer.h"

typedef struct {
    const char *class_; /* "line a", "line b", "dots b" */
    const double *x, *y;
    size_t n;
    bool dots; /* points of their own; else one line */
} firn_curve;

/* Whether a value axis from least to most is logarithmic where it may be: it spans more than a factor of 20. */
bool firn_chart_is_log(double least, double most);
/* A moving average over the last ten values or so, of fewer at the start; in the scale in which it is drawn: on a
 * logarithmic axis the mean of losses of which one is large would lie above all others. */
void firn_chart_smooth(const double *values, size_t n, bool in_log, double *smooth);
/* Curves in one frame. may_log: the value axis may be logarithmic, and its label then says so. */
void firn_chart_curves(firn_text *html, const char *label_x, const char *label_y, const firn_curve *curves, int n,
                       bool may_log);

/* rows x columns cells, each shaded by value / full (0 to 1); a cell of NAN is left out. row_names may be NULL (then
 * numbers); `unit` is printed behind a cell's value when the pointer rests on it. */
void firn_chart_map(firn_text *html, const char *label_x, const char *label_y, const double *values, int64_t rows,
                    int64_t columns, double full, const char *const *row_names, const char *unit);

/* Text with &, <, >, " written as HTML wants them, and bytes that are no UTF-8 as U+FFFD. */
void firn_chart_escape(firn_text *html, const char *text);

#endif
