#include "cuda/bench/variants.h"

#include <algorithm>
#include <cstdio>

#include "cuda/bench/exact_layer.h"
#include "twell/status.h"

namespace twell::bench {
namespace {

using cuda::GemmShape;

constexpr int kSplits[] = {1, 2, 4, 8, 16, 32};

std::string text_of(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", value);
  return digits;
}

template <class... Parts>
std::string path_of(const std::string& first, const Parts&... parts) {
  std::string out = first;
  ((out += '/', out += parts), ...);
  return out;
}

// "tile 128x128" without its blank.
std::string name_of_shape(GemmShape shape) {
  std::string name = cuda::name_of(shape);
  name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
  return name;
}

// The shapes that take so many rows, on any GPU.
std::vector<GemmShape> shapes_for(std::int64_t tokens, const Options& options) {
  cuda::Device any;
  any.sm_count = 1;
  any.shared_bytes = std::size_t{99} << 10;  // the least of all
  std::vector<GemmShape> out;
  cuda::Problem problem{tokens, options.width, options.neurons, DType::bf16, true, true};
  problem.screened = true;
  for (int s = 0; s <= static_cast<int>(GemmShape::screen32x32); ++s) {
    try {
      (void)cuda::plan_gemm_relu_twell(static_cast<GemmShape>(s), any, problem);
      out.push_back(static_cast<GemmShape>(s));
    } catch (const Error&) {
      continue;
    }
  }
  return out;
}

}  // namespace

std::vector<CeilingCase> ceiling_cases(const Options& options) {
  using What = CeilingCase::What;
  std::vector<CeilingCase> out;
  out.push_back({"ceiling/copy", What::copy, 0, 0, 0, std::size_t{1} << 30});
  out.push_back({"ceiling/memcpy", What::memcpy, 0, 0, 0, std::size_t{1} << 30});
  out.push_back({"ceiling/gemm_8192", What::gemm, 8192, 8192, 8192, 0});
  for (const int m : {16384, 1536, 2048}) {
    const int n = static_cast<int>(options.neurons);
    const int k = static_cast<int>(options.width);
    out.push_back(
        {"ceiling/gemm_" + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k),
         What::gemm, m, n, k, 0});
  }
  // All rows of Wu and Wd of a layer of 2048 × 5632 are 46 MB; 28 and 12 MB fit one of the two
  // halves of a large L2, and any L2 that a layer is worth running on.
  for (const int megabytes : {46, 28, 12}) {
    out.push_back({"ceiling/l2_rows_" + std::to_string(megabytes) + "mb", What::l2_rows, 0, 0, 0,
                   static_cast<std::size_t>(megabytes) * 1'000'000});
  }
  out.push_back({"ceiling/launch_gap", What::launch_gap, 0, 0, 0, 0});
  return out;
}

std::vector<ExactCase> exact_cases(const Options& options) {
  std::vector<ExactCase> out;
  for (const double nnz : options.nnz) {
    const auto add = [&](const std::string& suffix, std::int64_t first, std::int64_t tokens) {
      ExactCase one;
      one.name = path_of("exact", text_of(nnz), suffix);
      one.nnz = nnz;
      one.first = first;
      one.tokens = tokens;
      out.push_back(one);
      return &out.back();
    };
    // Below, at and above the rows of every shape of the GEMM.
    for (const std::int64_t tokens :
         {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300}) {
      add(std::to_string(tokens), 0, tokens);
    }
    add("full_row", kFullRow, 1);
    add("empty_row", kEmptyRow, 1);
    add("300/small_blocks", 0, kExactTokens)->small_blocks = true;
    for (const std::int64_t tokens : {7, 15, 23, 31, 63, 129, 300}) {
      for (const GemmShape shape : shapes_for(tokens, options)) {
        add(path_of(std::to_string(tokens), name_of_shape(shape)), 0, tokens)->shape = shape;
      }
    }
    for (const int tenths : {1, 5, 10}) {
      ExactCase* one = add("300/hot_" + std::to_string(tenths) + "0_percent", 0, kExactTokens);
      one->hot_tenths = tenths;
      one->shape = GemmShape::library;
    }
    ExactCase* apart = add("300/hot_50_percent/separate_up", 0, kExactTokens);
    apart->hot_tenths = 5;
    apart->separate_up = true;
    apart->shape = GemmShape::library;
    for (const int splits : kSplits) {
      const std::string suffix = "splits_" + std::to_string(splits);
      add(path_of("1", suffix), 0, 1)->splits = splits;
      add(path_of("full_row", suffix), kFullRow, 1)->splits = splits;
      add(path_of("17", suffix), 0, 17)->splits = splits;
    }
  }
  return out;
}

cuda::FfnPlan plan_of(const cuda::Device& device, const cuda::Problem& problem,
                      const ExactCase& one) {
  cuda::Problem with_hot = problem;
  with_hot.hot = one.hot_tenths * problem.neurons / 10;
  if (one.separate_up) with_hot.joined = false;
  with_hot.screened = one.shape == GemmShape::screen32x32;
  cuda::FfnPlan plan = cuda::plan_ffn(device, with_hot, one.small_blocks ? 1 : kPlenty, one.shape);
  if (one.splits) plan.gather.splits = *one.splits;
  plan.workspace_bytes = cuda::workspace_bytes(plan);
  return plan;
}

std::string LayerCase::name(const char* what) const {
  const std::string name = path_of(what, std::to_string(tokens), text_of(nnz));
  return screened ? path_of(name, "screened") : name;
}

std::vector<const char*> LayerCase::lines() const {
  if (screened) return {"ffn", "gate"};
  return {"ffn", "dense", "gate", "gather"};
}

