// Decoding as `bench model` measures it.
#include "measure/model_runner.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/decoder/tiny_model.h"

namespace twell::measure {
namespace {

TEST(ModelRunner, RecordedStepsSampleWhatTheTextGives) {
  const auto model = test::tiny_model(test::tiny_config());
  const c10::InferenceMode inference;
  const std::vector<std::int64_t> text = {5, 6, 7, 8, 9, 3, 4, 1};
  constexpr std::int64_t kPrompt = 3, kDecode = 5;
  ModelRunner plain(*model, text, kPrompt, kDecode, false);
  ModelRunner recorded(*model, text, kPrompt, kDecode, true);
  // Twice around, with a new recording and a leap, as the memory of a step is measured.
  for (const std::int64_t i : {0, 1, 2, 3, 4, 5, 6, 0, 1, 4}) {
    if (i == 6) recorded.drop_recording();
    plain.decode(i);
    recorded.decode(i);
    EXPECT_EQ(recorded.sampled(), plain.logits().argmax().item<std::int64_t>()) << i;
  }
  EXPECT_GT(recorded.own_bytes(), model->weight_bytes());
}

}  // namespace
}  // namespace twell::measure
