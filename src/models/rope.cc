#include "models/rope.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cmath>
#include <numbers>

namespace twell::lm {
namespace {

double llama3_frequency(double frequency, const io::RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const double turns = context * frequency / (2.0 * std::numbers::pi);  // within the old context
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double blend =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

template <class T>
void rotate_heads(T* row, std::int64_t heads, std::int64_t half, const float* cos,
                  const float* sin) {
  for (std::int64_t h = 0; h < heads; ++h, row += 2 * half) {
    for (std::int64_t i = 0; i < half; ++i) {
      const auto a = static_cast<float>(row[i]);
      const auto b = static_cast<float>(row[half + i]);
      row[i] = static_cast<T>(a * cos[i] - b * sin[i]);
      row[half + i] = static_cast<T>(b * cos[i] + a * sin[i]);
    }
  }
}

template <class T>
void rotate_typed(at::Tensor& x, std::span<const std::int64_t> positions, const RopeTable& table) {
  const std::int64_t width = x.size(1);
  const std::int64_t half = table.half();
  T* data = x.mutable_data_ptr<T>();
  const auto* cos = table.cos().const_data_ptr<float>();
  const auto* sin = table.sin().const_data_ptr<float>();
  at::parallel_for(0, x.size(0), std::max<std::int64_t>(1, 16384 / width),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t n = begin; n < end; ++n) {
                       const std::int64_t at = positions[static_cast<std::size_t>(n)] * half;
                       rotate_heads(data + n * width, width / (2 * half), half, cos + at, sin + at);
                     }
                   });
}

}  // namespace

std::vector<float> rope_frequencies(const io::ModelConfig& config) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    switch (config.rope_scaling.kind) {
      case io::RopeScaling::Kind::none:
        break;
      case io::RopeScaling::Kind::linear:
        frequency /= config.rope_scaling.factor;
        break;
      case io::RopeScaling::Kind::llama3:
        frequency = llama3_frequency(frequency, config.rope_scaling);
        break;
    }
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

void RopeTable::reserve(std::int64_t positions) {
  const std::int64_t have = cos_.defined() ? cos_.size(0) : 0;
  if (positions <= have) return;
  const std::int64_t rows = std::max<std::int64_t>({positions, 2 * have, 256});
  // Whoever is in grad mode must be able to save these for backward.
  c10::InferenceMode normal_tensors(false);
  at::Tensor cos = at::empty({rows, half()}, at::kFloat);
  at::Tensor sin = at::empty({rows, half()}, at::kFloat);
  auto* c = cos.mutable_data_ptr<float>();
  auto* s = sin.mutable_data_ptr<float>();
  for (std::int64_t p = 0; p < rows; ++p) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(p) * frequency;
      *c++ = std::cos(angle);
      *s++ = std::sin(angle);
    }
  }
  cos_ = cos.to(device_);
  sin_ = sin.to(device_);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = cos.size(-1);
  const at::Tensor a = x.narrow(-1, 0, half).to(at::kFloat);
  const at::Tensor b = x.narrow(-1, half, half).to(at::kFloat);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

at::Tensor rotate(const at::Tensor& x, const RopeTable& table) {
  // [S, 1, half]
  return rotate(x, table.cos().narrow(0, 0, x.size(1)).unsqueeze(1),
                table.sin().narrow(0, 0, x.size(1)).unsqueeze(1));
}

void rotate_rows(at::Tensor& x, std::span<const std::int64_t> positions, const RopeTable& table) {
  if (x.scalar_type() == at::kFloat) {
    rotate_typed<float>(x, positions, table);
  } else {
    rotate_typed<at::BFloat16>(x, positions, table);
  }
}

}  // namespace twell::lm
