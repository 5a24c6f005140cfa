/* What a run leaves: see leave.h. Ollama's Modelfile (docs.ollama.com/modelfile): FROM and ADAPTER name files, relative
 * ones from its own folder. A model card is Markdown behind YAML between two lines of three dashes. */
#include "train/leave.h"

#include "core/file.h"
#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static firn_status write_text(firn_run *run, const char *name, firn_text *text)
{
    char path[FIRN_PATH_BYTES];
    firn_status s = text->status;

    if (s == FIRN_OK)
        s = firn_run_path(run->ctx, run->folder, name, path);
    if (s == FIRN_OK)
        s = firn_file_write(run->ctx, path, firn_text_cstr(text), text->size);
    firn_text_free(text);
    return s;
}

static firn_status leave_modelfile(firn_run *run)
{
    const char *model = run->record.model.path;
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    if (strpbrk(model, "\r\n"))
        firn_text_puts(&t, "# the model's path has a line's end in it: name it here\n");
    else
        firn_text_printf(&t, "FROM %s\n", model);
    firn_text_printf(&t, "ADAPTER ./adapter.gguf\nPARAMETER num_ctx %lld\n",
                     (long long)firn_model_get_info(run->model)->n_ctx_train);
    return write_text(run, "Modelfile", &t);
}

static firn_status leave_template(firn_run *run)
{
    const firn_kv *kv = firn_gguf_kv(firn_model_gguf(run->model), "tokenizer.chat_template");
    firn_text t;

    if (!kv || kv->type != FIRN_KV_STRING)
        return FIRN_OK;
    firn_text_init(&t, run->ctx, 0);
    firn_text_append(&t, kv->strings[0].data, kv->strings[0].size);
    return write_text(run, "chat_template.jinja", &t);
}

static void row(firn_text *t, const char *what, const char *is)
{
    char line[FIRN_PATH_BYTES];

    snprintf(line, sizeof line, "%s", is);
    firn_tame_line(line);
    for (char *c = line; *c; c++) /* cells end at a bar */
        *c = *c == '|' || *c == '`' ? '?' : *c;
    firn_text_printf(t, "| %s | `%s` |\n", what, *line ? line : "-");
}

static void row_number(firn_text *t, const char *what, double is)
{
    if (!isnan(is))
        firn_text_printf(t, "| %s | %.6g |\n", what, is);
}

static firn_status leave_page(firn_run *run)
{
    const firn_run_record *r = &run->record;
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "---\nlibrary_name: gguf\npipeline_tag: text-generation\ntags:\n- lora\n- gguf\n- firn\n---\n\n"
                       "# A LoRA adapter\n\n| | |\n|---|---|\n");
    row(&t, "base model", firn_model_get_info(run->model)->name);
    row(&t, "architecture", r->arch);
    row(&t, "its fingerprint", run->adapter->origin.base_fingerprint);
    row(&t, "SHA-256 of the data", r->data.sha256);
    row(&t, "made by firn", firn_version());
    row_number(&t, "trained values", (double)r->n_values);
    row_number(&t, "steps", (double)run->at.step);
    row_number(&t, "rank", (double)r->options.rank);
    row_number(&t, "alpha", (double)run->adapter->alpha);
    row_number(&t, "learning rate", r->options.learning_rate);
    row_number(&t, "tokens of a window", (double)r->options.context);
    row_number(&t, "evaluation loss before", run->at.eval_loss_before);
    row_number(&t, "evaluation loss", run->at.eval_loss);
    firn_text_puts(&t, "\nThe base model is any GGUF of that model, in whatever weight format.\n\n"
                       "```sh\nllama-server -m MODEL.gguf --lora adapter.gguf\n"
                       "firn generate MODEL.gguf --adapter adapter.gguf --chat\n"
                       "ollama create NAME -f Modelfile\n"
                       "firn export MODEL.gguf adapter.gguf peft     # for transformers and PEFT\n"
                       "firn merge MODEL.gguf adapter.gguf MERGED.gguf\n```\n");
    return write_text(run, "README.md", &t);
}

firn_status firn_run_leave(firn_run *run)
{
    FIRN_TRY(leave_modelfile(run));
    FIRN_TRY(leave_template(run));
    return leave_page(run);
}
