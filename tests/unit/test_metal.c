/* The Metal backend, on a Mac or on the software Metal device: kernels are all there, memory is used in place, and what
 * goes wrong comes back as a sentence. What the operations compute is test-backend-ops' affair. */
#include "unit/countdown.h"
#include "unit/unit.h"

#include "core/backend.h"
#include "format/common.h"
#include "gpu/gpu.h"
#include "gpu/plan.h"
#include "metal/metal.h"

#ifdef FIRN_METAL_DEVICE
#include "executor.h"
#endif

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = firn_context_create(NULL)};

    assert_non_null(f.ctx);
    assert_int_equal(firn_device_open(f.ctx, "MTL0", &f.device), FIRN_OK);
    assert_int_equal(firn_graph_create(f.ctx, &f.g), FIRN_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    firn_exec_destroy(f->exec);
    firn_plan_destroy(f->plan);
    firn_buffer_destroy(f->memory);
    firn_graph_destroy(f->g);
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
}

/* y = a + a on 256 floats: a at byte 0 of memory, y behind it. */
static void prepare_sum(fixture *f)
{
    firn_tensor *a = firn_slot(f->g, FIRN_F32, 1, (int64_t[]){256}, "a");
    firn_tensor *y = firn_output(f->g, firn_named(firn_add(f->g, a, a), "twice"));

    assert_int_equal(firn_plan_create(f->device, f->g, &f->plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f->plan, &f->exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f->device, 2048, &f->memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(f->exec, a, f->memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f->exec, y, f->memory, 1024), FIRN_OK);
}

static void every_kernel_of_the_table_is_there(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    char error[FIRN_GPU_ERROR_BYTES], name[96];
    int n = 0;

    (void)state;
    firn_gpu_runtime *m =
        firn_metal_interface.start(ctx, 0, FIRN_GPU_N_LIBRARIES, FIRN_GPU_N_KERNELS * firn_gpu_n_weights, error);
    assert_non_null(m);
    for (int k = 0; k < FIRN_GPU_N_KERNELS; k++)
        for (int w = 0; w < (firn_gpu_is_typed((firn_gpu_kernel)k) ? firn_gpu_n_weights : 1); w++, n++) {
            const firn_gpu_library l = firn_gpu_kernel_name((firn_gpu_kernel)k, w, name, sizeof name);
            if (!firn_metal_interface.pipeline(m, (int)l, false, k * firn_gpu_n_weights + w, name, error))
                fail_msg("%s: %s", name, error);
        }
    assert_true(n > 8 * firn_gpu_n_weights); /* the products' */
    firn_metal_interface.stop(m);
    firn_context_destroy(ctx);
}

static void there_is_a_list_of_devices(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;

    (void)state;
    assert_int_equal(firn_device_open(ctx, "MTL9", &device), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "there is no device 'MTL9' here; there is: CPU, MTL0"));
    firn_context_destroy(ctx);
}

static void mapped_memory_is_used_in_place(void **state)
{
    fixture f = open_fixture();
    firn_buffer *b;
    float value;

    (void)state;
    char *pages = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    float *inside = (float *)(pages + 20000); /* not at the start of a page */
    assert_int_equal(firn_buffer_wrap(f.device, inside, 4000, &b), FIRN_OK);
    inside[3] = 7; /* after wrapping: a copy would not have it */
    assert_int_equal(firn_buffer_read(b, 12, &value, 4), FIRN_OK);
    assert_true(value == 7);
    value = 8;
    assert_int_equal(firn_buffer_write(b, 16, &value, 4), FIRN_OK);
    assert_true(inside[4] == 8);
    firn_buffer_destroy(b);
    munmap(pages, 1 << 16);
    close_fixture(&f);
}

static void too_much_memory_is_refused_in_words(void **state)
{
    fixture f = open_fixture();
    firn_buffer *b;

    (void)state;
    assert_int_equal(firn_buffer_create(f.device, (size_t)1 << 50, &b), FIRN_ERR_MEMORY);
    assert_non_null(strstr(firn_error(f.ctx), "MTL0 takes buffers of "));
    close_fixture(&f);
}

static void what_it_lacks_is_declined_in_words(void **state)
{
    fixture f = open_fixture();
    const int64_t large[] = {256, (int64_t)1 << 33};

    (void)state;
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, large, "a");
    firn_output(f.g, firn_named(firn_scale(f.g, a, 2), "doubled"));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(f.ctx), "MTL0 cannot run SCALE doubled: "));
    close_fixture(&f);
}

