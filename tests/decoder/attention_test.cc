// Attention against its definition in fp64, and the cache that it reads.
#include "decoder/attention.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "decoder/matmul_attention.h"

namespace twell::lm {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double unit(at::ScalarType dtype) { return std::ldexp(1.0, dtype == at::kFloat ? -24 : -8); }

// softmax(q kᵀ / √d) v in fp64 and how far an implementation may be from it that accumulates in
// f32 and rounds scores and probabilities to the dtype.
struct Reference {
  at::Tensor out, bound;  // [n, heads, d]
};
Reference reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    std::int64_t start) {
  const std::int64_t n = q.size(0);
  const std::int64_t d = q.size(2);
  const std::int64_t keys = start + n;
  const std::int64_t groups = q.size(1) / k.size(0);
  const auto wide = [&](const at::Tensor& x) {  // [heads, keys, d]
    return x.narrow(1, 0, keys).to(at::kDouble).repeat_interleave(groups, 0);
  };
  const at::Tensor wide_q = q.transpose(0, 1).to(at::kDouble);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const at::Tensor hidden = at::ones({n, keys}, at::kBool).triu(start + 1);
  const at::Tensor scores = wide_q.matmul(wide(k).transpose(1, 2)).mul(scale);
  const at::Tensor p = scores.masked_fill(hidden, -INFINITY).softmax(-1);
  const at::Tensor out = p.matmul(wide(v));
  // A score errs by its rounding and by its sum of d products. The softmax turns an error of at
  // most e in all scores of a row into a factor within exp(±2e).
  const double u = unit(q.scalar_type());
  const at::Tensor sums = wide_q.abs().matmul(wide(k).abs().transpose(1, 2)).mul(scale);
  const at::Tensor error = (scores.abs() * u + sums * (static_cast<double>(d) + 4) * 0x1.0p-24)
                               .masked_fill(hidden, 0.0)
                               .amax(-1, true);  // [heads, n, 1]
  // The probability is rounded once, its sum and exponential err by a few units of f32, as does
  // the sum over the keys.
  const at::Tensor relative =
      (2 * error).exp() - 1 + u + (2 * static_cast<double>(keys) + 16) * 0x1.0p-24;
  const at::Tensor bound =
      p.matmul(wide(v).abs()) * relative * (1 + 4 * u) + out.abs() * u + std::ldexp(1.0, -120);
  return {out.transpose(0, 1), bound.transpose(0, 1)};
}

double excess(const at::Tensor& got, const Reference& expected) {
  return ((got.to(at::kDouble) - expected.out).abs() - expected.bound).max().item<double>();
}

TEST(GroupedAttention, QueryHeadsThatShareKeysAreRowsOfOneMatrix) {
  constexpr std::int64_t kCount = 5, kStart = 7, kHeadDim = 16, kKvHeads = 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t groups : {1, 3}) {
      const at::Tensor q = at::randn({kCount, groups * kKvHeads, kHeadDim}).to(dtype);
      const at::Tensor k = at::randn({kKvHeads, kStart + kCount, kHeadDim}).to(dtype);
      const at::Tensor v = at::randn_like(k);
      const at::Tensor mask = at::ones({kCount, kStart + kCount}, at::kBool).tril(kStart);
      const at::Tensor got =
          grouped_attention(q.transpose(0, 1).unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), mask);
      EXPECT_LE(excess(got[0].transpose(0, 1), reference(q, k, v, kStart)), 0);
    }
  }
}

struct Shape {
  std::int64_t heads, kv_heads, n, start;
};

