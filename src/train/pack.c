/* Which samples are trained when: evaluation split, weights, order, packing into windows, passes.
 *
 * Packing is best fit over a bounded number of open windows: a sample goes where the least room is left after it. With
 * samples far shorter than the window this fills all but the last few; the bound keeps it linear. */
#include "core/random.h"
#include "train/data.h"

#include <math.h>
#include <string.h>

enum { STREAM_SPLIT = 0x5350, STREAM_ORDER = 0x4F52, STREAM_WEIGHT = 0x5754, OPEN_WINDOWS = 64 };

void firn_sample_list_free(firn_context *ctx, firn_sample_list *list)
{
    firn_free(ctx, list->items);
    *list = (firn_sample_list){0};
}

firn_status firn_data_all(const firn_data *data, firn_sample_list *all)
{
    *all = (firn_sample_list){firn_alloc(data->ctx, data->n_samples * sizeof *all->items), data->n_samples};
    if (!all->items)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < all->n; i++)
        all->items[i] = (int32_t)i;
    return FIRN_OK;
}

/* ---- evaluation split ---- */

/* Whether samples a and b of the data set are of one line. */
static bool same_line(const firn_data *data, int32_t a, int32_t b)
{
    return data->samples[a].line == data->samples[b].line && data->samples[a].file == data->samples[b].file;
}

static size_t count_lines(const firn_data *data)
{
    size_t n = 0;

    for (size_t i = 0; i < data->n_samples; i++)
        n += i == 0 || !same_line(data, (int32_t)i, (int32_t)i - 1);
    return n;
}

/* Marks `wanted` of the n lines: the next line is taken with probability (still wanted) / (still to come), which draws
 * every choice of that many with the same probability (Knuth's algorithm S). */
static void draw(uint64_t seed, size_t n, size_t wanted, const firn_data *data, firn_sample_list *train,
                 firn_sample_list *held)
{
    bool taken = false;
    size_t line = 0;

    for (size_t i = 0; i < data->n_samples; i++) {
        if (i == 0 || !same_line(data, (int32_t)i, (int32_t)i - 1)) {
            taken = firn_random_below(seed, STREAM_SPLIT, line, n - line) < wanted;
            wanted -= taken;
            line++;
        }
        firn_sample_list *to = taken ? held : train;
        to->items[to->n++] = (int32_t)i;
    }
}

firn_status firn_data_split(const firn_data *data, double fraction, uint64_t seed, firn_sample_list *train,
                            firn_sample_list *held)
{
    const size_t n = count_lines(data);
    size_t wanted = 0;

    *train = *held = (firn_sample_list){0};
    if (n > 1 && fraction > 0) {
        wanted = (size_t)(fraction * (double)n + 0.5);
        wanted = wanted < 1 ? 1 : wanted > n - 1 ? n - 1 : wanted;
    }
    train->items = firn_alloc(data->ctx, data->n_samples * sizeof *train->items);
    held->items = firn_alloc(data->ctx, data->n_samples * sizeof *held->items);
    if (!train->items || !held->items) {
        firn_sample_list_free(data->ctx, train);
        firn_sample_list_free(data->ctx, held);
        return FIRN_ERR_MEMORY;
    }
    draw(seed, n, wanted, data, train, held);
    return FIRN_OK;
}

/* ---- weights ---- */

/* Samples [begin, end) of the list are of one file. Takes the lines of it that an epoch draws, by the algorithm above.
 */
static void draw_part(const firn_data *data, const firn_sample_list *list, size_t begin, size_t end, double part,
                      uint64_t seed, int64_t epoch, firn_sample_list *out)
{
    const uint64_t stream = STREAM_WEIGHT + ((uint64_t)epoch << 16);
    size_t n = 0, line = 0;
    bool taken = false;

    for (size_t i = begin; i < end; i++)
        n += i == begin || !same_line(data, list->items[i], list->items[i - 1]);
    size_t wanted = (size_t)fmax(1, part * (double)n + 0.5);
    for (size_t i = begin; i < end; i++) {
        if (i == begin || !same_line(data, list->items[i], list->items[i - 1])) {
            taken = firn_random_below(seed, stream, begin + line, n - line) < wanted;
            wanted -= taken;
            line++;
        }
        if (taken)
            out->items[out->n++] = list->items[i];
    }
}