/* The smallest index of the first node; nothing is read through it, and the device goes on. */
static void an_id_out_of_range_comes_from_the_wait(void **state)
{
    enum { N_IDS = 400 };
    fixture f = open_fixture();
    firn_tensor *w = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){32, 4, 5}, "w");
    firn_tensor *dy = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){4, 2, N_IDS / 2}, "dy");
    firn_tensor *ids = firn_slot(f.g, FIRN_I32, 2, (int64_t[]){2, N_IDS / 2}, "ids");
    firn_tensor *dx = firn_output(f.g, firn_named(firn_mul_mat_id_back(f.g, w, dy, ids), "dx"));
    firn_buffer *work;
    int32_t id[N_IDS];
    const size_t w_bytes = 32 * 4 * 5 * 4, dy_bytes = 4 * N_IDS * 4, dx_bytes = 32 * N_IDS * 4;

    (void)state;
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, w_bytes + dy_bytes + sizeof id + dx_bytes, &f.memory), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, firn_plan_work_bytes(f.plan) + 1, &work), FIRN_OK);
    assert_int_equal(firn_exec_memory(f.exec, work, 0, work, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, w, f.memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, dy, f.memory, w_bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, ids, f.memory, w_bytes + dy_bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, dx, f.memory, w_bytes + dy_bytes + sizeof id), FIRN_OK);
    for (int i = 0; i < N_IDS; i++)
        id[i] = i % 5;
    id[377] = -1;
    id[123] = 5;
    firn_buffer_clear(f.memory, 0, firn_buffer_size(f.memory));
    firn_buffer_write(f.memory, w_bytes + dy_bytes, id, sizeof id);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(f.ctx), "MUL_MAT_ID_BACK dx: id number 123 is 5, outside 0 to 4");
    id[377] = id[123] = 0;
    firn_buffer_write(f.memory, w_bytes + dy_bytes, id, sizeof id);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    const float bad = NAN;
    firn_buffer_write(f.memory, w_bytes, &bad, 4); /* dy of slot 0, which goes to expert 0 */
    assert_int_equal(firn_exec_run(f.exec, 0, FIRN_RUN_CHECK), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(f.ctx), "MUL_MAT_ID_BACK dx: value [0, 0, 0] is not finite");
    firn_buffer_destroy(work);
    close_fixture(&f);
}

/* A document that begins behind its token: the limit is the token's own. */
static void a_document_behind_its_token_comes_from_the_wait(void **state)
{
    enum { CHANNELS = 4, TOKENS = 300, TAPS = 3 };
    fixture f = open_fixture();
    firn_tensor *x = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){CHANNELS, TOKENS}, "x");
    firn_tensor *w = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){TAPS, CHANNELS}, "w");
    firn_tensor *first = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){TOKENS}, "first");
    firn_tensor *y = firn_output(f.g, firn_named(firn_conv_causal(f.g, x, w, first, NULL, 0, false), "y"));
    const size_t x_bytes = CHANNELS * TOKENS * 4, w_bytes = TAPS * CHANNELS * 4;
    int32_t begin[TOKENS] = {0};

    (void)state;
    begin[271] = 272;
    begin[280] = TOKENS;
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 2 * x_bytes + w_bytes + sizeof begin, &f.memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, x, f.memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, y, f.memory, x_bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, w, f.memory, 2 * x_bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, first, f.memory, 2 * x_bytes + w_bytes), FIRN_OK);
    firn_buffer_clear(f.memory, 0, firn_buffer_size(f.memory));
    firn_buffer_write(f.memory, 2 * x_bytes + w_bytes, begin, sizeof begin);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(f.ctx), "CONV_CAUSAL y: id number 271 is 272, outside 0 to 271");
    begin[271] = 271;
    begin[280] = INT32_MIN;
    firn_buffer_write(f.memory, 2 * x_bytes + w_bytes, begin, sizeof begin);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    close_fixture(&f);
}

