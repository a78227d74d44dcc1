// cuBLASLt and cuBLAS, played by a loop: sums in f32, in the order of the inputs, and the epilogues
// that the benchmark asks for. ReLU keeps NaN and makes −0 into 0; a bit of the mask says that the
// f32 sum is above zero. What the library itself does in these cases is for the benchmark to find.
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "cuda/ops/cublas_lt.h"
#include "twell/dtype.h"

struct EmulatedLayout {
  std::int64_t rows, cols, stride;  // by columns, as the library counts
};
struct EmulatedProduct {
  std::map<cublasLtMatmulDescAttributes_t, std::int64_t> attributes;
  std::int64_t of(cublasLtMatmulDescAttributes_t name, std::int64_t otherwise) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? otherwise : found->second;
  }
};

namespace {

// Tests ask for one wrong bit, to see that it is found.
bool has_wrong_bit() {
  const char* fault = std::getenv("TWELL_TOY_FAULT");
  return fault != nullptr && std::string_view(fault) == "mask";
}

std::vector<float> values_of(const void* data, const EmulatedLayout& layout, bool transposed) {
  // [cols of op(data)][depth] for both operands, so that the loop over depth reads in order.
  std::vector<float> out;
  const auto outer = transposed ? layout.rows : layout.cols;
  const auto depth = transposed ? layout.cols : layout.rows;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t at = transposed ? o + k * layout.stride : k + o * layout.stride;
      out.push_back(
          static_cast<float>(twell::bf16::from_bits(static_cast<const std::uint16_t*>(data)[at])));
    }
  }
  return out;
}

struct Mask {
  std::byte* bytes = nullptr;
  std::int64_t stride = 0;  // bits
  void set(std::int64_t row, std::int64_t n, bool bit) const {
    std::byte& at = bytes[(row * stride + n) / 8];
    const auto place = std::byte{1} << n % 8;
    at = bit ? at | place : at & ~place;
  }
};

// d [m, n] = op(a) op(b), by columns.
cublasStatus_t multiply(const EmulatedProduct& product, const void* a,
                        const EmulatedLayout& a_layout, const void* b,
                        const EmulatedLayout& b_layout, void* d, const EmulatedLayout& d_layout) {
  const bool a_transposed = product.of(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
  const bool b_transposed = product.of(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  const auto epilogue = product.of(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  const Mask mask{
      reinterpret_cast<std::byte*>(product.of(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 0)),
      product.of(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0)};
  const std::int64_t m = d_layout.rows, n = d_layout.cols;
  const std::int64_t depth = a_transposed ? a_layout.rows : a_layout.cols;
  const bool masks = epilogue == CUBLASLT_EPILOGUE_RELU_AUX;
  if (m != (a_transposed ? a_layout.cols : a_layout.rows) ||
      n != (b_transposed ? b_layout.rows : b_layout.cols) ||
      depth != (b_transposed ? b_layout.cols : b_layout.rows) ||
      (masks && (mask.bytes == nullptr || mask.stride < m || mask.stride % 128 != 0 ||
                 reinterpret_cast<std::uintptr_t>(mask.bytes) % 16 != 0))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::vector<float> left = values_of(a, a_layout, !a_transposed);
  const std::vector<float> right = values_of(b, b_layout, b_transposed);
  auto* out = static_cast<std::uint16_t*>(d);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t col = 0; col < m; ++col) {
      float sum = 0.0F;
      for (std::int64_t k = 0; k < depth; ++k) {
        sum += left[static_cast<std::size_t>(col * depth + k)] *
               right[static_cast<std::size_t>(row * depth + k)];
      }
      if (masks) mask.set(row, col, sum > 0);
      if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && sum <= 0) sum = 0.0F;
      out[row * d_layout.stride + col] = twell::bf16(sum).bits;
    }
  }
  if (masks && has_wrong_bit()) mask.bytes[0] ^= std::byte{1} << 5;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace twell::cuda {

CublasLt::CublasLt()
    : create(cublasLtCreate),
      matmul(cublasLtMatmul),
      desc_create(cublasLtMatmulDescCreate),
      desc_destroy(cublasLtMatmulDescDestroy),
      desc_set(cublasLtMatmulDescSetAttribute),
      layout_create(cublasLtMatrixLayoutCreate),
      layout_destroy(cublasLtMatrixLayoutDestroy),
      preference_create(cublasLtMatmulPreferenceCreate),
      preference_destroy(cublasLtMatmulPreferenceDestroy),
      preference_set(cublasLtMatmulPreferenceSetAttribute),
      heuristic(cublasLtMatmulAlgoGetHeuristic) {}

const CublasLt& cublas_lt() {
  static const CublasLt played;
  return played;
}

}  // namespace twell::cuda

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "wrong arguments";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t,
                                        cudaDataType_t) {
  *product = new EmulatedProduct;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t bytes) {
  const bool wide = name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                    name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
  if (bytes != (wide ? 8U : 4U)) return CUBLAS_STATUS_INVALID_VALUE;
  std::int64_t& to = product->attributes[name] = 0;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t stride) {
  if (type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
  *layout =
      new EmulatedLayout{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

// Two, of which the first is not supported after all.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  *count = 2;
  for (std::uint64_t i = 0; i < 2; ++i) found[i] = {{{i}}, 0, CUBLAS_STATUS_SUCCESS};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  std::memcpy(value, algorithm->data, *written = bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void*, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, std::size_t,
                              cudaStream_t) {
  if (algorithm->data[0] == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  return multiply(*product, a, *a_layout, b, *b_layout, d, *d_layout);
}
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t a_op, cublasOperation_t b_op, int m,
                            int n, int k, const void*, const void* a, cudaDataType_t, int a_stride,
                            const void* b, cudaDataType_t, int b_stride, const void*, void* c,
                            cudaDataType_t, int c_stride, cublasComputeType_t, cublasGemmAlgo_t) {
  const auto layout = [](bool turned, int rows, int cols, int stride) {
    return turned ? EmulatedLayout{cols, rows, stride} : EmulatedLayout{rows, cols, stride};
  };
  return multiply({{{CUBLASLT_MATMUL_DESC_TRANSA, a_op}, {CUBLASLT_MATMUL_DESC_TRANSB, b_op}}}, a,
                  layout(a_op == CUBLAS_OP_T, m, k, a_stride), b,
                  layout(b_op == CUBLAS_OP_T, k, n, b_stride), c, {m, n, c_stride});
}
