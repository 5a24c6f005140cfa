/* firn logits: what a model says after each token, as raw numbers for other programs to compare. */
#include "model.h"

#include "core/file.h"

#include <stdlib.h>

/* Sequence by sequence; each sees itself alone. */
static firn_status write_logits(cmd_model *m, const cmd_sequences *seq, const char *path)
{
    const int64_t v = firn_model_get_info(m->model)->n_vocab;
    const firn_session_params params = {.n_tokens = seq->longest};
    firn_session *session;
    firn_out *out;

    FIRN_TRY(firn_session_create(m->ctx, m->device, m->model, m->adapter, &params, &session));
    int32_t *position = firn_alloc_zeroed(m->ctx, 2 * (size_t)seq->longest, sizeof *position);
    float *logits = firn_alloc(m->ctx, (size_t)(seq->longest * v) * sizeof *logits);
    firn_status s = position && logits ? firn_out_open(m->ctx, path, &out) : FIRN_ERR_MEMORY;
    if (s == FIRN_OK) {
        const int32_t *tokens = seq->tokens;
        for (int64_t i = 0; i < seq->longest; i++)
            position[i] = (int32_t)i; /* and behind them zeros: every token's document begins at 0 */
        for (int i = 0; s == FIRN_OK && i < seq->n; i++) {
            const firn_batch batch = {
                .n_tokens = seq->length[i], .tokens = tokens, .position = position, .first = position + seq->longest};
            s = firn_session_logits(session, &batch, logits);
            if (s == FIRN_OK)
                s = firn_out_write(out, logits, (size_t)(seq->length[i] * v) * sizeof *logits);
            tokens += seq->length[i];
        }
        if (s == FIRN_OK)
            s = firn_out_commit(out);
        else
            firn_out_abort(out);
    }
    firn_free(m->ctx, position);
    firn_free(m->ctx, logits);
    firn_session_destroy(session);
    return s;
}

int cmd_logits(int argc, char **argv)
{
    const char *tokens = NULL, *output = NULL, *adapter = NULL;
    cmd_compute compute = {0};
    const cmd_option options[] = {
        {"--tokens", 's', &tokens, "T.json", "token ids: a list, a list of lists, or an object with such under tokens",
         0, 0},
        {"--output,-o", 's', &output, "OUT.f32", "where the logits go", 0, 0},
        {"--adapter", 's', &adapter, "A.gguf", "adapter to apply", 0, 0},
        {"--force", 'b', &compute.force, NULL, "also where the adapter was made for another model", 0, 0},
        CMD_COMPUTE_OPTIONS(compute),
        {0},
    };
    const cmd_spec spec = {
        "firn logits MODEL --tokens T.json --output OUT.f32 [options]",
        "Writes the logits after each token: [n_seq][n_tok][n_vocab] float32, little-endian; sequences of unequal "
        "length follow each other.",
        options, 1, 1};
    int n, status;
    cmd_model m;
    cmd_sequences sequences;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!tokens || !output)
        return cmd_usage("logits", "%s is missing", tokens ? "--output" : "--tokens");
    if (!cmd_sequences_read(tokens, &sequences))
        return 1;
    status = 1;
    if (cmd_model_open(&m, &compute, argv[1], adapter)) {
        status = write_logits(&m, &sequences, output) == FIRN_OK ? 0 : cmd_fail_ctx(m.ctx);
        cmd_model_close(&m);
    }
    cmd_sequences_free(&sequences);
    return status;
}
