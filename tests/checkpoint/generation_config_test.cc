// generation_config.json.
#include "checkpoint/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/message_of.h"

namespace twell::io {
namespace {

TEST(GenerationConfig, IsReadAsItStands) {
  const auto said = GenerationConfig::from_json(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": null,
          "repetition_penalty": 1.1, "eos_token_id": [1, 2], "transformers_version": "5.24.0"})",
      "file");
  EXPECT_EQ(said.do_sample, true);
  EXPECT_EQ(said.temperature, 0.6);
  EXPECT_EQ(said.top_p, 0.9);
  EXPECT_EQ(said.top_k, 50);
  EXPECT_FALSE(said.min_p.has_value());
  EXPECT_EQ(said.repetition_penalty, 1.1);
  EXPECT_FALSE(GenerationConfig::from_json("{}", "file").temperature.has_value());
  const auto none = load_generation_config(std::filesystem::temp_directory_path() / "no such");
  EXPECT_FALSE(none.do_sample.has_value());
}

TEST(GenerationConfig, NamesFileAndKeyOfWhatCannotBe) {
  const auto message = [](const char* text) {
    return test::message_of([&] { GenerationConfig::from_json(text, "file"); });
  };
  for (const char* text :
       {R"({"temperature": "hot"})", R"({"temperature": -1})", R"({"temperature": NaN})"}) {
    EXPECT_TRUE(message(text).starts_with("file: temperature")) << message(text);
  }
  EXPECT_TRUE(message(R"({"top_p": 2})").starts_with("file: top_p"));
  EXPECT_TRUE(message(R"({"min_p": 2})").starts_with("file: min_p"));
  EXPECT_TRUE(message(R"({"top_k": 1.5})").starts_with("file: top_k"));
  EXPECT_TRUE(message(R"({"do_sample": 1})").starts_with("file: do_sample"));
  EXPECT_TRUE(message(R"({"repetition_penalty": 0})").starts_with("file: repetition_penalty"));
  EXPECT_TRUE(message("[").starts_with("file: "));
}

}  // namespace
}  // namespace twell::io
