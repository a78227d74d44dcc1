#include "io/llama2c.h"

#include <array>
#include <cmath>
#include <numeric>

#include "tests/io/test_util.h"

namespace twell::io {
namespace {

using Ints = std::array<std::int32_t, 7>;
// dim, hidden, layers, heads, kv_heads, vocabulary, positions
constexpr Ints kSmall = {8, 12, 2, 2, 1, 5, 16};

std::size_t floats_of(const Ints& n) {
  const std::size_t d = n[0], h = n[1], l = n[2], v = std::abs(n[5]), s = n[6];
  const std::size_t kv = d / n[3] * n[4];
  return v * d + l * (2 * d + 2 * d * d + 2 * kv * d + 3 * d * h) + d + s * d / n[3] +
         (n[5] < 0 ? v * d : 0);
}

std::string checkpoint(const Ints& header, std::ptrdiff_t extra_bytes = 0) {
  std::string out(28, '\0');
  std::memcpy(out.data(), header.data(), 28);
  std::vector<float> values(floats_of(header));
  std::iota(values.begin(), values.end(), 0.0F);
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  out.resize(out.size() + extra_bytes);
  return out;
}

Llama2cHeader parse(const std::string& file) {
  return parse_llama2c(std::as_bytes(std::span(file)), "f.bin");
}

TEST(Llama2c, NamesShapesAndPlaces) {
  for (const std::int32_t vocabulary : {5, -5}) {
    Ints header = kSmall;
    header[5] = vocabulary;
    const Llama2cHeader parsed = parse(checkpoint(header));
    EXPECT_EQ(parsed.config.vocab_size, 5);
    EXPECT_EQ(parsed.config.tie_word_embeddings, vocabulary > 0);
    EXPECT_EQ(parsed.config.head_dim, 4);
    EXPECT_EQ(parsed.tensors.size(), 2 + 2 * 9 + (vocabulary > 0 ? 0U : 1U));
    const auto find = [&](const std::string& name) {
      for (const auto& tensor : parsed.tensors) {
        if (tensor.name == name) return tensor;
      }
      ADD_FAILURE() << name;
      return Llama2cTensor{};
    };
    // Of the layout: embedding 40, norms 16, q 2*64, k 2*32, ...
    EXPECT_EQ(find("model.embed_tokens.weight").offset, 28U);
    const auto k = find("model.layers.1.self_attn.k_proj.weight");
    EXPECT_EQ(k.offset, 28U + 4 * (40 + 16 + 128 + 32));
    EXPECT_EQ(k.shape, (std::vector<std::int64_t>{4, 8}));
    EXPECT_EQ(k.rope_heads, 1);
    EXPECT_EQ(find("model.layers.0.mlp.down_proj.weight").shape,
              (std::vector<std::int64_t>{8, 12}));
    if (vocabulary < 0) {
      EXPECT_EQ(find("lm_head.weight").offset, 28 + 4 * (floats_of(header) - 40));
    }
  }
}

TEST(Llama2c, PermutedHeadsGiveTheSameAttention) {
  // Rotating pairs (2i, 2i + 1) of the original rows and pairs (i, i + dim / 2) of the moved ones
  // gives the same dot products of queries with keys, at any angle.
  constexpr std::int64_t kHeads = 3, kDim = 6;
  std::vector<float> q(kHeads * kDim), k(q.size()), moved_q(q.size()), moved_k(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = std::sin(1.0F + static_cast<float>(i));
    k[i] = std::cos(3.0F * static_cast<float>(i));
  }
  interleaved_to_half_split(q, kHeads, 1, moved_q);
  interleaved_to_half_split(k, kHeads, 1, moved_k);
  const auto rotate = [](const float* x, double position, bool interleaved) {
    std::array<double, kDim> out{};
    for (std::size_t i = 0; i < kDim / 2; ++i) {
      const std::size_t a = interleaved ? 2 * i : i;
      const std::size_t b = interleaved ? 2 * i + 1 : i + kDim / 2;
      const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
      out[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      out[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
    return out;
  };
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const auto dot = [&](const std::vector<float>& x, const std::vector<float>& y,
                         bool interleaved) {
      const auto a = rotate(x.data() + head * kDim, 5, interleaved);
      const auto b = rotate(y.data() + head * kDim, 2, interleaved);
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    // The same sums in another order: a few units in the last place of double.
    EXPECT_NEAR(dot(q, k, true), dot(moved_q, moved_k, false), 1e-14);
    EXPECT_GT(std::abs(dot(q, k, true) - dot(q, k, false)), 1e-3);  // it does matter
  }
  EXPECT_THROW(interleaved_to_half_split(q, 4, 1, moved_q), Error);
  EXPECT_THROW(interleaved_to_half_split(q, 0, 1, moved_q), Error);
  EXPECT_THROW(interleaved_to_half_split(q, 6, 1, moved_q), Error);  // odd rows
  EXPECT_THROW(interleaved_to_half_split(q, kHeads, 1, q), Error);
}

TEST(Llama2c, ValuesArePermutedOnlyForQueriesAndKeys) {
  const TempDir dir;
  spit(dir / "f", checkpoint(kSmall));
  const Llama2cFile file(dir / "f");
  for (const auto& tensor : file.tensors()) {
    std::vector<float> values = file.values(tensor);
    const float first = static_cast<float>((tensor.offset - 28) / 4);
    EXPECT_EQ(values[0], first);
    const bool in_order = std::is_sorted(values.begin(), values.end());
    EXPECT_EQ(in_order, tensor.rope_heads == 0) << tensor.name;
    std::sort(values.begin(), values.end());
    std::vector<float> expected(values.size());
    std::iota(expected.begin(), expected.end(), first);
    EXPECT_EQ(values, expected) << tensor.name;
  }
}

TEST(Llama2c, RefusesDamagedFiles) {
  const auto refused = [](const std::string& file, std::initializer_list<std::string> parts) {
    expect_file_error([&] { parse(file); }, "f.bin", parts);
  };
  refused("", {"0 bytes"});
  refused(checkpoint(kSmall, -1), {"truncated"});
  refused(checkpoint(kSmall, 1), {"header asks for"});
  constexpr std::array<const char*, 7> kNames = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                                 "n_kv_heads", "vocab_size", "seq_len"};
  const std::string whole = checkpoint(kSmall);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    for (const std::int32_t value : {0, -1, INT32_MIN, INT32_MAX}) {
      std::string file = whole;
      std::memcpy(file.data() + 4 * i, &value, 4);
      EXPECT_THROW(parse(file), Error) << kNames[i] << " " << value;
      if (value == 0) refused(file, {kNames[i], "is 0"});
    }
  }
  std::string versioned = whole;
  std::memcpy(versioned.data(), "24ka", 4);
  expect_error([&] { parse(versioned); }, ErrorKind::unsupported, "f.bin", {"later version"});
  refused(checkpoint({8, 12, 2, 3, 1, 5, 16}), {"dim 8", "n_heads 3"});
}

}  // namespace
}  // namespace twell::io
