/* SVG by hand: see chart.h. Sizes are in the picture's own units; the page scales it to its width. */
#include "train/chart.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 260, LEFT = 74, RIGHT = 14, TOP = 12, BOTTOM = 38 };
enum { MOST_HOVERED = 400, MOST_MARKS = 40 }; /* points of a line that say their value under the pointer; of an axis */

/* ---- text ---- */

/* Length of the valid UTF-8 sequence at s, 0 when there is none. */
static size_t sequence(const unsigned char *s)
{
    const size_t n = s[0] < 0x80                   ? 1
                     : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                     : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                     : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                   : 0;

    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) ||
        (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return n;
}

void firn_chart_escape(firn_text *html, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const size_t n = sequence(s);
        if (*s == '&' || *s == '<' || *s == '>' || *s == '"')
            firn_text_printf(html, "&#%d;", *s);
        else if (n == 0 || (*s < ' ' && *s != '\n' && *s != '\t'))
            firn_text_puts(html, "\xEF\xBF\xBD");
        else
            firn_text_append(html, s, n);
        s += n ? n : 1;
    }
}

/* ---- curves ---- */

typedef struct {
    double x0, x1, y0, y1;
    bool log_y;
} frame;

static double place_x(const frame *f, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (f->x1 > f->x0 ? (x - f->x0) / (f->x1 - f->x0) : 0.5);
}

static double place_y(const frame *f, double y)
{
    const double a = f->log_y ? log(f->y0) : f->y0, b = f->log_y ? log(f->y1) : f->y1, v = f->log_y ? log(y) : y;

    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (b > a ? (v - a) / (b - a) : 0.5);
}

bool firn_chart_is_log(double least, double most)
{
    return least > 0 && most > 20 * least;
}

void firn_chart_smooth(const double *values, size_t n, bool in_log, double *smooth)
{
    double average = 0;

    for (size_t i = 0; i < n; i++) {
        const double weight = fmax(0.2, 1 / (double)(i + 1)), v = in_log ? log(values[i]) : values[i];
        average += weight * (v - average);
        smooth[i] = in_log ? exp(average) : average;
    }
}

static frame frame_of(const firn_curve *curves, int n, bool may_log)
{
    frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY, false};

    for (int c = 0; c < n; c++) {
        for (size_t i = 0; i < curves[c].n; i++) {
            f.x0 = fmin(f.x0, curves[c].x[i]);
            f.x1 = fmax(f.x1, curves[c].x[i]);
            f.y0 = fmin(f.y0, curves[c].y[i]);
            f.y1 = fmax(f.y1, curves[c].y[i]);
        }
    }
    f.log_y = may_log && firn_chart_is_log(f.y0, f.y1);
    if (!f.log_y && f.y0 > 0)
        f.y0 = 0;
    if (f.y1 <= f.y0)
        f.y1 = f.y0 + 1;
    return f;
}

/* A round distance between marks, so that about `wanted` fit: 1, 2 or 5 times a power of ten. NaN where doubles have no
 * such distance. */