TEST(MatmulAttention, IsTheDefinition) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const Shape& s :
         {Shape{4, 4, 1, 0}, Shape{4, 4, 1, 77}, Shape{6, 2, 1, 300}, Shape{4, 4, 2, 0},
          Shape{4, 2, 127, 0}, Shape{3, 3, 128, 0}, Shape{4, 2, 129, 5}, Shape{8, 1, 300, 0},
          Shape{2, 2, 17, 200}, Shape{32, 1, 70, 3}, Shape{80, 1, 33, 0}}) {
      for (const std::int64_t d : {24, 64, 128}) {
        at::manual_seed(7);
        const std::int64_t end = s.start + s.n;
        const std::int64_t room = end + 19;
        // Scores of a few units: neither a uniform softmax nor one that picks a single key.
        const at::Tensor q = (at::randn({s.n, s.heads, d}) * 2).to(dtype);
        const at::Tensor k = at::randn({s.kv_heads, room, d}).to(dtype);
        const at::Tensor v = at::randn({s.kv_heads, room, d}).to(dtype);
        k.narrow(1, end, 19).fill_(kNan);  // never looked at
        v.narrow(1, end, 19).fill_(kNan);
        at::Tensor out = at::full({s.n, s.heads, d}, kNan, q.options());
        const AttentionTask task{q, k, v, out, s.start};
        matmul_attention({&task, 1});
        const Reference expected = reference(q, k, v, s.start);
        EXPECT_LE(excess(out, expected), 0.0) << s.heads << "/" << s.kv_heads << " heads of " << d
                                              << ", " << s.n << " queries at " << s.start;
        // The bound is no tuned one: PyTorch's operator, which rounds less, keeps it too.
        const at::Tensor mask = at::ones({s.n, end}, at::kBool).tril(s.start);
        const auto batch = [](const at::Tensor& x) { return x.unsqueeze(0); };
        const at::Tensor fused = at::scaled_dot_product_attention(
            batch(q.transpose(0, 1)), batch(k.narrow(1, 0, end)), batch(v.narrow(1, 0, end)), mask,
            0.0, false, std::nullopt, s.heads != s.kv_heads);
        EXPECT_LE(excess(fused[0].transpose(0, 1), expected), 0.0);
      }
    }
  }
}

TEST(MatmulAttention, ManySequencesAreEachAlone) {
  at::manual_seed(3);
  const auto options = at::TensorOptions(at::kBFloat16);
  std::vector<AttentionTask> tasks;
  // A view of other strides than the rest, a short sequence in a large room, single queries.
  for (const auto& [n, start] : {std::pair{40, 0}, {1, 5}, {1, 290}, {200, 30}, {3, 0}}) {
    const at::Tensor k = at::randn({300, 2, 32}, options).transpose(0, 1);
    const at::Tensor v = at::randn({2, 300, 32}, options);
    k.narrow(1, start + n, 300 - start - n).fill_(kNan);
    v.narrow(1, start + n, 300 - start - n).fill_(kNan);
    tasks.push_back({at::randn({n, 4, 32}, options), k, v, at::empty({n, 4, 32}, options), start});
  }
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (auto& task : tasks) task.out.fill_(kNan);
    matmul_attention(tasks);
    for (const auto& task : tasks) {
      EXPECT_LE(excess(task.out, reference(task.q, task.k, task.v, task.start)), 0.0);
    }
  }
}

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};

// Projections that pass their input through, so that the queries, keys and values are known.
Attention pass_through(const Heads& shape, at::ScalarType dtype) {
  const std::int64_t width = shape.heads * shape.head_dim;
  const at::Tensor eye = at::eye(width, at::TensorOptions(dtype));
  const at::Tensor some = eye.narrow(0, 0, shape.kv_heads * shape.head_dim);
  Attention weights;
  weights.q.weight.tensor = weights.o.weight.tensor = eye;
  weights.k.weight.tensor = weights.v.weight.tensor = some;
  return weights;
}

io::ModelConfig config_of(const Heads& shape) {
  io::ModelConfig config;
  config.head_dim = shape.head_dim;
  return config;
}

