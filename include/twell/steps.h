// The steps of a layer one by one, with the packed activation between them as a value, for
// inspection and tests. ffn() computes the same in one step, many times faster, since it needs no
// capacity and no overflow records.
#pragma once

#include "twell/ffn.h"
#include "twell/format.h"

#pragma GCC visibility push(default)
namespace twell {

// out = act(x Wᵀ) in packed form, for a packed weight. out's layout chooses tile and capacity. It
// must have M rows, H columns and x's dtype.
void gemm_relu_twell(Context& context, ConstMatrixView x, const WeightView& weight,
                     const ActivationSpec& activation, TwellMatrix& out);

// y = (g ⊙ (x Wuᵀ)) Wd for the packed gate g. Up is computed only where g is non-zero.
void twell_gated_ffn(Context& context, ConstMatrixView x, const TwellMatrix& gate,
                     const WeightView& up, const WeightView& down, MatrixView y);

// y = h Wd for the packed hidden state h.
void twell_spmm(Context& context, const TwellMatrix& hidden, const WeightView& down, MatrixView y);

}  // namespace twell
#pragma GCC visibility pop
