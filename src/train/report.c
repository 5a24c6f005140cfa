/* report.html: one page, nothing outside it, made to be read from top to bottom: what came out, how it went, what the
 * model says now, where tokens go, what moved, and everything needed to do it again. */
#include "train/report.h"

#include "core/file.h"
#include "core/machine.h"
#include "core/plain.h"
#include "train/cadence.h"
#include "train/chart.h"
#include "train/jsonl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char style[] =
    ":root{--ink:#1c2430;--soft:#667085;--paper:#fbfbf9;--card:#fff;--edge:#e4e4de;--a:#2f6f8f;--b:#c2572b;--cell:#"
    "2f6f8f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#93a0b4;--paper:#14181e;--card:#1b2129;--edge:#"
    "2c3540;"
    "--a:#6db3d4;--b:#f0935f;--cell:#6db3d4}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 "
    "system-ui,sans-serif}\n"
    "main{max-width:880px;margin:0 auto;padding:32px 20px 64px}h1{font-size:26px;margin:0 0 "
    "2px;letter-spacing:-.01em}\n"
    "h2{font-size:17px;margin:36px 0 10px}p{margin:6px 0 12px;color:var(--soft)}code{font:13px/1.5 "
    "ui-monospace,monospace}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:22px 0}\n"
    ".tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px 16px}\n"
    ".tile b{display:block;font-size:20px;white-space:nowrap;font-variant-numeric:tabular-nums}.tile "
    "span{color:var(--soft);font-size:13px}\n"
    ".card{margin:0 0 14px;overflow-x:auto}.card h3{font-size:13px;font-weight:600;margin:0 0 6px;color:var(--soft)}\n"
    "svg{display:block;width:100%;height:auto}.grid{stroke:var(--edge);fill:none}.label{fill:var(--soft);font-size:"
    "11px}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.a{stroke:var(--a)}.b{stroke:var(--b)}.thin{stroke-width:1;"
    "opacity:.35}\n"
    ".hover{fill:transparent}@media(max-width:600px){.label{font-size:22px}.tiles{grid-template-columns:1fr 1fr}.tile "
    "b{white-space:normal;font-size:17px}.talks th{width:auto;display:block}.talks td{display:block}main{padding:16px "
    "12px}}\n"
    ".dots{fill:var(--b)}.cell{fill:var(--cell)}.key{display:inline-block;width:18px;height:3px;vertical-align:middle;"
    "margin:0 6px 0 14px}table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;"
    "padding:5px 14px 5px 0;border-bottom:1px solid "
    "var(--edge)}th{color:var(--soft);font-weight:500;white-space:nowrap}\n"
    ".talks th{width:100px}.talk{white-space:pre-wrap;overflow-wrap:anywhere}.hash{overflow-wrap:anywhere}\n";

/* ---- the metrics file ---- */

typedef struct {
    double *step, *loss, *rate, *smooth, *balance, *eval_step, *eval, *norm, *speed, *memory;
    size_t n, n_eval, capacity;
    int64_t damaged; /* lines that are left out */
    bool has_balance;
    double tokens;
} curves;

static void curves_clear(firn_context *ctx, curves *c)
{
    firn_free(ctx, c->step);
    *c = (curves){0};
}

static void smooth(curves *c)
{
    double least = INFINITY, most = -INFINITY;

    for (size_t i = 0; i < c->n; i++) {
        least = fmin(least, c->loss[i]);
        most = fmax(most, c->loss[i]);
    }
    for (size_t i = 0; i < c->n_eval; i++) {
        least = fmin(least, c->eval[i]);
        most = fmax(most, c->eval[i]);
    }
    firn_chart_smooth(c->loss, c->n, firn_chart_is_log(least, most), c->smooth);
}

