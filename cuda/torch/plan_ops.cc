#include "cuda/torch/plan_ops.h"

#include "cuda/torch/cuda_call.h"
#include "twell/cuda_train.h"

namespace twell::torch_ops {
namespace {

std::vector<double> rates_of(const Argument& argument) {
  const Tensor& rates = argument.tensor;
  const ScalarType type = rates.scalar_type();
  if (!rates.is_cpu() || rates.dim() != 1 || rates.size(0) == 0 ||
      (type != ScalarType::Double && type != ScalarType::Float)) {
    fail(argument.operation, argument.name,
         "expected f64 or f32 [H] on the CPU, H of 1 or more, got shape " + shape_of(rates));
  }
  const Tensor copy = contiguous_copy(argument);
  const auto values = [&](const auto* first) {
    return std::vector<double>(first, first + copy.size(0));
  };
  return type == ScalarType::Double ? values(static_cast<const double*>(copy.const_data_ptr()))
                                    : values(static_cast<const float*>(copy.const_data_ptr()));
}

cuda::Problem problem_of(std::int64_t tokens, std::int64_t width, std::int64_t neurons) {
  cuda::Problem problem;
  problem.tokens = tokens;
  problem.width = width;
  problem.neurons = neurons;
  problem.aligned = width % cuda::kVector == 0;  // as the operators' tensors are
  return problem;
}

cuda::Problem problem_of(const char* operation, std::int64_t tokens, std::int64_t width,
                         std::size_t neurons, const std::string& activation, bool gated) {
  cuda::Problem problem = problem_of(tokens, width, static_cast<std::int64_t>(neurons));
  // A threshold changes no plan; fat_relu may have that of relu.
  problem.activation = activation_of(operation, activation, 0).kind;
  problem.gated = gated;
  return problem;
}

}  // namespace

std::int64_t choose_hot(const Tensor& rates, std::int64_t tokens, std::int64_t width,
                        std::int64_t device, const std::string& activation, bool gated, bool joined,
                        bool training) {
  constexpr const char* kOperation = "choose_hot";
  const std::vector<double> shares = rates_of({kOperation, "rates", rates});
  cuda::Problem problem = problem_of(kOperation, tokens, width, shares.size(), activation, gated);
  problem.joined = joined;
  const cuda::Device& figures = device_figures(static_cast<int>(device));
  return training ? cuda::choose_hot_in_training(figures, problem, shares)
                  : cuda::choose_hot(figures, problem, shares);
}

std::int64_t choose_training(const Tensor& rates, std::int64_t tokens, std::int64_t width,
                             std::int64_t device, const std::string& activation, bool gated) {
  constexpr const char* kOperation = "choose_training";
  const std::vector<double> shares = rates_of({kOperation, "rates", rates});
  const cuda::Problem problem =
      problem_of(kOperation, tokens, width, shares.size(), activation, gated);
  const cuda::Device& figures = device_figures(static_cast<int>(device));
  // Of each weight and each gradient: read and written.
  const double elements = static_cast<double>(width) * static_cast<double>(shares.size());
  const double bytes = (gated ? 3 : 2) * 2 * 2 * 2 * elements;
  const double besides = bytes / cuda::rates_of(figures).memory_bytes;
  return cuda::choose_training(figures, problem, shares, besides).value_or(-1);
}

bool screen_pays(std::int64_t tokens, std::int64_t width, std::int64_t neurons,
                 std::optional<double> candidates, std::int64_t device) {
  cuda::Problem problem = problem_of(tokens, width, neurons);
  problem.screened = true;
  problem.candidates = candidates.value_or(problem.candidates);
  const cuda::Device& figures = device_figures(static_cast<int>(device));
  return cuda::plan_gemm_relu_twell(figures, problem).shape == cuda::GemmShape::screen32x32;
}

}  // namespace twell::torch_ops
