#include "cuda/bench/dense_training.h"

#include "cuda/bench/bench_kernels.h"

namespace twell::bench {
namespace {

std::size_t elements(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols);
}

}  // namespace

DenseTraining::DenseTraining(const Blas& blas, Timer& timer, const DeviceLayer& layer,
                             std::int64_t tokens)
    : tokens_(static_cast<int>(tokens)),
      width_(static_cast<int>(layer.width)),
      neurons_(static_cast<int>(layer.neurons)),
      stream_(blas.stream()),
      gate_up_(elements(tokens, 2 * layer.neurons)),
      hidden_state_(elements(tokens, layer.neurons)),
      d_gate_up_(elements(tokens, 2 * layer.neurons)),
      d_hidden_(elements(tokens, layer.neurons)),
      d_weight_(elements(2 * layer.neurons, layer.width)),
      dx_(elements(tokens, layer.width)),
      y_(elements(tokens, layer.width)) {
  const auto choose = [&](Product product) {
    gemms_[product].emplace(blas, timer, problem_of(product), operands_of(product, layer));
  };
  choose(kGateUp);
  gemms_[kGateUp]->run(operands_of(kGateUp, layer));
  launch_relu_times({gate_up_.get(), hidden_state_.get(), tokens, neurons_}, stream_);
  // Gradients of gate and up are zero where h is: in their place stands h, once for each.
  for (const std::int64_t half : {std::int64_t{0}, tokens * neurons_}) {
    launch_relu_times({gate_up_.get(), d_gate_up_.get() + half, tokens, neurons_}, stream_);
  }
  for (const Product product : {kDown, kToHidden, kToInput, kOfGateUp, kOfDown}) {
    choose(product);
    gemms_[product]->run(operands_of(product, layer));
  }
}

GemmProblem DenseTraining::problem_of(Product product) const {
  switch (product) {
    case kGateUp:
      return {tokens_, 2 * neurons_, width_};
    case kDown:
      return {tokens_, width_, neurons_, true};
    case kToHidden:
      return {tokens_, neurons_, width_};
    case kToInput:
      return {tokens_, width_, 2 * neurons_, true};
    case kOfGateUp:
      return {2 * neurons_, width_, tokens_, true, true};
    default:
      return {neurons_, width_, tokens_, true, true};
  }
}

// y stands for its own gradient, as if the loss were ‖y‖² / 2.
GemmOperands DenseTraining::operands_of(Product product, const DeviceLayer& layer) const {
  switch (product) {
    case kGateUp:
      return {layer.x.get(), layer.gate_up.get(), gate_up_.get()};
    case kDown:
      return {hidden_state_.get(), layer.down.get(), y_.get()};
    case kToHidden:
      return {y_.get(), layer.down.get(), d_hidden_.get()};
    case kToInput:
      return {d_gate_up_.get(), layer.gate_up.get(), dx_.get()};
    case kOfGateUp:
      return {d_gate_up_.get(), layer.x.get(), d_weight_.get()};
    default:
      return {hidden_state_.get(), y_.get(), d_weight_.get()};
  }
}

const DeviceMemory<std::uint16_t>& DenseTraining::forward(const DeviceLayer& layer) const {
  gemms_[kGateUp]->run(operands_of(kGateUp, layer));
  launch_relu_times({gate_up_.get(), hidden_state_.get(), tokens_, neurons_}, stream_);
  gemms_[kDown]->run(operands_of(kDown, layer));
  return y_;
}

void DenseTraining::run(const DeviceLayer& layer) const {
  for (int product = 0; product < kProducts; ++product) {
    gemms_[product]->run(operands_of(static_cast<Product>(product), layer));
  }
}

std::string DenseTraining::to_string() const {
  constexpr const char* kNames[] = {"gate and up", "down", "dh", "dx", "dWg and dWu", "dWd"};
  std::string out;
  for (int product = 0; product < kProducts; ++product) {
    out += (product == 0 ? "" : "; ") + std::string(kNames[product]) + ": " +
           gemms_[product]->to_string();
  }
  return out;
}

}  // namespace twell::bench