firn_status firn_data_weigh(const firn_data *data, const firn_sample_list *samples, uint64_t seed, int64_t epoch,
                            firn_sample_list *epoch_list, bool *drawn)
{
    *epoch_list = *samples;
    *drawn = false;
    for (int f = 0; f < data->n_files; f++)
        *drawn |= data->files[f].weight != 1;
    if (!*drawn)
        return FIRN_OK;
    size_t n = 0;
    for (size_t i = 0; i < samples->n; i++)
        n += (size_t)ceil(data->files[data->samples[samples->items[i]].file].weight);
    if (n > INT32_MAX)
        return firn_fail(data->ctx, FIRN_ERR_UNSUPPORTED,
                         "with its weights the data set has %zu samples an epoch; at most %d are possible", n,
                         INT32_MAX);
    *epoch_list = (firn_sample_list){firn_alloc(data->ctx, n * sizeof *epoch_list->items), 0};
    if (!epoch_list->items)
        return FIRN_ERR_MEMORY;
    for (size_t begin = 0, end; begin < samples->n; begin = end) {
        const uint32_t file = data->samples[samples->items[begin]].file;
        const double weight = data->files[file].weight, whole = floor(weight);
        for (end = begin; end < samples->n && data->samples[samples->items[end]].file == file;)
            end++;
        for (double k = 0; k < whole; k++) {
            memcpy(epoch_list->items + epoch_list->n, samples->items + begin,
                   (end - begin) * sizeof *epoch_list->items);
            epoch_list->n += end - begin;
        }
        if (weight > whole)
            draw_part(data, samples, begin, end, weight - whole, seed, epoch, epoch_list);
    }
    return FIRN_OK;
}

/* ---- windows ---- */

typedef struct {
    int64_t window, room;
} open_window;

/* The window that each of the n samples of `order` goes to; returns how many windows there are. */
static int64_t assign(const firn_data *data, const int32_t *order, size_t n, int64_t context, int32_t *window)
{
    open_window open[OPEN_WINDOWS];
    int n_open = 0;
    int64_t n_windows = 0;

    for (size_t i = 0; i < n; i++) {
        const int64_t length = data->samples[order[i]].n;
        int best = -1;
        for (int k = 0; k < n_open; k++)
            if (open[k].room >= length && (best < 0 || open[k].room < open[best].room))
                best = k;
        if (best < 0) {
            if (n_open == OPEN_WINDOWS) /* the oldest closes */
                memmove(open, open + 1, (size_t)--n_open * sizeof *open);
            best = n_open++;
            open[best] = (open_window){n_windows++, context};
        }
        open[best].room -= length;
        window[i] = (int32_t)open[best].window;
    }
    return n_windows;
}

static firn_status pack(const firn_data *data, const firn_sample_list *samples, int64_t context, bool shuffle,
                        uint64_t seed, int64_t epoch, firn_packing *p, int32_t *drawn, int32_t *window)
{
    const size_t n = samples->n;

    memcpy(drawn, samples->items, n * sizeof *drawn);
    for (size_t i = n; shuffle && i > 1; i--) { /* Fisher and Yates */
        const size_t j = firn_random_below(seed, STREAM_ORDER + ((uint64_t)epoch << 16), i, i);
        const int32_t other = drawn[j];
        drawn[j] = drawn[i - 1];
        drawn[i - 1] = other;
    }
    p->n_windows = assign(data, drawn, n, context, window);
    p->window = firn_alloc_zeroed(data->ctx, (size_t)p->n_windows + 2, sizeof *p->window);
    if (!p->window)
        return FIRN_ERR_MEMORY;
    /* Counting sort by window, keeping the order within: window[w + 1] becomes the end, then the start, of w. */
    for (size_t i = 0; i < n; i++)
        p->window[window[i] + 2]++;
    for (int64_t w = 0; w < p->n_windows; w++)
        p->window[w + 2] += p->window[w + 1];
    for (size_t i = 0; i < n; i++)
        p->order[p->window[window[i] + 1]++] = drawn[i];
    return FIRN_OK;
}

