#include "decoder/rope.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "checkpoint/rope_scaling.h"

namespace twell::lm {
namespace {

// How far dimension `pair` is on the way from those that turn `beta_fast` times within the old
// context, and keep their frequency, to those that turn `beta_slow` times.
double yarn_blend(std::int64_t pair, std::int64_t rotated, const io::PositionSpec& spec) {
  const io::RopeScaling& scaling = spec.scaling;
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const auto width = static_cast<double>(rotated);
  const auto dimension = [&](double turns) {
    return width * std::log(context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(spec.theta));
  };
  double first = dimension(scaling.beta_fast), last = dimension(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, width - 1);
  if (first == last) last += 0.001;
  return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// In place, on a CPU; by the negative angles if `back`.
template <class T>
void rotate_rows(const at::Tensor& x, const Rotation& rotation, bool back) {
  const float sign = back ? -1.0F : 1.0F;
  const std::int64_t width = x.size(1);
  const std::int64_t half = rotation.cos.size(2);
  T* data = x.mutable_data_ptr<T>();
  const auto* all_cos = rotation.cos.const_data_ptr<float>();
  const auto* all_sin = rotation.sin.const_data_ptr<float>();
  at::parallel_for(0, x.size(0), std::max<std::int64_t>(1, 16384 / width),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t n = begin; n < end; ++n) {
                       const float* cos = all_cos + n * half;
                       const float* sin = all_sin + n * half;
                       for (T* head = data + n * width; head < data + (n + 1) * width;
                            head += rotation.head_dim) {
                         for (std::int64_t i = 0; i < half; ++i) {
                           const auto a = static_cast<float>(head[i]);
                           const auto b = static_cast<float>(head[half + i]);
                           const float s = sign * sin[i];
                           head[i] = static_cast<T>(a * cos[i] - b * s);
                           head[half + i] = static_cast<T>(b * cos[i] + a * s);
                         }
                       }
                     }
                   });
}

at::Tensor rotate_in_place(const at::Tensor& x, const Rotation& rotation, bool back) {
  if (x.scalar_type() == at::kFloat) {
    rotate_rows<float>(x, rotation, back);
  } else {
    rotate_rows<at::BFloat16>(x, rotation, back);
  }
  return x;
}

// The transpose of a rotation is the rotation back.
class RotateFunction : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, std::int64_t head_dim) {
    context->save_for_backward({cos, sin});
    context->saved_data["head_dim"] = head_dim;
    return rotate_in_place(x.clone(at::MemoryFormat::Contiguous), {cos, sin, head_dim}, false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dx = grads[0].clone(at::MemoryFormat::Contiguous);
    const std::int64_t head_dim = context->saved_data["head_dim"].toInt();
    return {rotate_in_place(dx, {saved[0], saved[1], head_dim}, true), {}, {}, {}};
  }
};

}  // namespace

std::vector<float> rope_frequencies(const io::ModelConfig& config) {
  std::vector<float> out;
  const io::PositionSpec& spec = config.block.positions;
  const std::int64_t rotated = config.rotated_dims();
  for (std::int64_t i = 0; i < rotated / 2; ++i) {
    double frequency =
        std::pow(spec.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
    switch (spec.scaling.kind) {
      case io::RopeScaling::Kind::none:
        break;
      case io::RopeScaling::Kind::linear:
        frequency /= spec.scaling.factor;
        break;
      case io::RopeScaling::Kind::llama3:
        frequency = io::llama3_frequency(frequency, spec.scaling);
        break;
      case io::RopeScaling::Kind::yarn: {
        const double blend = yarn_blend(i, rotated, spec);
        frequency *= 1.0 - blend + blend / spec.scaling.factor;
        break;
      }
    }
    out.push_back(static_cast<float>(spec.reversed ? -frequency : frequency));
  }
  return out;
}

void RopeTable::grow(std::int64_t rows) {
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  // Whoever is in grad mode must be able to save these for backward.
  c10::InferenceMode normal_tensors(false);
  at::Tensor cos = at::empty({rows, half}, at::kFloat);
  at::Tensor sin = at::empty({rows, half}, at::kFloat);
  auto* c = cos.mutable_data_ptr<float>();
  auto* s = sin.mutable_data_ptr<float>();
  for (std::int64_t p = 0; p < rows; ++p) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(p) * frequency;
      *c++ = factor_ * std::cos(angle);
      *s++ = factor_ * std::sin(angle);
    }
  }
  cos_ = cos.to(device_);
  sin_ = sin.to(device_);
}

Rotation RopeTable::rotation(const at::Tensor& positions, std::int64_t end) {
  if (frequencies_.empty()) return {{}, {}, head_dim_};
  if (!cos_.defined()) grow(std::max<std::int64_t>(end, 256));
  if (end > cos_.size(0)) grow(std::max(end, 2 * cos_.size(0)));
  // A few thousand positions are staged before the call returns: no wait for the device.
  const at::Tensor rows = positions.to(at::TensorOptions(device_), /*non_blocking=*/true);
  return {at::index_select(cos_, 0, rows).unsqueeze(1),
          at::index_select(sin_, 0, rows).unsqueeze(1), head_dim_};
}

at::Tensor rotate(const at::Tensor& x, const Rotation& rotation) {
  const auto& [cos, sin, head_dim] = rotation;
  if (!cos.defined()) return x;
  if (x.is_cpu()) {
    return at::GradMode::is_enabled() ? RotateFunction::apply(x, cos, sin, head_dim)
                                      : rotate_in_place(x, rotation, false);
  }
  const std::int64_t half = cos.size(2);
  const at::Tensor heads = x.view({x.size(0), -1, head_dim});
  const at::Tensor a = heads.narrow(-1, 0, half).to(at::kFloat);
  const at::Tensor b = heads.narrow(-1, half, half).to(at::kFloat);
  const at::Tensor turned = at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
  if (2 * half == head_dim) return turned.flatten(1);
  return at::cat({turned, heads.narrow(-1, 2 * half, head_dim - 2 * half)}, -1).flatten(1);
}

}  // namespace twell::lm