static firn_status read_curves(firn_context *ctx, const char *folder, curves *c)
{
    char path[FIRN_PATH_BYTES];
    firn_jsonl lines;
    json_t *o;
    firn_status s;
    size_t n = 0;

    FIRN_TRY(firn_run_path(ctx, folder, "metrics.jsonl", path));
    s = firn_jsonl_open(ctx, path, &lines);
    if (s != FIRN_OK && s != FIRN_ERR_IO)
        return s; /* a file that is not there has no lines */
    for (size_t i = 0; i < lines.size; i++)
        n += lines.data[i] == '\n';
    c->step = firn_alloc_zeroed(ctx, n + 1, 10 * sizeof *c->step);
    if (!c->step) {
        firn_jsonl_close(&lines);
        return FIRN_ERR_MEMORY;
    }
    double **const parts[] = {&c->loss, &c->rate, &c->smooth, &c->balance, &c->eval_step,
                              &c->eval, &c->norm, &c->speed,  &c->memory};
    for (size_t i = 0; i < 9; i++)
        *parts[i] = c->step + (i + 1) * (n + 1);
    const bool there = s == FIRN_OK;
    for (s = FIRN_OK; there && ((s = firn_jsonl_next(&lines, &o)) == FIRN_ERR_FORMAT || (s == FIRN_OK && o));) {
        if (s != FIRN_OK) {
            c->damaged++;
            continue;
        }
        const double step = json_number_value(json_object_get(o, "step"));
        const json_t *loss = json_object_get(o, "loss"), *eval = json_object_get(o, "eval_loss");
        if (json_is_number(loss) && c->n < n) {
            c->step[c->n] = step;
            c->loss[c->n] = json_number_value(loss);
            c->norm[c->n] = json_number_value(json_object_get(o, "grad_norm"));
            c->speed[c->n] = json_number_value(json_object_get(o, "tokens_per_second"));
            c->memory[c->n] = json_number_value(json_object_get(o, "memory")) / (1 << 20);
            c->has_balance = json_object_get(o, "router_aux_loss") != NULL;
            c->balance[c->n] = json_number_value(json_object_get(o, "router_aux_loss"));
            c->rate[c->n++] = json_number_value(json_object_get(o, "learning_rate"));
            c->tokens += json_number_value(json_object_get(o, "tokens"));
        }
        if (json_is_number(eval) && c->n_eval < n) {
            c->eval_step[c->n_eval] = step;
            c->eval[c->n_eval++] = json_number_value(eval);
        }
        json_decref(o);
    }
    firn_jsonl_close(&lines);
    if (s == FIRN_OK)
        smooth(c);
    return s;
}

/* ---- sections ---- */

