/* GGUF: what is written is read back; every malformation has its sentence; allocations and disks that fail. */
#include "unit/countdown.h"
#include "unit/unit.h"

#include "core/context.h"
#include "firn/gguf.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* ---- files made byte by byte ---- */

typedef struct {
    uint8_t data[4096];
    size_t size;
} raw;

static void raw_bytes(raw *r, const void *bytes, size_t n)
{
    assert_true(n <= sizeof r->data - r->size);
    memcpy(r->data + r->size, bytes, n);
    r->size += n;
}

static void raw_u32(raw *r, uint32_t x)
{
    raw_bytes(r, &x, 4);
}

static void raw_u64(raw *r, uint64_t x)
{
    raw_bytes(r, &x, 8);
}

static void raw_text(raw *r, const char *s)
{
    raw_u64(r, strlen(s));
    raw_bytes(r, s, strlen(s));
}

static raw raw_start(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    raw r = {.size = 0};
    raw_bytes(&r, "GGUF", 4);
    raw_u32(&r, version);
    raw_u64(&r, n_tensors);
    raw_u64(&r, n_kv);
    return r;
}

static void raw_key_u32(raw *r, const char *key, uint32_t value)
{
    raw_text(r, key);
    raw_u32(r, FIRN_KV_U32);
    raw_u32(r, value);
}

static void raw_tensor(raw *r, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset)
{
    raw_text(r, name);
    raw_u32(r, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        raw_u64(r, ne[d]);
    raw_u32(r, type);
    raw_u64(r, offset);
}

/* Zeros up to the data and n bytes of it. */
static void raw_data(raw *r, size_t n)
{
    r->size = (r->size + 31) / 32 * 32 + n;
    assert_true(r->size <= sizeof r->data);
}

static void refused(const raw *r, firn_status status, const char *sentence)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g = (firn_gguf *)1;
    uint8_t *exact = malloc(r->size ? r->size : 1); /* so that the address sanitizer sees the end */

    memcpy(exact, r->data, r->size);
    const firn_status s = firn_gguf_parse(ctx, exact, r->size, &g);
    assert_string_equal(firn_error(ctx), sentence);
    assert_int_equal(s, status);
    assert_null(g);
    free(exact);
    firn_context_destroy(ctx);
}

static void bad_starts(void **state)
{
    (void)state;
    raw r = {.size = 0};
    refused(&r, FIRN_ERR_FORMAT, "the file is empty");
    raw_bytes(&r, "GG", 2);
    refused(&r, FIRN_ERR_FORMAT, "this is no GGUF file: it begins with 'GG' instead of 'GGUF'");
    raw_bytes(&r, "\x7F\x01zzzz", 6);
    refused(&r, FIRN_ERR_FORMAT,
            "this is no GGUF file: it begins with 'GG?"
            "?' instead of 'GGUF'");
    r = raw_start(3, 0, 0);
    r.size = 6;
    refused(&r, FIRN_ERR_FORMAT, "the file is truncated: the version takes 4 bytes at offset 4, the file has 2 left");
    r.size = 10;
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: the number of tensors takes 8 bytes at offset 8, the file has 2 left");
    r.size = 16;
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: the number of keys takes 8 bytes at offset 16, the file has 0 left");
    r = raw_start(0x03000000, 0, 0);
    refused(&r, FIRN_ERR_UNSUPPORTED, "the file is big-endian; only little-endian GGUF is read");
    r = raw_start(1, 0, 0);
    refused(&r, FIRN_ERR_UNSUPPORTED, "the file is GGUF version 1; versions 2 and 3 are read");
    r = raw_start(4, 0, 0);
    refused(&r, FIRN_ERR_UNSUPPORTED, "the file is GGUF version 4; versions 2 and 3 are read");
    r = raw_start(0, 0, 0);
    refused(&r, FIRN_ERR_UNSUPPORTED, "the file is GGUF version 0; versions 2 and 3 are read");
    r = raw_start(3, UINT64_MAX, 1);
    refused(
        &r, FIRN_ERR_FORMAT,
        "the file is truncated: it announces 18446744073709551615 tensors and 1 keys and has 0 bytes left for them");
    r = raw_start(3, 0, 3);
    raw_key_u32(&r, "abcdef", 1);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: it announces 0 tensors and 3 keys and has 22 bytes left for them");
}

