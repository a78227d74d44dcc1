#include "models/rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cmath>

namespace twell::lm {
namespace {

template <class T>
void normalise_row(const T* x, const T* weight, std::int64_t width, float eps, T* y) {
  // Sixteen partial sums: independent chains for the vector units, and a smaller rounding error.
  constexpr std::int64_t kLanes = 16;
  float partial[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto v = static_cast<float>(x[i + lane]);
      partial[lane] += v * v;
    }
  }
  float sum = 0.0F;
  for (; i < width; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  for (const float p : partial) sum += p;
  const float scale = 1.0F / std::sqrt(sum / static_cast<float>(width) + eps);
  for (i = 0; i < width; ++i) {
    y[i] = static_cast<T>(static_cast<float>(x[i]) * scale * static_cast<float>(weight[i]));
  }
}

template <class T>
void normalise(const at::Tensor& x, const at::Tensor& weight, float eps, const at::Tensor& y) {
  const std::int64_t width = weight.size(0);
  const std::int64_t rows = x.numel() / width;
  const T* in = x.const_data_ptr<T>();
  const T* w = weight.const_data_ptr<T>();
  T* out = y.mutable_data_ptr<T>();
  // 32 k elements take about 20 µs: less is not worth waking threads for.
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 32768 / width),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t r = begin; r < end; ++r) {
                       normalise_row(in + r * width, w, width, eps, out + r * width);
                     }
                   });
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (at::GradMode::is_enabled()) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scale = (wide.square().mean(-1, true) + eps).rsqrt();
    return (wide * scale * weight.to(at::kFloat)).to(x.scalar_type());
  }
  if (!x.is_cpu()) return at::rms_norm(x, weight.sizes(), weight, eps);
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty(in.sizes(), in.options());
  if (in.scalar_type() == at::kFloat) {
    normalise<float>(in, weight, static_cast<float>(eps), out);
  } else {
    normalise<at::BFloat16>(in, weight, static_cast<float>(eps), out);
  }
  return out;
}

}  // namespace twell::lm
