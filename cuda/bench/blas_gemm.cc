#include "cuda/bench/blas_gemm.h"

#include <cmath>
#include <limits>

#include "cuda/kernels/common/check.h"

namespace twell::bench {
namespace {

constexpr const char* kOperation = "twell_gpu_bench";
constexpr int kProposals = 8;
constexpr int kTuningRuns = 5;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorKind::environment, call, cublasGetStatusString(status));
  }
}
#define TWELL_BLAS_CHECK(call) check(call, #call)

constexpr float kOne = 1.0F;
constexpr float kZero = 0.0F;

template <class T>
std::uint32_t config_of(const cublasLtMatmulAlgo_t& algorithm,
                        cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return static_cast<std::uint32_t>(value);
}

cuda::LibraryGemm library_gemm_of(const GemmProblem& p, const GemmOperands& operands) {
  return {.a = {operands.a, p.a_by_depth ? p.m : p.k},
          .b = {operands.b, p.rows_are_inputs ? p.n : p.k},
          .a_by_depth = p.a_by_depth,
          .b_by_depth = p.rows_are_inputs,
          .c = operands.c,
          .c_stride = p.n,
          .rows = p.m,
          .cols = p.n,
          .depth = p.k};
}

template <class T>
void set(const cuda::CublasProduct& of, cublasLtMatmulDescAttributes_t name, const T& value) {
  TWELL_BLAS_CHECK(cublasLtMatmulDescSetAttribute(of.product, name, &value, sizeof value));
}

std::shared_ptr<const cuda::CublasProduct> describe(const GemmProblem& p,
                                                    const GemmOperands& operands,
                                                    const GemmExtras& extras) {
  auto out = std::make_shared<const cuda::CublasProduct>(kOperation, DType::bf16,
                                                         library_gemm_of(p, operands));
  if (extras.sms != 0) set(*out, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{extras.sms});
  if (extras.epilogue == Epilogue::relu) {
    set(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU);
  }
  if (extras.epilogue == Epilogue::relu_mask) {
    set(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU_AUX);
    set(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, mask_stride(p.n));
    set(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.mask);
  }
  return out;
}

}  // namespace

Blas::Blas(cudaStream_t stream) : stream_(stream), workspace_(cuda::kLibraryWorkspace) {
  TWELL_BLAS_CHECK(cublasCreate(&handle_));
  TWELL_BLAS_CHECK(cublasLtCreate(&lt_));
  TWELL_BLAS_CHECK(cublasSetStream(handle_, stream_));
  TWELL_BLAS_CHECK(cublasSetWorkspace(handle_, workspace(), workspace_bytes()));
  // Sums are f32, those of parts of k included: what the layer itself does.
  TWELL_BLAS_CHECK(cublasSetMathMode(
      handle_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                         CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
}

Blas::~Blas() {
  (void)cublasDestroy(handle_);
  (void)cublasLtDestroy(lt_);
}

BlasGemm::BlasGemm(const Blas& blas, Timer& timer, const GemmProblem& problem,
                   const GemmOperands& operands, const GemmExtras& extras)
    : blas_(blas),
      problem_(problem),
      product_(describe(problem, operands, extras)),
      // None for a problem is no failure: cublasGemmEx is there as well.
      proposed_(product_->proposals(kOperation, blas.lt(), library_gemm_of(problem, operands),
                                    kProposals)) {
  best_us_ = extras.any()
                 ? std::numeric_limits<double>::infinity()
                 : timer.measure(kTuningRuns, [&] { run(kOwnChoice, operands); }).median_us;
  for (int i = 0; i < static_cast<int>(proposed_.size()); ++i) {
    const auto& proposal = proposed_[static_cast<std::size_t>(i)];
    if (proposal.state != CUBLAS_STATUS_SUCCESS ||
        proposal.workspaceSize > blas.workspace_bytes()) {
      continue;
    }
    double us = 0.0;
    try {
      us = timer.measure(kTuningRuns, [&] { run(i, operands); }).median_us;
    } catch (const Error&) {
      continue;  // proposed, and then not supported
    }
    if (us < best_us_) {
      best_us_ = us;
      best_ = i;
    }
  }
  if (std::isinf(best_us_)) {
    throw Error(ErrorKind::environment, "cublasLtMatmulAlgoGetHeuristic",
                "proposes nothing that runs for this epilogue and number of SMs");
  }
}

void BlasGemm::run(int candidate, const GemmOperands& operands) const {
  if (candidate == kOwnChoice) {
    run_own_choice(operands);
    return;
  }
  const auto& proposal = proposed_[static_cast<std::size_t>(candidate)];
  // The library reads the description when it is called.
  if (operands.mask != nullptr) {
    set(*product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.mask);
  }
  TWELL_BLAS_CHECK(cublasLtMatmul(blas_.lt(), product_->product, &kOne, operands.b, product_->first,
                                  operands.a, product_->second, &kZero, operands.c,
                                  product_->result, operands.c, product_->result, &proposal.algo,
                                  blas_.workspace(), blas_.workspace_bytes(), blas_.stream()));
}

void BlasGemm::run_own_choice(const GemmOperands& operands) const {
  const GemmProblem& p = problem_;
  TWELL_BLAS_CHECK(cublasGemmEx(blas_.handle(), p.rows_are_inputs ? CUBLAS_OP_N : CUBLAS_OP_T,
                                p.a_by_depth ? CUBLAS_OP_T : CUBLAS_OP_N, p.n, p.m, p.k, &kOne,
                                operands.b, CUDA_R_16BF, p.rows_are_inputs ? p.n : p.k, operands.a,
                                CUDA_R_16BF, p.a_by_depth ? p.m : p.k, &kZero, operands.c,
                                CUDA_R_16BF, p.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

std::string BlasGemm::to_string() const {
  const std::string of = " of " + std::to_string(proposed_.size()) + " proposals";
  if (best_ == kOwnChoice) return "cublasGemmEx, faster than any" + of;
  const cublasLtMatmulAlgo_t& algorithm = proposed_[static_cast<std::size_t>(best_)].algo;
  const auto number = [](std::uint32_t value) { return std::to_string(value); };
  return "cublasLt " + std::to_string(best_ + 1) + of + " (algorithm " +
         number(config_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID)) + ", tile " +
         number(config_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID)) + ", stages " +
         number(config_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID)) +
         ", cluster " +
         number(config_of<std::uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)) +
         ", parts of k " +
         number(config_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)) + ")";
}

}  // namespace twell::bench
