/* Options: see options.h. */
#include "train/options.h"

#include "core/nearest.h"
#include "core/sized.h"
#include "train/cadence.h"
#include "train/named.h"
#include "train/optimizer.h"
#include "train/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(firn_train_options, name)
#define NO_RANGE    0, 0

#define OPTIMIZER(id, name) name
static const char optimizers[] =
#include "train/optimizers.def"
    ;
#undef OPTIMIZER

#define SCHEDULE(id, name) name
static const char schedules[] =
#include "train/schedules.def"
    ;
#undef SCHEDULE

const firn_train_option firn_train_option_table[] = {
    {"model", 's', false, FIELD(model), "M.gguf", NO_RANGE,
     "the model, quantized or not; read where it lies, never changed"},
    {"data", 'l', false, FIELD(data), "FILE[:WEIGHT]", NO_RANGE,
     "the data: a file, a folder, or - (standard input), packed with gzip or zstd or not; may be given several times, "
     "each with a weight behind a colon (2: twice an epoch; 0.5: half of it)"},
    {"output", 's', false, FIELD(output), "DIR", NO_RANGE, "the folder of the run"},
    {"reasoning", 's', false, FIELD(reasoning), "train|mask|drop", NO_RANGE,
     "what the assistant thinks: train it, mask it (seen, not trained) or drop it (default train)"},
    {"loss", 's', false, FIELD(loss), "assistant|all|last", NO_RANGE,
     "what is trained of messages: assistant, all or last, the last answer (default assistant)"},
    {"eval_data", 's', false, FIELD(eval_data), "FILE", NO_RANGE,
     "evaluate on this file or folder (then nothing is held back)"},
    {"format", 's', false, FIELD(format), "NAME", NO_RANGE,
     "what the data is: auto, chat, sharegpt, alpaca, completion, text, tokens, csv or preference (default auto: found "
     "by looking)"},
    {"field", 'l', false, FIELD(field), "NAME=THEIRS", NO_RANGE,
     "the data calls NAME THEIRS, as in messages=dialog; may be given several times"},
    {"skip_bad", 'i', false, FIELD(skip_bad), "N", 0, 1e15,
     "pass over at most N bad lines, and list them (default 0: the first one stops the run)"},
    {"cache", 's', true, FIELD(cache), "DIR", NO_RANGE,
     "folder of the cache of tokens, or none (default ~/.cache/firn, for data of 1 MiB or more)"},
    {"eval_split", 'f', false, FIELD(eval_split), "X", 0, 0.9,
     "part of the samples held back for evaluation (default 0.05; 0: none)"},
    {"steps", 'i', true, FIELD(steps), "N", 0, 1e9, "optimizer steps (0 or none: by --epochs)"},
    {"epochs", 'f', true, FIELD(epochs), "X", 0.001, 1e6,
     "times through the data when there is no --steps (default 3)"},
    {"context", 'i', false, FIELD(context), "N", 2, 1 << 24,
     "tokens of a window (default 512, or the model's if less)"},
    {"batch", 'i', false, FIELD(batch), "N", 1, 65536, "windows of a forward pass (default 1)"},
    {"accumulate", 'i', false, FIELD(accumulate), "N", 1, 65536, "passes of a step (default 1)"},
    {"learning_rate", 'f', false, FIELD(learning_rate), "X", 0, 10, "the highest learning rate (default 2e-4)"},
    {"learning_rate_of", 'l', false, FIELD(learning_rate_of), "WHAT=X", NO_RANGE,
     "the highest learning rate of a class of targets or of tensors by name, as in router=1e-5; may be given several "
     "times, the last that matches counts"},
    {"loraplus", 'f', false, FIELD(loraplus), "X", 0.001, 1000,
     "the rate of each B is X times that of its A (LoRA+; default 1)"},
    {"optimizer", 's', false, FIELD(optimizer), optimizers + 1, NO_RANGE,
     "how values follow gradients (default adamw)"},
    {"schedule", 's', false, FIELD(schedule), schedules + 1, NO_RANGE,
     "how the learning rate falls after the warm-up: wsd stays, and falls in the last fifth (default cosine)"},
    {"warmup", 'i', false, FIELD(warmup), "N", 0, 1e9,
     "steps of linear warm-up (default a twentieth of the run, 100 at most)"},
    {"weight_decay", 'f', false, FIELD(weight_decay), "X", 0, 10, "decoupled weight decay (default 0)"},
    {"clip", 'f', false, FIELD(clip), "X", 0, 1e9, "largest norm of a step's gradient (default 1; 0: any)"},
    {"router_aux_loss", 'f', false, FIELD(router_aux_loss), "COEF", 0, 1e6,
     "COEF times each expert block's load balancing loss (1 when even) joins the loss (default 0)"},
    {"router_z_loss", 'f', false, FIELD(router_z_loss), "COEF", 0, 1e6,
     "COEF times each expert block's router z-loss joins the loss (default 0)"},
    {"neftune", 'f', false, FIELD(neftune), "ALPHA", 0, 1000,
     "noise on the embeddings of training passes, ALPHA / sqrt(tokens x width) in size (NEFTune; default 0: none)"},
    {"rank", 'i', false, FIELD(rank), "N", 1, 4096, "rank of the adapter (default 16)"},
    {"expert_rank", 'i', false, FIELD(expert_rank), "N", 1, 4096,
     "rank of the adapter on each expert (default rank / experts used, 4 at least)"},
    {"rank_of", 'l', false, FIELD(rank_of), "WHAT=N", NO_RANGE,
     "rank of a class of targets or of tensors by name, as in shared=8 or 'blk.*.attn_q.weight=32'; may be given "
     "several times, the last that matches counts"},
    {"alpha", 'f', false, FIELD(alpha), "X", 1e-6, 1e6,
     "LoRA updates are scaled by alpha/rank, whatever a tensor's own rank (default alpha: 2 x rank)"},
    {"rslora", 'b', false, FIELD(rslora), NULL, NO_RANGE,
     "scale by alpha / the square root of each tensor's own rank (default alpha: 2 x the square root of rank)"},
    {"targets", 's', false, FIELD(targets), "LIST", NO_RANGE,
     "what is trained: attention, experts, shared, dense, router, output, all, or patterns over tensor names, with "
     "commas between (default attention,experts; attention,dense without experts)"},
    {"unserved", 'b', false, FIELD(unserved), NULL, NO_RANGE,
     "also train tensors whose adapters llama.cpp ignores (deepseek2: attention's inputs, output)"},
    {"adapter", 's', false, FIELD(adapter), "A.gguf", NO_RANGE,
     "go on from this adapter; its rank, alpha, tensors count"},
    {"force", 'b', false, FIELD(force), NULL, NO_RANGE, "... also where it was made for another model"},
    {"seed", 'i', false, FIELD(seed), "N", 0, 9e15, "seed of split, order and start (default 1)"},
    {"save_every", 'd', true, FIELD(save_every), "N|10m", NO_RANGE,
     "steps between checkpoints, or time as in 90s, 10m, 2h (default a tenth of the run, 50 at most; 0: only the "
     "last)"},
    {"eval_every", 'd', true, FIELD(eval_every), "N|10m", NO_RANGE,
     "steps between evaluations, or time; by time they do not choose the best (default a tenth of the run; 0: only "
     "first and last)"},
    {"patience", 'i', true, FIELD(patience), "N", 0, 1e9,
     "end after N evaluations in a row that were no better than the best (default 0: at the last step)"},
    {"final", 's', true, FIELD(final), "best|last", NO_RANGE,
     "which adapter the run leaves: the best by evaluation, or the last step's (default best)"},
    {"on_divergence", 's', true, FIELD(on_divergence), "stop|rewind", NO_RANGE,
     "what a loss that is not finite or runs away does: stop, or rewind, back to a checkpoint from before, past the "
     "data "
     "since and at half the learning rate (default stop)"},
    {"keep", 'i', false, FIELD(keep), "N", 1, 1e6, "newest checkpoints that are kept (default 2)"},
    {"memory_limit", 's', true, FIELD(memory_limit), "6G", NO_RANGE,
     "most anonymous memory (K, M, G: powers of 1024; default: what the machine has free)"},
    {"weights", 's', true, FIELD(weights), "PLACE", NO_RANGE,
     "mapped, resident or streamed[:BYTES]: weights read in the file, copied to the device, or brought block by block "
     "into a ring of BYTES (default mapped, or what the device has room for)"},
    {"device", 's', false, FIELD(device), "NAME", NO_RANGE,
     "device that computes (default CPU; firn info --devices lists them)"},
    {"precision", 's', false, FIELD(precision), "f32|bf16", NO_RANGE,
     "bf16: weights and activations of products rounded to bf16, sums in F32 (default f32)"},
};
const int firn_n_train_options = (int)(sizeof firn_train_option_table / sizeof *firn_train_option_table);

