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
#include "measure/eager_model.h"
#include "measure/timing.h"

namespace twell::lm {

struct ModelSide {
  std::string name;  // "plain weights"
  Model* model = nullptr;
  std::function<void()> enter = {};  // called before every call of this side
};

struct Sides {
  std::vector<ModelSide> dense;       // one at least; the fastest of them is the baseline
  const EagerModel* eager = nullptr;  // a second baseline, if any
  Model* sparse = nullptr;
};

// On a GPU whose energy can be read, all timed runs of a side together last this long at least.
inline constexpr double kGpuEnergySeconds = 3.0;

struct CompareOptions {
  std::int64_t sequences = 1;
  std::int64_t prompt_tokens = 512;  // of each sequence
  std::int64_t decode_tokens = 32;
  bool prefill = true, decode = true;  // what is measured
  MeasureOptions measure;
  // Of a sequence, and of all of them. What is not decoded takes no room.
  std::int64_t length() const { return prompt_tokens + (decode ? decode_tokens : 0); }
  std::int64_t tokens() const { return sequences * length(); }
};

// Throws Error (invalid_argument) where there are fewer tokens than that, or the model's context is
// shorter.
void require_tokens(const CompareOptions& options, std::int64_t tokens, std::int64_t context);

// Which share of the time of a call each piece of the model has; `rest` is what no piece is.
struct PieceShares {
  std::array<double, kPieceNames.size()> share{};
  double rest = 0;
  nlohmann::json to_json() const;
};

struct SideSpeed {
  std::string name;
  Timing timing;                     // of a call
  std::optional<double> mj;          // energy a token, in the timed runs
  std::optional<double> peak_bytes;  // the most memory of a call: own weights, cache and the rest
};

// One of prefill and decode.
struct Speed {
  std::int64_t tokens = 0;              // per call: all prompts, or one of each sequence
  std::vector<SideSpeed> sides;         // the dense ones, eager if there is one, sparse
  bool complete = false;                // all rounds, and what is looked at after them
  std::size_t dense_sides = 0;          // how many the first are
  const char* energy_source = nullptr;  // as RunEnergy::source()
  std::optional<PieceShares> dense_pieces, sparse_pieces;  // none on a GPU, where calls overlap

  std::size_t fastest_dense() const;
  const SideSpeed& dense() const { return sides[fastest_dense()]; }
  const SideSpeed* eager() const;  // null where there is none
  const SideSpeed& sparse() const { return sides.back(); }
  double speedup() const { return over_sparse(dense()); }
  double over_sparse(const SideSpeed& side) const;  // how many times as fast sparse is
  double tokens_per_s(const SideSpeed& side) const;
  nlohmann::json to_json() const;
};

struct Comparison {
  std::optional<Speed> prefill, decode;  // of what was asked for
};

// Runs sequences of options.length() of `tokens`, one after the other; require_tokens(). Decoding
// feeds the text's own tokens, so that every side does the same work, and the logits of every step
// are computed. All models have the same shape. Then each side runs once more with timers, and with
// a token sampled (temperature 0.8, top_p 0.95) where the times before are without. On a GPU a
// decoded token is also sampled and waited for, as generation does it (Runner::decode), and there
// are no timers. `tick` is told of every timed run; `round`, if given, of what is measured so far
// whenever every side has run once more, of a phase without memory and pieces until it is done.
Comparison compare_speed(const Sides& sides, std::span<const std::int64_t> tokens,
                         const CompareOptions& options,
                         const std::function<void(const std::string&)>& tick,
                         const std::function<void(const Comparison&)>& round = {});

// Logits on `tokens` (one sequence), at up to 64 of the positions: [rows, V] in fp32.
at::Tensor sample_logits(Model& model, std::span<const std::int64_t> tokens);

// How far logits of the two paths may be apart, relative to the largest of their row, to first
// order. With u the rounding unit of the type (2⁻⁹ for bf16, 2⁻²⁴ for fp32) the residual stream is
// rounded twice a layer, and each of the two things added to it went through about six roundings of
// its own; with the last norm and the head that is 2 layers (1 + 6) + 2 independent errors of
// relative size u on each side, so √2 u √(14 layers + 2). A factor of 2 is kept in hand for what
// the following layers amplify.
double logits_error_bound(std::int64_t layers, at::ScalarType dtype);

}  // namespace twell::lm