static void tile(firn_text *t, const char *value, const char *name)
{
    firn_text_printf(t, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", value, name);
}

static void tiles(firn_text *t, const firn_run *run, const curves *c)
{
    char value[64];
    firn_text time;

    firn_text_puts(t, "<div class=\"tiles\">\n");
    if (c->n_eval) {
        firn_snprintf(value, sizeof value, "%.3g &rarr; %.3g", c->eval[0], c->eval[c->n_eval - 1]);
        tile(t, value, "evaluation loss");
    }
    if (c->n) {
        firn_snprintf(value, sizeof value, "%.3g &rarr; %.3g", c->loss[0], c->loss[c->n - 1]);
        tile(t, value, "training loss");
    }
    snprintf(value, sizeof value, "%lld", (long long)run->at.step);
    tile(t, value, "steps");
    firn_snprintf(value, sizeof value, "%.0f", c->tokens);
    tile(t, value, "tokens");
    firn_snprintf(value, sizeof value, "%.3g M", (double)run->adapter->n_values / 1e6);
    tile(t, value, "trained values");
    firn_text_init(&time, run->ctx, 0);
    firn_text_duration(&time, run->at.seconds);
    tile(t, firn_text_cstr(&time), "of training steps");
    if (t->status == FIRN_OK)
        t->status = time.status;
    firn_text_free(&time);
    firn_text_puts(t, "</div>\n");
}

static void loss_section(firn_text *t, const curves *c)
{
    const firn_curve loss[] = {{"line a thin", c->step, c->loss, c->n, false},
                               {"line a", c->step, c->smooth, c->n, false},
                               {"line b", c->eval_step, c->eval, c->n_eval, false},
                               {"dots", c->eval_step, c->eval, c->n_eval, true}};
    const firn_curve rate = {"line a", c->step, c->rate, c->n, false};

    firn_text_puts(t, "<h2>How it went</h2>\n<div class=\"card\"><h3>Loss by step<span class=\"key\" "
                      "style=\"background:var(--a)\"></span>training");
    if (c->n_eval)
        firn_text_puts(t, "<span class=\"key\" style=\"background:var(--b)\"></span>evaluation");
    firn_text_puts(t, "</h3>\n");
    firn_chart_curves(t, "step", "loss", loss, 4, true);
    firn_text_puts(t, "</div>\n<div class=\"card\"><h3>Learning rate by step</h3>\n");
    firn_chart_curves(t, "step", "learning rate", &rate, 1, false);
    const struct {
        const char *title, *unit;
        const double *values;
    } more[] = {{"Norm of the gradient by step", "norm", c->norm},
                {"Speed by step", "tokens/s", c->speed},
                {"Memory by step (anonymous)", "MiB", c->memory}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        const firn_curve curve = {"line a", c->step, more[i].values, c->n, false};
        firn_text_printf(t, "</div>\n<div class=\"card\"><h3>%s</h3>\n", more[i].title);
        firn_chart_curves(t, "step", more[i].unit, &curve, 1, i == 0);
    }
    if (c->has_balance) {
        const firn_curve balance = {"line a", c->step, c->balance, c->n, false};
        firn_text_puts(t, "</div>\n<div class=\"card\"><h3>Router's balance by step (1: even)</h3>\n");
        firn_chart_curves(t, "step", "balance", &balance, 1, false);
    }
    firn_text_puts(t, "</div>\n");
}

static void talk_row(firn_text *t, const char *name, const char *text)
{
    firn_text_printf(t, "<tr><th>%s</th><td class=\"talk\">", name);
    firn_chart_escape(t, text[0] ? text : "(nothing)");
    firn_text_puts(t, "</td></tr>\n");
}

static void talk_section(firn_text *t, const firn_witness *before, const firn_witness *after)
{
    const firn_witness *shown = after->n_talks ? after : before;

    if (shown->n_talks == 0)
        return;
    firn_text_puts(t,
                   "<h2>What the model says</h2>\n<p>Greedy answers to prompts of the evaluation data, of the training "
                   "data where there is none.</p>\n");
    for (int i = 0; i < shown->n_talks; i++) {
        firn_text_puts(t, "<div class=\"card\"><table class=\"talks\">\n");
        talk_row(t, "prompt", shown->talks[i].prompt);
        talk_row(t, "in the data", shown->talks[i].expected);
        if (i < before->n_talks)
            talk_row(t, "before", before->talks[i].answer);
        if (i < after->n_talks)
            talk_row(t, "after", after->talks[i].answer);
        firn_text_puts(t, "</table></div>\n");
    }
}

/* Each expert's share of its layer's routed tokens, 1 being an even share. */
static firn_status load_map(firn_text *t, const char *title, const firn_witness *w)
{
    const int64_t n = w->n_layer * w->n_expert;
    double *share = firn_alloc(w->ctx, (size_t)n * sizeof *share);
    int64_t unused = 0;

    if (!share)
        return FIRN_ERR_MEMORY;
    for (int64_t l = 0; l < w->n_layer; l++) {
        const int64_t *load = w->load + l * w->n_expert;
        double sum = 0;
        for (int64_t e = 0; e < w->n_expert; e++)
            sum += (double)load[e];
        for (int64_t e = 0; e < w->n_expert; e++) {
            share[l * w->n_expert + e] = sum > 0 ? (double)load[e] * (double)w->n_expert / sum : NAN;
            unused += sum > 0 && load[e] == 0;
        }
    }
    firn_text_printf(t, "<div class=\"card\"><h3>%s (%lld of %lld experts not used)</h3>\n", title, (long long)unused,
                     (long long)n);
    firn_chart_map(t, "expert", "layer", share, w->n_layer, w->n_expert, 3, NULL, " times an even share");
    firn_text_puts(t, "</div>\n");
    firn_free(w->ctx, share);
    return FIRN_OK;
}

static firn_status load_section(firn_text *t, const firn_witness *before, const firn_witness *after)
{
    if (!after->load)
        return FIRN_OK;
    firn_text_puts(
        t, "<h2>Where tokens go</h2>\n<p>Load of each expert on the same tokens before and after. Darker = more "
           "tokens; darkest = 3x average or more.</p>\n");
    if (before->load)
        FIRN_TRY(load_map(t, "Before", before));
    return load_map(t, after->n_talks ? "After" : "Now", after);
}

/* ---- what moved ---- */

/* Root mean square of the entries of scale * B A over all experts. |BA|^2 = sum over i, j of (B'B)_ij (AA')_ij, so the
 * product itself is never formed. A's rows are [n_in] long; B is stored as n_out rows of [rank]. */
static double update_size(const firn_adapter *adapter, const firn_adapter_entry *e)
{
    const int64_t r = e->rank;
    double sum = 0;

    for (int64_t x = 0; x < e->n_expert; x++) {
        const float *a = adapter->values + e->a + x * e->n_in * r, *b = adapter->values + e->b + x * e->n_out * r;
        for (int64_t i = 0; i < r; i++) {
            for (int64_t j = 0; j <= i; j++) {
                double aa = 0, bb = 0;
                for (int64_t k = 0; k < e->n_in; k++)
                    aa += (double)a[i * e->n_in + k] * (double)a[j * e->n_in + k];
                for (int64_t k = 0; k < e->n_out; k++)
                    bb += (double)b[k * r + i] * (double)b[k * r + j];
                sum += (i == j ? 1 : 2) * aa * bb;
            }
        }
    }
    return (double)e->scale * sqrt(fmax(sum, 0) / ((double)e->n_in * (double)e->n_out * (double)e->n_expert));
}

/* "blk.3.attn_q.weight" -> "attn_q"; "output.weight" -> "output". */
static void kind_of(const firn_adapter_entry *e, char *kind, size_t limit)
{
    const char *from = e->tensor;

    if (e->layer >= 0 && strncmp(from, "blk.", 4) == 0 && strchr(from + 4, '.'))
        from = strchr(from + 4, '.') + 1;
    snprintf(kind, limit, "%.*s", (int)strcspn(from, "."), from);
}

enum { MAX_KINDS = 32, KIND_BYTES = 48 };

static firn_status update_section(firn_text *t, const firn_run *run)
{
    const firn_adapter *a = run->adapter;
    const int64_t n_layer = firn_model_get_info(run->model)->n_layer;
    char kinds[MAX_KINDS][KIND_BYTES];
    const char *names[MAX_KINDS];
    double *size = firn_alloc(run->ctx, (size_t)n_layer * MAX_KINDS * sizeof *size), largest = 0;
    int n = 0;

    if (!size)
        return FIRN_ERR_MEMORY;
    for (int64_t i = 0; i < n_layer * MAX_KINDS; i++)
        size[i] = NAN;
    firn_text_puts(t, "<h2>What moved</h2>\n<p>Size of each tensor's update, the root mean square over its entries of "
                      "alpha/r B A. Darker = larger.");
    for (int i = 0; i < a->n_entries; i++) {
        const firn_adapter_entry *e = &a->entries[i];
        char kind[KIND_BYTES];
        int k = 0;
        const double v = update_size(a, e);
        kind_of(e, kind, sizeof kind);
        if (e->layer < 0 || e->layer >= n_layer) {
            firn_text_printf(t, " %s: %.3g.", kind, v);
            continue;
        }
        while (k < n && strcmp(kinds[k], kind) != 0)
            k++;
        if (k == MAX_KINDS)
            continue;
        if (k == n) {
            strcpy(kinds[n], kind);
            names[n] = kinds[n];
            n++;
        }
        size[k * n_layer + e->layer] = v;
        largest = fmax(largest, v);
    }
    firn_text_printf(t, " Darkest: %.3g or more.</p>\n<div class=\"card\">\n", largest);
    if (n)
        firn_chart_map(t, "layer", "tensor", size, n, n_layer, largest, names, "");
    firn_text_puts(t, "</div>\n");
    firn_free(run->ctx, size);
    return FIRN_OK;
}

/* ---- everything needed to do it again ---- */

static void row(firn_text *t, const char *name, const char *value)
{
    firn_text_printf(t, "<tr><th>%s</th><td class=\"hash\"><code>", name);
    firn_chart_escape(t, value);
    firn_text_puts(t, "</code></td></tr>\n");
}

static void print_row(firn_text *t, const char *name, const firn_print *print)
{
    char value[FIRN_PATH_BYTES + 128];

    if (!print->path[0])
        return;
    snprintf(value, sizeof value, "%s\n%llu bytes, SHA-256 %s", print->path, (unsigned long long)print->bytes,
             print->sha256);
    row(t, name, value);
}

static void list_row(char *value, size_t size, const firn_strings *list)
{
    size_t n = 0;

    value[0] = 0;
    for (int i = 0; i < list->n && n < size; i++)
        n += (size_t)snprintf(value + n, size - n, "%s%s", i ? ", " : "", list->items[i]);
}

static void option_rows(firn_text *t, const firn_train_options *options)
{
    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        const char *field = (const char *)options + o->offset;
        char value[FIRN_PATH_BYTES];
        if (!firn_train_option_is_set(options, o))
            continue;
        if (o->kind == 's')
            snprintf(value, sizeof value, "%s", *(const char *const *)field);
        else if (o->kind == 'l')
            list_row(value, sizeof value, (const firn_strings *)field);
        else if (o->kind == 'i')
            snprintf(value, sizeof value, "%lld", (long long)*(const int64_t *)field);
        else if (o->kind == 'd')
            firn_cadence_write(*(const int64_t *)field, value);
        else if (o->kind == 'b')
            snprintf(value, sizeof value, "yes");
        else
            firn_snprintf(value, sizeof value, "%.9g", *(const double *)field);
        row(t, o->name, value);
    }
}

