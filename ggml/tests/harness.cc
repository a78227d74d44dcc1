#include "ggml/tests/harness.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace twell::ggml::test {

ggml_backend_dev_t device() {
  static ggml_backend_dev_t const one = [] {
    ggml_backend_load_all_from_path(std::getenv("TWELL_TEST_CPU"));
    ggml_backend_reg_t const ours = ggml_backend_load(std::getenv("TWELL_TEST_BACKEND"));
    return ours == nullptr ? nullptr : ggml_backend_reg_dev_get(ours, 0);
  }();
  return one;
}

OpenGguf::OpenGguf(const std::string& architecture, const std::vector<const ggml_tensor*>& tensors)
    : path_("/tmp/twell-XXXXXX"), file_(nullptr, std::fclose) {
  close(mkstemp(path_.data()));
  const gguf_context_ptr file(gguf_init_empty());
  if (!architecture.empty()) {
    gguf_set_val_str(file.get(), "general.architecture", architecture.c_str());
  }
  for (const ggml_tensor* tensor : tensors) gguf_add_tensor(file.get(), tensor);
  gguf_write_to_file(file.get(), path_.c_str(), /*only_meta=*/true);
  file_.reset(std::fopen(path_.c_str(), "rb"));
}

bool takes(ggml_tensor* weight, bool by_experts) {
  return takes(device(), ggml_backend_dev_buffer_type(device()), weight, by_experts);
}

bool takes(ggml_backend_dev_t asked, ggml_backend_buffer_type_t type, ggml_tensor* weight,
           bool by_experts) {
  const ggml_context_ptr context(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* op = nullptr;
  if (by_experts) {
    op = ggml_mul_mat_id(context.get(), weight,
                         ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, weight->ne[0], 2, 512),
                         ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 2, 512));
  } else {
    op = ggml_mul_mat(context.get(), weight,
                      ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, weight->ne[0], 512));
  }
  weight->buffer = ggml_backend_buft_alloc_buffer(type, 0);
  const bool taken = ggml_backend_dev_supports_op(asked, op);
  ggml_backend_buffer_free(weight->buffer);
  weight->buffer = nullptr;
  return taken;
}

ggml_tensor* Tensors::add(const std::string& name, ggml_type type,
                          const std::vector<std::int64_t>& ne) {
  ggml_tensor* const tensor =
      ggml_new_tensor(context_.get(), type, static_cast<int>(ne.size()), ne.data());
  ggml_set_name(tensor, name.c_str());
  return tensor;
}

void Tensors::allocate(ggml_backend_buffer_type_t type, ggml_backend_buffer_usage usage) {
  buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), type));
  ggml_backend_buffer_set_usage(buffer_.get(), usage);
}

std::vector<std::uint8_t> random_blocks(ggml_type type, std::int64_t rows, std::int64_t cols,
                                        unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(rows * cols));
  for (float& number : numbers) number = normal(generator);
  std::vector<std::uint8_t> blocks(static_cast<std::size_t>(rows) * ggml_row_size(type, cols));
  ggml_quantize_chunk(type, numbers.data(), blocks.data(), 0, rows, cols, nullptr);
  return blocks;
}

std::vector<float> random_inputs(std::int64_t rows, std::int64_t cols, double share,
                                 unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<float> numbers(static_cast<std::size_t>(rows * cols));
  for (float& number : numbers) {
    const float v = normal(generator);
    number = uniform(generator) < share ? v * v : 0;
  }
  return numbers;
}

Host::Host(int threads)
    : ours_(ggml_backend_dev_init(device(), nullptr)),
      cpu_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
  ggml_backend_t backends[] = {ours_.get(), cpu_.get()};
  for (ggml_backend_t const backend : backends) {
    ggml_backend_reg_t const registry =
        ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        registry, "ggml_backend_set_n_threads"))(backend, threads);
  }
  sched_.reset(ggml_backend_sched_new(backends, nullptr, 2, 128, false, false));
}

std::vector<float> Host::run(const Build& build, const Fill& fill) {
  const ggml_context_ptr context(
      ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
  ggml_tensor* const result = build(context.get());
  ggml_set_output(result);
  ggml_cgraph* const graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, result);
  ggml_backend_sched_reset(sched_.get());
  if (!ggml_backend_sched_alloc_graph(sched_.get(), graph)) return {};
  fill();
  const std::int64_t begin = ggml_time_us();
  if (ggml_backend_sched_graph_compute(sched_.get(), graph) != GGML_STATUS_SUCCESS) return {};
  seconds_ = 1e-6 * static_cast<double>(ggml_time_us() - begin);
  std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(result)));
  ggml_backend_tensor_get(result, numbers.data(), 0, ggml_nbytes(result));
  return numbers;
}

// An input is rounded by half a unit at most, a unit being the largest of its block over 127. These
// errors are of either sign, of variance u² / 12, so a sum of many stays within six of its standard
// deviations; of few, within the sum of the halves. Zeros stay zero. Where blocks have 32 numbers,
// the unit itself is rounded to binary16, by 2⁻¹¹. Sums in f32 add less than 2⁻¹⁸ of the
// magnitudes: 64 terms, as ggml sums integers within blocks.
Expected dot(ggml_type type, const std::uint8_t* blocks, const float* h, std::int64_t count) {
  const std::int64_t block = ggml_blck_size(type);
  std::vector<float> w(static_cast<std::size_t>(count));
  ggml_get_type_traits(type)->to_float(blocks, w.data(), count);
  double value = 0, magnitude = 0, halves = 0, variance = 0;
  for (std::int64_t b = 0; b < count; b += block) {
    double unit = 0;
    for (std::int64_t i = b; i < b + block; ++i) {
      unit = std::max(unit, std::abs(double{h[i]}) / 127);
    }
    for (std::int64_t i = b; i < b + block; ++i) {
      if (h[i] == 0) continue;
      const double product = double{w[i]} * double{h[i]}, step = std::abs(double{w[i]}) * unit;
      value += product;
      magnitude += std::abs(product);
      halves += step / 2;
      variance += step * step / 12;
    }
  }
  const double unit_error = block == 32 ? std::ldexp(magnitude, -11) : 0;
  return {value, std::min(halves, 6 * std::sqrt(variance)) + unit_error +
                     std::ldexp(magnitude, -18) + 1e-30};
}

}  // namespace twell::ggml::test
