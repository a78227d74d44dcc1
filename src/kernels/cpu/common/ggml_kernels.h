// The products with a GgmlMatrix of one tier.
#pragma once

#include "kernels/cpu/common/ggml_dense.h"
#include "kernels/cpu/common/ggml_floats.h"
#include "kernels/cpu/common/ggml_row.h"
#include "kernels/cpu/common/ggml_tile.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

template <GgmlFormat kFormat>
constexpr GgmlKernels::Product make_ggml_product() {
  return {.sparse_row = GgmlSparseRow<kFormat>::run,
          .sparse_rows = GgmlTile<kFormat>::run,
          .dense_rows = GgmlDense<kFormat>::run,
          .most_sparse = GgmlQuads::kMostSparse<traits_of(kFormat).bits>,
          .float_row = GgmlFloatRow<kFormat>::run,
          .float_rows = GgmlFloatRows<kFormat>::run};
}
constexpr GgmlKernels make_ggml_kernels() {
  using F = GgmlFormat;
  return {.round = round_ggml_inputs,
          .product = {make_ggml_product<F::q4_0>(), make_ggml_product<F::q5_0>(),
                      make_ggml_product<F::q8_0>(), make_ggml_product<F::q4_k>(),
                      make_ggml_product<F::q5_k>(), make_ggml_product<F::q6_k>()}};
}

}  // namespace
}  // namespace twell