/* The arguments of its kernels are the plan's: what happens to the graph later does not reach a run. */
static void runs_take_what_the_plan_prepared(void **state)
{
    fixture f = open_fixture();
    float values[256];

    (void)state;
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){256}, "a");
    firn_tensor *y = firn_output(f.g, firn_scale(f.g, a, 2));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    y->params.f[0] = 3;
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 2048, &f.memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, a, f.memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, y, f.memory, 1024), FIRN_OK);
    for (int i = 0; i < 256; i++)
        values[i] = (float)i;
    for (int run = 0; run < 2; run++) {
        firn_buffer_write(f.memory, 0, values, sizeof values);
        assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
        firn_buffer_read(f.memory, 1024, values, sizeof values);
        for (int i = 0; i < 256; i++)
            assert_true(values[i] == (float)(2 << run) * (float)i);
    }
    close_fixture(&f);
}

static void profiles_count_what_ran(void **state)
{
    fixture f = open_fixture();
    const firn_profile_row *rows;
    float ones[256];
    int n;

    (void)state;
    for (int i = 0; i < 256; i++)
        ones[i] = 1;
    prepare_sum(&f);
    firn_buffer_write(f.memory, 0, ones, sizeof ones);
    firn_device_profile(f.device, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    assert_int_equal(firn_device_profile_rows(f.device, &rows, &n), FIRN_OK);
    assert_int_equal(n, 1);
    assert_string_equal(rows[0].op, "ADD");
    assert_int_equal(rows[0].calls, 3);
    assert_true(rows[0].seconds > 0);
    firn_buffer_read(f.memory, 1024, ones, sizeof ones);
    assert_true(ones[0] == 2 && ones[255] == 2);
    close_fixture(&f);
}

/* perf's record: the time is the device's, and there is no limit beside it. */
static void perf_takes_the_device_s_time(void **state)
{
    char line[1000] = "";
    double us = 0, gflops = 0, gbs = 0;
    FILE *f = popen(FIRN_BIN_DIR "/test-backend-ops perf -b MTL0 -o MUL_MAT_ID_BACK --output json --case "
                                 "k=64,m=16,n_expert=4,n_used=2,n_tokens=8,type=q8_0 2>/dev/null",
                    "r");

    (void)state;
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(pclose(f), 0);
    const char *at = strstr(line, "\"time_us\": ");
    assert_true(
        strncmp(line, "{\"op\": \"MUL_MAT_ID_BACK\", \"backend\": \"MTL0\", \"type\": \"q8_0\", \"case\": {", 69) == 0);
    assert_true(at && sscanf(at, "\"time_us\": %lf, \"gflops\": %lf, \"gb_per_s\": %lf", &us, &gflops, &gbs) == 3);
    assert_true(us > 0 && fabs(gflops * us / (2e-3 * 64 * 16 * 16) - 1) < 1e-2 && gbs > 0);
    assert_non_null(
        strstr(at, "\"limit\": null, \"limit_unit\": null, \"percent\": null, \"reason\": \"no limit is measured on "
                   "MTL0\"}"));
}

#ifdef FIRN_METAL_DEVICE
/* Only the software device can be told to change a kernel's text. */
static void edit_kernels(const char *from, const char *to)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/tmp/firn-test-metal-%ld", (long)getpid());
    if (!from) {
        unsetenv("MDEV_EDIT");
        unlink(path);
        return;
    }
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n=>\n%s\n;;\n", from, to);
    fclose(f);
    setenv("MDEV_EDIT", path, 1);
}

static void a_kernel_that_does_not_compile_is_a_sentence(void **state)
{
    fixture f = open_fixture();

    (void)state;
    edit_kernels("using namespace metal;", "using namespace metal; nonsense");
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){256}, "a");
    firn_output(f.g, firn_named(firn_add(f.g, a, a), "twice"));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_ERR_DEVICE);
    assert_non_null(strstr(firn_error(f.ctx), "MTL0 cannot run ADD twice: MTL0: kernel_add: "));
    assert_non_null(strstr(firn_error(f.ctx), "nonsense"));
    edit_kernels(NULL, NULL);
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK); /* and can be tried again */
    close_fixture(&f);
}

static void a_command_buffer_that_fails_is_a_sentence(void **state)
{
    fixture f = open_fixture();

    (void)state;
    edit_kernels("    firn_element at;\n\n    for",
                 "    firn_element at;\n    if (n % 64 < 40) simd_sum(n); else simd_max(n);\n    for");
    prepare_sum(&f);
    edit_kernels(NULL, NULL);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_non_null(strstr(firn_error(f.ctx), "MTL0: running: kernel_add, threadgroup (0, 0, 0): divergent simdgroup"));
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    close_fixture(&f);
}
#endif

