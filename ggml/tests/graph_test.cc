// Whole layers under the scheduler of ggml: how it cuts them, and what they compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ggml/tests/harness.h"

namespace twell::ggml::test {
namespace {

// Layers as llama.cpp builds them: two cuts for each, before and behind down, or the whole layer
// where up is ours, with its bias and both parts of its activation.
class Graph : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Graph, testing::Bool(),
                         [](const auto& is) { return is.param ? "WithUp" : "DownAlone"; });

TEST_P(Graph, IsCutTwiceForALayer) {
  constexpr std::int64_t kWidth = 256, kInner = 512;
  constexpr std::int64_t kTokens = 5;
  Tensors ups, biases, downs;
  ggml_tensor *up[3], *bias[3], *down[3];
  for (int l = 0; l < 3; ++l) {
    const std::string name = "blk." + std::to_string(l);
    up[l] = ups.add(name + ".ffn_up.weight", GGML_TYPE_Q8_0, {kWidth, kInner});
    bias[l] = biases.add(name + ".ffn_up.bias", GGML_TYPE_F32, {kInner});
    down[l] = downs.add(name + ".ffn_down.weight", GGML_TYPE_Q8_0, {kInner, kWidth});
  }
  ggml_backend_buffer_type_t const host =
      ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  ggml_backend_buffer_type_t const ours = ggml_backend_dev_buffer_type(device());
  ups.allocate(GetParam() ? ours : host, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  biases.allocate(host, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  downs.allocate(ours, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  const auto up_blocks = random_blocks(GGML_TYPE_Q8_0, kInner, kWidth, 9);
  const auto down_blocks = random_blocks(GGML_TYPE_Q8_0, kWidth, kInner, 10);
  const auto bias_numbers = random_inputs(1, kInner, 0.5, 12);
  for (int l = 0; l < 3; ++l) {
    ggml_backend_tensor_set(up[l], up_blocks.data(), 0, up_blocks.size());
    ggml_backend_tensor_set(bias[l], bias_numbers.data(), 0, kInner * sizeof(float));
    ggml_backend_tensor_set(down[l], down_blocks.data(), 0, down_blocks.size());
  }
  const auto in = random_inputs(kTokens, kWidth, 1, 11);
  const auto run = [&](Host& under, bool with_norm) {
    ggml_tensor* x = nullptr;
    return under.run(
        [&](ggml_context* context) {
          x = ggml_new_tensor_2d(context, GGML_TYPE_F32, kWidth, kTokens);
          ggml_set_input(x);
          ggml_tensor* at = x;
          for (int l = 0; l < (with_norm ? 3 : 1); ++l) {
            ggml_tensor* h = ggml_add(context, ggml_mul_mat(context, up[l], at), bias[l]);
            h = ggml_sqr(context, ggml_relu(context, h));
            h = ggml_mul_mat(context, down[l], h);
            at = with_norm ? ggml_rms_norm(context, ggml_add(context, h, at), 1e-5F) : h;
          }
          return at;
        },
        [&] { ggml_backend_tensor_set(x, in.data(), 0, in.size() * sizeof(float)); });
  };
  std::vector<float> results[3];
  for (const int threads : {1, 2, 3}) {
    Host under(threads);
    results[threads - 1] = run(under, true);
    EXPECT_EQ(under.splits(), GetParam() ? 6 : 7);  // what is before the first up is a part, too
    ASSERT_EQ(results[threads - 1].size(), static_cast<std::size_t>(kTokens * kWidth));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);

  // One layer, step by step. Errors of up move what down is multiplied with.
  Host under(2);
  const auto y = run(under, false);
  const std::size_t up_row = ggml_row_size(GGML_TYPE_Q8_0, kWidth);
  const std::size_t down_row = ggml_row_size(GGML_TYPE_Q8_0, kInner);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<float> h(kInner), moved(kInner);
    for (std::int64_t i = 0; i < kInner; ++i) {
      const Expected v =
          dot(GGML_TYPE_Q8_0, up_blocks.data() + i * up_row, in.data() + t * kWidth, kWidth);
      const double at = std::max(0.0, v.value + bias_numbers[i]);
      h[i] = static_cast<float>(at * at);
      moved[i] = static_cast<float>((2 * at + v.error) * v.error);
    }
    for (std::int64_t d = 0; d < kWidth; ++d) {
      const std::uint8_t* const row = down_blocks.data() + d * down_row;
      const Expected expected = dot(GGML_TYPE_Q8_0, row, h.data(), kInner);
      double error = expected.error;
      std::vector<float> weights(kInner);
      ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(row, weights.data(), kInner);
      for (std::int64_t i = 0; i < kInner; ++i) error += std::abs(weights[i]) * moved[i];
      ASSERT_NEAR(y[t * kWidth + d], expected.value, error) << t << ", " << d;
    }
  }
}

}  // namespace
}  // namespace twell::ggml::test