static void *field(const firn_train_options *options, const firn_train_option *o)
{
    return (char *)(uintptr_t)options + o->offset;
}

/* What the first form of the struct ended with: new fields come behind it. */
#define FIRST_BYTES FIRN_THROUGH(firn_train_options, keep)

firn_status firn_train_options_take(firn_context *ctx, const firn_train_options *given, firn_train_options *options)
{
    firn_train_options whole;

    firn_train_options_init(&whole);
    FIRN_TRY(firn_sized_take(ctx, "firn_train_options", FIRST_BYTES, given, options, sizeof *options));
    /* Fields that the caller's form does not have are unset, which is not zero. */
    const size_t size = given->size ? given->size : FIRST_BYTES;
    if (size < sizeof whole)
        memcpy((char *)options + size, (char *)&whole + size, sizeof whole - size);
    return FIRN_OK;
}

void firn_train_options_init_sized(firn_train_options *given, size_t size)
{
    firn_train_options whole, *options = &whole;

    if (!given || size < sizeof given->size)
        return;
    memset(options, 0, sizeof *options);
    options->size = size;
    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        if (o->kind == 's')
            *(const char **)field(options, o) = NULL;
        else if (o->kind == 'i' || o->kind == 'd')
            *(int64_t *)field(options, o) = FIRN_UNSET;
        else if (o->kind == 'f')
            *(double *)field(options, o) = NAN;
    }
    memset(given, 0, size);
    memcpy(given, options, size < sizeof whole ? size : sizeof whole);
}

