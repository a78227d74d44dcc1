#include "ggml/compute.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "ggml/buffer.h"
#include "ggml/weights.h"
#include "twell/device.h"
#include "twell/status.h"

namespace twell::ggml {
namespace {

bool is_rows_of_f32(const ggml_tensor& t) {
  return t.type == GGML_TYPE_F32 && t.nb[0] == sizeof(float) && t.nb[1] % sizeof(float) == 0 &&
         t.nb[1] >= static_cast<std::size_t>(t.ne[0]) * sizeof(float);
}

bool is_of_activation(const ggml_tensor& t);

// Row i1 of plane i2, i3.
template <class T>
T* row_of(const ggml_tensor& t, std::int64_t i1, std::int64_t i2, std::int64_t i3 = 0) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] +
                              static_cast<std::size_t>(i2) * t.nb[2] +
                              static_cast<std::size_t>(i3) * t.nb[3]);
}
std::int64_t rows_of(const ggml_tensor& t) { return t.ne[1] * t.ne[2] * t.ne[3]; }
std::int64_t stride_of(const ggml_tensor& t) {
  return static_cast<std::int64_t>(t.nb[1] / sizeof(float));
}

// Whether a tensor is a product with an up of ours, or its bias or a part of its activation
// follows.
bool is_of_layer(const ggml_tensor& t) {
  if (t.op == GGML_OP_MUL_MAT || t.op == GGML_OP_MUL_MAT_ID) {
    return is_weight(*t.src[0]) && order_of(*t.src[0]) == GgmlOrder::outputs;
  }
  return is_of_activation(t);
}
bool is_of_activation(const ggml_tensor& t) {
  const bool relu = t.op == GGML_OP_UNARY && ggml_get_unary_op(&t) == GGML_UNARY_OP_RELU;
  const bool bias = t.op == GGML_OP_ADD && t.src[1]->ne[0] == t.ne[0] &&
                    ggml_nelements(t.src[1]) == t.ne[0] && is_rows_of_f32(*t.src[1]);
  return (relu || bias || t.op == GGML_OP_SQR) && is_rows_of_f32(*t.src[0]) && is_rows_of_f32(t) &&
         is_of_layer(*t.src[0]);
}

// The share of h that is not zero. Of many rows, 16 say it: to look at all of 512 would take 2 % of
// the time of their product.
double share_fired(const ggml_tensor& h) {
  constexpr std::int64_t kLooked = 16;
  const std::int64_t rows = rows_of(h), looked = std::min(rows, kLooked);
  std::int64_t fired = 0;
  for (std::int64_t k = 0; k < looked; ++k) {
    const std::int64_t r = k * rows / looked, i1 = r % h.ne[1], i2 = r / h.ne[1];
    const auto* const x = row_of<const float>(h, i1, i2 % h.ne[2], i2 / h.ne[2]);
    std::int32_t in_row = 0;
    for (std::int64_t i = 0; i < h.ne[0]; ++i) in_row += x[i] != 0 ? 1 : 0;
    fired += in_row;
  }
  return rows == 0 ? 0 : static_cast<double>(fired) / static_cast<double>(looked * h.ne[0]);
}

}  // namespace

bool supports(const ggml_tensor& op) {
  if (is_of_activation(op)) return true;
  if (op.op == GGML_OP_NONE || op.op == GGML_OP_RESHAPE || op.op == GGML_OP_VIEW ||
      op.op == GGML_OP_PERMUTE || op.op == GGML_OP_TRANSPOSE) {
    return true;
  }
  if (op.op != GGML_OP_MUL_MAT && op.op != GGML_OP_MUL_MAT_ID) return false;
  const ggml_tensor& weight = *op.src[0];
  const bool one = weight.ne[2] == 1 && weight.ne[3] == 1;
  if (weight.buffer == nullptr || weight.buffer->buft != buffer_type() || weight.ne[3] != 1 ||
      (op.op == GGML_OP_MUL_MAT && !one) || !is_rows_of_f32(*op.src[1]) || !is_rows_of_f32(op)) {
    return false;
  }
  const bool loading =
      weight.data == nullptr && weight.buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
  return loading ? wanted(weight) : is_weight(weight);
}

// Where threads of the host's wait in a loop, a product of few rows is done by those that find a
// core of their own. A longer one waits for a turn of the scheduler's and is still faster.
int Compute::threads_for(std::int64_t rows) const {
  constexpr std::int64_t kManyRows = 32;
  static const int cores = default_threads();  // asks the system each time
  const int threads = threads_ == 0 ? cores : threads_;
  if (host_has_openmp() || rows >= kManyRows) return threads;
  return std::clamp(cores - threads + 1, 1, threads);
}

Context& Compute::context(std::int64_t rows) {
  const int threads = threads_for(rows);
  if (!context_ || context_->threads() != threads) {
    context_.reset();
    context_.emplace(ContextOptions{threads, std::nullopt});
  }
  return *context_;
}

