#include "models/gate_form.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "models/linear.h"
#include "models/weights.h"
#include "twell/screen.h"

namespace twell::lm {
namespace {

constexpr std::int64_t kAxisRows = 32;    // tokens that choose an axis well enough
constexpr std::int64_t kEnoughRows = 64;  // say something of a text

}  // namespace

GateForm::GateForm(at::Tensor gate, CpuTier tier, SparseOperands& operands)
    : limit_(screen_limit(tier)) {
  operands.gate = std::move(gate);
  if (!screens()) pack(operands);
}

void GateForm::prepare(const at::Tensor& x, SparseOperands& operands) {
  if (!screens() || (operands.screen.defined() && settled())) return;
  // What does not fit is the operator's to name.
  if (x.dim() != 2 || x.size(1) != operands.gate.size(1)) return;
  const at::Tensor sum = x.to(at::kFloat).sum(0);
  const auto* more = sum.const_data_ptr<float>();
  axis_.resize(static_cast<std::size_t>(x.size(1)));
  for (std::size_t k = 0; k < axis_.size(); ++k) axis_[k] += more[k];
  axis_rows_ += x.size(0);
  if (!operands.screen.defined() || settled()) screen(operands);
}

void GateForm::screen(SparseOperands& operands) const {
  const ConstMatrixView gate = matrix_view(operands.gate);
  if (!operands.screen.defined()) {
    const auto bytes = static_cast<std::int64_t>(screen_bytes(gate.rows, gate.cols));
    operands.screen = allocate_weights(bytes / 64, 64, at::kByte).view({bytes});
  }
  make_screen(gate, axis_.data(), operands.screen.mutable_data_ptr());
}

void GateForm::update(std::int64_t candidates, std::int64_t rows, SparseOperands& operands) {
  if (!screens() || !settled() || rows == 0) return;
  const double now = static_cast<double>(candidates) /
                     (static_cast<double>(rows) * static_cast<double>(operands.gate.size(0)));
  const double weight = std::min(1.0, static_cast<double>(rows) / static_cast<double>(kEnoughRows));
  share_ = share_ < 0 ? now : share_ + weight * (now - share_);
  seen_ += rows;
  if (seen_ >= kEnoughRows && share_ > limit_) pack(operands);
}

bool GateForm::settled() const { return axis_rows_ >= kAxisRows; }

bool GateForm::undecided() const { return screens() && settled() && seen_ < kEnoughRows; }

void GateForm::pack(SparseOperands& operands) {
  operands.packed = packed_weight(operands.gate);
  operands.gate = operands.screen = at::Tensor();
  limit_ = 0;
}

}  // namespace twell::lm