#ifdef FIRN_METAL_DEVICE
static void no_bfloat_is_a_sentence(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;

    (void)state;
    setenv("MDEV_DEFINES", "-DMSL_NO_BFLOAT", 1);
    firn_context_set_precision(ctx, FIRN_PRECISION_BF16);
    assert_int_equal(firn_device_open(ctx, "MTL0", &device), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "MTL0 has no kernels of precision bf16: "));
    assert_non_null(strstr(firn_error(ctx), "the device has no bfloat"));
    unsetenv("MDEV_DEFINES");
    firn_context_destroy(ctx);
}
#endif

/* What a gradient of q is on MTL0 where a command buffer may have that many operations: attention's, or a scan's. */
static void differentiate(bool scan, double max_flops, float *result, size_t n_bytes)
{
    enum { HEAD = 16, HEADS = 4, GROUPS = 2, N = 37 };
    const double usual = firn_gpu_max_flops;
    fixture f = open_fixture();
    float values[HEAD * HEADS * N], decays[HEADS * N];
    int32_t ranges[2 * N], firsts[N] = {0};

    firn_tensor *q = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){HEAD, scan ? GROUPS : HEADS, N}, "q");
    firn_tensor *k = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){HEAD, GROUPS, N}, "k");
    firn_tensor *range = firn_slot(f.g, FIRN_I32, 2, (int64_t[]){2, N}, "range");
    firn_tensor *v = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){HEAD, HEADS, N}, "v");
    firn_tensor *decay = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){1, HEADS, N}, "decay");
    firn_tensor *first = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){N}, "first");
    firn_tensor *y = scan ? firn_gated_delta(f.g, q, k, v, decay, decay, first, NULL, false, NULL)
                          : firn_attention(f.g, q, k, k, range, NULL, 0.25f, 0);
    firn_tensor *dq[1];
    assert_int_equal(firn_graph_grad(f.g, y, y, (firn_tensor *[]){q}, 1, dq), FIRN_OK);
    firn_tensor *out = firn_output(f.g, firn_cont(f.g, dq[0]));

    for (int i = 0; i < HEAD * HEADS * N; i++)
        values[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
    for (int i = 0; i < HEADS * N; i++)
        decays[i] = -(float)(i * 37 % 101) / 101.0f;
    for (int t = 0; t < N; t++) {
        ranges[2 * t] = 0;
        ranges[2 * t + 1] = t + 1;
    }
    firn_gpu_max_flops = max_flops;
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 1 << 22, &f.memory), FIRN_OK);
    assert_true(firn_plan_arena_bytes(f.plan) <= 1 << 20 && firn_plan_work_bytes(f.plan) <= 1 << 20);
    assert_int_equal(firn_exec_memory(f.exec, f.memory, 1 << 20, f.memory, 1 << 21), FIRN_OK);
    firn_tensor *const bound[] = {q, k, scan ? v : range, out, scan ? decay : NULL, scan ? first : NULL};
    const void *const data[] = {values, values, scan ? (void *)values : ranges, NULL, decays, firsts};
    enum { APART = 1 << 16 };
    for (size_t i = 0; i < 6 && bound[i]; i++) {
        if (data[i])
            assert_int_equal(firn_buffer_write(f.memory, i * APART, data[i], firn_n_bytes(bound[i])), FIRN_OK);
        assert_int_equal(firn_exec_bind(f.exec, bound[i], f.memory, i * APART), FIRN_OK);
    }
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    assert_int_equal(firn_n_bytes(out), n_bytes);
    assert_int_equal(firn_buffer_read(f.memory, (size_t)3 * APART, result, n_bytes), FIRN_OK);
    firn_gpu_max_flops = usual;
    close_fixture(&f);
}

static void long_kernels_are_cut_without_changing_a_bit(void **state)
{
    float whole[16 * 4 * 37], cut[16 * 4 * 37];

    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        const size_t size = scan ? sizeof whole / 2 : sizeof whole; /* two heads of keys */
        differentiate(scan, 1e12, whole, size);
        differentiate(scan, 3e4, cut, size);
        assert_memory_equal(whole, cut, size);
        assert_true(whole[5] != 0);
    }
}

/* Products of few rows and of many. */
enum { INNER = 96, COLUMNS = 160, EXPERTS = 3, USED = 2, FEW = 4, MANY = 70, N_PRODUCTS = 9 };
enum { PRODUCT_BYTES = 4 * INNER * COLUMNS * EXPERTS, PLACE = 1 << 18 };

