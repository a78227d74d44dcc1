#include "engine/sampler.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "twell/status.h"

namespace twell::lm {
namespace {

// So many of the likeliest tokens are looked at first on a CPU: 0.1 ms of 49,152 instead of the
// 0.5 ms of sorting all. More than 1/64 of the vocabulary are slower by PyTorch's topk.
constexpr std::int64_t kCandidates = 256;

struct Ranked {
  at::Tensor logits, ids;  // [B, n], the likeliest first, of equals the smaller id
};

// All tokens. Sorted as integers, of which PyTorch takes one row by radix on a CPU, in a tenth of
// the time of floats.
Ranked rank_all(const at::Tensor& logits) {
  const at::Tensor bits = (logits + 0.0).view(at::kInt);                          // -0 + 0 is 0
  const at::Tensor keys = ~(bits ^ (bits.bitwise_right_shift(31) & 0x7fffffff));  // descending
  const at::Tensor ids =
      std::get<1>(keys.squeeze(0).sort(/*stable=*/true, -1, /*descending=*/false)).view_as(logits);
  return {logits.gather(1, ids), ids};
}

// The likeliest `count`. Of the tokens that equal the last of them any may be missing.
Ranked rank_some(const at::Tensor& logits, std::int64_t count) {
  const auto [values, tokens] = logits.topk(count);  // equals in any order
  const auto [ids, by_id] = tokens.sort();
  const auto [sorted, by_logit] =
      values.gather(1, by_id).sort(/*stable=*/true, -1, /*descending=*/true);
  return {sorted, ids.gather(1, by_logit)};
}

// 1 for the likeliest.
at::Tensor weigh(const at::Tensor& logits, const at::Tensor& largest, double temperature) {
  // Finite, or equal logits would be 0 · ∞ apart.
  const double inverse = std::min(1.0 / temperature, 1e300);
  return logits.to(at::kDouble).sub_(largest).mul_(inverse).exp_();
}

// The index in each row of running sums [B, n] at which u times `total`, one of them, is exceeded.
// As u is at most 1 - 2⁻⁵³ the product is rounded to less than the total: the index is none behind
// it, and one whose token has a probability. NaN is exceeded nowhere, hence the clamp.
at::Tensor draw(const at::Tensor& sums, const at::Tensor& total, const at::Tensor& uniforms) {
  return at::searchsorted(sums, total * uniforms.unsqueeze(1), /*out_int32=*/false, /*right=*/true)
      .clamp_max(sums.size(1) - 1);
}

// A draw from the likeliest `top_k` and of these from the likeliest that reach top_p.
at::Tensor sample_likeliest(const at::Tensor& logits, const at::Tensor& largest,
                            const SamplingOptions& options, std::int64_t top_k,
                            const at::Tensor& uniforms) {
  const std::int64_t all = logits.size(1);
  std::int64_t count = all;
  at::Tensor total;  // weight of all that top_k leaves
  if (logits.is_cpu() && kCandidates < all && (top_k == all || 2 * top_k <= kCandidates)) {
    count = kCandidates;
    if (top_k == all) total = weigh(logits, largest, options.temperature).sum(-1, true);
  }
  while (true) {
    const Ranked ranked = count < all ? rank_some(logits, count) : rank_all(logits);
    const std::int64_t kept = std::min(top_k, count);
    const at::Tensor sums =
        weigh(ranked.logits.narrow(1, 0, kept), largest, options.temperature).cumsum(-1);
    if (top_k <= count) total = sums.narrow(1, kept - 1, 1);
    at::Tensor last = at::searchsorted(sums, total * options.top_p).clamp_max(kept - 1);
    if (options.min_p > 0.0) {
      const at::Tensor weights =
          weigh(ranked.logits.narrow(1, 0, kept), largest, options.temperature);
      last = last.minimum(weights.ge(options.min_p).sum(-1, true) - 1);
    }
    // Whether all tokens that equal the last one kept are among the candidates.
    if (count == all ||
        ranked.logits.gather(1, last).gt(ranked.logits.narrow(1, count - 1, 1)).item<bool>()) {
      return ranked.ids.gather(1, draw(sums, sums.gather(1, last), uniforms));
    }
    count = all;
  }
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
  if (!(min_p >= 0.0 && min_p <= 1.0)) fail("min_p", "from 0 to 1", min_p);
  if (!(repetition_penalty > 0.0) || !std::isfinite(repetition_penalty)) {
    fail("repetition_penalty", "above 0", repetition_penalty);
  }
  if (top_k < 0) fail("top_k", "0 or more", static_cast<double>(top_k));
  if (!(top_p >= 0.0 && top_p <= 1.0)) fail("top_p", "from 0 to 1", top_p);
}

Random sequence_stream(std::uint64_t seed, std::int64_t sequence) {
  if (sequence == 0) return Random(seed);
  // Hashed: neighbouring states of the generator would be the same stream, one step apart.
  return Random(
      Random(seed ^ (static_cast<std::uint64_t>(sequence) * 0xd1342543de82ef95ULL)).next());
}

LogitBias::LogitBias(std::vector<io::TokenBias> biases, std::int64_t vocabulary, at::Device device)
    : biases_(std::move(biases)) {
  std::erase_if(biases_, [&](const io::TokenBias& one) {
    return one.token < 0 || one.token >= vocabulary || one.steps < 1;
  });
  if (!biases_.empty()) sums_ = at::zeros({vocabulary}, at::device(device).dtype(at::kFloat));
}

void LogitBias::begin(std::int64_t step) {
  const bool changes = std::ranges::any_of(
      biases_, [&](const io::TokenBias& one) { return step == 0 || one.steps == step; });
  if (!changes) return;
  at::Tensor sums = at::zeros({sums_.size(0)}, at::kFloat);
  auto* sum = sums.mutable_data_ptr<float>();
  for (const io::TokenBias& one : biases_) {
    if (step < one.steps) sum[one.token] += static_cast<float>(one.amount);
  }
  if (sums.isneginf().all().item<bool>()) {
    throw Error(ErrorKind::invalid_argument, "sampling",
                "generation_config.json forbids every token there is");
  }
  sums_.copy_(sums);
}

at::Tensor LogitBias::add(const at::Tensor& logits) const {
  return sums_.defined() ? logits.to(at::kFloat) + sums_ : logits;
}

SeenTokens::SeenTokens(std::span<const std::vector<std::int64_t>> sequences,
                       std::int64_t vocabulary, double penalty, at::Device device)
    : penalty_(penalty) {
  if (penalty == 1.0) return;
  mask_ = at::zeros({static_cast<std::int64_t>(sequences.size()), vocabulary}, at::kBool);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const at::Tensor row = mask_[static_cast<std::int64_t>(i)];
    row.index_fill_(0, at::tensor(sequences[i], at::kLong), true);
  }
  mask_ = mask_.to(device);
}

at::Tensor SeenTokens::penalise(const at::Tensor& any_logits, const at::Tensor& rows) const {
  if (!mask_.defined()) return any_logits;
  const at::Tensor logits = any_logits.to(at::kFloat);
  const at::Tensor seen = rows.defined() ? mask_.index_select(0, rows) : mask_;
  return at::where(seen, at::where(logits.lt(0), logits * penalty_, logits / penalty_), logits);
}

void SeenTokens::add(const at::Tensor& tokens, const at::Tensor& rows) {
  if (!mask_.defined()) return;
  // -1 adds token 0 only where it is there.
  const at::Tensor ids = tokens.clamp_min(0).unsqueeze(1);
  const at::Tensor own = rows.defined() ? mask_.index_select(0, rows) : mask_;
  const at::Tensor with = own.scatter(1, ids, own.gather(1, ids) | tokens.ge(0).unsqueeze(1));
  if (rows.defined()) {
    mask_.index_copy_(0, rows, with);
  } else {
    mask_.copy_(with);
  }
}

at::Tensor sample_rows(const at::Tensor& any_logits, const SamplingOptions& options,
                       const at::Tensor& uniforms) {
  const at::Tensor logits = any_logits.to(at::kFloat);
  const std::int64_t all = logits.size(1);
  const std::int64_t top_k = options.top_k == 0 ? all : std::min(options.top_k, all);
  const at::Tensor largest = logits.amax(-1, true);  // NaN where one is
  at::Tensor chosen;                                 // [B, 1]
  if (options.temperature == 0.0) {
    chosen = logits.argmax(-1, true);
  } else if (top_k == all && options.top_p >= 1.0) {
    at::Tensor weights = weigh(logits, largest, options.temperature);
    if (options.min_p > 0.0) weights.masked_fill_(weights.lt(options.min_p), 0.0);
    const at::Tensor sums = weights.cumsum(-1);
    chosen = draw(sums, sums.narrow(1, all - 1, 1), uniforms);
  } else if (logits.is_cpu() && logits.size(0) > 1) {
    // Row by row: how many tokens are sorted depends on the row.
    std::vector<at::Tensor> rows;
    for (std::int64_t row = 0; row < logits.size(0); ++row) {
      rows.push_back(sample_rows(logits.narrow(0, row, 1), options, uniforms.narrow(0, row, 1)));
    }
    return at::cat(rows);
  } else {
    chosen = sample_likeliest(logits, largest, options, top_k, uniforms);
  }
  const at::Tensor sound = (largest - largest).eq(0);  // not so for NaN and infinities
  return chosen.masked_fill(~sound, -1).squeeze(1);
}

void throw_broken_logits() {
  throw Error(ErrorKind::invalid_argument, "sampling",
              "the model's logits are NaN or infinite; its weights are damaged, or activations "
              "overflow in this dtype (try --dtype f32)");
}

}  // namespace twell::lm