static void bad_keys(void **state)
{
    (void)state;
    raw r = raw_start(3, 0, 1);
    raw_u64(&r, UINT64_MAX);
    raw_bytes(&r, "abcdefghij", 10);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: a key takes 18446744073709551615 bytes at offset 32, the file has 10 left");
    r = raw_start(3, 0, 1);
    raw_u64(&r, 3);
    raw_bytes(&r, "a\0b\4\0\0\0\1\0\0\0", 11);
    refused(&r, FIRN_ERR_FORMAT, "a key 'a?b' has a zero byte in it");
    r = raw_start(3, 0, 1);
    raw_text(&r, "key");
    raw_u32(&r, 13);
    raw_u32(&r, 0);
    refused(&r, FIRN_ERR_FORMAT, "the type of key 'key' is 13, and the types end at 12");
    r = raw_start(3, 0, 1);
    raw_text(&r, "a key");
    raw_u32(&r, FIRN_KV_U64);
    raw_u32(&r, 0);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: key 'a key' has 1 values of at least 8 bytes at offset 41, the file has 4 bytes "
            "left");
    r = raw_start(3, 0, 1);
    raw_text(&r, "list");
    raw_u32(&r, FIRN_KV_ARRAY);
    raw_u32(&r, FIRN_KV_ARRAY);
    raw_u64(&r, 0);
    refused(&r, FIRN_ERR_UNSUPPORTED, "key 'list' is an array of arrays, which is not read");
    r = raw_start(3, 0, 1);
    raw_text(&r, "list");
    raw_u32(&r, FIRN_KV_ARRAY);
    raw_u32(&r, 77);
    raw_u64(&r, 0);
    refused(&r, FIRN_ERR_FORMAT, "the element type of key 'list' is 77, and the types end at 12");
    r = raw_start(3, 0, 1);
    raw_text(&r, "list");
    raw_u32(&r, FIRN_KV_ARRAY);
    raw_u32(&r, FIRN_KV_STRING);
    raw_u64(&r, (uint64_t)1 << 61);
    raw_u64(&r, 0);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: key 'list' has 2305843009213693952 values of at least 8 bytes at offset 52, the "
            "file has 8 bytes left");
    r = raw_start(3, 0, 1);
    raw_text(&r, "list");
    raw_u32(&r, FIRN_KV_ARRAY);
    raw_u32(&r, FIRN_KV_STRING);
    raw_u64(&r, 2);
    raw_text(&r, "one");
    raw_u64(&r, 9);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: a string of key 'list' takes 9 bytes at offset 71, the file has 0 left");
    r = raw_start(3, 0, 2);
    raw_key_u32(&r, "twice", 1);
    raw_key_u32(&r, "twice", 2);
    refused(&r, FIRN_ERR_FORMAT, "key 'twice' is there twice");
    r = raw_start(3, 0, 1);
    raw_key_u32(&r, "general.alignment", 48);
    refused(&r, FIRN_ERR_FORMAT, "key 'general.alignment' is 48, no power of two from 8 on");
    r = raw_start(3, 0, 1);
    raw_key_u32(&r, "general.alignment", 0);
    refused(&r, FIRN_ERR_FORMAT, "key 'general.alignment' is 0, no power of two from 8 on");
    r = raw_start(3, 0, 1);
    raw_text(&r, "general.alignment");
    raw_u32(&r, FIRN_KV_I32);
    raw_u32(&r, 32);
    refused(&r, FIRN_ERR_FORMAT, "key 'general.alignment' is of type i32, not u32");
}

static raw one_tensor(const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset,
                      size_t data)
{
    raw r = raw_start(3, 1, 0);
    raw_tensor(&r, name, type, n_dims, ne, offset);
    raw_data(&r, data);
    return r;
}

