// The gate's GEMM by cublasLt: in blocks of rows, with its epilogues, on fewer SMs; and what its
// ReLU and its mask make of values that are not finite.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "cuda/bench/bench.h"
#include "cuda/bench/skewed_layer.h"

namespace twell::bench {
namespace {

struct GateMemory {
  GateMemory(std::int64_t tokens_, std::int64_t width_, std::int64_t neurons_,
             const std::vector<std::uint16_t>& x_, const std::vector<std::uint16_t>& gate_)
      : tokens(tokens_),
        width(width_),
        neurons(neurons_),
        x(x_),
        gate(gate_),
        dense(static_cast<std::size_t>(tokens * neurons)),
        mask(static_cast<std::size_t>(tokens * mask_stride(neurons) / 8)) {}

  std::int64_t tokens, width, neurons;
  DeviceMemory<std::uint16_t> x, gate, dense;
  DeviceMemory<std::uint8_t> mask;
};

// x [tokens, width] times gate [neurons, width], whole or in blocks of rows, each written where the
// one before was.
class GateGemm {
 public:
  GateGemm(Bench& bench, const GateMemory& memory, const GateProbe& one)
      : memory_(memory),
        block_(one.block_rows == 0 ? memory.tokens : std::min(one.block_rows, memory.tokens)),
        masks_(one.epilogue == Epilogue::relu_mask),
        sms_(bench.device.sm_count - one.fewer_sms) {
    const GemmExtras extras{one.epilogue, one.fewer_sms == 0 ? 0 : sms_};
    const auto choose = [&](std::int64_t rows) {
      return std::make_unique<const BlasGemm>(
          bench.blas, bench.timer,
          GemmProblem{static_cast<int>(rows), static_cast<int>(memory.neurons),
                      static_cast<int>(memory.width)},
          operands(memory, 0), extras);
    };
    whole_ = choose(block_);
    if (const std::int64_t rest = memory.tokens % block_; rest != 0) rest_ = choose(rest);
  }
  void run() const { run(memory_); }
  // The same products of other values of the same shape.
  void run(const GateMemory& memory) const {
    for (std::int64_t row = 0; row < memory.tokens; row += block_) {
      (memory.tokens - row < block_ ? rest_ : whole_)->run(operands(memory, row));
    }
  }
  int sms() const { return sms_; }
  std::string to_string() const { return whole_->to_string(); }

 private:
  GemmOperands operands(const GateMemory& memory, std::int64_t row) const {
    return {memory.x.get() + row * memory.width, memory.gate.get(), memory.dense.get(),
            masks_ ? memory.mask.get() + row * mask_stride(memory.neurons) / 8 : nullptr};
  }

  const GateMemory& memory_;
  std::int64_t block_;
  bool masks_;
  int sms_;
  std::unique_ptr<const BlasGemm> whole_, rest_;
};

// The first of a group is what the others are compared with.
void measure_group(Bench& bench, const GateMemory& memory, const std::vector<GateProbe>& group) {
  std::vector<GateProbe> cases;
  std::vector<std::unique_ptr<const GateGemm>> gemms;
  std::vector<std::function<void()>> works;
  for (const GateProbe& one : group) {
    guarded(bench, one.name, [&] {
      if (2 * one.fewer_sms > bench.device.sm_count) {
        std::printf("%-32s skipped: few SMs here\n", one.name.c_str());
        bench.report.add(
            {{"kind", "probe_gate"}, {"variant", one.name}, {"skipped", "few SMs here"}});
        return;
      }
      gemms.push_back(std::make_unique<const GateGemm>(bench, memory, one));
      cases.push_back(one);
    });
  }
  for (const auto& gemm : gemms) works.emplace_back([&gemm] { gemm->run(); });
  const std::vector<Times> times = bench.timer.measure_in_turns(bench.options.runs, works);
  std::printf("%-32s %5s %9s %9s %9s %9s %9s  %s\n", "gate GEMM", "SMs", "us", "min", "max",
              "TFLOP/s", "of first", "by");
  const double flops = 2.0 * static_cast<double>(memory.tokens * memory.width * memory.neurons);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Times& t = times[i];
    const double rate = flops / (t.median_us * 1e-6);
    const double of_first = times[0].median_us / t.median_us;
    std::printf("%-32s %5d %9.1f %9.1f %9.1f %9.0f %9.3f  %s\n", cases[i].name.c_str(),
                gemms[i]->sms(), t.median_us, t.min_us, t.max_us, rate * 1e-12, of_first,
                gemms[i]->to_string().c_str());
    bench.report.add({{"kind", "probe_gate"},
                      {"variant", cases[i].name},
                      {"tokens", memory.tokens},
                      {"block_rows", cases[i].block_rows},
                      {"sms", gemms[i]->sms()},
                      {"us", t.median_us},
                      {"min_us", t.min_us},
                      {"max_us", t.max_us},
                      {"flops_per_s", rate},
                      {"compared_with", cases[0].name},
                      {"of_it", of_first},
                      {"impl", gemms[i]->to_string()}});
  }
  std::fflush(stdout);
}

constexpr std::int64_t kLookedAt = 64;  // rows, all within the first tile

std::vector<std::uint16_t> first_rows(const GateMemory& memory) {
  return memory.dense.read(static_cast<std::size_t>(kLookedAt * memory.neurons));
}

// The bits of the rows looked at, if element n of a row is bit n % 8 of byte n / 8.
class MaskBits {
 public:
  explicit MaskBits(const GateMemory& memory)
      : stride_(mask_stride(memory.neurons) / 8),
        bytes_(memory.mask.read(static_cast<std::size_t>(kLookedAt * stride_))) {}
  bool at(std::int64_t row, std::int64_t n) const {
    return (bytes_[static_cast<std::size_t>(row * stride_ + n / 8)] >> (n % 8) & 1) != 0;
  }