// Every slot's sequence, computed in pieces through a cache, against the definition on the whole.
TEST(Attend, PiecesOfRaggedSequencesThroughACache) {
  const Heads shape{4, 2, 16};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const Attention weights = pass_through(shape, dtype);
    const at::NoGradGuard no_grad;
    RopeTable rope(config_of(shape));
    KvCache cache(1, 4, shape.kv_heads, 400, shape.head_dim, dtype);
    at::manual_seed(5);
    std::vector<at::Tensor> seen(4);  // [tokens, D] of each slot
    // Slots 0, 1 and 3 side by side: different lengths, then equal ones, then single tokens.
    for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{30, 0, 0, 30},
                                                    {1, 70, 0, 1},
                                                    {1, 1, 0, 1},
                                                    {1, 1, 0, 1},
                                                    {140, 5, 0, 1},
                                                    {0, 1, 0, 90},
                                                    {1, 1, 1, 1}}) {
      std::vector<PackedRows::Run> runs;
      std::vector<at::Tensor> fresh;
      std::int64_t row = 0;
      for (std::int64_t slot = 0; slot < 4; ++slot) {
        const std::int64_t count = counts[static_cast<std::size_t>(slot)];
        if (count == 0) continue;
        cache.reserve(slot, count);
        runs.push_back({slot, cache.length(slot), count, row});
        row += count;
        fresh.push_back(at::randn({count, shape.heads * shape.head_dim}).to(dtype));
        at::Tensor& all = seen[static_cast<std::size_t>(slot)];
        all = all.defined() ? at::cat({all, fresh.back()}) : fresh.back();
      }
      const at::Tensor y = attend(weights, at::cat(fresh), PackedRows(runs, rope, &cache), 0);
      for (const auto& run : runs) {
        cache.advance(run.slot, run.count);
        const at::Tensor& all = seen[static_cast<std::size_t>(run.slot)];
        const at::Tensor turned =
            rotate(all.clone(), rope.rotation(at::arange(all.size(0)), all.size(0)));
        const auto heads = [&](const at::Tensor& x, std::int64_t count) {
          return x.view({x.size(0), shape.heads, shape.head_dim}).narrow(1, 0, count);
        };
        const Reference expected =
            reference(heads(turned, shape.heads).narrow(0, run.start, run.count),
                      heads(turned, shape.kv_heads).transpose(0, 1),
                      heads(all, shape.kv_heads).transpose(0, 1), run.start);
        EXPECT_LE(
            excess(y.narrow(0, run.row, run.count).view({run.count, shape.heads, shape.head_dim}),
                   expected),
            0.0)
            << "slot " << run.slot << " from " << run.start;
      }
    }
  }
}

TEST(KvCache, GrowsInPlaceAndKeepsWhatItHolds) {
  KvCache cache(2, 3, 2, 1000, 4, at::kFloat);
  EXPECT_EQ(cache.bytes(), 2 * 2 * 3 * 2 * 1000 * 4 * 4);
  std::vector<std::int64_t> sizes;
  const auto value = [](std::int64_t slot, std::int64_t position) {
    return static_cast<double>(1 + slot * 10000 + position);
  };
  for (const std::int64_t step : {1, 62, 1, 1, 63, 200, 1, 600, 71}) {
    for (std::int64_t slot = 0; slot < 3; slot += 2) {
      cache.reserve(slot, step);
      for (std::int64_t i = 0; i < step; ++i) {
        const std::int64_t at = cache.length(slot) + i;
        cache.keys(1)[slot].select(1, at).fill_(-value(slot, at));
        cache.values(1)[slot].select(1, at).fill_(value(slot, at));
      }
      cache.advance(slot, step);
    }
    const std::int64_t room = cache.keys(1).size(2);
    EXPECT_LE(room, 1000);
    EXPECT_GE(room, cache.length(0));
    if (sizes.empty() || sizes.back() != room) sizes.push_back(room);
    for (std::int64_t slot = 0; slot < 3; slot += 2) {
      const std::int64_t length = cache.length(slot);
      at::Tensor expected = at::empty({2, length, 4});
      for (std::int64_t at = 0; at < length; ++at) expected.select(1, at).fill_(value(slot, at));
      EXPECT_TRUE(at::equal(cache.values(1)[slot].narrow(1, 0, length), expected))
          << slot << " at " << length;
      EXPECT_TRUE(at::equal(cache.keys(1)[slot].narrow(1, 0, length), -expected));
    }
  }
  EXPECT_EQ(sizes.back(), 1000);
  EXPECT_LT(sizes.size(), 8);
}

}  // namespace
}  // namespace twell::lm
