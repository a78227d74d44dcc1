// A form's scalars as text, as C++ writes it for operators.
#include "torch_ops/form_text.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace twell::torch_ops {
namespace {

TEST(FormText, NamesWhatIsThere) {
  FfnForm form = Activation::relu_squared;
  EXPECT_EQ(text_of(form), "relu_squared");
  form.up = Activation::relu;
  form.norm_epsilon = 0.5F;
  EXPECT_EQ(text_of(form), "relu_squared up=relu norm=0.5");
  EXPECT_EQ(text_of({Activation::fat_relu, 0.25F}), "fat_relu threshold=0.25");
}

TEST(FormText, NumbersAreExact) {
  for (const float value : {0.1F, 1e-5F, 1e-38F, 3.4e38F}) {
    const std::string text = text_of({Activation::fat_relu, value});
    EXPECT_EQ(std::strtod(text.c_str() + text.find('=') + 1, nullptr), value) << text;
  }
}

}  // namespace
}  // namespace twell::torch_ops
