/* What files hold beside the language model: blocks that predict further tokens, and towers that read images or sound.
 * They are accepted and not run; a file of such a tower alone is refused, saying what it is. */
#include "unit/rewriting.h"

static void put_kinds(rewriting *r, const char *key, int n, uint32_t last)
{
    const firn_kv *kv = firn_gguf_kv(r->gguf, key);
    uint32_t values[16] = {0};

    if (!kv || kv->type != FIRN_KV_ARRAY)
        return;
    memcpy(values, kv->data, (size_t)n * sizeof *values);
    values[n] = last;
    OK(r->ctx, firn_gguf_put_array(r->out, key, FIRN_KV_U32, values, (uint64_t)n + 1));
}

/* One block more in the file, with the tensors that converters give it: the same logits. */
static void prediction_blocks_do_not_run(void **state)
{
    static const struct {
        const char *shape, *arch;
        int blocks;
    } list[] = {
        {"tiny-qwen35moe", "qwen35moe", 4},          {"tiny-qwen35", "qwen35", 4},   {"tiny-qwen3next", "qwen3next", 4},
        {"tiny-exaone-moe", "exaone-moe", 4},        {"tiny-glm-dsa", "glm-dsa", 3}, {"tiny-hy-v3", "hy_v3", 3},
        {"tiny-nemotron-h-moe", "nemotron_h_moe", 4}};
    static const char *const extra[] = {
        "nextn.eh_proj.weight", "nextn.enorm.weight",  "nextn.hnorm.weight", "attn_norm.weight",
        "attn_q.weight",        "ffn_gate_inp.weight", "ffn_up_exps.weight", "nextn.embed_tokens.weight"};
    static const float zeros[7];

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const char *plain = draw(list[i].shape);
        char key[96];
        rewriting r;
        rewrite_begin(&r, plain);
        snprintf(key, sizeof key, "%s.block_count", list[i].arch);
        OK(r.ctx, firn_gguf_put_u32(r.out, key, (uint32_t)list[i].blocks + 1));
        snprintf(key, sizeof key, "%s.nextn_predict_layers", list[i].arch);
        OK(r.ctx, firn_gguf_put_u32(r.out, key, 1));
        snprintf(key, sizeof key, "%s.attention.head_count_kv", list[i].arch);
        put_kinds(&r, key, list[i].blocks, 2);
        snprintf(key, sizeof key, "%s.feed_forward_length", list[i].arch);
        put_kinds(&r, key, list[i].blocks, 64);
        for (size_t k = 0; k < sizeof extra / sizeof *extra; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", list[i].blocks, extra[k]);
            add_vector(&r, name, 7, zeros);
        }
        same_logits(plain, rewrite_end(&r, "predicting.gguf"));
    }
}

static const char *with_tensors(const char *shape, const char *const *names, int n)
{
    static const float values[5] = {1, 2, 3, 4, 5};
    rewriting r;

    rewrite_begin(&r, draw(shape));
    for (int i = 0; i < n; i++)
        add_vector(&r, names[i], 5, values);
    return rewrite_end(&r, "towers.gguf");
}

static void towers_in_the_file_do_not_run(void **state)
{
    static const char *const towers[] = {"v.blk.0.attn_q.weight", "v.patch_embd.weight", "a.blk.3.ffn_up.weight",
                                         "mm.0.weight", "mm.a.fc.weight"};
    static const char *const shapes[] = {"tiny-qwen3vlmoe", "tiny-gemma4-e", "tiny-qwen35moe", "tiny-llama"};
    firn_context *ctx = firn_context_create(NULL);

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        firn_model *m;
        const char *path = with_tensors(shapes[i], towers, 5);
        OK(ctx, firn_model_open(ctx, path, &m));
        assert_non_null(firn_model_warning(m, 0));
        assert_non_null(strstr(firn_model_warning(m, 0), "images or sound"));
        assert_null(firn_model_warning(m, 1));
        firn_model_close(m);
        same_logits(draw(shapes[i]), path);
    }
    model_refused(with_tensors("tiny-llama", (const char *const[]){"va.blk.0.attn_q.weight"}, 1),
                  "va.blk.0.attn_q.weight has no place");
    firn_context_destroy(ctx);
}

static void a_tower_alone_is_refused(void **state)
{
    rewriting r;

    (void)state;
    rewrite_begin(&r, draw("tiny-qwen3"));
    OK(r.ctx, firn_gguf_put_string(r.out, "general.type", "mmproj", 6));
    model_refused(rewrite_end(&r, "mmproj.gguf"), "the part of a model that reads images or sound");
    rewrite_begin(&r, draw("tiny-qwen3"));
    OK(r.ctx, firn_gguf_put_string(r.out, "general.architecture", "clip", 4)); /* older ones do not say the type */
    model_refused(rewrite_end(&r, "clip.gguf"), "the part of a model that reads images or sound");
    rewrite_begin(&r, draw("tiny-qwen3"));
    OK(r.ctx, firn_gguf_put_string(r.out, "general.type", "imatrix", 7));
    model_refused(rewrite_end(&r, "imatrix.gguf"), "this GGUF file holds no model: general.type is 'imatrix'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prediction_blocks_do_not_run),
        cmocka_unit_test(towers_in_the_file_do_not_run),
        cmocka_unit_test(a_tower_alone_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