typedef struct {
    unsigned char bytes[N_PRODUCTS][PRODUCT_BYTES];
    size_t size[N_PRODUCTS];
    uint64_t command_buffers;
} products;

static float bf16_of(float v)
{
    return firn_bf16_to_float(firn_float_to_bf16(v));
}

/* What MTL0 gives where a command buffer may have that many operations; `before`: operands are bf16 already. */
static void multiply(double max_flops, firn_precision precision, bool before, products *p)
{
    const double usual = firn_gpu_max_flops;
    fixture f = {.ctx = firn_context_create(NULL)};
    static float values[INNER * COLUMNS * EXPERTS];
    static int32_t id[USED * MANY];
    firn_tensor *y[N_PRODUCTS], *in[12];
    int n = 0, n_in = 0;

    firn_context_set_precision(f.ctx, precision);
    assert_int_equal(firn_device_open(f.ctx, "MTL0", &f.device), FIRN_OK);
    assert_int_equal(firn_graph_create(f.ctx, &f.g), FIRN_OK);
    firn_tensor *w = in[n_in++] = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){INNER, COLUMNS, EXPERTS}, "w");
    firn_tensor *one = in[n_in++] = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){INNER, COLUMNS}, "one");
    for (int many = 0; many < 2; many++) {
        const int64_t t = many ? MANY : FEW;
        firn_tensor *x = in[n_in++] = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){INNER, 1, t}, "x");
        firn_tensor *dy = in[n_in++] = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){COLUMNS, USED, t}, "dy");
        firn_tensor *d = in[n_in++] = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){t, COLUMNS}, "d");
        firn_tensor *ids = in[n_in++] = firn_slot(f.g, FIRN_I32, 2, (int64_t[]){USED, t}, "ids");
        y[n++] = firn_mul_mat(f.g, one, firn_reshape(f.g, x, 2, (int64_t[]){INNER, t}));
        y[n++] = firn_out_prod(f.g, one, d);
        y[n++] = firn_mul_mat_id(f.g, w, x, ids, NULL);
        y[n++] = firn_mul_mat_id_back(f.g, w, dy, ids);
        if (many)
            y[n++] = firn_out_prod_id(f.g, x, dy, ids, EXPERTS);
    }
    for (int i = 0; i < n; i++)
        firn_output(f.g, y[i]);
    firn_gpu_max_flops = max_flops;
    if (firn_plan_create(f.device, f.g, &f.plan) != FIRN_OK)
        fail_msg("%s", firn_error(f.ctx));
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, (size_t)32 * PLACE, &f.memory), FIRN_OK);
    assert_true(firn_plan_arena_bytes(f.plan) <= PLACE && firn_plan_work_bytes(f.plan) <= PLACE);
    assert_int_equal(firn_exec_memory(f.exec, f.memory, (size_t)30 * PLACE, f.memory, (size_t)31 * PLACE), FIRN_OK);
    for (int i = 0; i < INNER * COLUMNS * EXPERTS; i++) {
        values[i] = (float)(i * 37 % 1009) / 1009.0f - 0.5f;
        if (before)
            values[i] = bf16_of(values[i]);
    }
    for (int i = 0; i < USED * MANY; i++)
        id[i] = i * 5 % 7 % EXPERTS;
    for (int i = 0; i < n_in + n; i++) {
        firn_tensor *t = i < n_in ? in[i] : y[i - n_in];
        if (i < n_in)
            assert_int_equal(firn_buffer_write(f.memory, (size_t)i * PLACE, t->type == FIRN_I32 ? (void *)id : values,
                                               firn_n_bytes(t)),
                             FIRN_OK);
        assert_int_equal(firn_exec_bind(f.exec, t, f.memory, (size_t)i * PLACE), FIRN_OK);
    }
    p->command_buffers = firn_gpu_batches(f.device);
    assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    p->command_buffers = firn_gpu_batches(f.device) - p->command_buffers;
    for (int i = 0; i < n; i++) {
        p->size[i] = firn_n_bytes(y[i]);
        assert_true(p->size[i] <= sizeof p->bytes[i]);
        assert_int_equal(firn_buffer_read(f.memory, (size_t)(n_in + i) * PLACE, p->bytes[i], p->size[i]), FIRN_OK);
    }
    firn_gpu_max_flops = usual;
    close_fixture(&f);
}

