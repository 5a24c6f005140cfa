// A C++ engine that calls firn/kernels.h: the routed product and its gradient against plain loops, and a refusal.
#include <firn/kernels.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int k = 64, m = 10, n_expert = 3, n_used = 2, n_tokens = 5;

struct context_deleter {
    void operator()(firn_context *ctx) const { firn_context_destroy(ctx); }
};

std::vector<float> numbers(std::size_t n)
{
    std::vector<float> v(n);
    for (std::size_t i = 0; i < n; i++)
        v[i] = std::sin(static_cast<float>(i * i % 1009));
    return v;
}

bool run(firn_context *ctx, const firn_product &product)
{
    std::size_t bytes = 0;
    if (firn_product_work_bytes(ctx, &product, &bytes) != FIRN_OK)
        return false;
    std::vector<unsigned char> memory(bytes + 64);
    void *work = memory.data();
    std::size_t room = memory.size();
    return std::align(64, bytes, work, room) && firn_product_run(ctx, &product, work, room) == FIRN_OK;
}

} // namespace

int main()
{
    firn_context_params params = {};
    params.n_threads = 2;
    std::unique_ptr<firn_context, context_deleter> ctx(firn_context_create(&params));
    if (!ctx)
        return 1;

    std::vector<float> w = numbers(k * m * n_expert), x = numbers(k * n_tokens), y(m * n_used * n_tokens);
    std::vector<float> dx(k * n_used * n_tokens);
    std::vector<std::int32_t> ids = {0, 1, 2, 0, 1, 1, 2, 1, 0, 2};

    firn_product forward = {};
    forward.kind = FIRN_PRODUCT_MUL_MAT_ID;
    forward.w = firn_array_dense(FIRN_F32, w.data(), k, m, n_expert, 1);
    forward.x = firn_array_dense(FIRN_F32, x.data(), k, 1, n_tokens, 1);
    forward.ids = firn_array_dense(FIRN_I32, ids.data(), n_used, n_tokens, 1, 1);
    forward.out = firn_array_dense(FIRN_F32, y.data(), m, n_used, n_tokens, 1);
    firn_product back = {};
    back.kind = FIRN_PRODUCT_MUL_MAT_ID_BACK;
    back.w = forward.w;
    back.dy = forward.out;
    back.ids = forward.ids;
    back.out = firn_array_dense(FIRN_F32, dx.data(), k, n_used, n_tokens, 1);
    if (!run(ctx.get(), forward) || !run(ctx.get(), back)) {
        std::fprintf(stderr, "%s\n", firn_error(ctx.get()));
        return 1;
    }

    double worst = 0;
    for (int t = 0; t < n_tokens; t++)
        for (int s = 0; s < n_used; s++) {
            const float *expert = &w[static_cast<std::size_t>(ids[t * n_used + s]) * k * m];
            for (int j = 0; j < m; j++) {
                double sum = 0;
                for (int i = 0; i < k; i++)
                    sum += double(expert[j * k + i]) * double(x[t * k + i]);
                worst = std::fmax(worst, std::fabs(sum - y[(t * n_used + s) * m + j]));
            }
            for (int i = 0; i < k; i++) {
                double sum = 0;
                for (int j = 0; j < m; j++)
                    sum += double(expert[j * k + i]) * double(y[(t * n_used + s) * m + j]);
                worst = std::fmax(worst, std::fabs(sum - dx[(t * n_used + s) * k + i]));
            }
        }
    if (!(worst < 1e-4)) {
        std::fprintf(stderr, "the worst element is off by %g\n", worst);
        return 1;
    }
    forward.x.ne[0] = 32;
    const std::string expected = "MUL_MAT_ID: x must be [64, 1, 5, 1], not [32, 1, 5, 1]";
    if (run(ctx.get(), forward) || firn_error(ctx.get()) != expected) {
        std::fprintf(stderr, "'%s' in place of '%s'\n", firn_error(ctx.get()), expected.c_str());
        return 1;
    }
    return 0;
}
