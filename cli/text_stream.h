// Tokens to text as they come, up to a text that ends it, wherever tokens cut that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace twell::cli {

class StopStrings {
 public:
  // None of them empty.
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes further text. -> what is certain to stand before any of them: what could be the beginning
  // of one is kept back.
  std::string push(const std::string& text);
  // What was kept back; nothing where one was found.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

// What a model says behind `prompt`, without special tokens.
class TextStream {
 public:
  TextStream(const io::Tokenizer& tokenizer, std::span<const std::int64_t> prompt,
             const std::vector<std::string>& stops);

  const std::string& prompt() const { return prompt_; }  // as tokens say it, if it ends whole
  // -> what can be shown now.
  std::string push(std::int64_t token);
  std::string finish();
  bool stopped() const { return stops_.found(); }
  const std::string& text() const { return text_; }  // all that was given out

 private:
  std::string add(std::string piece);

  io::StreamDecoder decoder_;
  StopStrings stops_;
  std::string prompt_, text_;
};

}  // namespace twell::cli
