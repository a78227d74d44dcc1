// The hidden state of a dense call, row by row: h of g and u, and what multiplies it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/team.h"
#include "kernels/kernel.h"
#include "ops/hidden.h"

namespace twell {

// u = h, of g and u. Guarded, 0 stays 0 where u has overflowed: ffn() does not compute a u whose
// neuron does not fire. Not so in a row of x that is not finite, which gives what a dense layer
// makes of it; and where all u are finite, both are the same.
template <class T>
void widen_times(const T* g, std::int64_t count, bool guarded, float* u) {
  if (!guarded) {
    for (std::int64_t i = 0; i < count; ++i) u[i] *= static_cast<float>(g[i]);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto wide = static_cast<float>(g[i]);
    u[i] = wide == 0.0F ? 0.0F : u[i] * wide;
  }
}

// From h to w h in a block's hidden state, and s of each row of y.
template <class T>
void scale_hidden(const Context& context, const Kernels& kernels, const FfnForm& form,
                  MatrixView hidden, std::vector<float>& scales) {
  parallel_for(context, hidden.rows, [&](std::int64_t r) {
    const T* const row = hidden.row<T>(r);
    double squares = 0.0;
    for (std::int64_t n = 0; n < hidden.cols; ++n) {
      squares += static_cast<double>(static_cast<float>(row[n])) *
                 static_cast<double>(static_cast<float>(row[n]));
    }
    scales[static_cast<std::size_t>(r)] = norm_factor(form, squares, hidden.cols);
    constexpr std::int64_t kPiece = 256;
    float wide[kPiece];
    for (std::int64_t n = 0; n < hidden.cols; n += kPiece) {
      const std::int64_t count = std::min(kPiece, hidden.cols - n);
      for (std::int64_t i = 0; i < count; ++i) {
        wide[i] = scaled_hidden(form, n + i, static_cast<float>(row[n + i]));
      }
      kernels.round_row(wide, count, hidden.row<T>(r) + n);
    }
  });
}

}  // namespace twell
