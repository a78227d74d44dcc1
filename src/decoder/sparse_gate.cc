#include "decoder/sparse_gate.h"

#include <torch/types.h>

#include <utility>

#include "decoder/linear.h"
#include "decoder/sparse_operators.h"
#include "decoder/weights.h"

namespace twell::lm {

SparseGate::SparseGate(at::Tensor rows, double screen_limit, bool keep_rows)
    : limit_(screen_limit),
      keep_rows_(keep_rows),
      neurons_(rows.size(0)),
      width_(rows.size(1)),
      rows_(std::move(rows)) {
  if (limit_ == 0) pack();
}

void SparseGate::decide(const at::Tensor& x, const std::function<std::int64_t()>& candidates) {
  if (form_ != Form::undecided) return;
  if (x.size(0) < kFewestRows) {
    pack();
    return;
  }
  const ConstMatrixView gate = matrix_view(rows_);
  const auto bytes = static_cast<std::int64_t>(screen_bytes(gate.rows, gate.cols));
  screen_ = allocate_weights(bytes / 64, 64, at::kByte).view({bytes});
  make_screen(gate, x.to(at::kFloat).sum(0).const_data_ptr<float>(), screen_.mutable_data_ptr());
  form_ = Form::screened;
  share_ = static_cast<double>(candidates()) /
           (static_cast<double>(x.size(0)) * static_cast<double>(gate.rows));
  if (share_ > limit_) pack();
}

void SparseGate::pack() {
  packed_ = !rows_.is_cpu() && packs_without_padding(neurons_, width_) ? rows_.unsqueeze(-1)
                                                                       : packed_weight(rows_);
  screen_ = at::Tensor();
  form_ = Form::packed;
  if (!keep_rows_) {
    rows_ = at::Tensor();
  } else if (!rows_.is_cpu()) {
    // Packing on a GPU pads rows and does not reorder them: one copy serves both paths.
    rows_ = packed_.as_strided({neurons_, width_}, {packed_depth(WeightType::bf16, width_), 1});
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> SparseGate::reordered(
    const at::Tensor& order) const {
  const at::Tensor rows = rows_.defined() ? rows_ : unpacked_weight(packed_);
  const at::Tensor sorted = rows.index_select(0, order);
  std::vector<std::pair<at::Tensor, at::Tensor>> out{{packed_, packed_weight(sorted)}};
  if (rows_.defined() && !rows_.is_alias_of(packed_)) out.emplace_back(rows_, sorted);
  return out;
}

std::int64_t SparseGate::bytes() const {
  std::int64_t sum = 0;
  for (const at::Tensor* tensor : {&packed_, &screen_, &rows_}) {
    if (!tensor->defined()) continue;
    const bool view = tensor == &rows_ && packed_.defined() && rows_.is_alias_of(packed_);
    if (!view) sum += static_cast<std::int64_t>(tensor->nbytes());
  }
  return sum;
}

}  // namespace twell::lm