static double mark_distance(double span, int wanted)
{
    const double raw = span / wanted, unit = pow(10, floor(log10(raw))), m = raw / unit;

    return unit * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static void mark_y(firn_text *html, const frame *f, double y)
{
    const double at = place_y(f, y);

    firn_text_printf(html,
                     "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"label\" x=\"%d\" y=\"%.1f\" "
                     "text-anchor=\"end\">%.4g</text>",
                     LEFT, at, WIDTH - RIGHT, LEFT - 6, at + 4, fabs(y) < 1e-12 ? 0 : y);
}

static void axes(firn_text *html, const frame *f, const char *label_x, const char *label_y)
{
    static const double steps[] = {1, 2, 5};

    if (f->log_y) {
        const bool dense = f->y1 < 300 * f->y0;
        for (int e = (int)floor(log10(f->y0)); e <= DBL_MAX_10_EXP && pow(10, e) <= f->y1; e++)
            for (int i = 0; i < (dense ? 3 : 1); i++)
                if (pow(10, e) * steps[i] >= f->y0 && pow(10, e) * steps[i] <= f->y1)
                    mark_y(html, f, pow(10, e) * steps[i]);
    } else {
        const double d = mark_distance(f->y1 - f->y0, 5), from = ceil(f->y0 / d);
        for (int i = 0; i < MOST_MARKS && (from + i) * d <= f->y1 + d * 1e-9; i++)
            mark_y(html, f, (from + i) * d);
    }
    const double d = fmax(mark_distance(fmax(f->x1 - f->x0, 1), 8), 1), from = ceil(f->x0 / d);
    for (int i = 0; i < MOST_MARKS && (from + i) * d <= f->x1; i++) {
        const double x = (from + i) * d;
        firn_text_printf(html, "<text class=\"label\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>",
                         place_x(f, x), HEIGHT - BOTTOM + 16, x);
    }
    firn_text_printf(html,
                     "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text><text class=\"label\" "
                     "transform=\"translate(12 %d) rotate(-90)\" text-anchor=\"middle\">%s%s</text>",
                     (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, label_x, (TOP + HEIGHT - BOTTOM) / 2, label_y,
                     f->log_y ? ", log scale" : "");
}

void firn_chart_curves(firn_text *html, const char *label_x, const char *label_y, const firn_curve *curves, int n,
                       bool may_log)
{
    const frame f = frame_of(curves, n, may_log);

    if (!isfinite(f.x0) || !isfinite(f.y0) || !isfinite(f.y1))
        return;
    firn_text_printf(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, HEIGHT);
    axes(html, &f, label_x, label_y);
    for (int c = 0; c < n; c++) {
        const firn_curve *curve = &curves[c];
        if (curve->n == 0)
            continue;
        if (!curve->dots) {
            firn_text_printf(html, "<path class=\"%s\" d=\"", curve->class_);
            for (size_t i = 0; i < curve->n; i++)
                firn_text_printf(html, "%c%.1f %.1f", i ? 'L' : 'M', place_x(&f, curve->x[i]),
                                 place_y(&f, curve->y[i]));
            firn_text_puts(html, "\"/>");
            for (size_t i = 0; i < curve->n && curve->n <= MOST_HOVERED; i++)
                firn_text_printf(
                    html, "<circle class=\"hover\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>%g: %.5g</title></circle>",
                    place_x(&f, curve->x[i]), place_y(&f, curve->y[i]), curve->x[i], curve->y[i]);
            continue;
        }
        for (size_t i = 0; i < curve->n; i++)
            firn_text_printf(
                html, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%g: %.5g</title></circle>",
                curve->class_, place_x(&f, curve->x[i]), place_y(&f, curve->y[i]), curve->x[i], curve->y[i]);
    }
    firn_text_puts(html, "</svg>\n");
}

/* ---- maps ---- */

void firn_chart_map(firn_text *html, const char *label_x, const char *label_y, const double *values, int64_t rows,
                    int64_t columns, double full, const char *const *row_names, const char *unit)
{
    const double left = row_names ? 120 : 40, width = WIDTH - left - RIGHT;
    const double w = fmin(width / (double)columns, 40), h = fmin(16, fmax(7, w)), bottom = TOP + h * (double)rows;
    const int64_t every = h >= 12 || rows < 12 ? 1 : 4, every_x = (int64_t)ceil(26 / w);

    firn_text_printf(html, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\">", WIDTH, bottom + 38);
    for (int64_t r = 0; r < rows; r++) {
        const double y = TOP + h * (double)r;
        if (row_names)
            firn_text_printf(html, "<text class=\"label\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
                             left - 6, y + h - 3, row_names[r]);
        else if (r % every == 0)
            firn_text_printf(html, "<text class=\"label\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%lld</text>",
                             left - 6, y + h - (h > 9 ? 3 : 0), (long long)r);
        for (int64_t c = 0; c < columns; c++) {
            const double v = values[r * columns + c];
            if (isnan(v))
                continue;
            const double shade = full > 0 ? fmin(v / full, 1) : 0;
            firn_text_printf(html,
                             "<rect class=\"cell\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                             "fill-opacity=\"%.3f\"><title>",
                             left + w * (double)c, y, fmax(w - 1, 0.6 * w), h - 1, 0.04 + 0.96 * shade);
            firn_text_printf(html, "%s %lld, %s ", label_x, (long long)c, label_y);
            if (row_names)
                firn_text_puts(html, row_names[r]);
            else
                firn_text_printf(html, "%lld", (long long)r);
            firn_text_printf(html, ": %.3g%s</title></rect>", v, unit);
        }
    }
    for (int64_t c = 0; c < columns; c += every_x)
        firn_text_printf(html, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%lld</text>",
                         left + w * ((double)c + 0.5), bottom + 14, (long long)c);
    firn_text_printf(html, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text></svg>\n",
                     left + w * (double)columns / 2, bottom + 30, label_x);
}
