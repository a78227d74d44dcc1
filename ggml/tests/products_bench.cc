// Products of layers of llama.cpp's models, one after the other as in a model, with the backend and
// with the CPU's own kernels in the form that llama.cpp gives their weights.
//   ggml_products_bench [THREADS [MODEL]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "ggml/tests/harness.h"

namespace twell::ggml::test {
namespace {

struct Shape {
  const char* name;
  std::int64_t width, inner, experts, used;  // used: of the experts, by each token
  std::vector<ggml_type> types;
  bool up = false;
  std::int64_t outputs = up ? inner : width, inputs = up ? width : inner;

  std::vector<std::int64_t> ne() const {
    return experts == 1 ? std::vector{inputs, outputs} : std::vector{inputs, outputs, experts};
  }
};
const Shape kDowns[] = {
    {"Arcee 4.5B", 2560, 18432, 1, 1, {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0}},
    {"RWKV-7 2.9B", 2560, 10240, 1, 1, {GGML_TYPE_Q4_K, GGML_TYPE_Q8_0}},
    {"Nemotron-3 Nano", 2688, 1856, 32, 6, {GGML_TYPE_Q5_0, GGML_TYPE_Q8_0}},
};
const std::vector<double> kShares = {0.01, 0.05, 0.09, 0.2, 0.5, 1.0};
constexpr std::int64_t kTokens[] = {1, 64, 512};
constexpr std::size_t kBytes = 96U << 20U;  // of the layers: more than a cache holds

// Where llama.cpp puts a weight: the first of the CPU's further types that can multiply it.
ggml_backend_buffer_type_t type_of_cpu(const Shape& shape, ggml_type type) {
  ggml_backend_dev_t const cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  const auto more =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  Tensors tensors;
  ggml_tensor* const weight = tensors.add("weight", type, shape.ne());
  for (auto* const* at = more(cpu); at != nullptr && *at != nullptr; ++at) {
    if (takes(cpu, *at, weight, shape.experts > 1)) return *at;
  }
  return ggml_backend_dev_buffer_type(cpu);
}

// Layers of one shape in one type of buffer.
class Layers {
 public:
  Layers(const Shape& shape, ggml_type type, ggml_backend_buffer_type_t buffer, int threads)
      : shape_(shape), host_(threads) {
    constexpr std::int64_t kDrawn = 64;  // rows, which others repeat
    const auto drawn = random_blocks(type, kDrawn, shape.inputs, 1);
    std::vector<std::uint8_t> blocks;
    while (blocks.size() < drawn.size() / kDrawn * shape.outputs * shape.experts) {
      blocks.insert(blocks.end(), drawn.begin(), drawn.end());
    }
    for (std::size_t bytes = 0; bytes < kBytes; bytes += ggml_nbytes(weights_.back())) {
      weights_.push_back(tensors_.add(shape.up ? "blk.0.ffn_up.weight" : "blk.0.ffn_down.weight",
                                      type, shape.ne()));
    }
    tensors_.allocate(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (ggml_tensor* const weight : weights_) {
      ggml_backend_tensor_set(weight, blocks.data(), 0, ggml_nbytes(weight));
    }
  }

  std::int64_t count() const { return std::ssize(weights_); }
  // Milliseconds of the next layer's product.
  double next(const std::vector<float>& h, std::int64_t tokens) {
    ggml_tensor *x = nullptr, *chosen = nullptr;
    ggml_tensor* const weight = weights_[call_++ % weights_.size()];
    host_.run(
        [&](ggml_context* context) {
          x = ggml_new_tensor_3d(context, GGML_TYPE_F32, shape_.inputs, shape_.used, tokens);
          ggml_set_input(x);
          if (shape_.experts == 1) {
            return ggml_mul_mat(context, weight,
                                ggml_reshape_2d(context, x, shape_.inputs, tokens));
          }
          chosen = ggml_new_tensor_2d(context, GGML_TYPE_I32, shape_.used, tokens);
          ggml_set_input(chosen);
          return ggml_mul_mat_id(context, weight, x, chosen);
        },
        [&] {
          ggml_backend_tensor_set(x, h.data(), 0, h.size() * sizeof(float));
          if (chosen == nullptr) return;
          std::vector<std::int32_t> all(static_cast<std::size_t>(shape_.experts)), ids;
          for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
          for (std::int64_t t = 0; t < tokens; ++t) {
            std::shuffle(all.begin(), all.end(), random_);
            ids.insert(ids.end(), all.begin(), all.begin() + shape_.used);
          }
          ggml_backend_tensor_set(chosen, ids.data(), 0, ids.size() * sizeof(std::int32_t));
        });
    return 1e3 * host_.seconds();
  }

 private:
  const Shape& shape_;
  Tensors tensors_;
  Host host_;
  std::vector<ggml_tensor*> weights_;
  std::size_t call_ = 0;
  std::mt19937 random_{2};  // NOLINT(cert-msc51-cpp): the same each time
};

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

void measure(const Shape& shape, const std::vector<double>& shares, ggml_type type, int threads) {
  for (const std::int64_t tokens : kTokens) {
    std::printf("| %s | %s | %lld |", shape.name, ggml_type_name(type),
                static_cast<long long>(tokens));
    for (const double share : shares) {
      Layers ours(shape, type, ggml_backend_dev_buffer_type(device()), threads);
      Layers theirs(shape, type, type_of_cpu(shape, type), threads);
      const auto h = random_inputs(tokens * shape.used, shape.inputs, share, 3);
      const auto calls = [&](std::int64_t count) {
        std::vector<double> a, b;
        for (std::int64_t i = 0; i < count; ++i) {
          a.push_back(ours.next(h, tokens));
          b.push_back(theirs.next(h, tokens));
        }
        return std::pair(median(a), median(b));
      };
      // After 64 tokens a layer that fires much is left to the CPU.
      calls(tokens == 1 && share >= 0.5 ? 65 * ours.count() : 2);
      const auto [a, b] = calls(tokens == 1 ? 60 : tokens == 64 ? 12 : 3);
      std::printf(" %.3g, %.3g: %.2f |", a, b, b / a);
      std::fflush(stdout);
    }
    std::puts("");
  }
}

}  // namespace
}  // namespace twell::ggml::test

int main(int argc, char** argv) {
  using namespace twell::ggml::test;  // NOLINT(google-build-using-namespace): of this program
  setenv("TWELL_TEST_CPU", TWELL_BENCH_CPU, 0);          // NOLINT(concurrency-mt-unsafe)
  setenv("TWELL_TEST_BACKEND", TWELL_BENCH_BACKEND, 0);  // NOLINT(concurrency-mt-unsafe)
  if (device() == nullptr) {
    std::fputs("the backend did not load\n", stderr);
    return 1;
  }
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  std::printf(
      "Milliseconds of the backend, of the CPU's own kernels, and their ratio, %d threads\n",
      threads);
  std::puts("| down of | type | tokens | 1 % | 5 % | 9 % | 20 % | 50 % | 100 % |");
  std::puts("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  const auto asked = [&](const Shape& shape) {
    return argc < 3 || std::string(shape.name).find(argv[2]) != std::string::npos;
  };
  for (const Shape& down : kDowns) {
    if (!asked(down)) continue;
    for (const ggml_type type : down.types) measure(down, kShares, type, threads);
  }
  std::puts("\n| up of | type | tokens | |\n| --- | --- | --- | --- |");
  for (const Shape& down : kDowns) {
    if (!asked(down)) continue;
    const Shape up = {down.name, down.width, down.inner, down.experts, down.used, down.types, true};
    for (const ggml_type type : up.types) measure(up, {1.0}, type, threads);
  }
}