static void long_products_are_cut_without_changing_a_bit(void **state)
{
    static products whole, cut;

    (void)state;
    multiply(1e12, FIRN_PRECISION_F32, false, &whole);
    multiply(1e5, FIRN_PRECISION_F32, false, &cut);
    assert_int_equal(whole.command_buffers, 1);
    assert_true(cut.command_buffers >= 3 * N_PRODUCTS);
    for (int i = 0; i < N_PRODUCTS; i++)
        assert_memory_equal(whole.bytes[i], cut.bytes[i], whole.size[i]);
}

static double difference(const products *a, const products *b, int i)
{
    double error = 0, size = 0;

    for (size_t at = 0; at < a->size[i]; at += 4) {
        float u, v;
        memcpy(&u, a->bytes[i] + at, 4);
        memcpy(&v, b->bytes[i] + at, 4);
        error += ((double)u - (double)v) * ((double)u - (double)v);
        size += (double)v * (double)v;
    }
    return error / size;
}

/* Precision bf16 is what rounded operands give. */
static void bf16_rounds_both_operands(void **state)
{
    static products bf16, rounded, exact;

    (void)state;
    multiply(1e12, FIRN_PRECISION_BF16, false, &bf16);
    multiply(1e12, FIRN_PRECISION_F32, true, &rounded);
    multiply(1e12, FIRN_PRECISION_F32, false, &exact);
    for (int i = 0; i < N_PRODUCTS; i++) {
        assert_true(difference(&bf16, &rounded, i) < 1e-11);
        assert_true(difference(&bf16, &exact, i) > 1e-7 && difference(&bf16, &exact, i) < 4e-4);
    }
}

/* Goes on only while all is well. */
#define DO(call)                                                                                                       \
    do {                                                                                                               \
        if (s == FIRN_OK)                                                                                              \
            s = (call);                                                                                                \
    } while (0)

/* A routed product and its sum with itself: from opening the device to closing it. */
static firn_status open_plan_and_run(firn_context *ctx)
{
    static float result[2 * 4 * 2 * 5];
    const size_t place = 1 << 12;
    void *pages = mmap(NULL, 1 << 14, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fixture f = {.ctx = ctx};
    firn_buffer *wrapped = NULL;
    firn_status s = firn_device_open(ctx, "MTL0", &f.device);

    DO(firn_graph_create(ctx, &f.g));
    if (s == FIRN_OK) {
        firn_tensor *w = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){32, 4, 3}, "w");
        firn_tensor *x = firn_slot(f.g, FIRN_F32, 3, (int64_t[]){32, 1, 5}, "x");
        firn_tensor *ids = firn_slot(f.g, FIRN_I32, 2, (int64_t[]){2, 5}, "ids");
        firn_tensor *y = firn_mul_mat_id(f.g, w, x, ids, NULL);
        firn_tensor *out = firn_output(f.g, firn_add(f.g, y, y));
        DO(firn_plan_create(f.device, f.g, &f.plan));
        DO(firn_exec_create(f.plan, &f.exec));
        DO(firn_buffer_create(f.device, 8 * place, &f.memory));
        DO(firn_buffer_wrap(f.device, pages, 1 << 14, &wrapped));
        DO(firn_buffer_clear(f.memory, 0, 8 * place));
        DO(firn_exec_memory(f.exec, f.memory, 4 * place, f.memory, 6 * place));
        DO(firn_exec_bind(f.exec, w, wrapped, 0));
        DO(firn_exec_bind(f.exec, x, f.memory, 0));
        DO(firn_exec_bind(f.exec, ids, f.memory, place));
        DO(firn_exec_bind(f.exec, out, f.memory, 2 * place));
        DO(firn_exec_run(f.exec, 0, FIRN_RUN_CHECK));
        DO(firn_device_wait(f.device));
        DO(firn_buffer_read(f.memory, 2 * place, result, 4 * 2 * 5 * sizeof *result));
    }
    firn_exec_destroy(f.exec);
    firn_plan_destroy(f.plan);
    firn_buffer_destroy(wrapped);
    firn_buffer_destroy(f.memory);
    firn_graph_destroy(f.g);
    firn_device_close(f.device);
    munmap(pages, 1 << 14);
    return s;
}

/* A GPU may let go of memory later. */
static uint64_t bytes_held(firn_gpu_runtime *m)
{
#ifdef FIRN_METAL_DEVICE
    return firn_metal_interface.allocated(m);
#else
    (void)m;
    return 0;
#endif
}