void firn_train_option_copy(firn_train_options *to, const firn_train_options *from, const firn_train_option *o)
{
    const size_t size = o->kind == 's'   ? sizeof(const char *)
                        : o->kind == 'i' ? sizeof(int64_t)
                        : o->kind == 'd' ? sizeof(int64_t)
                        : o->kind == 'f' ? sizeof(double)
                        : o->kind == 'l' ? sizeof(firn_strings)
                                         : sizeof(bool);

    memcpy(field(to, o), field(from, o), size);
}

bool firn_train_option_is_set(const firn_train_options *options, const firn_train_option *o)
{
    if (o->kind == 's')
        return *(const char **)field(options, o) != NULL;
    if (o->kind == 'i' || o->kind == 'd')
        return *(int64_t *)field(options, o) != FIRN_UNSET;
    if (o->kind == 'b')
        return *(bool *)field(options, o);
    if (o->kind == 'l')
        return ((firn_strings *)field(options, o))->n > 0;
    return !isnan(*(double *)field(options, o));
}

firn_status firn_train_options_check(firn_context *ctx, const firn_train_options *options)
{
    const firn_schedule_rule *rule;
    firn_optimizer_kind optimizer;
    firn_precision precision;
    firn_weights_place place;
    uint64_t bytes;

    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        if (o->kind == 's' || o->kind == 'b' || o->kind == 'l' || o->kind == 'd' ||
            !firn_train_option_is_set(options, o))
            continue;
        const double v = o->kind == 'i' ? (double)*(int64_t *)field(options, o) : *(double *)field(options, o);
        FIRN_EXPECT(ctx, v >= o->min && v <= o->max, "%s is a number from %g to %g, not %g", o->name, o->min, o->max,
                    v);
    }
    FIRN_EXPECT(ctx, !options->final || firn_name_index(options->final, "best|last") >= 0,
                "final is best or last, not '%.40s'", options->final);
    FIRN_EXPECT(ctx, !options->on_divergence || firn_name_index(options->on_divergence, "stop|rewind") >= 0,
                "on_divergence is stop or rewind, not '%.40s'", options->on_divergence);
    if (options->optimizer)
        FIRN_TRY(firn_optimizer_kind_from_name(ctx, options->optimizer, &optimizer));
    if (options->schedule)
        FIRN_TRY(firn_schedule_from_name(ctx, options->schedule, &rule));
    FIRN_EXPECT(ctx, !options->precision || firn_precision_from_name(options->precision, &precision),
                "precision is f32 or bf16, not '%.40s'", options->precision);
    firn_data_spec spec;
    FIRN_TRY(firn_train_data_spec(ctx, options, options->data, &spec));
    if (options->weights)
        FIRN_TRY(firn_parse_weights(ctx, options->weights, &place, &bytes));
    return options->memory_limit ? firn_parse_bytes(ctx, options->memory_limit, &bytes) : FIRN_OK;
}

