// A weight with the kernels of its type, which an operation looks up once a call.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "twell/ffn.h"

namespace twell {

struct Weight : WeightView {
  const WeightKernels* kernels = nullptr;
  // Of the panels that pack_neurons and pack_inputs make of rows, which are a weight too.
  WeightType panel_type = WeightType::f32;
  const WeightKernels* panel_kernels = nullptr;

  Weight() = default;
  // To multiply x of a dtype with.
  Weight(CpuTier tier, DType x, const WeightView& view)
      : WeightView(view),
        kernels(&weight_kernels_of(tier, x, view.type)),
        panel_type(weight_type(x)),
        panel_kernels(&weight_kernels_of(tier, x, panel_type)) {}

  // out[i] = dot(x, row neurons[i])
  void dots(const void* x, const std::int32_t* neurons, std::int64_t count, float* out) const {
    kernels->sampled_dots(x, *this, neurons, count, out);
  }
  // y32 (+)= Σ values · rows, without scales of columns
  void combine(const ActiveNeurons& active, bool add, float* y32) const {
    kernels->weighted_rows(*this, active, add, y32);
  }
  // Row `row` of x to its place among the terms of all rows. Returns as WeightKernels::to_terms.
  bool to_terms(ConstMatrixView x, std::int64_t row, CodeTerms* all) const {
    return kernels->to_terms(x.row_bytes(row), cols, all + row * code_blocks(cols));
  }
  bool row_finite(std::int64_t row) const { return kernels->row_finite(*this, row); }
  Weight piece(std::int64_t column, std::int64_t count) const {
    return with(columns(column, count), kernels);
  }
  Weight packed(const void* panels, std::int64_t rows_, std::int64_t cols_) const {
    return with(packed_view(panels, panel_type, rows_, cols_), panel_kernels);
  }

 private:
  Weight with(const WeightView& view, const WeightKernels* of_it) const {
    Weight out = *this;
    static_cast<WeightView&>(out) = view;
    out.kernels = of_it;
    return out;
  }
};

// Up, none in a layer without a gate, and down.
struct UpDown {
  std::optional<Weight> up;
  Weight down;

  UpDown(CpuTier tier, DType x, const std::optional<WeightView>& up_, const WeightView& down_)
      : down(tier, x, down_) {
    if (up_) up.emplace(tier, x, *up_);
  }
  UpDown(CpuTier tier, DType x, const FfnWeights& weights)
      : UpDown(tier, x, weights.up, weights.down) {}
};

}  // namespace twell
