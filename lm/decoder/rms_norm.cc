#include "decoder/rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace twell::lm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The sum of term(i) for i in [0, width), f32. Sixteen partial sums: independent chains for the
// vector units, and a smaller rounding error.
template <class Term>
float sum_of(std::int64_t width, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  float partial[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) partial[lane] += term(i + lane);
  }
  float sum = 0.0F;
  for (; i < width; ++i) sum += term(i);
  for (const float p : partial) sum += p;
  return sum;
}

template <class T>
float scale_of(const T* x, std::int64_t width, float eps) {
  const float squares = sum_of(width, [x](std::int64_t i) {
    const auto v = static_cast<float>(x[i]);
    return v * v;
  });
  return 1.0F / std::sqrt(squares / static_cast<float>(width) + eps);
}

// 32 k elements take about 20 µs: less is not worth waking threads for.
std::int64_t fewest_rows(std::int64_t width) { return std::max<std::int64_t>(1, 32768 / width); }

template <class T>
void normalise(const at::Tensor& x, const at::Tensor& weight, float eps, const at::Tensor& y) {
  const std::int64_t width = weight.size(0);
  const T* in = x.const_data_ptr<T>();
  const T* w = weight.const_data_ptr<T>();
  T* out = y.mutable_data_ptr<T>();
  at::parallel_for(
      0, x.numel() / width, fewest_rows(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin * width; at < end * width; at += width) {
          const float scale = scale_of(in + at, width, eps);
          for (std::int64_t i = 0; i < width; ++i) {
            out[at + i] =
                static_cast<T>(static_cast<float>(in[at + i]) * scale * static_cast<float>(w[i]));
          }
        }
      });
}

at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  if (x.scalar_type() == at::kFloat) {
    normalise<float>(x, weight, static_cast<float>(eps), out);
  } else {
    normalise<at::BFloat16>(x, weight, static_cast<float>(eps), out);
  }
  return out;
}

// Rows whose part of the weight's gradient is added up on its own: the sum then does not depend on
// the number of threads.
constexpr std::int64_t kRowsPerSum = 64;

// With s = 1 / √(mean(x²) + ε) and p = w ⊙ dy:  dx = s p - x s³ mean(p ⊙ x),  dw = Σ s x ⊙ dy.
// `sums` is f32 [blocks of kRowsPerSum rows, D].
template <class T>
void normalise_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                        float eps, const at::Tensor& dx, const at::Tensor& sums) {
  const std::int64_t width = weight.size(0), rows = x.numel() / width;
  const T* in = x.const_data_ptr<T>();
  const T* grad = dy.const_data_ptr<T>();
  const T* w = weight.const_data_ptr<T>();
  T* out = dx.mutable_data_ptr<T>();
  auto* all_sums = sums.mutable_data_ptr<float>();
  at::parallel_for(0, sums.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin * kRowsPerSum; r < std::min(rows, end * kRowsPerSum); ++r) {
      const T* xr = in + r * width;
      const T* gr = grad + r * width;
      T* to = out + r * width;
      float* sum = all_sums + r / kRowsPerSum * width;
      const float scale = scale_of(xr, width, eps);
      const float dot = sum_of(width, [&](std::int64_t i) {
        return static_cast<float>(xr[i]) * static_cast<float>(gr[i]) * static_cast<float>(w[i]);
      });
      const float along = dot * scale * scale * scale / static_cast<float>(width);
      for (std::int64_t i = 0; i < width; ++i) {
        const auto value = static_cast<float>(xr[i]);
        const auto g = static_cast<float>(gr[i]);
        to[i] = static_cast<T>(g * static_cast<float>(w[i]) * scale - value * along);
        sum[i] += value * scale * g;
      }
    }
  });
}

// As PyTorch's operations would compute it, but one pass each way, and x is all that is kept.
class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return normalise(x, weight, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const auto eps = static_cast<float>(context->saved_data["eps"].toDouble());
    const std::int64_t width = weight.size(0), rows = x.numel() / width;
    at::Tensor dx = at::empty(x.sizes(), x.options());
    const at::Tensor sums = at::zeros({(rows + kRowsPerSum - 1) / kRowsPerSum, width}, at::kFloat);
    const at::Tensor dy = grads[0].contiguous();
    if (x.scalar_type() == at::kFloat) {
      normalise_backward<float>(dy, x, weight, eps, dx, sums);
    } else {
      normalise_backward<at::BFloat16>(dy, x, weight, eps, dx, sums);
    }
    return {dx, sums.sum(0).to(weight.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!x.is_cpu()) return at::rms_norm(x, weight.sizes(), weight, eps);
  const at::Tensor in = x.contiguous();
  return at::GradMode::is_enabled() ? RmsNormFunction::apply(in, weight, eps)
                                    : normalise(in, weight, eps);
}

}  // namespace twell::lm
