#include "train/ffn_elementwise.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace twell::lm {
namespace {

// Rows of a thread: at least 64 k elements, some 10 µs.
std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, (1 << 16) / (cols + 1));
}

template <class Body>
void for_type(const at::Tensor& tensor, Body&& body) {
  if (tensor.scalar_type() == at::kBFloat16) {
    body(at::BFloat16{});
  } else {
    TORCH_INTERNAL_ASSERT(tensor.scalar_type() == at::kFloat);
    body(float{});
  }
}

template <class T>
std::int32_t threshold_row(T* row, std::int64_t n, float threshold, std::int32_t* neuron_nnz) {
  std::int32_t nnz = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<float>(row[i]);
    const std::int32_t keep = !(value <= threshold);  // NaN is kept
    row[i] = keep != 0 ? row[i] : T(0.0F);
    neuron_nnz[i] += keep;
    nnz += keep;
  }
  return nnz;
}

template <class T>
double hidden_row(const T* r, const T* u, Activation kind, std::int64_t n, T* h) {
  // Sixteen partial sums let the compiler use vectors although float addition does not commute.
  float partial[16] = {};
  std::int64_t i = 0;
  const auto one = [&](std::int64_t at) {
    float value = activated(kind, static_cast<float>(r[at]));
    if (u != nullptr) value *= static_cast<float>(u[at]);
    h[at] = T(value);
    return std::fabs(static_cast<float>(h[at]));
  };
  for (; i + 16 <= n; i += 16) {
    for (std::int64_t j = 0; j < 16; ++j) partial[j] += one(i + j);
  }
  double sum = 0.0;
  for (; i < n; ++i) sum += one(i);
  for (const float p : partial) sum += p;
  return sum;
}

template <class T>
void backward_row(T* dh, const T* r, const T* u, Activation kind, float l1_grad, std::int64_t n,
                  T* du) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto root = static_cast<float>(r[i]);
    const float gate = activated(kind, root);
    const float slope = root == 0.0F ? 0.0F : activated_slope(kind, root);
    const float up = u != nullptr ? static_cast<float>(u[i]) : 1.0F;
    const float h = gate * up;
    const float sign = h > 0.0F ? 1.0F : h < 0.0F ? -1.0F : 0.0F;
    const float grad = static_cast<float>(dh[i]) + l1_grad * sign;
    dh[i] = T(slope == 0.0F ? 0.0F : grad * up * slope);
    if (du != nullptr) du[i] = T(gate == 0.0F ? 0.0F : grad * gate);
  }
}

}  // namespace

void threshold_and_count(at::Tensor& pre, const ActivationSpec& activation, FfnCounts& counts) {
  const std::int64_t rows = pre.size(0), cols = pre.size(1);
  const float threshold = activation.kept_above();
  counts.row_nnz.assign(static_cast<std::size_t>(rows), 0);
  counts.neuron_nnz.assign(static_cast<std::size_t>(cols), 0);
  std::mutex mutex;
  for_type(pre, [&](auto type) {
    using T = decltype(type);
    T* data = pre.mutable_data_ptr<T>();
    at::parallel_for(0, rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int32_t> fired(static_cast<std::size_t>(cols), 0);
      for (std::int64_t row = begin; row < end; ++row) {
        counts.row_nnz[static_cast<std::size_t>(row)] =
            threshold_row(data + row * cols, cols, threshold, fired.data());
      }
      const std::scoped_lock lock(mutex);  // integers: any order gives the same sums
      for (std::size_t i = 0; i < fired.size(); ++i) counts.neuron_nnz[i] += fired[i];
    });
  });
}

at::Tensor gather_columns(const at::Tensor& in, const std::vector<std::int64_t>& columns) {
  const std::int64_t rows = in.size(0), cols = in.size(1);
  const auto kept = static_cast<std::int64_t>(columns.size());
  at::Tensor out = at::empty({rows, kept}, in.options());
  for_type(in, [&](auto type) {
    using T = decltype(type);
    const T* from = in.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, rows, row_grain(kept), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t k = 0; k < kept; ++k) {
          to[row * kept + k] = from[row * cols + columns[static_cast<std::size_t>(k)]];
        }
      }
    });
  });
  return out;
}

at::Tensor hidden_state(const at::Tensor& r, const at::Tensor& u, Activation kind, double* l1) {
  const std::int64_t rows = r.size(0), cols = r.size(1);
  at::Tensor h = at::empty_like(r);
  std::vector<double> sums(static_cast<std::size_t>(rows), 0.0);
  for_type(r, [&](auto type) {
    using T = decltype(type);
    const T* gate = r.const_data_ptr<T>();
    const T* up = u.defined() ? u.const_data_ptr<T>() : nullptr;
    T* out = h.mutable_data_ptr<T>();
    at::parallel_for(0, rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t at = row * cols;
        sums[static_cast<std::size_t>(row)] =
            hidden_row(gate + at, up != nullptr ? up + at : nullptr, kind, cols, out + at);
      }
    });
  });
  double sum = 0.0;
  for (const double s : sums) sum += s;
  *l1 = sum;
  return h;
}

at::Tensor hidden_backward(at::Tensor& dh, const at::Tensor& r, const at::Tensor& u,
                           Activation kind, float l1_grad) {
  const std::int64_t rows = r.size(0), cols = r.size(1);
  at::Tensor du = u.defined() ? at::empty_like(u) : at::Tensor();
  for_type(r, [&](auto type) {
    using T = decltype(type);
    T* grad = dh.mutable_data_ptr<T>();
    const T* gate = r.const_data_ptr<T>();
    const T* up = u.defined() ? u.const_data_ptr<T>() : nullptr;
    T* out = u.defined() ? du.mutable_data_ptr<T>() : nullptr;
    at::parallel_for(0, rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * cols;
      backward_row(grad + at, gate + at, up != nullptr ? up + at : nullptr, kind, l1_grad,
                   (end - begin) * cols, out != nullptr ? out + at : nullptr);
    });
  });
  return du;
}

}  // namespace twell::lm
