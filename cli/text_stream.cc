#include "cli/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace twell::cli {

std::string StopStrings::push(const std::string& text) {
  if (found_) return {};
  held_ += text;
  std::size_t end = held_.size();  // of what goes out
  for (const std::string& stop : stops_) {
    if (const auto at = held_.find(stop); at != std::string::npos) {
      end = std::min(end, at);
      found_ = true;
    }
  }
  if (found_) return std::exchange(held_, {}).substr(0, end);
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        end = std::min(end, held_.size() - length);
        break;
      }
    }
  }
  std::string out = held_.substr(0, end);
  held_.erase(0, end);
  return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

TextStream::TextStream(const io::Tokenizer& tokenizer, std::span<const std::int64_t> prompt,
                       const std::vector<std::string>& stops)
    : decoder_(tokenizer, true), stops_(stops) {
  for (const std::int64_t id : prompt) prompt_ += decoder_.push(static_cast<std::int32_t>(id));
}

std::string TextStream::add(std::string piece) {
  text_ += piece;
  return piece;
}

std::string TextStream::push(std::int64_t token) {
  return add(stops_.push(decoder_.push(static_cast<std::int32_t>(token))));
}

std::string TextStream::finish() { return add(stops_.push(decoder_.finish()) + stops_.finish()); }

}  // namespace twell::cli