static void again_section(firn_text *t, const firn_run *run)
{
    firn_text_puts(t, "<h2>What it was made from</h2>\n<div class=\"card\"><table>\n");
    print_row(t, "model (header, tensor table, samples of the weights)", &run->record.model);
    print_row(t, "data", &run->record.data);
    print_row(t, "evaluation data", &run->record.eval_data);
    print_row(t, "started from", &run->record.adapter);
    row(t, "architecture", run->record.arch);
    row(t, "device", firn_device_about(run->device));
    row(t, "kernels", run->record.kernels);
    row(t, "firn", firn_version());
    firn_text_puts(t, "</table></div>\n<div class=\"card\"><h3>Options</h3><table>\n");
    option_rows(t, &run->record.options);
    firn_text_puts(t, "</table></div>\n");
}

/* Commands to paste. */
static void use_section(firn_text *t, const firn_run *run)
{
    const char *model = run->record.options.model, *slash = strrchr(model, '/');

    firn_text_puts(t, "<h2>Use it</h2>\n<div class=\"card\"><pre><code>firn generate ");
    firn_chart_escape(t, model);
    firn_text_puts(t, " --chat --adapter ");
    firn_chart_escape(t, run->folder);
    firn_text_puts(t, "/adapter.gguf\nllama-cli -m ");
    firn_chart_escape(t, slash ? slash + 1 : model);
    firn_text_puts(t, " --lora adapter.gguf\nfirn export ");
    firn_chart_escape(t, model);
    firn_text_puts(t, " ");
    firn_chart_escape(t, run->folder);
    firn_text_puts(t, "/adapter.gguf peft</code></pre></div>\n");
}

