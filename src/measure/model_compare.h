// A whole model, dense against sparse: speed of prefill and decode in turns, and how far the
// outputs are apart.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decoder/model.h"
#include "decoder/profile.h"
#include "measure/timing.h"

namespace twell::measure {

struct DenseSide {
  std::string name;  // "plain weights"
  lm::Model* model = nullptr;
};

// On a GPU whose energy can be read, all timed runs of a side together last this long at least.
inline constexpr double kGpuEnergySeconds = 3.0;

struct CompareOptions {
  std::int64_t prompt_tokens = 512;
  std::int64_t decode_tokens = 32;
  MeasureOptions measure;
};

// The most memory of a GPU while each side ran: its own weights, its cache and all else that is not
// the other models' weights and caches.
struct PeakBytes {
  std::int64_t dense = 0, sparse = 0;
};

// Which share of the time of a call each piece of the model has; `rest` is what no piece is.
struct PieceShares {
  std::array<double, lm::kPieceNames.size()> share{};
  double rest = 0;
  nlohmann::json to_json() const;
};

// One of prefill and decode.
struct SpeedPair {
  std::int64_t tokens = 0;  // per call: the prompt, or 1
  Timing dense, sparse;
  std::string dense_impl;  // the faster of the dense sides
  double speedup = 0;
  std::optional<double> dense_mj, sparse_mj;               // energy a token, in the timed runs
  const char* energy_source = nullptr;                     // as RunEnergy::source()
  std::optional<PieceShares> dense_pieces, sparse_pieces;  // none on a GPU, where calls overlap
  PeakBytes peak;

  double dense_tokens_per_s() const { return static_cast<double>(tokens) * 1e6 / dense.median_us; }
  double sparse_tokens_per_s() const {
    return static_cast<double>(tokens) * 1e6 / sparse.median_us;
  }
  nlohmann::json to_json() const;
};

struct Comparison {
  SpeedPair prefill, decode;
};

// Runs the first prompt_tokens + decode_tokens of `tokens`; throws where there are fewer, or where
// the models' context is shorter. Decoding feeds the text's own tokens, so that every side does the
// same work, and the logits of every step are computed. All models have the same shape. Then each
// side runs once more with timers, and with a token sampled (temperature 0.8, top_p 0.95) where the
// times before are without. On a GPU a decoded token is also sampled and waited for, as generation
// does it (ModelRunner::decode), and there are no timers.
Comparison compare_speed(std::span<const DenseSide> dense, lm::Model& sparse,
                         std::span<const std::int64_t> tokens, const CompareOptions& options,
                         const std::function<void(const std::string&)>& tick);

// Logits on `tokens` (one sequence), at up to 64 of the positions: [rows, V] in fp32.
at::Tensor sample_logits(lm::Model& model, std::span<const std::int64_t> tokens);

// How far logits of the two paths may be apart, relative to the largest of their row, to first
// order. With u the rounding unit of the type (2⁻⁹ for bf16, 2⁻²⁴ for fp32) the residual stream is
// rounded twice a layer, and each of the two things added to it went through about six roundings of
// its own; with the last norm and the head that is 2 layers (1 + 6) + 2 independent errors of
// relative size u on each side, so √2 u √(14 layers + 2). A factor of 2 is kept in hand for what
// the following layers amplify.
double logits_error_bound(std::int64_t layers, at::ScalarType dtype);

}  // namespace twell::measure