firn_status firn_train_data_spec(firn_context *ctx, const firn_train_options *o, firn_strings sources,
                                 firn_data_spec *spec)
{
    *spec = (firn_data_spec){.sources = sources.items,
                             .n_sources = sources.n,
                             .fields = o->field.items,
                             .n_fields = o->field.n,
                             .skip_bad = o->skip_bad == FIRN_UNSET ? 0 : o->skip_bad,
                             .cache = o->cache};
    if (o->format)
        FIRN_TRY(firn_data_format_from_name(ctx, o->format, &spec->format));
    return firn_canon_check(ctx, &(firn_canon_options){.fields = spec->fields, .n_fields = spec->n_fields});
}

static void put_list(firn_text *text, const firn_strings *list)
{
    for (int i = 0; i < list->n; i++)
        firn_text_printf(text, "%s%s", i ? ", " : "", list->items[i]);
}

void firn_train_options_settings(firn_context *ctx, const firn_train_options *options, firn_text *text)
{
    static const char *const left_out[] = {"model", "data", "output", "eval_data", "adapter", "device", "keep"};

    firn_text_init(text, ctx, 0);
    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        bool out = o->resumable;
        for (size_t k = 0; k < sizeof left_out / sizeof *left_out; k++)
            out |= strcmp(o->name, left_out[k]) == 0;
        if (out)
            continue;
        firn_text_printf(text, "%s: ", o->name);
        if (!firn_train_option_is_set(options, o))
            firn_text_puts(text, o->kind == 'b' ? "no" : "not given");
        else if (o->kind == 's')
            firn_text_puts(text, *(const char **)field(options, o));
        else if (o->kind == 'l')
            put_list(text, field(options, o));
        else if (o->kind == 'i')
            firn_text_printf(text, "%lld", (long long)*(int64_t *)field(options, o));
        else if (o->kind == 'b')
            firn_text_puts(text, "yes");
        else
            firn_text_printf(text, "%.17g", *(double *)field(options, o));
        firn_text_puts(text, "\n");
    }
}

static void default_int(int64_t *value, int64_t otherwise)
{
    *value = *value == FIRN_UNSET ? otherwise : *value;
}

static void default_real(double *value, double otherwise)
{
    *value = isnan(*value) ? otherwise : *value;
}