static void say_state(firn_text *t, const firn_run *run, bool done)
{
    const time_t now = time(NULL);
    char date[64] = "";
    struct tm local;

    if (localtime_r(&now, &local))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &local);
    if (done)
        firn_text_printf(t, "<p>Finished %s.</p>\n", date);
    else
        firn_text_printf(
            t, "<p><b>Running:</b> step %lld of %lld at %s; this page is written anew at each evaluation.</p>\n",
            (long long)run->at.step, (long long)run->record.steps, date);
}

static firn_status page(firn_text *t, const firn_run *run, const curves *c, const firn_witness *before,
                        const firn_witness *after, bool done)
{
    const firn_model_info *info = firn_model_get_info(run->model);

    firn_text_puts(
        t, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
           "content=\"width=device-width,initial-scale=1\">\n<title>firn: a fine-tuning run</title>\n<style>\n");
    firn_text_puts(t, style);
    firn_text_puts(t, "</style></head>\n<body><main>\n<h1>");
    firn_chart_escape(t, info->name[0] ? info->name : info->arch);
    firn_text_printf(t, "</h1>\n<p>%s, %lld layers of %lld", info->arch, (long long)info->n_layer,
                     (long long)info->n_embd);
    if (info->n_expert)
        firn_text_printf(t, ", %lld experts of which %lld are used", (long long)info->n_expert,
                         (long long)info->n_expert_used);
    firn_text_puts(t, ", fine-tuned with firn on ");
    const char *slash = strrchr(run->record.data.path, '/');
    firn_chart_escape(t, slash ? slash + 1 : run->record.data.path);
    firn_text_puts(t, "</p>\n");
    say_state(t, run, done);
    tiles(t, run, c);
    loss_section(t, c);
    talk_section(t, before, after);
    FIRN_TRY(load_section(t, before, after));
    if (done) { /* what moved takes as long as some steps to find */
        FIRN_TRY(update_section(t, run));
        use_section(t, run);
    }
    again_section(t, run);
    firn_text_puts(t, "</main></body></html>\n");
    return t->status;
}

static firn_status write_page(firn_run *run, const firn_witness *before, const firn_witness *after, bool done)
{
    char path[FIRN_PATH_BYTES];
    firn_text t;
    curves c = {0};

    firn_text_init(&t, run->ctx, 0);
    firn_status s = read_curves(run->ctx, run->folder, &c);
    if (c.damaged && done)
        firn_run_say(run, "warning: the report leaves out %lld damaged line%s of metrics.jsonl", (long long)c.damaged,
                     firn_plural(c.damaged));
    if (s == FIRN_OK)
        s = page(&t, run, &c, before, after, done);
    if (s == FIRN_OK)
        s = firn_run_path(run->ctx, run->folder, "report.html", path);
    if (s == FIRN_OK)
        s = firn_file_write(run->ctx, path, t.data, t.size);
    curves_clear(run->ctx, &c);
    firn_text_free(&t);
    return s;
}

firn_status firn_report_write(firn_run *run, const firn_witness *before, const firn_witness *after)
{
    return write_page(run, before, after, true);
}

firn_status firn_report_update(firn_run *run, const firn_witness *before, const firn_witness *now)
{
    return write_page(run, before, now, false);
}