/* Each allocation fails once, alone, and once with all that follow. */
static void every_allocation_may_fail(void **state)
{
    firn_context *own = firn_context_create(NULL);
    char error[FIRN_GPU_ERROR_BYTES];
    firn_gpu_runtime *m = firn_metal_interface.start(own, 0, 1, 1, error);
    long tried = 0;

    (void)state;
    assert_non_null(m);
    const uint64_t before = bytes_held(m);
    for (int once = 0; once < 2; once++) {
        bool came = true;
        for (long k = 0; came; k++, tried++) {
            countdown memory = {1, 0, once};
            firn_context *ctx = firn_context_create(
                &(firn_context_params){.n_threads = 1, .allocator = {count_alloc, count_realloc, count_free, &memory}});
            assert_non_null(ctx);
            memory.left = k;
            const firn_status s = open_plan_and_run(ctx);
            came = memory.left < 0;
            if (s != (came ? FIRN_ERR_MEMORY : FIRN_OK) || (came && !strstr(firn_error(ctx), "memory")))
                fail_msg("allocation %ld failing: %s, '%s'", k, firn_status_name(s), firn_error(ctx));
            firn_context_destroy(ctx);
            if (memory.live != 0 || bytes_held(m) != before)
                fail_msg("allocation %ld failing: %ld blocks and %lld bytes of the device are still held", k,
                         memory.live, (long long)(bytes_held(m) - before));
        }
    }
    assert_true(tried > 20);
    firn_metal_interface.stop(m);
    firn_context_destroy(own);
}

#ifdef FIRN_METAL_DEVICE
/* Buffers, the queue, libraries, pipelines, command buffers, encoders, and work that ends in error. */
static void everything_asked_of_the_device_may_be_refused(void **state)
{
    const long before = mdev_live_objects();
    bool came = true;
    long n = 0;

    (void)state;
    while (came) {
        countdown memory = {LONG_MAX, 0, true};
        firn_context *ctx = firn_context_create(
            &(firn_context_params){.n_threads = 1, .allocator = {count_alloc, count_realloc, count_free, &memory}});
        assert_non_null(ctx);
        mdev_refuse(++n);
        const firn_status s = open_plan_and_run(ctx);
        came = mdev_has_refused();
        mdev_refuse(0);
        if ((s == FIRN_OK) == came || (came && strncmp(firn_error(ctx), "MTL0", 4) != 0))
            fail_msg("refusal %ld: %s, '%s'", n, firn_status_name(s), firn_error(ctx));
        firn_context_destroy(ctx);
        if (memory.live != 0 || mdev_live_objects() != before)
            fail_msg("refusal %ld: %ld blocks and %ld objects are still held", n, memory.live,
                     mdev_live_objects() - before);
    }
    assert_true(n > 20);
}

static void a_gpu_that_does_not_suit_is_a_sentence(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;

    (void)state;
    setenv("MDEV_FAMILY", "6", 1);
    assert_int_equal(firn_device_open(ctx, "MTL0", &device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(ctx), "MTL0: opening: software Metal device has no simdgroup matrices: a GPU of "
                                         "Apple's is needed, an M1 or later");
    unsetenv("MDEV_FAMILY");
    firn_context_destroy(ctx);
}

static void a_pipeline_of_few_threads_is_declined(void **state)
{
    fixture f = open_fixture();

    (void)state;
    setenv("MDEV_PIPELINE", "224", 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){256}, "a");
    firn_output(f.g, firn_named(firn_add(f.g, a, a), "twice"));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_ERR_DEVICE);
    assert_non_null(strstr(firn_error(f.ctx), "kernel_add: the device runs it with 224 threads at most, in simdgroups "
                                              "of 32; 256 are needed"));
    unsetenv("MDEV_PIPELINE");
    close_fixture(&f);
}