void firn_train_options_defaults(firn_train_options *o)
{
    default_real(&o->eval_split, 0.05);
    default_int(&o->steps, 0);
    default_real(&o->epochs, 3);
    default_int(&o->batch, 1);
    default_int(&o->accumulate, 1);
    default_real(&o->learning_rate, 2e-4);
    default_real(&o->weight_decay, 0);
    default_real(&o->clip, 1);
    default_real(&o->router_aux_loss, 0);
    default_real(&o->router_z_loss, 0);
    default_int(&o->rank, 16);
    default_real(&o->alpha, 2 * (o->rslora ? sqrt((double)o->rank) : (double)o->rank));
    default_int(&o->seed, 1);
    default_int(&o->keep, 2);
    o->reasoning = o->reasoning ? o->reasoning : "train";
    o->loss = o->loss ? o->loss : "assistant";
    default_int(&o->skip_bad, 0);
    o->format = o->format ? o->format : firn_data_format_name(FIRN_FORMAT_AUTO);
    o->optimizer = o->optimizer ? o->optimizer : "adamw";
    o->schedule = o->schedule ? o->schedule : "cosine";
    o->final = o->final ? o->final : "best";
    o->on_divergence = o->on_divergence ? o->on_divergence : "stop";
    default_int(&o->patience, 0);
    o->device = o->device ? o->device : "CPU";
    o->precision = o->precision ? o->precision : firn_precision_name(FIRN_PRECISION_F32);
}

firn_status firn_train_device_open(firn_context *ctx, const firn_train_options *o, firn_device **device)
{
    firn_precision precision;

    if (o->precision && firn_precision_from_name(o->precision, &precision))
        firn_context_set_precision(ctx, precision);
    if (o->weights)
        FIRN_TRY(firn_context_set_weights_text(ctx, o->weights));
    return firn_device_open(ctx, o->device, device);
}

firn_adapter_spec firn_train_adapter_spec(const firn_train_options *o)
{
    return (firn_adapter_spec){.targets = o->targets,
                               .unserved = o->unserved,
                               .rslora = o->rslora,
                               .rank = o->rank,
                               .expert_rank = o->expert_rank == FIRN_UNSET ? 0 : o->expert_rank,
                               .rank_of = o->rank_of.items,
                               .n_rank_of = o->rank_of.n,
                               .alpha = (float)o->alpha};
}

