// Forward and backward passes of training against the fp64 definition.
#pragma once

#include "cuda/tests/support/ffn.h"
#include "twell/cuda_train.h"

namespace twell::test {

struct TrainCase {
  std::int64_t hot = 0;
  cuda::TrainOptions options = {};
  float l1 = 0.0F;
  bool accumulate = false;
  int chunk = 0;  // of rows; forced where not 0
};

inline std::string describe(const TrainCase& c) {
  return "hot " + std::to_string(c.hot) + ", kept " + std::to_string(c.options.kept_density) +
         ", turns of " + std::to_string(c.options.turn_places) + ", l1 " + std::to_string(c.l1) +
         (c.accumulate ? ", accumulates" : "");
}

// One training step of a layer on the device; weight gradients in G.
template <class T, class G>
class TrainingStep {
 public:
  TrainingStep(const CudaLayer<T>& layer, const TrainCase& options)
      : layer_(layer),
        options_(options),
        on_(layer),
        host_dy_(
            random_matrix<T>(layer.shape.tokens, layer.shape.width, 9, 1.0F, layer.shape.padding)),
        dy_(host_dy_),
        dx_(TestMatrix<T>(layer.shape.tokens, layer.shape.width, layer.shape.padding)),
        before_(random_matrix<G>(layer.shape.neurons, layer.shape.width, 10, 1.0F,
                                 layer.shape.padding)),
        gate_(before_),
        up_(before_),
        down_(before_),
        l1_(std::vector<float>{options.l1}) {
    cuda::Problem problem =
        cuda::problem_of(on_.x.view(), on_.weights(), on_.y.view(), layer.shape.activation);
    problem.hot = options.hot;
    plan_ = cuda::plan_train(cuda::current_device(), problem, options.options);
    if (options.chunk != 0) plan_.forward.gather.chunk = plan_.rows.chunk = options.chunk;
  }

  void set_dy(std::int64_t row, std::int64_t col, float value) {
    host_dy_.set(row, col, value);
    dy_.write(host_dy_);
  }

  void run() {
    DeviceBuffer<std::byte> kept(plan_.kept_bytes);
    // The passes share their workspace with other layers: each finds what another left.
    DeviceBuffer<std::byte> workspace(plan_.workspace_bytes);
    const cuda::Workspace kept_memory = {kept.data(), kept.size()};
    const cuda::Workspace memory = {workspace.data(), workspace.size()};
    const auto rows = static_cast<std::size_t>(layer_.shape.tokens);
    DeviceBuffer<std::int32_t> row_nnz(rows);
    DeviceBuffer<std::int64_t> neuron_counts(
        std::vector<std::int64_t>(static_cast<std::size_t>(layer_.shape.neurons)));
    DeviceBuffer<float> row_l1(rows);
    cuda::ffn_forward(plan_, on_.x.view(), on_.weights(), layer_.shape.activation,
                      on_.y.mutable_view(), kept_memory, memory, nullptr,
                      {row_nnz.data(), neuron_counts.data()}, row_l1.data());
    workspace.poison();
    cuda::DeviceFfnBackward in = {dy_.view(), on_.x.view(), on_.weights(), layer_.shape.activation,
                                  options_.l1 == 0 ? nullptr : l1_.data()};
    cuda::DeviceFfnGradients out = {dx_.mutable_view(), gate_.mutable_view(), MatrixView{},
                                    down_.mutable_view(), options_.accumulate};
    if (layer_.shape.gated) out.up = up_.mutable_view();
    cuda::ffn_backward(plan_, in, out, kept_memory, memory, nullptr);
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
    l1 = row_l1.read();
    nnz = row_nnz.read();
    counts = neuron_counts.read();
  }

  // Everything that a step wrote, for comparing bits.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> out;
    const auto add = [&](const auto& values) {
      const auto* first = reinterpret_cast<const std::byte*>(values.data());
      out.insert(out.end(), first, first + values.size() * sizeof values[0]);
    };
    add(on_.y.read());
    add(dx_.read());
    add(gate_.read());
    if (layer_.shape.gated) add(up_.read());
    add(down_.read());
    add(l1);
    return out;
  }

  void check() {
    const CudaCase& c = layer_.shape;
    const ref::Matrix gate = check_gemm(gate_alone(plan_.forward), layer_, 16);
    expect_output(on_.y, gate, layer_, [&](std::int64_t row, std::int64_t col) {
      return hot_bound(layer_, gate, plan_.forward.hot, row, col);
    });
    ref::BackwardInput in = {widened(host_dy_),
                             widened(layer_.x),
                             widened(layer_.gate),
                             widened(layer_.up),
                             widened(layer_.down),
                             {},
                             {},
                             {},
                             c.gated,
                             c.activation,
                             options_.l1};
    in.fired = in.v = in.u = ref::Matrix(c.tokens, c.neurons);
    ref::BackwardInput errors = in;
    // An error of u reaches dx by Wg alone.
    errors.up = ref::Matrix(c.neurons, c.width);
    for (std::int64_t r = 0; r < c.tokens; ++r) {
      expect_row(gate, in, errors, r);
      if (testing::Test::HasFatalFailure()) return;
    }
    const ref::Gradients exact = ref::ffn_backward(in);
    const ref::Gradients error = ref::ffn_backward(errors);
    expect(dx_, exact.dx, error.dx.magnitude, false, "dx");
    expect(gate_, exact.gate, error.gate.magnitude, true, "gate");
    const ref::Matrix none(c.neurons, c.width);
    if (c.gated) expect(up_, exact.up, none, true, "up");
    expect(down_, exact.down, error.down.magnitude, true, "down");
  }