static void bad_tensors(void **state)
{
    (void)state;
    raw r = one_tensor("w", FIRN_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "tensor 'w' has 5 dimensions, more than 4");
    r = one_tensor("w", FIRN_F32, 2, (uint64_t[]){4, 0}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "dimension 1 of tensor 'w' is 0");
    r = one_tensor("w", FIRN_F32, 2, (uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 31}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "dimension 1 of tensor 'w' is 2147483648, and its elements pass 2^63");
    r = one_tensor("w", FIRN_F32, 1, (uint64_t[]){UINT64_MAX}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "dimension 0 of tensor 'w' is 18446744073709551615, and its elements pass 2^63");
    r = one_tensor("w", FIRN_F64, 2, (uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 30}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "tensor 'w' has more than 2^63 bytes");
    r = one_tensor("w", 4, 1, (uint64_t[]){32}, 0, 4);
    refused(&r, FIRN_ERR_UNSUPPORTED, "tensor 'w' has type 4, which is not known here");
    r = one_tensor("w", 0x80000002u, 1, (uint64_t[]){32}, 0, 4);
    refused(&r, FIRN_ERR_UNSUPPORTED, "tensor 'w' has type 2147483650, which is not known here");
    r = one_tensor("w", FIRN_Q4_K, 1, (uint64_t[]){96}, 0, 4);
    refused(&r, FIRN_ERR_FORMAT, "tensor 'w' has rows of 96 elements, no multiple of the 256 in a block of q4_K");
    r = one_tensor("w", FIRN_F32, 1, (uint64_t[]){8}, 16, 64);
    refused(&r, FIRN_ERR_FORMAT, "tensor 'w' has offset 16, no multiple of the file's alignment 32");
    r = one_tensor("w", FIRN_F32, 1, (uint64_t[]){8}, 0, 31);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: tensor 'w' takes 32 bytes at offset 0 of the tensor data, the file has 31 bytes of "
            "it");
    r = one_tensor("w", FIRN_F32, 1, (uint64_t[]){8}, UINT64_MAX - 31, 64);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: tensor 'w' takes 32 bytes at offset 18446744073709551584 of the tensor data, the "
            "file has 64 bytes of it");
    r = raw_start(3, 1, 0);
    raw_tensor(&r, "w", FIRN_F32, 1, (uint64_t[]){8}, 0); /* the table ends the file, before its padding */
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: tensor 'w' takes 32 bytes at offset 0 of the tensor data, the file has 0 bytes of "
            "it");
    r = one_tensor("an\x1b[31m evil name", 99, 1, (uint64_t[]){8}, 0, 32);
    refused(&r, FIRN_ERR_UNSUPPORTED, "tensor 'an?[31m evil name' has type 99, which is not known here");
    r = raw_start(3, 1, 0);
    raw_text(&r, "w");
    raw_u32(&r, 2);
    raw_u64(&r, 8);
    raw_u32(&r, 8);
    refused(&r, FIRN_ERR_FORMAT,
            "the file is truncated: the shape of tensor 'w' takes 8 bytes at offset 45, the file has 4 left");
    r = raw_start(3, 2, 0);
    raw_tensor(&r, "w", FIRN_F32, 1, (uint64_t[]){8}, 0);
    raw_tensor(&r, "w", FIRN_F32, 1, (uint64_t[]){8}, 32);
    raw_data(&r, 64);
    refused(&r, FIRN_ERR_FORMAT, "tensor 'w' is there twice");
    r = raw_start(3, 2, 0);
    raw_tensor(&r, "b", FIRN_F32, 1, (uint64_t[]){8}, 32);
    raw_tensor(&r, "a", FIRN_F32, 1, (uint64_t[]){9}, 0);
    raw_data(&r, 64);
    refused(&r, FIRN_ERR_FORMAT, "tensors 'a' and 'b' overlap");
    char name[70000];
    memset(name, 'n', sizeof name);
    name[100] = 0;
    r = one_tensor(name, FIRN_Q4_0, 1, (uint64_t[]){31}, 0, 32);
    refused(&r, FIRN_ERR_FORMAT,
            "tensor 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...' has rows of 31 elements, no "
            "multiple of the 32 in a block of q4_0");
}

