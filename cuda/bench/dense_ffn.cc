#include "cuda/bench/dense_ffn.h"

#include "cuda/bench/bench_kernels.h"

namespace twell::bench {

DenseFfn::DenseFfn(const Blas& blas, Timer& timer, const DenseLayer& layer, std::int64_t tokens,
                   std::int64_t width, std::int64_t neurons)
    : layer_(layer),
      tokens_(tokens),
      hidden_(static_cast<int>(neurons)),
      stream_(blas.stream()),
      gate_up_(blas, timer, {static_cast<int>(tokens), 2 * hidden_, static_cast<int>(width), false},
               {layer.x, layer.gate_up, layer.gate_up_out}) {
  // Real values for the next two: what a GEMM multiplies decides its power and so its clock.
  gate_up_.run({layer_.x, layer_.gate_up, layer_.gate_up_out});
  activate();
  const GemmProblem by_neuron{static_cast<int>(tokens), static_cast<int>(width), hidden_, true};
  const GemmProblem by_row{by_neuron.m, by_neuron.n, by_neuron.k, false};
  down_.emplace(blas, timer, by_neuron, GemmOperands{layer.hidden_state, layer.down, layer.y});
  down_by_row_.emplace(blas, timer, by_row,
                       GemmOperands{layer.hidden_state, layer.down_by_row, layer.y});
}

void DenseFfn::activate() const {
  launch_relu_times({layer_.gate_up_out, layer_.hidden_state, tokens_, hidden_}, stream_);
}

void DenseFfn::run() const {
  gate_up_.run({layer_.x, layer_.gate_up, layer_.gate_up_out});
  activate();
  if (uses_down_by_row()) {
    down_by_row_->run({layer_.hidden_state, layer_.down_by_row, layer_.y});
  } else {
    down_->run({layer_.hidden_state, layer_.down, layer_.y});
  }
}

std::string DenseFfn::to_string() const {
  return "gate and up joined: " + gate_up_.to_string() + "; down as " +
         (uses_down_by_row() ? "[D, H]: " + down_by_row_->to_string()
                             : "[H, D]: " + down_->to_string());
}

}  // namespace twell::bench