std::vector<LayerCase> layer_cases(const Options& options) {
  std::vector<LayerCase> out;
  for (const double nnz : options.nnz) {
    for (const std::int64_t tokens : options.tokens) {
      out.push_back({tokens, nnz});
      constexpr std::int64_t kScreenedTokens = 16;  // beyond, none is expected to pay
      if (tokens <= kScreenedTokens) out.push_back({tokens, nnz, true});
    }
  }
  return out;
}

std::string TrainCase::name() const {
  return path_of("train", std::to_string(tokens), text_of(nnz));
}

std::vector<TrainCase> train_cases(const Options& options) {
  std::vector<TrainCase> out;
  for (const double nnz : options.train_nnz) {
    for (const std::int64_t tokens : options.train_tokens) out.push_back({tokens, nnz});
  }
  return out;
}

std::string train_dense_name(std::int64_t tokens) {
  return path_of("train_dense", std::to_string(tokens));
}

std::vector<ShapeCase> shape_cases(const Options& options) {
  std::vector<ShapeCase> out;
  for (const std::int64_t tokens : options.tokens) {
    for (const GemmShape shape : shapes_for(tokens, options)) {
      out.push_back(
          {path_of("gate_shape", std::to_string(tokens), name_of_shape(shape)), tokens, shape});
    }
  }
  return out;
}

std::vector<SplitsCase> splits_cases(const Options& options) {
  std::vector<SplitsCase> out;
  for (const std::int64_t tokens : options.tokens) {
    if (tokens > 64) continue;
    for (const int splits : kSplits) {
      out.push_back({path_of("gather_splits", std::to_string(tokens), std::to_string(splits)),
                     tokens, splits});
    }
  }
  return out;
}

std::vector<std::vector<GateProbe>> gate_probes() {
  const auto all = {Epilogue::none, Epilogue::relu, Epilogue::relu_mask};
  std::vector<std::vector<GateProbe>> out(2);
  for (const std::int64_t block : {0, 1280, 1536, 2048, 4096}) {
    for (const Epilogue epilogue : all) {
      const std::string rows = block == 0 ? "whole" : std::to_string(block);
      out[0].push_back({path_of("probe/gate", rows, name_of(epilogue)), epilogue, block, 0});
    }
  }
  // 132, 124, 116, 108 and 100 of an H100.
  for (const int fewer : {0, 8, 16, 24, 32}) {
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::relu_mask}) {
      out[1].push_back(
          {path_of("probe/gate_sms", std::to_string(fewer) + "_fewer", name_of(epilogue)), epilogue,
           0, fewer});
    }
  }
  return out;
}

std::vector<std::vector<RowsProbe>> rows_probes() {
  std::vector<std::vector<RowsProbe>> out;
  const auto add = [&](const char* what, int megabytes, int sms, bool beside) {
    std::vector<RowsProbe>& group = out.emplace_back();
    const std::string at = sms == 0 ? "all_sms" : "sms_" + std::to_string(sms);
    for (const int ring : {0, 8, 16, 24, 40}) {
      const std::string by = ring == 0 ? "loads" : "ring_" + std::to_string(ring);
      group.push_back(
          {path_of(what, std::to_string(megabytes) + "mb", at, by), megabytes, sms, ring, beside});
    }
  };
  // The whole of Wu and Wd first.
  for (const int megabytes : {46, 28, 12}) {
    for (const int sms : {0, 32, 24, 16}) add("probe/rows", megabytes, sms, false);
    for (const int sms : {32, 24, 16}) add("probe/beside", megabytes, sms, true);
  }
  return out;
}

std::vector<GraphProbe> graph_probes() {
  std::vector<GraphProbe> out;
  const auto name = [](const char* kind, int times) {
    return path_of("probe/graph", kind + std::to_string(times));
  };
  for (const int kernels : {1, 2, 4}) out.push_back({name("gates_", kernels), kernels, 1});
  for (const int times : {2, 4}) out.push_back({name("neurons_x", times), 1, times});
  for (const int kernels : {1, 2, 4}) out.push_back({name("empty_", kernels), kernels, 0});
  return out;
}

std::vector<std::string> variant_names(const Options& options) {
  std::vector<std::string> out;
  if (options.has_ceilings()) {
    for (const CeilingCase& one : ceiling_cases(options)) out.push_back(one.name);
  }
  if (options.has("exact")) {
    for (const ExactCase& one : exact_cases(options)) out.push_back(one.name);
  }
  if (options.has("layers")) {
    for (const LayerCase& one : layer_cases(options)) {
      for (const char* what : one.lines()) out.push_back(one.name(what));
    }
  }
  if (options.has("train")) {
    for (const std::int64_t tokens : options.train_tokens) out.push_back(train_dense_name(tokens));
    for (const TrainCase& one : train_cases(options)) out.push_back(one.name());
  }
  if (options.has("sweeps")) {
    for (const ShapeCase& one : shape_cases(options)) out.push_back(one.name);
    for (const SplitsCase& one : splits_cases(options)) out.push_back(one.name);
  }
  const auto add = [&](const auto& group) {
    for (const auto& one : group) out.push_back(one.name);
  };
  if (options.has("probe-gate")) {
    const auto groups = gate_probes();
    add(groups[0]);
    out.insert(out.end(), {kGateMask, kGateBits});
    add(groups[1]);
  }
  if (options.has("probe-rows")) {
    for (const auto& group : rows_probes()) add(group);
  }
  if (options.has("probe-graph")) {
    add(graph_probes());
    out.insert(out.end(), std::begin(kGraphLines), std::end(kGraphLines));
  }
  return out;
}

}  // namespace twell::bench