  const cuda::TrainPlan& plan() const { return plan_; }
  std::vector<float> l1;
  std::vector<std::int32_t> nnz;
  std::vector<std::int64_t> counts;

 private:
  static constexpr double ulp() { return dtype_of<T>::value == DType::bf16 ? 0x1p-8 : 0x1p-11; }

  // A row of v and u, as exact as they are known, and of u's error; its statistics.
  void expect_row(const ref::Matrix& gate, ref::BackwardInput& in, ref::BackwardInput& errors,
                  std::int64_t r) {
    const CudaCase& c = layer_.shape;
    std::int32_t fired = 0;
    double sum = 0.0, bound = 0.0;
    for (std::int64_t n = 0; n < c.neurons; ++n) {
      const double g = gate.at(r, n);
      if (g == 0.0) continue;
      ++fired;
      in.fired.at(r, n) = errors.fired.at(r, n) = 1.0;
      in.v.at(r, n) = errors.v.at(r, n) =
          c.activation.kind == Activation::relu_squared ? std::sqrt(g) : g;
      double u = 0.0, magnitude = 0.0;
      for (std::int64_t k = 0; k < c.width; ++k) {
        u += in.x.at(r, k) * in.up.at(n, k);
        magnitude += std::abs(in.x.at(r, k) * in.up.at(n, k));
      }
      double error = tensor_core_bound(static_cast<double>(c.width), magnitude);
      error += 1.01 * half_ulp<T>(std::abs(u) + error);
      in.u.at(r, n) = u;
      errors.u.at(r, n) = error;
      const double h = c.gated ? std::abs(g * u) : std::abs(g);
      sum += h;
      bound += c.gated ? std::abs(g) * error : 0.0;
      if (n < plan_.forward.hot) bound += half_ulp<T>(h + bound);
    }
    ASSERT_EQ(nnz[static_cast<std::size_t>(r)], fired);
    if (std::isfinite(sum)) {
      bound += accumulation_bound(fired + 2.0, sum + bound);
      ASSERT_NEAR(l1[static_cast<std::size_t>(r)], sum, bound) << "l1 of row " << r;
    }
  }

  // Where a neuron is hot, dh, dv, du and h are rounded; where g is computed again it may round to
  // the number beside it.
  template <class Out>
  void expect(const DeviceMatrixOf<Out>& got, const ref::Result& exact, const ref::Matrix& more,
              bool weights, const char* name) {
    const CudaCase& c = layer_.shape;
    const bool recomputes = plan_.kept_places < c.tokens * (c.neurons - plan_.forward.hot);
    const double coarse = (plan_.forward.hot > 0 ? 1.05 * ulp() : 0.0) + (recomputes ? ulp() : 0.0);
    const double rounds = weights && sizeof(Out) == 2 ? plan_.turns : 1;
    const auto values = got.read();
    const auto terms = static_cast<double>(c.width + c.neurons + c.tokens);
    // Denormals of 16 bits err by as much whatever their size.
    const double least = plan_.forward.hot > 0 ? std::ldexp(terms, -22) : 0.0;
    for (std::int64_t r = 0; r < exact.value.rows; ++r) {
      for (std::int64_t k = 0; k < exact.value.cols; ++k) {
        const double before = weights && options_.accumulate ? before_.value(r, k) : 0.0;
        const double expected = exact.value.at(r, k) + before;
        const double value = got.value(values, r, k);
        const double magnitude = exact.magnitude.at(r, k) + std::abs(before);
        double bound =
            tensor_core_bound(terms, magnitude) + coarse * magnitude + least + more.at(r, k);
        if (!std::isfinite(expected) || !std::isfinite(bound)) {
          ASSERT_FALSE(std::isfinite(value)) << name << At{r, k} << value << " for " << expected;
          continue;
        }
        bound += rounds * 1.01 * half_ulp<Out>(magnitude + bound);
        ASSERT_NEAR(value, expected, bound) << name << At{r, k};
      }
    }
  }

  const CudaLayer<T>& layer_;
  TrainCase options_;
  OnDevice<T> on_;
  TestMatrix<T> host_dy_;
  DeviceMatrixOf<T> dy_, dx_;
  TestMatrix<G> before_;
  DeviceMatrixOf<G> gate_, up_, down_;
  DeviceBuffer<float> l1_;
  cuda::TrainPlan plan_;
};

template <class T, class G = float>
void check_training(const CudaLayer<T>& layer, const TrainCase& options = {}) {
  TrainingStep<T, G> step(layer, options);
  SCOPED_TRACE(describe(layer.shape) + "; " + describe(options) + "; " + step.plan().to_string());
  step.run();
  step.check();
}

}  // namespace twell::test
