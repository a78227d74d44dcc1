// Every case that the benchmark runs, in order, each with the stable name of its line in the
// report. Pure: no GPU is asked, so that a dry run can name them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/bench/epilogue.h"
#include "cuda/bench/options.h"
#include "twell/cuda.h"

namespace twell::bench {

// What this GPU does at best.
struct CeilingCase {
  enum class What { copy, memcpy, gemm, l2_rows, launch_gap };
  std::string name;
  What what;
  int m = 0, n = 0, k = 0;  // of a GEMM
  std::size_t bytes = 0;    // of a copy, or that rows are read from
};
std::vector<CeilingCase> ceiling_cases(const Options& options);

// A layer whose result is known to the bit (exact_layer.h).
struct ExactCase {
  std::string name;
  double nnz = 0;
  std::int64_t first = 0;  // row
  std::int64_t tokens = 0;
  std::optional<cuda::GemmShape> shape;  // the plan's where it has none
  std::optional<int> splits;             // likewise
  int hot_tenths = 0;                    // of the neurons
  bool separate_up = false;              // not in one GEMM with the gate
  bool small_blocks = false;             // the smallest blocks of rows there are
};
std::vector<ExactCase> exact_cases(const Options& options);
// Of one of them, with the workspace that a forced shape or number of splits needs.
cuda::FfnPlan plan_of(const cuda::Device& device, const cuda::Problem& problem,
                      const ExactCase& one);

// One layer beside the dense one, and its two kernels apart: a line for each of the four.
struct LayerCase {
  std::int64_t tokens = 0;
  double nnz = 0;
  bool screened = false;  // the plan may take a screen; only "ffn" and "gate" have lines then
  // "ffn", "dense", "gate" or "gather".
  std::string name(const char* what) const;
  std::vector<const char*> lines() const;
};
// Candidates that a screen leaves for each neuron that fires, as plans are told: measured on a CPU,
// in a trained model of 0.5 % (docs/architecture.md). Random weights leave more.
inline constexpr double kCandidatesPerFiring = 2.4;
std::vector<LayerCase> layer_cases(const Options& options);

// Forward and backward of one layer; its dense GEMMs have one line for each number of tokens.
struct TrainCase {
  std::int64_t tokens = 0;
  double nnz = 0;
  std::string name() const;
};
std::vector<TrainCase> train_cases(const Options& options);
std::string train_dense_name(std::int64_t tokens);

// Workspace of plans whose shape or splits are forced: all rows in one block.
inline constexpr std::size_t kPlenty = std::size_t{1} << 30;

struct ShapeCase {
  std::string name;
  std::int64_t tokens = 0;
  cuda::GemmShape shape;
};
std::vector<ShapeCase> shape_cases(const Options& options);

struct SplitsCase {
  std::string name;
  std::int64_t tokens = 0;
  int splits = 1;
};
std::vector<SplitsCase> splits_cases(const Options& options);

// The gate's GEMM by cublasLt: of all rows, or of blocks of them one after the other into the same
// memory, which stays in L2; on all SMs or on fewer.
struct GateProbe {
  std::string name;
  Epilogue epilogue = Epilogue::none;
  std::int64_t block_rows = 0;  // 0 for all
  int fewer_sms = 0;
};
// A group's cases are measured in turns.
std::vector<std::vector<GateProbe>> gate_probes();
// What is written for values that are not finite or no number of bf16, and which bit is whose.
inline constexpr const char* kGateBits = "probe/gate/bits";
inline constexpr const char* kGateMask = "probe/gate/mask_layout";

// Rows of 4 KB in random order, of so many megabytes: by a ring of bulk copies, or by loads into
// registers, alone or beside the gate's GEMM on the other SMs.
struct RowsProbe {
  std::string name;
  int megabytes = 0;
  int sms = 0;   // 0 for all
  int ring = 0;  // rows of an SM's ring; 0 for loads
  bool beside = false;
};
std::vector<std::vector<RowsProbe>> rows_probes();

// A graph of so many kernels, each of which streams a gate of so many times the neurons for one
// token, or does nothing.
struct GraphProbe {
  std::string name;
  int kernels = 1;
  int times_neurons = 1;  // 0 for nothing
};
std::vector<GraphProbe> graph_probes();
// Lines through those of one kind.
inline constexpr const char* kGraphLines[] = {"probe/graph/line/gates", "probe/graph/line/neurons",
                                              "probe/graph/line/empty"};

// All of them, as --list prints them.
std::vector<std::string> variant_names(const Options& options);

}  // namespace twell::bench