/* Cut anywhere, a file is refused; read whole, whatever its version, it opens. */
static void every_cut_is_refused(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    for (uint32_t version = 2; version <= 3; version++) {
        raw r = raw_start(version, 3, 15);
        for (uint32_t type = 0; type <= FIRN_KV_F64; type++) {
            const char key[] = {'k', (char)('a' + type), 0};
            raw_text(&r, key);
            raw_u32(&r, type);
            if (type == FIRN_KV_STRING) {
                raw_text(&r, "value");
            } else if (type == FIRN_KV_ARRAY) {
                raw_u32(&r, FIRN_KV_STRING);
                raw_u64(&r, 2);
                raw_text(&r, "x");
                raw_text(&r, "");
            } else {
                static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
                raw_bytes(&r, "\1\0\0\0\0\0\0\0", sizes[type]);
            }
        }
        raw_text(&r, "array");
        raw_u32(&r, FIRN_KV_ARRAY);
        raw_u32(&r, FIRN_KV_U64);
        raw_u64(&r, 2);
        raw_u64(&r, 5);
        raw_u64(&r, 6);
        raw_key_u32(&r, "general.alignment", 64);
        raw_tensor(&r, "a", FIRN_F32, 0, NULL, 0);
        raw_tensor(&r, "b", FIRN_Q8_0, 4, (uint64_t[]){32, 1, 2, 1}, 64);
        raw_tensor(&r, "c", FIRN_I8, 1, (uint64_t[]){3}, 192);
        r.size = (r.size + 63) / 64 * 64 + 195;
        firn_gguf *g;
        for (size_t n = 0; n < r.size; n++) {
            uint8_t *exact = malloc(n + 1);
            memcpy(exact, r.data, n);
            assert_int_equal(firn_gguf_parse(ctx, exact, n, &g), FIRN_ERR_FORMAT);
            free(exact);
        }
        assert_int_equal(firn_gguf_parse(ctx, r.data, r.size, &g), FIRN_OK);
        assert_int_equal(firn_gguf_version(g), version);
        assert_int_equal(firn_gguf_n_kv(g), 15);
        const firn_gguf_tensor *t = firn_gguf_find(g, "b");
        assert_int_equal(t->size, 68);
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(firn_gguf_find(g, "a")->n_dims, 0);
        assert_int_equal(firn_gguf_find(g, "a")->ne[3], 1);
        firn_gguf_close(g);
    }
    firn_context_destroy(ctx);
}

static void getters_are_strict(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    raw r = raw_start(3, 0, 1);
    raw_text(&r, "n");
    raw_u32(&r, FIRN_KV_I32);
    raw_u32(&r, 5);
    firn_gguf *g;
    uint32_t n = 9;
    bool b = true;
    assert_int_equal(firn_gguf_parse(ctx, r.data, r.size, &g), FIRN_OK);
    assert_int_equal(firn_gguf_get_u32(ctx, g, "n", false, &n), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "key 'n' is of type i32, not u32");
    assert_int_equal(n, 9);
    assert_int_equal(firn_gguf_get_u32(ctx, g, "m", true, &n), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "the file has no key 'm'");
    assert_int_equal(firn_gguf_get_bool(ctx, g, "m", false, &b), FIRN_OK);
    assert_true(b);
    firn_gguf_close(g);
    firn_context_destroy(ctx);
}

/* ---- split files ---- */

static void save(const char *name, const raw *r)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(r->data, 1, r->size, f), r->size);
    fclose(f);
}

static raw split_part(uint32_t no, uint32_t count, uint32_t total, const char *tensor)
{
    const uint16_t numbers[2] = {(uint16_t)no, (uint16_t)count};
    raw r = raw_start(3, 1, no == 0 ? 4 : 3);
    raw_text(&r, "split.no");
    raw_u32(&r, FIRN_KV_U16);
    raw_bytes(&r, &numbers[0], 2);
    raw_text(&r, "split.count");
    raw_u32(&r, FIRN_KV_U16);
    raw_bytes(&r, &numbers[1], 2);
    raw_text(&r, "split.tensors.count");
    raw_u32(&r, FIRN_KV_I32);
    raw_u32(&r, total);
    if (no == 0)
        raw_key_u32(&r, "only.here", 8);
    raw_tensor(&r, tensor, FIRN_F32, 1, (uint64_t[]){2}, 0);
    raw_data(&r, 8);
    const float x[2] = {(float)no, 1};
    memcpy(r.data + r.size - 8, x, 8);
    return r;
}

