/* A training loop of one's own: a model and a line of data in, an adapter out, that llama.cpp loads. Build it against
 * the installed library:
 *
 *     cc train.c $(pkg-config --cflags --libs firn) -o train && ./train model.gguf adapter.gguf '{"text": "..."}' */
#include <firn/text.h>
#include <firn/train.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static firn_context *ctx;

static void need(firn_status status)
{
    if (status == FIRN_OK)
        return;
    fprintf(stderr, "train: %s\n", firn_error(ctx));
    exit(1);
}

int main(int argc, char **argv)
{
    firn_device *device;
    firn_model *model;
    firn_language *language;
    firn_adapter *adapter;
    firn_session *session;
    firn_optimizer *optimizer;
    firn_sequences sample;

    if (argc != 4)
        return fprintf(stderr, "usage: train MODEL ADAPTER LINE\n"), 2;
    if (!(ctx = firn_context_create(NULL)))
        return 1;
    need(firn_device_open(ctx, getenv("DEVICE") ? getenv("DEVICE") : "CPU", &device));
    need(firn_model_open(ctx, argv[1], &model));
    need(firn_language_create(ctx, firn_model_gguf(model), NULL, &language));
    need(firn_language_sequences(language, argv[3], strlen(argv[3]), 512, &sample));
    if (sample.n == 0)
        return fprintf(stderr, "train: the line has nothing to train\n"), 1;
    need(firn_adapter_create(ctx, model, NULL, 8, 16, 1, &adapter));

    /* One sample as a batch: at each token the next one is the target, where it is trained. */
    const int64_t n = sample.items[0].n;
    int32_t *of = calloc(3 * (size_t)n, sizeof *of), *targets = of, *position = of + n, *first = of + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        position[i] = (int32_t)i; /* first stays 0: one document */
        targets[i] = i + 1 < n && sample.items[0].trained[i + 1] ? sample.items[0].tokens[i + 1] : -1;
    }
    const firn_batch batch = {.size = sizeof batch,
                              .n_tokens = n,
                              .tokens = sample.items[0].tokens,
                              .targets = targets,
                              .position = position,
                              .first = first};

    need(firn_session_create(ctx, device, model, adapter,
                             &(firn_session_params){.size = sizeof(firn_session_params), .n_tokens = n, .train = true},
                             &session));
    need(firn_optimizer_create(session, NULL, &optimizer)); /* AdamW */
    for (int step = 0; step < 10; step++) {
        double loss, norm;
        int64_t n_targets;
        firn_session_zero_gradients(session);
        need(firn_session_gradient(session, &batch, 1.0f / (float)sample.items[0].n_trained, &loss, &n_targets));
        need(firn_optimizer_step(optimizer, 1e-3f, &norm));
        printf("%d  loss %.4f  gradient %.4f\n", step + 1, loss / (double)n_targets, norm);
    }
    need(firn_session_pull(session)); /* the values come back from the device */
    need(firn_adapter_save(ctx, adapter, NULL, argv[2]));

    free(of);
    firn_sequences_free(ctx, &sample);
    firn_optimizer_destroy(optimizer);
    firn_session_destroy(session);
    firn_adapter_destroy(adapter);
    firn_language_destroy(language);
    firn_model_close(model);
    firn_device_close(device);
    firn_context_destroy(ctx);
    return 0;
}
