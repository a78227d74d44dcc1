// Sparse feed-forward layers on NVIDIA GPUs of compute capability 8.0 and above (libtwell_cuda).
//
// The operations are those of twell/ffn.h on device memory: bf16 and f16, any M ≥ 0, D ≥ 1, H ≥ 1.
// Weights are as in checkpoints, gate and up [H, D], down neuron-major [H, D]; nothing is packed.
// Products are summed in f32. The activation is rounded once to the dtype as it is packed, y once,
// u and h only for hot neurons. The same input, plan and GPU model give the same bits.
//
// Every call enqueues work on the given stream of the current device and returns. None allocates or
// synchronises, so all can be captured in a CUDA graph. The caller owns the workspace; its size is
// part of the plan. Errors are twell::Error naming operation and argument, or the CUDA call and its
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "twell/ffn.h"
#include "twell/format.h"
#include "twell/tensor_view.h"

namespace twell::cuda {

using Stream = void*;  // a cudaStream_t; null is the default stream

struct Device {
  int ordinal = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int sm_count = 0;
  std::size_t shared_bytes = 0;  // that one block may use
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  // For estimates; 0 if the driver does not tell.
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
  std::string name;
};
// 0 if there is no driver or no GPU.
int device_count();
// Throws Error{unsupported} below compute capability 8.0.
Device device(int ordinal);
Device current_device();

// A TwELL matrix in device memory, as docs/format.md has it. `overflow` holds one record of
// layout.tile words for every row and tile, in that order, and may be null if capacity == tile.
// Since the worst case has to be reserved before the data is known, every record has a fixed place.
struct DeviceTwellView {
  TwellLayout layout;
  std::int32_t* counts = nullptr;     // [rows × tiles]
  std::uint32_t* slots = nullptr;     // [rows × tiles × capacity]
  std::uint32_t* overflow = nullptr;  // overflow_words(layout)
};
inline std::size_t count_words(const TwellLayout& layout) {
  return static_cast<std::size_t>(layout.rows * layout.tiles());
}
inline std::size_t slot_words(const TwellLayout& layout) {
  return count_words(layout) * static_cast<std::size_t>(layout.capacity);
}
inline std::size_t overflow_words(const TwellLayout& layout) {
  return layout.capacity == layout.tile
             ? 0
             : count_words(layout) * static_cast<std::size_t>(layout.tile);
}

// How the gate GEMM is cut: rows × columns of the output that one block computes. The stream shapes
// read W once, in order, for up to 8, 16 or 32 rows; the tile shapes go through shared memory; both
// pack in their epilogue. `library` is cuBLASLt, whose dense blocks of rows are packed while they
// are in L2. The screen shape streams a screen instead of W, for up to 32 rows, 24 where a
// block has no more than 99 KB of shared memory.
enum class GemmShape : std::uint8_t {
  stream8x16,
  stream16x32,
  stream32x32,
  tile64x64,
  tile128x128,
  library,
  screen32x32,
};
const char* name_of(GemmShape shape);

// Whether cuBLASLt could be loaded. Without it, the tile shapes serve for any number of rows.
bool library_present();

struct GemmPlan {
  GemmShape shape = GemmShape::tile64x64;
  DType dtype = DType::bf16;
  bool aligned = true;  // rows start and end at 16 bytes: vector loads
  bool wide = false;    // library: its output is f32
  int block_rows = 64;  // library: rows whose dense gate exists at a time
  int block_cols = 64;  // library: of the dense gate, and of what is joined to it
  int threads = 128;
  int stages = 0;                // of the shared-memory pipeline
  std::size_t shared_bytes = 0;  // of one block
  int raster_group = 1;
  double rate = 0;         // of what mma.sync can reach, for estimates
  std::int32_t tile = 64;  // of the packed activation
  std::size_t workspace_bytes = 0;
  std::string to_string() const;
};

struct GatherPlan {
  int device = 0;
  DType dtype = DType::bf16;
  bool gated = true;
  bool aligned = true;
  int threads = 128;     // of one block
  int passes = 1;        // groups of columns, each with blocks of its own
  int block_floats = 0;  // sums that a block keeps in shared memory
  // Each row has blocks of its own, which share its neurons ...
  int splits = 1;
  // ... or, after a library's GEMM, where this is not 0, so many blocks take rows off a queue: long
  // rows in chunks, whose sums have room for `partials` of them.
  int blocks = 0;
  int chunk = 0;
  int partials = 0;
  // The kernel may start while the one before it on the stream ends (compute capability 9.0 and
  // up).
  bool overlaps_gemm = false;
  std::size_t shared_bytes = 0;  // of one block
  // Of a call with `rows` rows; 0 where a row has one block.
  std::size_t workspace_bytes(std::int64_t rows) const;
  std::string to_string() const;
};

// Elements of one vector load of 16 bytes.
inline constexpr int kVector = 8;

// What plans depend on. Alignment: true where x, y, all weights and their strides are multiples of
// 16 bytes and D is one of kVector.
struct Problem {
  std::int64_t tokens = 0;   // M
  std::int64_t width = 0;    // D
  std::int64_t neurons = 0;  // H
  DType dtype = DType::bf16;
  bool gated = true;
  bool aligned = true;
  // The gate's rounded values serve relu; others need them in f32 from a library's GEMM.
  Activation activation = Activation::relu;
  // The number of first neurons that GEMMs multiply densely, because many tokens fire them
  // (choose_hot). Their rows of down must be finite: 0 · ∞ would reach tokens that did not fire
  // them. Needs cuBLASLt; a plan may ignore it if rows are few.
  std::int64_t hot = 0;
  // Up follows gate in memory, as row H of one matrix [2H, D] with one stride. Then one GEMM
  // multiplies with the gate and the hot neurons' rows of up, if H is a multiple of 8 and that is
  // expected to be faster.
  bool joined = false;
  // The caller knows that all memory is on the current device. Otherwise each argument is looked
  // up, which takes the driver about 0.3 µs.
  bool trusted = false;
  // The weights have a screen. A plan takes it if that is expected to be faster: with few tokens,
  // since each token has its own candidates, whose rows of the gate are read too.
  bool screened = false;
  // Share of a token's neurons that the screen is expected to leave: 2.4 for each that fires, as
  // measured on a CPU (twell/screen.h) in a trained model of 0.5 %. ffn() counts them
  // (DeviceStats).
  double candidates = 0.012;
};

struct FfnPlan {
  Problem problem;
  GemmPlan gemm;
  GatherPlan gather;
  std::int64_t hot = 0;        // neurons multiplied densely: a multiple of 8, or all
  bool joined = false;         // their u comes from the gate's GEMM
  std::int64_t row_block = 0;  // rows whose packed activation the workspace holds
  std::size_t workspace_bytes = 0;
  std::string to_string() const;
};

// Pure functions, except for library_present(): no GPU is asked. `tile` 0 lets the plan choose the
// tile of the packed activation. Else the tile shapes serve 16, 32, 64 and 128, and the library
// serves all that docs/format.md allows.
GemmPlan plan_gemm_relu_twell(const Device& device, const Problem& problem, std::int32_t tile = 0);
// The same with a shape forced. Throws if it is not built for the problem.
GemmPlan plan_gemm_relu_twell(GemmShape shape, const Device& device, const Problem& problem,
                              std::int32_t tile = 0);
GatherPlan plan_gather(const Device& device, const Problem& problem);
// The most that a call's workspace takes, unless the caller says otherwise.
inline constexpr std::size_t kWorkspaceLimit = std::size_t{256} << 20;

// Rows are processed in blocks, so that all of the workspace stays below `workspace_limit`, at
// least one block of 128 rows. A row's packed activation takes 4 bytes a neuron whatever the
// density: twice what a dense layer stores of it. `shape` forces that of the gate GEMM.
FfnPlan plan_ffn(const Device& device, const Problem& problem,
                 std::size_t workspace_limit = kWorkspaceLimit,
                 std::optional<GemmShape> shape = {});

// The workspace of a plan whose parts were changed since plan_ffn() made it.
std::size_t workspace_bytes(const FfnPlan& plan);

// Peak rates by the figures of the device, a second; Σ over SMs.
struct DeviceRates {
  double tensor_flops = 0;  // 16-bit products, f32 sums
  double gather_flops = 0;  // f32, of values that are unpacked from 16 bits
  double instructions = 0;  // of a thread, by the CUDA cores
  double l2_bytes = 0;
  double memory_bytes = 0;
};
DeviceRates rates_of(const Device& device);

// Seconds that a layer is expected to take with PyTorch's dense GEMMs and with ffn(). Tokens fire a
// share `density` of all neurons, and a share `cold_density` of all past the first problem.hot.
// Pure; docs/gpu-model.md has the formula. Neither estimate is worth much by itself; their ratio
// decides which path is taken.
struct FfnCost {
  double dense = 0;
  double gate = 0;  // of the sparse path: GEMM and packing
  double hot = 0;
  double gather = 0;
  double sparse() const { return gate + hot + gather; }
};
FfnCost estimate_ffn(const Device& device, const Problem& problem, double density,
                     double cold_density);
// rates[n] is the share of tokens that fire neuron n, the highest first, for all H neurons; the
// first problem.hot are hot.
FfnCost estimate_ffn(const Device& device, const Problem& problem,
                     const std::vector<double>& rates);
// The least of estimate_ffn() with no hot neurons and with all of them.
FfnCost estimate_ffn(const Device& device, const Problem& problem, double density);

// The share of candidates up to which a plan of this problem takes a screen
// (Problem::candidates); 0 if it never does.
double candidates_limit(const Device& device, const Problem& problem);

// How many neurons to make hot: none, a multiple of 64, or all, whichever is expected to be
// fastest. rates[n] is the share of tokens that fire neuron n, the highest first.
std::int64_t choose_hot(const Device& device, const Problem& problem,
                        const std::vector<double>& rates);

// Any memory of the device, aligned to 256 bytes.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// The size of a screen (twell/screen.h) in device memory, which has its own layout (DeviceScreen in
// cuda/kernels/kernels.h): about rows · cols · 65/64. Weights of more than 2²⁰ inputs have none.
std::size_t screen_bytes(std::int64_t rows, std::int64_t cols);
// Makes the screen of `weight`, bf16 or f16, in `memory`, screen_bytes(). axis: weight.cols numbers
// in device memory, the direction that tokens share, best the mean of typical inputs; null: none.
// It decides how many neurons are ruled out, and changes no result.
ScreenView make_screen(ConstMatrixView weight, const float* axis, const Workspace& memory,
                       Stream stream);

// out = act(x Wᵀ). out.layout has rows M, cols H and x's dtype and the plan's tile; `workspace` has
// plan.workspace_bytes; `screen`, of `weight`, is for plans of the screen shape alone.
void gemm_relu_twell(const GemmPlan& plan, ConstMatrixView x, ConstMatrixView weight,
                     const ActivationSpec& activation, const DeviceTwellView& out,
                     const Workspace& workspace, Stream stream, const ScreenView& screen = {});

// Counts of a call, in device memory; null if not wanted.
struct DeviceStats {
  std::int32_t* row_nnz = nullptr;        // [M], set
  std::int64_t* neuron_counts = nullptr;  // [H], added to
  // [1], added to by ffn(): neurons of tokens that the screen did not rule out, of M · H; nothing
  // where the plan does without one.
  std::int64_t* candidates = nullptr;
};

// y = (g ⊙ (x Wuᵀ)) Wd for the packed gate g.
void twell_gated_ffn(const GatherPlan& plan, ConstMatrixView x, const DeviceTwellView& gate,
                     ConstMatrixView up, ConstMatrixView down, MatrixView y,
                     const Workspace& workspace, Stream stream, const DeviceStats& stats = {});

// y = h Wd for the packed hidden state h.
void twell_spmm(const GatherPlan& plan, const DeviceTwellView& hidden, ConstMatrixView down,
                MatrixView y, const Workspace& workspace, Stream stream,
                const DeviceStats& stats = {});

// Between packed and dense [rows, cols], exact. Slots of `out` without a non-zero do not change.
void dense_to_twell(ConstMatrixView dense, const DeviceTwellView& out, Stream stream);
void twell_to_dense(const DeviceTwellView& twell, MatrixView dense, Stream stream);

// The problem of a call: what its plan is made from, with no neurons hot. Throws on shapes, dtypes
// or strides that no call accepts.
Problem problem_of(ConstMatrixView x, const FfnWeights& weights, ConstMatrixView y,
                   const ActivationSpec& activation = {});

// The whole layer. `workspace` has plan.workspace_bytes; x and y must not overlap.
void ffn(const FfnPlan& plan, ConstMatrixView x, const FfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, const Workspace& workspace, Stream stream,
         const DeviceStats& stats = {});

}  // namespace twell::cuda