static void split_files_open_from_any_part(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    static const char *names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    static const char *tensors[] = {"x", "y", "z"};
    firn_gguf *g;
    char sentence[1024];
    raw r;

    for (uint32_t i = 0; i < 3; i++) {
        r = split_part(i, 3, 3, tensors[i]);
        save(names[i], &r);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(firn_gguf_open(ctx, path_of(names[i]), &g), FIRN_OK);
        assert_int_equal(firn_gguf_n_tensors(g), 3);
        assert_non_null(firn_gguf_kv(g, "only.here"));
        for (int k = 0; k < 3; k++) {
            const firn_gguf_tensor *t = firn_gguf_find(g, tensors[k]);
            float x;
            memcpy(&x, t->data, sizeof x);
            assert_int_equal(t->file, k);
            assert_true(x == (float)k);
        }
        firn_gguf_close(g);
    }
    r = split_part(2, 3, 3, "x");
    save(names[2], &r);
    assert_int_equal(firn_gguf_open(ctx, path_of(names[0]), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence, "%s: tensor 'x' is there twice", path_of(names[0]));
    assert_string_equal(firn_error(ctx), sentence);
    r = split_part(1, 3, 3, "z");
    save(names[2], &r);
    assert_int_equal(firn_gguf_open(ctx, path_of(names[0]), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence, "%s: it says that it is part 2 of 3, not 3 of 3", path_of(names[2]));
    assert_string_equal(firn_error(ctx), sentence);
    r = split_part(0, 3, 4, "x");
    save(names[0], &r);
    r = split_part(2, 3, 3, "z");
    save(names[2], &r);
    assert_int_equal(firn_gguf_open(ctx, path_of(names[1]), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence, "%s: the 3 parts have 3 tensors, not the 4 announced", path_of(names[1]));
    assert_string_equal(firn_error(ctx), sentence);
    assert_int_equal(unlink(path_of(names[2])), 0);
    assert_int_equal(firn_gguf_open(ctx, path_of(names[1]), &g), FIRN_ERR_IO);
    snprintf(sentence, sizeof sentence, "cannot open %s: No such file or directory", path_of(names[2]));
    assert_string_equal(firn_error(ctx), sentence);
    r = split_part(1, 3, 3, "y");
    save("other.gguf", &r);
    assert_int_equal(firn_gguf_open(ctx, path_of("other.gguf"), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence,
             "%s: it is part 2 of 3 of a split model, so its name must end in -00002-of-00003.gguf",
             path_of("other.gguf"));
    assert_string_equal(firn_error(ctx), sentence);
    r = split_part(5, 3, 3, "y");
    save("other.gguf", &r);
    assert_int_equal(firn_gguf_open(ctx, path_of("other.gguf"), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence, "%s: it says that it is part 6 of 3", path_of("other.gguf"));
    assert_string_equal(firn_error(ctx), sentence);
    firn_context_destroy(ctx);
}

/* ---- what fails ---- */

static void opening_what_is_not_a_file(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf *g;
    char sentence[1024];
    assert_int_equal(firn_gguf_open(ctx, folder, &g), FIRN_ERR_IO);
    snprintf(sentence, sizeof sentence, "cannot read %s: it is a folder, not a file", folder);
    assert_string_equal(firn_error(ctx), sentence);
    raw r = raw_start(3, 1, 0);
    save("cut.gguf", &r);
    assert_int_equal(firn_gguf_open(ctx, path_of("cut.gguf"), &g), FIRN_ERR_FORMAT);
    snprintf(sentence, sizeof sentence,
             "%s: the file is truncated: it announces 1 tensors and 0 keys and has 0 bytes left for them",
             path_of("cut.gguf"));
    assert_string_equal(firn_error(ctx), sentence);
    firn_context_destroy(ctx);
}

static void the_writer_keeps_its_contract(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf_writer *w;
    const int64_t ne[2] = {32, 2};
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_put_u32(w, "", 1), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_put_array(w, "a", FIRN_KV_STRING, "x", 1), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_put_array(w, "a", FIRN_KV_U64, "x", UINT64_MAX / 4), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_put_u32(w, "general.alignment", 64), FIRN_OK); /* left out: the writer aligns to 32 */
    assert_int_equal(firn_gguf_put_u32(w, "split.count", 64), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_Q4_K, 2, ne), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "tensor 't' of type q4_K cannot have the shape [32, 2, 1, 1]");
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_F32, 5, ne), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_add_tensor(w, "t", (firn_type)4, 2, ne), FIRN_ERR_ARGUMENT);
    assert_int_equal(
        firn_gguf_add_tensor(w, "0123456789012345678901234567890123456789012345678901234567890123", FIRN_F32, 2, ne),
        FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_F32, 2, ne), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_F32, 2, ne), FIRN_OK);
    assert_int_equal(firn_gguf_writer_data(w, ne, 4), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("c.gguf")), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "tensor 't' was added twice");
    firn_gguf_writer_destroy(w);

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_put_u32(w, "general.alignment", 64), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_F32, 1, (int64_t[]){5}), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("c.gguf")), FIRN_OK);
    assert_int_equal(firn_gguf_put_u32(w, "late", 64), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_gguf_writer_data(w, norm, 12), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "tensor 't' lacks 8 of its 20 bytes");
    assert_int_equal(firn_gguf_writer_data(w, norm, 12), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx), "4 bytes come after the last tensor");
    assert_int_not_equal(access(path_of("c.gguf"), F_OK), 0); /* nothing appears before finish */
    firn_gguf_writer_destroy(w);
    DIR *dir = opendir(folder); /* and the temporary file is gone */
    for (struct dirent *e; (e = readdir(dir));)
        assert_null(strstr(e->d_name, "c.gguf"));
    closedir(dir);

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_F32, 2, (int64_t[]){1 << 30, 1 << 28}), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("huge.gguf")), FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(ctx), "huge.gguf: it takes 1152921504606847072 bytes, and "));
    firn_gguf_writer_destroy(w);
    firn_context_destroy(ctx);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const raw r = split_part(i, 2, 2, i ? "b" : "a");
        save(i ? "s-00002-of-00002.gguf" : "s-00001-of-00002.gguf", &r);
    }
    bool done = false;
    long n = 0;
    for (; !done && n < 1000; n++) {
        countdown c = {.left = 1};
        firn_context *ctx = firn_context_create(
            &(firn_context_params){.n_threads = 1, .allocator = {count_alloc, count_realloc, count_free, &c}});
        firn_gguf *g = NULL;
        c.left = n;
        firn_status s = write_sample(ctx, path_of("m.gguf"));
        if (s == FIRN_OK)
            s = firn_gguf_open(ctx, path_of("m.gguf"), &g);
        if (s == FIRN_OK) {
            check_sample(ctx, g);
            firn_gguf_close(g);
            s = firn_gguf_open(ctx, path_of("s-00002-of-00002.gguf"), &g);
        }
        if (s == FIRN_OK) {
            firn_gguf_close(g);
            done = true;
        } else {
            assert_int_equal(s, FIRN_ERR_MEMORY);
            assert_non_null(strstr(firn_error(ctx), "out of memory"));
            assert_null(g);
        }
        assert_int_equal(c.live, 1); /* the context */
        firn_context_destroy(ctx);
        assert_int_equal(c.live, 0);
    }
    assert_true(done);
    assert_true(n > 30);
}

