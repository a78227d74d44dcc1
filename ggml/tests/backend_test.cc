// Everything that the backend claims, driven as llama.cpp drives it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "ggml/tests/harness.h"

namespace twell::ggml::test {
namespace {

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0,
                                GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};

ggml_backend_buffer_type_t our_type() { return ggml_backend_dev_buffer_type(device()); }

// Rows of h times a weight of two dimensions.
std::vector<float> product(Host& host, ggml_tensor* weight, const std::vector<float>& h) {
  const std::int64_t cols = weight->ne[0], rows = static_cast<std::int64_t>(h.size()) / cols;
  ggml_tensor* x = nullptr;
  return host.run(
      [&](ggml_context* context) {
        x = ggml_new_tensor_2d(context, GGML_TYPE_F32, cols, rows);
        ggml_set_input(x);
        return ggml_mul_mat(context, weight, x);
      },
      [&] { ggml_backend_tensor_set(x, h.data(), 0, h.size() * sizeof(float)); });
}

TEST(Device, IsAnAcceleratorThatOwnsItsWeights) {
  ASSERT_NE(device(), nullptr);
  EXPECT_STREQ(ggml_backend_dev_name(device()), "TWELL");
  EXPECT_EQ(ggml_backend_dev_type(device()), GGML_BACKEND_DEVICE_TYPE_ACCEL);
  EXPECT_FALSE(ggml_backend_buft_is_host(our_type()));
}

TEST(Device, AHostOfAnotherVersionOrWithOtherStructsIsRefused) {
  ASSERT_NE(device(), nullptr);
  testing::internal::CaptureStderr();
  EXPECT_EQ(ggml_backend_load(std::getenv("TWELL_TEST_OTHER_VERSION")), nullptr);
  EXPECT_EQ(ggml_backend_load(std::getenv("TWELL_TEST_OTHER_STRUCTS")), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("it was built for ggml 0.0.1, and this program has "), std::string::npos);
  EXPECT_NE(said.find("tensors have "), std::string::npos) << said;
}

// What llama.cpp's loader asks about: a name, a type, in a file of an architecture.
TEST(Weights, AreTakenWhereTheActivationHasZeros) {
  struct Case {
    const char *architecture, *name;
    ggml_type type;
    bool taken;
  };
  const Case cases[] = {
      {"arcee", "blk.0.ffn_down.weight", GGML_TYPE_Q4_K, true},
      {"nemotron", "blk.11.ffn_down.weight", GGML_TYPE_Q6_K, true},
      {"jais2", "blk.3.ffn_down.weight", GGML_TYPE_Q8_0, true},
      {"plm", "blk.3.ffn_down.weight", GGML_TYPE_Q5_K, true},
      {"rwkv6", "blk.3.channel_mix_value.weight", GGML_TYPE_Q4_0, true},
      {"rwkv7", "blk.3.channel_mix_value.weight", GGML_TYPE_Q5_0, true},
      {"t5", "enc.blk.0.ffn_down.weight", GGML_TYPE_Q8_0, true},
      {"t5", "dec.blk.0.ffn_down.weight", GGML_TYPE_Q8_0, true},
      {"nemotron_h_moe", "blk.1.ffn_down_shexp.weight", GGML_TYPE_Q5_0, true},
      {"llama", "blk.0.ffn_down.weight", GGML_TYPE_Q4_K, false},
      {"qwen3", "blk.0.ffn_down.weight", GGML_TYPE_Q4_K, false},
      {"arcee", "blk.0.ffn_up.weight", GGML_TYPE_Q4_K, true},
      {"rwkv7", "blk.3.channel_mix_key.weight", GGML_TYPE_Q5_0, true},
      {"smallthinker", "blk.3.ffn_gate_exps.weight", GGML_TYPE_Q4_0, true},
      {"llama", "blk.0.ffn_up.weight", GGML_TYPE_Q4_K, false},
      {"arcee", "blk.0.ffn_up.weight", GGML_TYPE_F16, false},
      {"arcee", "blk.0.attn_output.weight", GGML_TYPE_Q4_K, false},
      {"arcee", "blk.0.ffn_down_exps.weight", GGML_TYPE_Q4_K, false},
      {"arcee", "blk.0.ffn_down.weight", GGML_TYPE_Q3_K, false},
      {"arcee", "blk.0.ffn_down.weight", GGML_TYPE_F16, false},
      {"rwkv6", "blk.3.channel_mix_receptance.weight", GGML_TYPE_Q5_0, false},
      {"", "blk.0.ffn_down.weight", GGML_TYPE_Q4_K, false},
  };
  for (const Case& c : cases) {
    Tensors tensors;
    ggml_tensor* const weight = tensors.add(c.name, c.type, {512, 64});
    const OpenGguf file(c.architecture, {weight});
    EXPECT_EQ(takes(weight), c.taken)
        << c.architecture << " " << c.name << " " << ggml_type_name(c.type);
  }
}

TEST(Weights, OfTheOpenFileAlone) {
  Tensors tensors;
  ggml_tensor* const weight = tensors.add("blk.0.ffn_down.weight", GGML_TYPE_Q4_K, {512, 64});
  EXPECT_FALSE(takes(weight));
  {
    const OpenGguf file("arcee", {weight});
    EXPECT_TRUE(takes(weight));
    // Another one with the same weight, and no way to tell which of them is asked about.
    const OpenGguf other("llama", {weight});
    EXPECT_FALSE(takes(weight));
  }
  EXPECT_FALSE(takes(weight));
  ggml_tensor* const other = tensors.add("blk.0.ffn_down.weight", GGML_TYPE_Q4_K, {256, 64});
  const OpenGguf file("llama", {other});
  const OpenGguf ours("arcee", {weight});
  EXPECT_TRUE(takes(weight));
  EXPECT_FALSE(takes(other));
}

TEST(Weights, AGateMakesItAnotherActivation) {
  Tensors tensors;
  ggml_tensor* const down = tensors.add("dec.blk.0.ffn_down.weight", GGML_TYPE_Q8_0, {512, 64});
  ggml_tensor* const up = tensors.add("dec.blk.0.ffn_up.weight", GGML_TYPE_Q8_0, {64, 512});
  ggml_tensor* const gate = tensors.add("dec.blk.0.ffn_gate.weight", GGML_TYPE_Q8_0, {64, 512});
  const OpenGguf file("t5", {down, up, gate});
  EXPECT_FALSE(takes(down));
  EXPECT_FALSE(takes(up));
}

TEST(Weights, ExpertsAreTakenToo) {
  Tensors tensors;
  ggml_tensor* const moe = tensors.add("blk.1.ffn_down_exps.weight", GGML_TYPE_Q5_0, {512, 64, 4});
  const OpenGguf file("nemotron_h_moe", {moe});
  EXPECT_TRUE(takes(moe, /*by_experts=*/true));
}

// Down reads what fired, and up everything, in another order of the same blocks.
constexpr const char* kParts[] = {"down", "up"};
std::string weight_of(const char* part) { return std::string("blk.0.ffn_") + part + ".weight"; }

class Formats : public testing::TestWithParam<std::tuple<ggml_type, const char*>> {
 protected:
  static ggml_type type() { return std::get<0>(GetParam()); }
  static std::string name() { return weight_of(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(, Formats,
                         testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kParts)),
                         [](const auto& is) {
                           return std::string(ggml_type_name(std::get<0>(is.param))) + "_" +
                                  std::get<1>(is.param);
                         });

TEST_P(Formats, BytesComeBackAsTheyWere) {
  constexpr std::int64_t kRows = 70, kCols = 1024;
  Tensors tensors;
  ggml_tensor* const weight = tensors.add(name(), type(), {kCols, kRows});
  tensors.allocate(our_type(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  const auto blocks = random_blocks(type(), kRows, kCols, 1);
  const std::size_t row = ggml_row_size(type(), kCols);
  std::vector<std::uint8_t> back(blocks.size());

  ggml_backend_tensor_set(weight, blocks.data(), 0, blocks.size());
  ggml_backend_tensor_get(weight, back.data(), 0, back.size());
  EXPECT_EQ(back, blocks);
  back.assign(back.size(), 0);
  ggml_backend_tensor_get(weight, back.data() + row + 3, row + 3, 5 * row);
  EXPECT_TRUE(
      std::equal(back.begin() + row + 3, back.begin() + 6 * row + 3, blocks.begin() + row + 3));

  // Other numbers for some rows, and the whole in pieces.
  const auto other = random_blocks(type(), kRows, kCols, 2);
  ggml_backend_tensor_set(weight, other.data() + row, row, 2 * row);
  ggml_backend_tensor_get(weight, back.data(), 0, back.size());
  EXPECT_TRUE(std::equal(back.begin() + row, back.begin() + 3 * row, other.begin() + row));
  EXPECT_TRUE(std::equal(back.begin() + 3 * row, back.end(), blocks.begin() + 3 * row));
  for (std::size_t at = 0; at < blocks.size(); at += 1000) {
    const std::size_t size = std::min<std::size_t>(1000, blocks.size() - at);
    ggml_backend_tensor_set(weight, blocks.data() + at, at, size);
  }
  ggml_backend_tensor_get(weight, back.data(), 0, back.size());
  EXPECT_EQ(back, blocks);
}

// Tensors of a LoRA come into the same type of buffer, which is not one of weights then.
TEST_P(Formats, OtherBuffersKeepBytesAndAreNotClaimed) {
  Tensors tensors;
  ggml_tensor* const weight = tensors.add(name(), type(), {512, 64});
  tensors.allocate(our_type(), GGML_BACKEND_BUFFER_USAGE_ANY);
  const auto blocks = random_blocks(type(), 64, 512, 1);
  ggml_backend_tensor_set(weight, blocks.data(), 0, blocks.size());
  std::vector<std::uint8_t> back(blocks.size());
  ggml_backend_tensor_get(weight, back.data(), 0, back.size());
  EXPECT_EQ(back, blocks);

  Host host;
  const auto h = random_inputs(3, 512, 0.1, 2);
  const auto y = product(host, weight, h);
  ASSERT_EQ(y.size(), 3U * 64U);
  const Expected expected = dot(type(), blocks.data(), h.data(), 512);
  EXPECT_NEAR(y[0], expected.value, expected.error);
}

void expect_near(const Expected& expected, float y, const std::string& where) {
  ASSERT_NEAR(y, expected.value, expected.error) << where;
}

struct Share {
  const char* part;
  double fired;
};
constexpr Share kShares[] = {{"down", 0},   {"down", 0.01}, {"down", 0.09},
                             {"down", 0.5}, {"down", 1},    {"up", 1}};
class Products : public testing::TestWithParam<std::tuple<ggml_type, int, Share>> {};
INSTANTIATE_TEST_SUITE_P(, Products,
                         testing::Combine(testing::ValuesIn(kTypes), testing::Values(1, 3, 33, 512),
                                          testing::ValuesIn(kShares)),
                         [](const auto& info) {
                           const Share share = std::get<2>(info.param);
                           return std::string(ggml_type_name(std::get<0>(info.param))) + "_rows" +
                                  std::to_string(std::get<1>(info.param)) + "_" + share.part +
                                  std::to_string(int(100 * share.fired));
                         });

// A layer that fires much belongs to the host once it was called for 64 tokens, few at a time.
int calls_for(int tokens) { return tokens <= 3 ? 66 / tokens + 1 : 2; }

TEST_P(Products, AreThoseOfTheNumbersInTheFile) {
  constexpr std::int64_t kOutputs = 96, kInputs = 1536;
  const auto [type, rows, share] = GetParam();
  Tensors tensors;
  ggml_tensor* const weight = tensors.add(weight_of(share.part), type, {kInputs, kOutputs});
  tensors.allocate(our_type(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  const auto blocks = random_blocks(type, kOutputs, kInputs, 3);
  ggml_backend_tensor_set(weight, blocks.data(), 0, blocks.size());
  const std::size_t row = ggml_row_size(type, kInputs);
  const auto h = random_inputs(rows, kInputs, share.fired, 4);
  Host host;
  for (int call = 0; call < calls_for(rows); ++call) {
    const auto y = product(host, weight, h);
    ASSERT_EQ(y.size(), static_cast<std::size_t>(rows * kOutputs));
    for (std::int64_t t = 0; t < rows; t += std::max(1, rows / 16)) {
      for (std::int64_t d = 0; d < kOutputs; ++d) {
        expect_near(dot(type, blocks.data() + d * row, h.data() + t * kInputs, kInputs),
                    y[t * kOutputs + d], std::to_string(t) + ", " + std::to_string(d));
      }
    }
  }
}

class Experts : public testing::TestWithParam<std::tuple<ggml_type, int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(, Experts,
                         testing::Combine(testing::ValuesIn(kTypes), testing::Values(1, 33),
                                          testing::Values("down_exps", "up_exps")),
                         [](const auto& info) {
                           return std::string(ggml_type_name(std::get<0>(info.param))) + "_rows" +
                                  std::to_string(std::get<1>(info.param)) + "_" +
                                  std::get<2>(info.param);
                         });

// Inputs of each expert, and one input for all of them.
TEST_P(Experts, EachRowMeetsTheExpertsThatItNames) {
  constexpr std::int64_t kOutputs = 40, kInputs = 768, kExperts = 5, kUsed = 2;
  const auto [type, rows, part] = GetParam();
  const std::size_t row = ggml_row_size(type, kInputs);
  const auto blocks = random_blocks(type, kOutputs * kExperts, kInputs, 5);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * kUsed));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((3 * i) % 5);
  for (const std::int64_t of_each : {kUsed, std::int64_t{1}}) {
    for (const double share : {0.1, 0.9}) {
      Tensors tensors;
      ggml_tensor* const weight = tensors.add(weight_of(part), type, {kInputs, kOutputs, kExperts});
      tensors.allocate(our_type(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
      ggml_backend_tensor_set(weight, blocks.data(), 0, blocks.size());
      const auto h = random_inputs(rows * of_each, kInputs, share, 6);
      Host host;
      ggml_tensor *x = nullptr, *chosen = nullptr;
      std::vector<float> y;
      for (int call = 0; call < calls_for(rows); ++call) {
        y = host.run(
            [&, n = rows](ggml_context* context) {
              x = ggml_new_tensor_3d(context, GGML_TYPE_F32, kInputs, of_each, n);
              chosen = ggml_new_tensor_2d(context, GGML_TYPE_I32, kUsed, n);
              ggml_set_input(x);
              ggml_set_input(chosen);
              return ggml_mul_mat_id(context, weight, x, chosen);
            },
            [&] {
              ggml_backend_tensor_set(x, h.data(), 0, h.size() * sizeof(float));
              ggml_backend_tensor_set(chosen, ids.data(), 0, ids.size() * sizeof(std::int32_t));
            });
        ASSERT_EQ(y.size(), static_cast<std::size_t>(rows * kUsed * kOutputs));
        for (std::int64_t t = 0; t < rows; ++t) {
          for (std::int64_t u = 0; u < kUsed; ++u) {
            const float* const in = h.data() + (t * of_each + u % of_each) * kInputs;
            for (std::int64_t d = 0; d < kOutputs; ++d) {
              const std::int64_t at = ids[t * kUsed + u] * kOutputs + d;
              expect_near(dot(type, blocks.data() + at * row, in, kInputs),
                          y[(t * kUsed + u) * kOutputs + d], std::to_string(t));
            }
          }
        }
      }
    }
  }
}

// A scale that is not finite cannot be packed. The host's kernels multiply it, and it comes back.
TEST_P(Formats, WhatCannotBePackedIsTheHosts) {
  constexpr std::int64_t kOutputs = 64, kInputs = 512;
  Tensors tensors;
  ggml_tensor* const weight = tensors.add(name(), type(), {kInputs, kOutputs});
  tensors.allocate(our_type(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  auto blocks = random_blocks(type(), kOutputs, kInputs, 7);
  const std::size_t row = ggml_row_size(type(), kInputs);
  const std::size_t scale = type() == GGML_TYPE_Q6_K ? 208 : 0;
  const std::uint16_t infinite = 0x7C00;
  std::memcpy(blocks.data() + 3 * row + scale, &infinite, 2);
  ggml_backend_tensor_set(weight, blocks.data(), 0, blocks.size());
  std::vector<std::uint8_t> back(blocks.size());
  ggml_backend_tensor_get(weight, back.data(), 0, back.size());
  EXPECT_EQ(back, blocks);
  const auto h = random_inputs(1, kInputs, 0.5, 8);
  Host host;
  const auto y = product(host, weight, h);
  ASSERT_EQ(y.size(), static_cast<std::size_t>(kOutputs));
  EXPECT_FALSE(std::isfinite(y[3]));
  expect_near(dot(type(), blocks.data(), h.data(), kInputs), y[0], "0");
}

}  // namespace
}  // namespace twell::ggml::test