firn_status firn_pack(const firn_data *data, const firn_sample_list *samples, int64_t context, bool shuffle,
                      uint64_t seed, int64_t epoch, firn_packing *packing)
{
    firn_context *ctx = data->ctx;
    const size_t bytes = samples->n * sizeof(int32_t);

    *packing = (firn_packing){.ctx = ctx};
    packing->order = firn_alloc(ctx, bytes);
    int32_t *drawn = firn_alloc(ctx, bytes), *window = firn_alloc(ctx, bytes);
    firn_status s = FIRN_ERR_MEMORY;
    if (packing->order && drawn && window)
        s = pack(data, samples, context, shuffle, seed, epoch, packing, drawn, window);
    firn_free(ctx, drawn);
    firn_free(ctx, window);
    if (s != FIRN_OK)
        firn_packing_clear(packing);
    return s;
}

void firn_packing_clear(firn_packing *packing)
{
    firn_free(packing->ctx, packing->order);
    firn_free(packing->ctx, packing->window);
    packing->order = NULL;
    packing->window = NULL;
    packing->n_windows = 0;
}

/* ---- passes ---- */

firn_status firn_pass_create(firn_context *ctx, int64_t capacity, firn_pass *pass)
{
    int32_t *memory = firn_alloc_zeroed(ctx, (size_t)capacity, 5 * sizeof *memory);

    *pass = (firn_pass){.ctx = ctx, .capacity = capacity};
    if (!memory)
        return FIRN_ERR_MEMORY;
    pass->tokens = memory;
    pass->targets = memory + capacity;
    pass->position = memory + 2 * capacity;
    pass->first = memory + 3 * capacity;
    pass->sample = memory + 4 * capacity;
    return FIRN_OK;
}

void firn_pass_destroy(firn_pass *pass)
{
    if (pass->ctx)
        firn_free(pass->ctx, pass->tokens);
    *pass = (firn_pass){0};
}

void firn_pass_clear(firn_pass *pass)
{
    pass->n = pass->n_targets = 0;
}

firn_status firn_pass_add(firn_pass *pass, const firn_data *data, int32_t sample)
{
    const firn_sample *s = &data->samples[sample];
    const int64_t at = pass->n;

    FIRN_EXPECT(pass->ctx, s->n <= pass->capacity - at, "a pass of %lld tokens has no room for a sample of %d",
                (long long)pass->capacity, s->n);
    for (int32_t i = 0; i < s->n; i++) {
        const bool target = i + 1 < s->n && firn_data_trained(data, s->begin + i + 1);
        pass->tokens[at + i] = firn_data_token(data, s->begin + i);
        pass->targets[at + i] = target ? firn_data_token(data, s->begin + i + 1) : -1;
        pass->position[at + i] = i;
        pass->first[at + i] = (int32_t)at;
        pass->sample[at + i] = sample;
    }
    pass->n += s->n;
    pass->n_targets += s->n_targets;
    return FIRN_OK;
}

firn_status firn_pass_add_window(firn_pass *pass, const firn_data *data, const firn_packing *packing, int64_t w)
{
    for (int64_t i = packing->window[w]; i < packing->window[w + 1]; i++)
        FIRN_TRY(firn_pass_add(pass, data, packing->order[i]));
    return FIRN_OK;
}

firn_batch firn_pass_batch(const firn_pass *pass)
{
    return (firn_batch){.n_tokens = pass->n,
                        .tokens = pass->tokens,
                        .targets = pass->targets,
                        .position = pass->position,
                        .first = pass->first};
}