/* A file that is larger than a buffer may be lies in several that overlap; so does what tensors of it are read from. */
static void a_file_larger_than_a_buffer_is_used_in_place(void **state)
{
    enum { LARGEST = 1 << 18, OVERLAP = LARGEST / 8, FILE_BYTES = 700000, N = 1024, SKIP = 20000 };
    fixture f = open_fixture();
    firn_buffer *file;
    float sum[N];

    (void)state;
    char *pages = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    float *values = (float *)(pages + SKIP);
    for (int i = 0; i < FILE_BYTES / 4; i++)
        values[i] = (float)i;
    setenv("MDEV_MAX_BUFFER", "262144", 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){N}, "a");
    firn_tensor *y = firn_output(f.g, firn_add(f.g, a, a));
    firn_tensor *large = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){OVERLAP}, "large"); /* four times the overlap */
    firn_graph_cut(f.g);
    firn_tensor *all = firn_output(f.g, firn_sum(f.g, large));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_wrap(f.device, values, FILE_BYTES, &file), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 1 << 16, &f.memory), FIRN_OK);
    assert_int_equal(firn_exec_memory(f.exec, NULL, 0, f.memory, 1 << 15), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, y, f.memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, all, f.memory, 1 << 14), FIRN_OK);
    for (int at = 0; at <= FILE_BYTES / 4 - N; at += at + 1000 > FILE_BYTES / 4 - N ? 1 : 1000) {
        assert_int_equal(firn_exec_bind(f.exec, a, file, (size_t)at * 4), FIRN_OK);
        assert_int_equal(firn_exec_run(f.exec, 0, 0), FIRN_OK);
        assert_int_equal(firn_buffer_read(f.memory, 0, sum, sizeof sum), FIRN_OK);
        for (int i = 0; i < N; i++)
            assert_true(sum[i] == 2 * (float)(at + i));
    }
    assert_int_equal(firn_exec_bind(f.exec, large, file, 0), FIRN_OK);
    assert_int_equal(firn_exec_run(f.exec, 1, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, large, file, LARGEST * 3 / 4), FIRN_OK);
    assert_int_equal(firn_exec_run(f.exec, 1, 0), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(f.ctx), "MTL0 takes tensors of 32768 bytes at most where a file is larger than its "
                                           "buffers; large has 131072");
    assert_int_equal(firn_buffer_read(file, 600000, sum, 4), FIRN_OK);
    assert_true(sum[0] == 150000);
    firn_buffer_destroy(file);
    unsetenv("MDEV_MAX_BUFFER");
    munmap(pages, 1 << 20);
    close_fixture(&f);
}

static void what_is_wrapped_counts_as_resident(void **state)
{
    fixture f = open_fixture();
    firn_buffer *b;

    (void)state;
    char *pages = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    setenv("MDEV_WORKING_SET", "1600000", 1); /* once, but not twice */
    assert_int_equal(firn_buffer_wrap(f.device, pages, 1 << 20, &b), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 1 << 18, &f.memory), FIRN_OK);
    firn_buffer_destroy(f.memory);
    assert_int_equal(firn_buffer_create(f.device, 1 << 20, &f.memory), FIRN_ERR_MEMORY);
    assert_non_null(strstr(firn_error(f.ctx), "MTL0 works on 1600000 bytes at most; "));
    unsetenv("MDEV_WORKING_SET");
    firn_buffer_destroy(b);
    munmap(pages, 1 << 20);
    close_fixture(&f);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_of_the_table_is_there),
        cmocka_unit_test(there_is_a_list_of_devices),
        cmocka_unit_test(mapped_memory_is_used_in_place),
        cmocka_unit_test(too_much_memory_is_refused_in_words),
        cmocka_unit_test(what_it_lacks_is_declined_in_words),
        cmocka_unit_test(an_id_out_of_range_comes_from_the_wait),
        cmocka_unit_test(a_document_behind_its_token_comes_from_the_wait),
        cmocka_unit_test(runs_take_what_the_plan_prepared),
        cmocka_unit_test(profiles_count_what_ran),
        cmocka_unit_test(perf_takes_the_device_s_time),
#ifdef FIRN_METAL_DEVICE
        cmocka_unit_test(a_kernel_that_does_not_compile_is_a_sentence),
        cmocka_unit_test(a_command_buffer_that_fails_is_a_sentence),
        cmocka_unit_test(no_bfloat_is_a_sentence),
#endif
        cmocka_unit_test(long_kernels_are_cut_without_changing_a_bit),
        cmocka_unit_test(long_products_are_cut_without_changing_a_bit),
        cmocka_unit_test(bf16_rounds_both_operands),
        cmocka_unit_test(every_allocation_may_fail),
#ifdef FIRN_METAL_DEVICE
        cmocka_unit_test(everything_asked_of_the_device_may_be_refused),
        cmocka_unit_test(a_gpu_that_does_not_suit_is_a_sentence),
        cmocka_unit_test(a_pipeline_of_few_threads_is_declined),
        cmocka_unit_test(a_file_larger_than_a_buffer_is_used_in_place),
        cmocka_unit_test(what_is_wrapped_counts_as_resident),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
