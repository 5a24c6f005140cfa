/* GGUF: what is written is read back; every malformation has its sentence; allocations and disks that fail. */
#include "unit/unit.h"

#include "core/context.h"
#include "firn/gguf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];

    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/firn-gguf-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlink(path_of(e->d_name));
    closedir(dir);
    return rmdir(folder);
}

static const float norm[3] = {1, 2, 3};

/* One of everything. */
static firn_status write_sample(firn_context *ctx, const char *path)
{
    static const firn_string words[] = {{"a", 1}, {"", 0}, {"b\0c", 3}};
    static const int16_t numbers[] = {-1, 2, 300};
    uint8_t packed[2 * 18 * 3];
    firn_gguf_writer *w;
    firn_status s;

    for (size_t i = 0; i < sizeof packed; i++)
        packed[i] = (uint8_t)i;
    FIRN_TRY(firn_gguf_writer_create(ctx, &w));
    if ((s = firn_gguf_put_string(w, "general.architecture", "llama", 5)) == FIRN_OK &&
        (s = firn_gguf_put_u32(w, "n", 1)) == FIRN_OK && (s = firn_gguf_put_u32(w, "gone", 1)) == FIRN_OK &&
        (s = firn_gguf_put_f32(w, "f", 0.5f)) == FIRN_OK && (s = firn_gguf_put_bool(w, "b", true)) == FIRN_OK &&
        (s = firn_gguf_put_array(w, "numbers", FIRN_KV_I16, numbers, 3)) == FIRN_OK &&
        (s = firn_gguf_put_array(w, "none", FIRN_KV_F32, NULL, 0)) == FIRN_OK &&
        (s = firn_gguf_put_strings(w, "words", words, 3)) == FIRN_OK && (s = firn_gguf_put_u32(w, "n", 7)) == FIRN_OK &&
        (s = firn_gguf_add_tensor(w, "norm", FIRN_F32, 1, (int64_t[]){3})) == FIRN_OK &&
        (s = firn_gguf_add_tensor(w, "packed", FIRN_Q4_0, 3, (int64_t[]){64, 1, 3})) == FIRN_OK) {
        firn_gguf_remove(w, "gone");
        firn_gguf_remove(w, "never there");
        if ((s = firn_gguf_writer_begin(w, path)) == FIRN_OK &&
            (s = firn_gguf_writer_data(w, norm, sizeof norm)) == FIRN_OK &&
            (s = firn_gguf_writer_data(w, packed, 5)) == FIRN_OK &&
            (s = firn_gguf_writer_data(w, packed + 5, sizeof packed - 5)) == FIRN_OK)
            s = firn_gguf_writer_finish(w);
    }
    firn_gguf_writer_destroy(w);
    return s;
}

static void check_sample(firn_context *ctx, const firn_gguf *g)
{
    uint32_t n = 0;
    float f = 0;
    bool b = false;
    firn_string s;

    assert_int_equal(firn_gguf_version(g), 3);
    assert_int_equal(firn_gguf_n_kv(g), 7);
    assert_string_equal(firn_gguf_kv_at(g, 0)->key, "general.architecture");
    assert_null(firn_gguf_kv_at(g, 7));
    assert_int_equal(firn_gguf_get_u32(ctx, g, "n", true, &n), FIRN_OK);
    assert_int_equal(n, 7);
    assert_int_equal(firn_gguf_get_f32(ctx, g, "f", true, &f), FIRN_OK);
    assert_true(f == 0.5f);
    assert_int_equal(firn_gguf_get_bool(ctx, g, "b", true, &b), FIRN_OK);
    assert_true(b);
    assert_int_equal(firn_gguf_get_string(ctx, g, "general.architecture", true, &s), FIRN_OK);
    assert_int_equal(s.size, 5);
    assert_memory_equal(s.data, "llama", 5);
    assert_null(firn_gguf_kv(g, "gone"));
    const firn_kv *kv = firn_gguf_kv(g, "numbers");
    assert_int_equal(kv->type, FIRN_KV_ARRAY);
    assert_int_equal(kv->element, FIRN_KV_I16);
    assert_int_equal(kv->n, 3);
    assert_memory_equal(kv->data, ((int16_t[]){-1, 2, 300}), 6);
    assert_int_equal(firn_gguf_kv(g, "none")->n, 0);
    kv = firn_gguf_kv(g, "words");
    assert_int_equal(kv->n, 3);
    assert_int_equal(kv->strings[1].size, 0);
    assert_memory_equal(kv->strings[2].data, "b\0c", 3);

    assert_int_equal(firn_gguf_n_tensors(g), 2);
    const firn_gguf_tensor *t = firn_gguf_find(g, "norm");
    assert_ptr_equal(t, firn_gguf_tensor_at(g, 0));
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->size, 12);
    assert_int_equal(t->offset % 32, 0);
    assert_memory_equal(t->data, norm, sizeof norm);
    t = firn_gguf_find(g, "packed");
    assert_int_equal(t->type, FIRN_Q4_0);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[2], 3);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->size, 108);
    for (int i = 0; i < 108; i++)
        assert_int_equal(t->data[i], i);
    assert_null(firn_gguf_find(g, "missing"));
    assert_null(firn_gguf_tensor_at(g, 2));
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;

    assert_int_equal(write_sample(ctx, path_of("a.gguf")), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, path_of("a.gguf"), &g), FIRN_OK);
    check_sample(ctx, g);
    firn_gguf_will_need(g, firn_gguf_find(g, "packed"));
    firn_gguf_release(g, firn_gguf_find(g, "packed"));

    /* Copied key by key and tensor by tensor: the same bytes. */
    firn_gguf_writer *w;
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
        assert_int_equal(firn_gguf_put_kv(w, firn_gguf_kv_at(g, i)), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        assert_int_equal(firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne), FIRN_OK);
    }
    assert_int_equal(firn_gguf_writer_begin(w, path_of("b.gguf")), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++)
        assert_int_equal(firn_gguf_writer_data(w, firn_gguf_tensor_at(g, i)->data, firn_gguf_tensor_at(g, i)->size),
                         FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    firn_gguf *copy;
    assert_int_equal(firn_gguf_open(ctx, path_of("b.gguf"), &copy), FIRN_OK);
    size_t n, m;
    const void *x = firn_gguf_header(g, &n), *y = firn_gguf_header(copy, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    check_sample(ctx, copy);
    firn_gguf_close(copy);
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

/* Every file of the reference cases opens, and its numbers are the file's. */
static void reference_cases_open(void **state)
{
    (void)state;
    const char *root = FIRN_SOURCE_DIR "/../shared/ref/cases";
    DIR *dir = opendir(root);
    firn_context *ctx = firn_context_create(NULL);
    int n = 0;

    if (!dir) {
        firn_context_destroy(ctx);
        skip();
    }
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        struct stat st;
        firn_gguf *g;
        snprintf(path, sizeof path, "%s/%s/model.gguf", root, e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) < 0)
            continue;
        if (firn_gguf_open(ctx, path, &g) != FIRN_OK)
            fail_msg("%s", firn_error(ctx));
        assert_int_equal(firn_gguf_file_bytes(g), st.st_size);
        assert_non_null(firn_gguf_find(g, "token_embd.weight"));
        firn_gguf_close(g);
        n++;
    }
    closedir(dir);
    assert_true(n >= 20);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(reference_cases_open),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
