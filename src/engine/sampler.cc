#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "twell/status.h"

namespace twell::lm {
namespace {

std::uint64_t stream_seed(std::uint64_t seed, std::int64_t sequence) {
  if (sequence == 0) return seed;
  // Hashed: neighbouring states of the generator would be the same stream, one step apart.
  return Random(seed ^ (static_cast<std::uint64_t>(sequence) * 0xd1342543de82ef95ULL)).next();
}

// Where the largest logit is, the first of equals; NaN anywhere is reported. In lanes, because a
// loop over one maximum does one comparison after the other (50,000 of them are 50 µs).
struct Largest {
  std::size_t index = 0;
  float value = 0.0F;
  bool nan = false;
};
Largest find_largest(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<int, kLanes> nan{};
  largest.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      largest[lane] = x > largest[lane] ? x : largest[lane];
      nan[lane] |= x != x ? 1 : 0;
    }
  }
  for (; i < logits.size(); ++i) {
    largest[0] = std::max(largest[0], logits[i]);
    nan[0] |= std::isnan(logits[i]) ? 1 : 0;
  }
  Largest out;
  out.value = *std::max_element(largest.begin(), largest.end());
  out.nan = std::any_of(nan.begin(), nan.end(), [](int n) { return n != 0; });
  out.index =
      static_cast<std::size_t>(std::find(logits.begin(), logits.end(), out.value) - logits.begin());
  return out;
}

// exp(x) for x <= 0, within 2 units in the last place; 0 below -700. Plain arithmetic, so that a
// loop over it uses vector instructions and gives the same everywhere: 2^n · e^r with |r| <= ln2 /
// 2 and e^r by its series, whose next term is below 2⁻⁵². Adding 1.5 · 2⁵² rounds to an integer,
// which then stands in the low bits.
double fast_exp(double x) {
  constexpr double kRound = 0x1.8p52;
  const double shifted = x * 0x1.71547652b82fep0 + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
  double sum = 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 1.0 / 2;
  sum = (sum * r + 1.0) * r + 1.0;
  const auto bits =
      std::bit_cast<std::uint64_t>(sum) + (std::bit_cast<std::uint64_t>(shifted) << 52);
  return x >= -700.0 ? std::bit_cast<double>(bits) : 0.0;
}

// Weights in (0, 1] fall into bins by their exponent and the first six bits behind the point, the
// largest into bin 0. What is below 2⁻⁶⁴ shares the last bin.
constexpr std::uint64_t kBins = 64 * 64;
std::size_t bin_of(double weight) {
  const std::uint64_t from_one =
      std::bit_cast<std::uint64_t>(1.0) - std::bit_cast<std::uint64_t>(weight);
  return static_cast<std::size_t>(std::min(from_one >> 46, kBins - 1));
}

}  // namespace

void SamplingOptions::validate() const {
  const auto fail = [](const char* name, const char* expected, double got) {
    throw Error(ErrorKind::invalid_argument, "sampling",
                fmt::format("{} must be {}, got {}", name, expected, got));
  };
  if (!(temperature >= 0.0) || !std::isfinite(temperature)) {
    fail("temperature", "0 or more", temperature);
  }
  if (top_k < 0) fail("top_k", "0 or more", static_cast<double>(top_k));
  if (!(top_p > 0.0 && top_p <= 1.0)) fail("top_p", "above 0 and at most 1", top_p);
}

Random sequence_stream(std::uint64_t seed, std::int64_t sequence) {
  return Random(stream_seed(seed, sequence));
}

void throw_broken_logits() {
  throw Error(ErrorKind::invalid_argument, "sampling",
              "the model's logits are NaN or infinite; its weights are damaged, or activations "
              "overflow in this dtype (try --dtype f32)");
}

Sampler::Sampler(const SamplingOptions& options, std::int64_t sequence)
    : options_(options), random_(sequence_stream(options.seed, sequence)) {
  options_.validate();
}

std::int64_t Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorKind::invalid_argument, "sampling", "no logits");
  const Largest largest = find_largest(logits);
  if (largest.nan || std::isinf(largest.value)) {
    throw_broken_logits();
  }
  if (options_.temperature == 0.0) return static_cast<std::int64_t>(largest.index);
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(logits.size())) {
    return sample_top_k(logits, largest.value);
  }
  weigh(logits, largest.value);
  if (options_.top_p < 1.0) return sample_top_p();

  return draw_any();
}

