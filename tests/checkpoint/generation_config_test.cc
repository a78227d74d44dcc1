// generation_config.json.
#include "checkpoint/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

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

TEST(GenerationConfig, BiasesOfSingleTokensAreHeeded) {
  const auto said = GenerationConfig::from_json(
      R"({"suppress_tokens": [3, 4], "begin_suppress_tokens": [5], "bad_words_ids": [[6], [7, 8]],
          "sequence_bias": [[[9], -2.5], [[1, 2], 3.0]], "min_new_tokens": 4,
          "stop_strings": ["END", ""]})",
      "file");
  ASSERT_EQ(said.biases.size(), 5U);
  EXPECT_EQ(said.biases[0].token, 3);
  EXPECT_EQ(said.biases[0].amount, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(said.biases[2].steps, 1);
  EXPECT_EQ(said.biases[3].token, 6);
  EXPECT_EQ(said.biases[4].amount, -2.5);
  EXPECT_EQ(said.min_new_tokens, 4);
  EXPECT_EQ(said.stop_strings, (std::vector<std::string>{"END"}));
  EXPECT_FALSE(said.max_new_tokens);
  // Of several tokens it would need to know what stands before.
  EXPECT_EQ(said.unheeded, (std::vector<std::string>{"bad_words_ids", "sequence_bias"}));
  EXPECT_EQ(GenerationConfig::from_json(R"({"stop_strings": "x"})", "file").stop_strings.size(),
            1U);
}

// As in transformers, of the ends that the same file names.
TEST(GenerationConfig, AnEndIsNoBadWord) {
  const auto bad = [](const std::string& ends) {
    const auto said = GenerationConfig::from_json(
        "{\"bad_words_ids\": [[2], [3]], \"eos_token_id\": " + ends + "}", "file");
    return said.biases.size();
  };
  EXPECT_EQ(bad("null"), 2U);
  EXPECT_EQ(bad("3"), 1U);
  EXPECT_EQ(bad("[3, 2]"), 0U);
}

TEST(GenerationConfig, WhatIsNotHeededIsToldUnlessItIsOff) {
  const auto unheeded = [](const char* text) {
    return GenerationConfig::from_json(text, "file").unheeded;
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(unheeded(R"({"no_repeat_ngram_size": 3, "forced_eos_token_id": [2], "num_beams": 4})"),
            (Keys{"no_repeat_ngram_size", "forced_eos_token_id", "num_beams"}));
  EXPECT_EQ(unheeded(R"({"typical_p": 0.5})"), Keys{"typical_p"});
  EXPECT_EQ(unheeded(R"({"max_length": 6})"), Keys{"max_length"});
  EXPECT_EQ(unheeded(R"({"max_length": 6, "max_new_tokens": 3})"), Keys{});
  EXPECT_EQ(unheeded(R"({"typical_p": 0.5, "do_sample": false})"), Keys{});
  EXPECT_EQ(unheeded(R"({"no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1.0,
                         "forced_eos_token_id": null, "watermarking_config": null,
                         "suppress_tokens": null, "begin_suppress_tokens": [], "sequence_bias": {},
                         "bad_words_ids": [], "guidance_scale": 1, "token_healing": false,
                         "length_penalty": 1.0, "max_length": 20, "penalty_alpha": 0.0})"),
            Keys{});
}

TEST(GenerationConfig, ValuesThatMeanAll) {
  EXPECT_EQ(GenerationConfig::from_json(R"({"top_k": -1})", "file").top_k, 0);
  EXPECT_EQ(GenerationConfig::from_json(R"({"top_k": 0})", "file").top_k, 0);
  EXPECT_EQ(GenerationConfig::from_json(R"({"top_k": 50.0})", "file").top_k, 50);
  EXPECT_EQ(GenerationConfig::from_json(R"({"top_p": 0})", "file").top_p, 0);
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
  EXPECT_TRUE(message(R"({"suppress_tokens": [1, "a"]})").starts_with("file: suppress_tokens"));
  EXPECT_TRUE(message(R"({"bad_words_ids": [1]})").starts_with("file: bad_words_ids"));
  EXPECT_TRUE(message(R"({"stop_strings": [1]})").starts_with("file: stop_strings"));
  EXPECT_TRUE(message(R"({"max_new_tokens": 0})").starts_with("file: max_new_tokens"));
  EXPECT_TRUE(message(R"({"min_new_tokens": -1})").starts_with("file: min_new_tokens"));
  EXPECT_TRUE(message(R"({"do_sample": 1})").starts_with("file: do_sample"));
  EXPECT_TRUE(message(R"({"repetition_penalty": 0})").starts_with("file: repetition_penalty"));
  EXPECT_TRUE(message("[").starts_with("file: "));
}

}  // namespace
}  // namespace twell::io
