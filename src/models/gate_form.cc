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
    : gate_(std::move(gate)), hidden_(gate_.size(0)), limit_(screen_limit(tier)) {
  if (screens()) {
    operands.gate = gate_;
    own_bytes_ = static_cast<std::int64_t>(gate_.nbytes());
  } else {
    pack(operands);
  }
}

void GateForm::prepare(const at::Tensor& x, SparseOperands& operands) {
  if (!screens() || (operands.screen.defined() && settled())) return;
  // What does not fit is the operator's to name.
  if (x.dim() != 2 || x.size(1) != gate_.size(1)) return;
  const at::Tensor sum = x.to(at::kFloat).sum(0);
  const auto* more = sum.const_data_ptr<float>();
  axis_.resize(static_cast<std::size_t>(gate_.size(1)));
  for (std::size_t k = 0; k < axis_.size(); ++k) axis_[k] += more[k];
  axis_rows_ += x.size(0);
  if (!operands.screen.defined() || settled()) screen(operands);
}

void GateForm::screen(SparseOperands& operands) {
  const std::int64_t width = gate_.size(1);
  const auto bytes = static_cast<std::int64_t>(screen_bytes(hidden_, width));
  if (!operands.screen.defined()) {
    operands.screen = allocate_weights(bytes / 64, 64, at::kByte).view({bytes});
    own_bytes_ += bytes;
  }
  make_screen({gate_.const_data_ptr(), dtype_of_tensor(gate_), hidden_, width, gate_.stride(0)},
              axis_.data(), operands.screen.mutable_data_ptr());
}

void GateForm::update(std::int64_t candidates, std::int64_t rows, SparseOperands& operands) {
  if (!screens() || !settled() || rows == 0) return;
  const double now =
      static_cast<double>(candidates) / (static_cast<double>(rows) * static_cast<double>(hidden_));
  const double weight = std::min(1.0, static_cast<double>(rows) / static_cast<double>(kEnoughRows));
  share_ = share_ < 0 ? now : share_ + weight * (now - share_);
  seen_ += rows;
  if (seen_ >= kEnoughRows && share_ > limit_) pack(operands);
}

bool GateForm::settled() const { return axis_rows_ >= kAxisRows; }

bool GateForm::undecided() const { return screens() && settled() && seen_ < kEnoughRows; }

void GateForm::pack(SparseOperands& operands) {
  operands.packed = packed_weight(gate_);
  operands.gate = operands.screen = at::Tensor();
  limit_ = 0;
  own_bytes_ = static_cast<std::int64_t>(operands.packed.nbytes());
  gate_ = at::Tensor();
}

}  // namespace twell::lm