ggml_status Compute::run(ggml_cgraph* graph) {
  const int nodes = ggml_graph_n_nodes(graph);
  for (int i = 0; i < nodes; ++i) {
    ggml_tensor& node = *ggml_graph_node(graph, i);
    if ((node.flags & GGML_TENSOR_FLAG_COMPUTE) == 0 || ggml_is_empty(&node)) continue;
    try {
      if (is_of_activation(node)) {
        activate(node);
      } else if (node.op == GGML_OP_MUL_MAT || node.op == GGML_OP_MUL_MAT_ID) {
        multiply(node);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "twell: %s: %s\n", node.name, error.what());
      return GGML_STATUS_FAILED;
    }
  }
  return GGML_STATUS_SUCCESS;
}

void Compute::activate(ggml_tensor& node) const {
  const ggml_tensor& in = *node.src[0];
  const std::int64_t rows = rows_of(node), plane = node.ne[1] * node.ne[2];
  const auto each = [&](const auto& f) {
#pragma omp parallel for num_threads(threads_for(rows)) if (rows > 1)
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t i1 = r % node.ne[1], i2 = r % plane / node.ne[1], i3 = r / plane;
      const auto* const x = row_of<const float>(in, i1, i2, i3);
      auto* const y = row_of<float>(node, i1, i2, i3);
      for (std::int64_t i = 0; i < node.ne[0]; ++i) y[i] = f(x[i], i);
    }
  };
  if (node.op == GGML_OP_ADD) {
    each([bias = row_of<const float>(*node.src[1], 0, 0)](float x, std::int64_t i) {
      return x + bias[i];
    });
  } else if (node.op == GGML_OP_SQR) {
    each([](float x, std::int64_t) { return x * x; });
  } else {
    each([](float x, std::int64_t) { return x > 0 ? x : 0.0F; });  // as ggml has it: 0 of NaN
  }
}

void Compute::multiply(ggml_tensor& node) {
  Weight* const weight = weight_of(*node.src[0]);
  if (weight == nullptr) {
    throw Error(ErrorKind::invalid_argument, node.src[0]->name, "has no numbers yet");
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const ggml_tensor& h = *node.src[1];
  const std::int64_t tokens = node.op == GGML_OP_MUL_MAT_ID ? node.src[2]->ne[1] : rows_of(h);
  const Weight::Form form = weight->form_for(tokens, weight->is_down() ? share_fired(h) : 1);
  if (form.host != nullptr) {
    const ggml_status status = host_.compute(node, *form.host, threads_for(rows_of(h)));
    if (status != GGML_STATUS_SUCCESS) {
      throw Error(ErrorKind::environment, "the CPU backend", ggml_status_to_string(status));
    }
  } else if (form.packed == nullptr) {
    throw Error(ErrorKind::invalid_argument, node.src[0]->name, "has only some of its numbers");
  } else if (node.op == GGML_OP_MUL_MAT) {
    multiply_rows(*form.packed, node);
  } else {
    multiply_by_experts(*form.packed, node);
  }
  weight->add_time(std::chrono::duration<double>(Clock::now() - begin).count());
}

void Compute::multiply_rows(const std::vector<GgmlMatrix>& packed, ggml_tensor& node) {
  const ggml_tensor& h = *node.src[1];
  Context& threads = context(rows_of(h));
  for (std::int64_t i3 = 0; i3 < h.ne[3]; ++i3) {
    for (std::int64_t i2 = 0; i2 < h.ne[2]; ++i2) {
      ggml_matmul(
          threads, {row_of<const float>(h, 0, i2, i3), DType::f32, h.ne[1], h.ne[0], stride_of(h)},
          packed.front(),
          {row_of<float>(node, 0, i2, i3), DType::f32, h.ne[1], node.ne[0], stride_of(node)});
    }
  }
}

// h [H, used or 1, T], the experts' numbers [used, T], y [D, used, T]. The rows that go to one
// expert are put together, so that it is read once for all of them.
void Compute::multiply_by_experts(const std::vector<GgmlMatrix>& packed, ggml_tensor& node) {
  const ggml_tensor& h = *node.src[1];
  const ggml_tensor& numbers = *node.src[2];
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> rows(packed.size());
  for (std::int64_t t = 0; t < numbers.ne[1]; ++t) {
    for (std::int64_t u = 0; u < numbers.ne[0]; ++u) {
      const auto* const at =
          row_of<const char>(numbers, t, 0) + static_cast<std::size_t>(u) * numbers.nb[0];
      std::int32_t expert;
      std::memcpy(&expert, at, sizeof expert);
      rows.at(static_cast<std::size_t>(expert)).emplace_back(u, t);
    }
  }
  Context& threads = context(rows_of(node));
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const auto count = static_cast<std::int64_t>(rows[e].size());
    if (count == 0) continue;
    inputs_.resize(static_cast<std::size_t>(count * h.ne[0]));
    outputs_.resize(static_cast<std::size_t>(count * node.ne[0]));
    float* in = inputs_.data();
    for (const auto& [u, t] : rows[e]) {
      in = std::copy_n(row_of<const float>(h, u % h.ne[1], t), h.ne[0], in);
    }
    ggml_matmul(threads, {inputs_.data(), DType::f32, count, h.ne[0]}, packed[e],
                {outputs_.data(), DType::f32, count, node.ne[0]});
    const float* out = outputs_.data();
    for (const auto& [u, t] : rows[e]) {
      std::copy_n(out, node.ne[0], row_of<float>(node, u, t));
      out += node.ne[0];
    }
  }
}

}  // namespace twell::ggml
