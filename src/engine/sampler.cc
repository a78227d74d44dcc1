#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "twell/status.h"

namespace twell::lm {
namespace {

std::uint64_t stream_seed(std::uint64_t seed, std::int64_t sequence) {
  if (sequence == 0) return seed;
  // Hashed: neighbouring states of the generator would be the same stream, one step apart.
  return Random(seed ^ (static_cast<std::uint64_t>(sequence) * 0xd1342543de82ef95ULL)).next();
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

Sampler::Sampler(const SamplingOptions& options, std::int64_t sequence)
    : options_(options), random_(stream_seed(options.seed, sequence)) {
  options_.validate();
}

std::int64_t Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorKind::invalid_argument, "sampling", "no logits");
  std::size_t best = 0;
  bool nan = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  if (nan || std::isinf(logits[best])) {
    throw Error(ErrorKind::invalid_argument, "sampling",
                "the model's logits are NaN or infinite; its weights are damaged, or activations "
                "overflow in this dtype (try --dtype f32)");
  }
  if (options_.temperature == 0.0) return static_cast<std::int64_t>(best);

  candidates_.clear();
  const double largest = logits[best];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back(
        {std::exp((logits[i] - largest) / options_.temperature), static_cast<std::int64_t>(i)});
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k - 1,
                     candidates_.end(), likelier);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
    // Which of them is drawn must not depend on how this library partitions.
    std::sort(candidates_.begin(), candidates_.end(), likelier);
  }
  double total = 0.0;
  for (const Candidate& c : candidates_) total += c.weight;
  if (options_.top_p >= 1.0) return draw(candidates_, total);

  // The likeliest until their sum reaches top_p. A heap: usually few of 50,000 are needed.
  const auto less_likely = [&](const Candidate& a, const Candidate& b) { return likelier(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto rest = candidates_.end();
  double kept = 0.0;
  while (rest != candidates_.begin() &&
         (rest == candidates_.end() || kept < options_.top_p * total)) {
    std::pop_heap(candidates_.begin(), rest, less_likely);
    kept += (--rest)->weight;
  }
  // Popped ones stand at the end, the likeliest last.
  return draw({rest, candidates_.end()}, kept);
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