/* A disk that is full in the middle: the old file stays, no other is left behind. */
static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_gguf_writer *w;
    struct rlimit limit, old;
    static uint8_t data[3 << 20];

    assert_int_equal(write_sample(ctx, path_of("full.gguf")), FIRN_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "t", FIRN_I8, 1, (int64_t[]){sizeof data}), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, path_of("full.gguf")), FIRN_OK);
    firn_status s = firn_gguf_writer_data(w, data, sizeof data);
    assert_int_equal(s, FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(ctx), "cannot write /tmp/firn-gguf-"));
    assert_non_null(strstr(firn_error(ctx), "File too large"));
    firn_gguf_writer_destroy(w);
    setrlimit(RLIMIT_FSIZE, &old);
    firn_gguf *g;
    assert_int_equal(firn_gguf_open(ctx, path_of("full.gguf"), &g), FIRN_OK);
    check_sample(ctx, g);
    firn_gguf_close(g);
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));)
        assert_null(strstr(e->d_name, ".tmp"));
    closedir(dir);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(reference_cases_open),
        cmocka_unit_test(bad_starts),
        cmocka_unit_test(bad_keys),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(getters_are_strict),
        cmocka_unit_test(split_files_open_from_any_part),
        cmocka_unit_test(opening_what_is_not_a_file),
        cmocka_unit_test(the_writer_keeps_its_contract),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_full_disk_loses_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