bool firn_train_shapes_adapter(const char *name)
{
    static const char *const names[] = {"rank", "expert_rank", "rank_of", "alpha", "rslora", "targets"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

bool firn_router_losses_wanted(const firn_train_options *o)
{
    return o->router_aux_loss > 0 || o->router_z_loss > 0;
}

/* ---- run.json ---- */

static firn_status list_from_json(firn_arena *arena, const json_t *json, firn_strings *list)
{
    const size_t n = json_is_array(json) ? json_array_size(json) : 1;
    const char **items = firn_arena_alloc(arena, n * sizeof *items);

    if (!items)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(json) ? json_array_get(json, i) : json;
        if (!json_is_string(text))
            return FIRN_ERR_FORMAT;
        items[i] = firn_arena_text(arena, json_string_value(text), json_string_length(text));
        if (!items[i])
            return FIRN_ERR_MEMORY;
    }
    *list = (firn_strings){items, (int)n};
    return FIRN_OK;
}

static json_t *list_json(const firn_strings *list)
{
    json_t *json = json_array();

    for (int i = 0; json && i < list->n; i++) {
        if (json_array_append_new(json, json_string(list->items[i])) == 0)
            continue;
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *to_json(const firn_train_options *options, const firn_train_option *o)
{
    if (o->kind == 'b')
        return json_boolean(*(bool *)field(options, o));
    if (!firn_train_option_is_set(options, o))
        return json_null();
    if (o->kind == 's')
        return json_string(*(const char **)field(options, o));
    if (o->kind == 'l')
        return list_json(field(options, o));
    if (o->kind == 'd' && *(int64_t *)field(options, o) < 0) {
        char text[FIRN_CADENCE_BYTES];
        firn_cadence_write(*(int64_t *)field(options, o), text);
        return json_string(text);
    }
    return o->kind == 'i' || o->kind == 'd' ? json_integer(*(int64_t *)field(options, o))
                                            : json_real(*(double *)field(options, o));
}

json_t *firn_train_options_to_json(firn_context *ctx, const firn_train_options *options)
{
    json_t *json = json_object();

    for (int i = 0; json && i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        if (json_object_set_new(json, o->name, to_json(options, o)) == 0)
            continue;
        json_decref(json);
        json = NULL;
    }
    if (!json)
        firn_fail(ctx, FIRN_ERR_MEMORY,
                  "the options cannot be written as JSON: a text in them is not UTF-8, or memory is "
                  "short");
    return json;
}

static const firn_train_option *find(const char *name)
{
    for (int i = 0; i < firn_n_train_options; i++) {
        const char *ours = firn_train_option_table[i].name, *theirs = name;
        while (*ours && (*ours == *theirs || (*ours == '_' && *theirs == '-'))) {
            ours++;
            theirs++;
        }
        if (*ours == 0 && *theirs == 0)
            return &firn_train_option_table[i];
    }
    return NULL;
}

static firn_status no_option(firn_context *ctx, const char *where, const char *key)
{
    const char *names[sizeof firn_train_option_table / sizeof *firn_train_option_table];

    for (int i = 0; i < firn_n_train_options; i++)
        names[i] = firn_train_option_table[i].name;
    const char *near = firn_nearest(key, names, (size_t)firn_n_train_options);
    return firn_fail(ctx, FIRN_ERR_FORMAT, "%s: there is no option \"%.40s\"%s%s%s", where, key,
                     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

firn_status firn_train_options_from_json(firn_arena *arena, const char *where, const json_t *json,
                                         firn_train_options *options)
{
    firn_context *ctx = arena->ctx;
    const char *key;
    json_t *value;

    firn_train_options_init(options);
    if (!json_is_object(json))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s: expected the options of the run under \"options\"", where);
    json_object_foreach((json_t *)json, key, value)
    {
        const firn_train_option *o = find(key);
        if (!o)
            return no_option(ctx, where, key);
        if (json_is_null(value))
            continue;
        if (o->kind == 's' && json_is_string(value)) {
            char *copy = firn_arena_text(arena, json_string_value(value), json_string_length(value));
            if (!copy)
                return FIRN_ERR_MEMORY;
            *(const char **)field(options, o) = copy;
        } else if (o->kind == 'l') {
            const firn_status s = list_from_json(arena, value, field(options, o));
            if (s != FIRN_OK)
                return s == FIRN_ERR_MEMORY
                           ? s
                           : firn_fail(ctx, s, "%s: expected \"%s\" to be a list of texts", where, key);
        } else if (o->kind == 'd' && json_is_string(value) &&
                   firn_cadence_read(json_string_value(value), field(options, o))) {
            continue;
        } else if ((o->kind == 'i' || (o->kind == 'd' && json_integer_value(value) >= 0)) && json_is_integer(value)) {
            *(int64_t *)field(options, o) = json_integer_value(value);
        } else if (o->kind == 'f' && json_is_number(value)) {
            *(double *)field(options, o) = json_number_value(value);
        } else if (o->kind == 'b' && json_is_boolean(value)) {
            *(bool *)field(options, o) = json_is_true(value);
        } else {
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s: expected \"%s\" to be a %s", where, key,
                             o->kind == 's'   ? "text"
                             : o->kind == 'i' ? "whole number"
                             : o->kind == 'd' ? "number of steps or a time such as \"10m\""
                             : o->kind == 'f' ? "number"
                                              : "truth value");
        }
    }
    if (firn_train_options_check(ctx, options) != FIRN_OK)
        return firn_fail_in(ctx, FIRN_ERR_FORMAT, "%s", where);
    return FIRN_OK;
}