// By blocks, whose sums have no long chain of additions: first the block, then the token in it.
std::int64_t Sampler::draw_any() {
  constexpr std::size_t kBlock = 256, kLanes = 8;
  bins_.clear();
  double total = 0.0;
  for (std::size_t first = 0; first < weights_.size(); first += kBlock) {
    const std::size_t end = std::min(weights_.size(), first + kBlock);
    std::array<double, kLanes> sums{};
    std::size_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights_[i + lane];
    }
    for (; i < end; ++i) sums[0] += weights_[i];
    bins_.push_back(std::accumulate(sums.begin(), sums.end(), 0.0));
    total += bins_.back();
  }
  double left = random_.uniform() * total;
  const std::size_t block = pick_bin(bins_.size(), left);
  std::size_t last = 0;  // that has any probability: where rounding of a sum leads to
  for (std::size_t i = block * kBlock; i < std::min(weights_.size(), (block + 1) * kBlock); ++i) {
    left -= weights_[i];
    if (left < 0.0) return static_cast<std::int64_t>(i);
    if (weights_[i] > 0.0) last = i;
  }
  return static_cast<std::int64_t>(last);
}

// Of the first `count` bins the one that `left` falls into; `left` becomes what is left in it.
std::size_t Sampler::pick_bin(std::size_t count, double& left) const {
  std::size_t bin = 0;  // the last that has any probability, where rounding leads to
  for (std::size_t b = 0; b < count; ++b) {
    if (bins_[b] == 0.0) continue;
    bin = b;
    if (left < bins_[b]) break;
    left -= bins_[b];
  }
  return bin;
}

void Sampler::weigh(std::span<const float> logits, float largest) {
  // Finite, or equal logits would be 0 · ∞ apart.
  const double inverse = std::min(1.0 / options_.temperature, 1e300);
  const double most = largest;
  weights_.resize(logits.size());
  const float* from = logits.data();
  double* to = weights_.data();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    to[i] = fast_exp((static_cast<double>(from[i]) - most) * inverse);
  }
}

std::int64_t Sampler::sample_top_k(std::span<const float> logits, float largest) {
  // Their logits first, as weights: only the k that stay need an exponential.
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({logits[i], static_cast<std::int64_t>(i)});
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k - 1, candidates_.end(),
                   likelier);
  candidates_.resize(static_cast<std::size_t>(options_.top_k));
  // Which of them is drawn must not depend on how this library partitions.
  std::sort(candidates_.begin(), candidates_.end(), likelier);
  const double inverse = std::min(1.0 / options_.temperature, 1e300);
  double total = 0.0;
  for (Candidate& c : candidates_) {
    c.weight = fast_exp((c.weight - static_cast<double>(largest)) * inverse);
    total += c.weight;
  }
  if (options_.top_p >= 1.0) return draw(candidates_, total);
  double kept = 0.0;
  std::size_t count = 0;
  while (count < candidates_.size() && (count == 0 || kept < options_.top_p * total)) {
    kept += candidates_[count++].weight;
  }
  return draw({candidates_.data(), count}, kept);
}

// The likeliest tokens until their sum reaches top_p. Where the logits are flat these are most of
// 50,000, so nothing is sorted but the bin in which the sum is reached: one pass adds up the bins,
// one collects that bin, and one the bin that is drawn.
std::int64_t Sampler::sample_top_p() {
  bins_.assign(kBins, 0.0);
  for (const double w : weights_) bins_[bin_of(w)] += w;
  double total = 0.0;
  for (const double sum : bins_) total += sum;
  const double target = options_.top_p * total;
  std::size_t edge = 0;
  double whole = 0.0;  // of the bins before the edge, all of whose tokens are kept
  while (edge + 1 < kBins && whole + bins_[edge] < target) whole += bins_[edge++];

  const auto collect = [this](std::size_t bin) {
    candidates_.clear();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] > 0.0 && bin_of(weights_[i]) == bin) {
        candidates_.push_back({weights_[i], static_cast<std::int64_t>(i)});
      }
    }
  };
  collect(edge);
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  });
  double kept = 0.0;
  std::size_t count = 0;
  while (count < candidates_.size() && (whole + kept == 0.0 || whole + kept < target)) {
    kept += candidates_[count++].weight;
  }
  double left = random_.uniform() * (whole + kept);
  if (count > 0 && left >= whole) {
    left -= whole;
    for (std::size_t i = 0; i < count; ++i) {
      left -= candidates_[i].weight;
      if (left < 0.0) return candidates_[i].token;
    }
    return candidates_[count - 1].token;
  }
  collect(pick_bin(edge, left));
  for (const Candidate& c : candidates_) {
    left -= c.weight;
    if (left < 0.0) return c.token;
  }
  return candidates_.back().token;
}

std::int64_t Sampler::draw(std::span<const Candidate> candidates, double total) {
  double left = random_.uniform() * total;
  for (const Candidate& c : candidates) {
    left -= c.weight;
    if (left < 0.0) return c.token;
  }
  // Rounding of the sum: the last that has any probability.
  for (std::size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].weight > 0.0) return candidates[i].token;
  }
  return candidates.back().token;
}

}  // namespace twell::lm
