#include "models/gate_form.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "models/linear.h"
#include "models/weights.h"
#include "twell/screen.h"

namespace twell::lm {
namespace {

constexpr std::int64_t kFewRows = 32;     // choose an axis no better than one token does
constexpr std::int64_t kEnoughRows = 64;  // say something of a text

DType dtype_of_tensor(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
}

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
  const std::int64_t rows = x.size(0);
  if (!screens()) return;
  if (operands.screen.defined() && axis_rows_ >= std::min(rows, kFewRows)) return;
  axis_rows_ = rows;
  const at::Tensor axis = x.to(at::kFloat).mean(0);  // of no rows NaN, which is none
  const std::int64_t width = gate_.size(1);
  const auto bytes = static_cast<std::int64_t>(screen_bytes(hidden_, width));
  if (!operands.screen.defined()) {
    operands.screen = allocate_weights(bytes / 64, 64, at::kByte).view({bytes});
    own_bytes_ += bytes;
  }
  make_screen({gate_.const_data_ptr(), dtype_of_tensor(gate_), hidden_, width, gate_.stride(0)},
              axis.const_data_ptr<float>(), operands.screen.mutable_data_ptr());
}

void GateForm::update(std::int64_t candidates, std::int64_t rows, SparseOperands& operands) {
  if (!screens() || rows == 0) return;
  const double now =
      static_cast<double>(candidates) / (static_cast<double>(rows) * static_cast<double>(hidden_));
  const double weight = std::min(1.0, static_cast<double>(rows) / static_cast<double>(kEnoughRows));
  share_ = share_ < 0 ? now : share_ + weight * (now - share_);
  seen_ += rows;
  if (seen_ >= kEnoughRows && share_ > limit_) {
    limit_ = 0;
    pack(operands);
  }
}

bool GateForm::wants_count() { return screens() && (calls_++ % 8 == 0 || seen_ < kEnoughRows); }

void GateForm::pack(SparseOperands& operands) {
  operands.gate = operands.screen = at::Tensor();
  operands.packed = packed_weight(gate_);
  own_bytes_ = static_cast<std::int64_t>(operands.packed.nbytes());
  gate_ = at::Tensor();
}

}  // namespace twell::lm