 private:
  std::int64_t stride_;
  std::vector<std::uint8_t> bytes_;
};

float value_of(std::uint16_t bits) { return static_cast<float>(bf16::from_bits(bits)); }

// The three ways to write the whole product, as they were timed.
struct Epilogues {
  Epilogues(Bench& bench, const GateMemory& memory)
      : plain(bench, memory, {"", Epilogue::none}),
        relu(bench, memory, {"", Epilogue::relu}),
        mask(bench, memory, {"", Epilogue::relu_mask}) {}
  GateGemm plain, relu, mask;
};

void settle(const Bench& bench) { TWELL_CUDA_CHECK(cudaStreamSynchronize(bench.timer.stream())); }

// Whether the mask has the bits of what fires, one after the other.
void compare_mask(Bench& bench, const GateMemory& memory, const Epilogues& gemms) {
  gemms.plain.run();
  settle(bench);
  const std::vector<std::uint16_t> plain = first_rows(memory);
  memory.mask.poison();
  gemms.mask.run();
  settle(bench);
  const MaskBits bits(memory);
  std::int64_t set = 0, other_than_positive = 0;
  for (std::int64_t row = 0; row < kLookedAt; ++row) {
    for (std::int64_t n = 0; n < memory.neurons; ++n) {
      const bool bit = bits.at(row, n);
      set += bit ? 1 : 0;
      const float v = value_of(plain[static_cast<std::size_t>(row * memory.neurons + n)]);
      other_than_positive += bit != (v > 0) ? 1 : 0;
    }
  }
  const std::int64_t all = kLookedAt * memory.neurons;
  std::printf(
      "mask: %lld of %lld bits set, %lld other than (plain > 0) at bit n %% 8 of byte n / 8\n",
      static_cast<long long>(set), static_cast<long long>(all),
      static_cast<long long>(other_than_positive));
  bench.report.add({{"kind", "probe_mask"},
                    {"variant", kGateMask},
                    {"bits", all},
                    {"set", set},
                    {"other_than_positive", other_than_positive}});
}

// A row of x that is zero but for the first four inputs, whose weights are 1, 4, −4 and 2^-70 for
// every neuron.
struct Special {
  const char* name;
  float x[4];
};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Special kSpecials[] = {
    {"NaN", {kNan}},
    {"Inf", {kInf}},
    {"-Inf", {-kInf}},
    {"0", {}},
    {"-0", {-0.0F}},
    {"1", {1}},
    {"-1", {-1}},
    {"finite, f32 sum Inf", {0, 3e38F}},
    {"finite, f32 sum -Inf", {0, 0, 3e38F}},
    {"finite, f32 sum Inf - Inf", {0, 3e38F, 3e38F}},
    // A subnormal bf16, and less than half of the least one.
    {"2^-130", {0, 0, 0, 0x1p-60F}},
    {"-2^-130", {0, 0, 0, -0x1p-60F}},
    {"2^-140", {0, 0, 0, 0x1p-70F}},
    {"-2^-140", {0, 0, 0, -0x1p-70F}},
};

std::unique_ptr<const GateMemory> special_values(const GateMemory& like) {
  const auto width = static_cast<std::size_t>(like.width);
  std::vector<std::uint16_t> x(like.x.size()), gate(like.gate.size());
  for (std::size_t s = 0; s < std::size(kSpecials); ++s) {
    for (std::size_t i = 0; i < 4; ++i) x[s * width + i] = bf16(kSpecials[s].x[i]).bits;
  }
  constexpr float kWeights[] = {1, 4, -4, 0x1p-70F};
  for (std::size_t n = 0; n < static_cast<std::size_t>(like.neurons); ++n) {
    for (std::size_t i = 0; i < 4; ++i) gate[n * width + i] = bf16(kWeights[i]).bits;
  }
  return std::make_unique<const GateMemory>(like.tokens, like.width, like.neurons, x, gate);
}

void observe_bits(Bench& bench, const GateMemory& memory, const Epilogues& gemms) {
  static_assert(std::size(kSpecials) <= kLookedAt);
  const auto special = special_values(memory);
  const auto rows_of = [&](const GateGemm& gemm) {
    special->dense.poison();
    gemm.run(*special);
    settle(bench);
    return first_rows(*special);
  };
  const std::vector<std::uint16_t> plain = rows_of(gemms.plain);
  const std::vector<std::uint16_t> relu = rows_of(gemms.relu);
  special->mask.poison();
  const std::vector<std::uint16_t> masked = rows_of(gemms.mask);
  const MaskBits bits(*special);
  std::printf("%-28s %8s %8s %8s %6s\n", "gate of", "plain", "relu", "mask's", "bit");
  Line values = Line::array();
  for (std::size_t s = 0; s < std::size(kSpecials); ++s) {
    const auto neurons = static_cast<std::size_t>(memory.neurons);
    const std::size_t first = s * neurons;
    const bool bit = bits.at(static_cast<std::int64_t>(s), 0);
    bool alike = true;
    for (std::size_t n = 0; n < neurons; ++n) {
      alike = alike && plain[first + n] == plain[first] && relu[first + n] == relu[first] &&
              masked[first + n] == masked[first] &&
              bits.at(static_cast<std::int64_t>(s), static_cast<std::int64_t>(n)) == bit;
    }
    const auto hex = [](std::uint16_t value) {
      char out[8];
      std::snprintf(out, sizeof out, "0x%04x", static_cast<unsigned>(value));
      return std::string(out);
    };
    std::printf("%-28s %8s %8s %8s %6d%s\n", kSpecials[s].name, hex(plain[first]).c_str(),
                hex(relu[first]).c_str(), hex(masked[first]).c_str(), bit ? 1 : 0,
                alike ? "" : "  not alike in all columns");
    values.push_back({{"value", kSpecials[s].name},
                      {"plain", hex(plain[first])},
                      {"relu", hex(relu[first])},
                      {"mask_relu", hex(masked[first])},
                      {"bit", bit ? 1 : 0},
                      {"alike", alike}});
  }
  bench.report.add({{"kind", "probe_bits"},
                    {"variant", kGateBits},
                    {"values", values},
                    {"impl", gemms.mask.to_string()}});
}

}  // namespace

void probe_gate(Bench& bench) {
  std::printf(
      "Decides whether many tokens multiply the gate in one GEMM rather than in blocks of rows\n"
      "that stay in L2; whether packing may read cublasLt's mask, a bit a neuron, in place of the\n"
      "dense gate, and which values it must then look for itself; and what the GEMM loses where\n"
      "it leaves SMs to a gather.\n");
  guarded(bench, "probe-gate", [&] {
    const Options& options = bench.options;
    const std::int64_t tokens = *std::max_element(options.tokens.begin(), options.tokens.end());
    // Values of a layer in which few fire: what is multiplied and written decides the clock.
    const SkewedLayer layer = make_skewed_layer(std::max(tokens, kLookedAt), options.width,
                                                options.neurons, options.nnz.front(), 1);
    const GateMemory memory(layer.tokens, layer.width, layer.neurons, layer.x, layer.gate);
    const auto groups = gate_probes();
    measure_group(bench, memory, groups[0]);
    guarded(bench, kGateMask, [&] {
      const Epilogues gemms(bench, memory);
      compare_mask(bench, memory, gemms);
      observe_bits(bench, memory, gemms);
    });
    measure_group(bench, memory, groups[1]);
  });
}

}  // namespace twell::bench
