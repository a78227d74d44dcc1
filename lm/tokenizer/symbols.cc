#include "tokenizer/symbols.h"

#include <fmt/format.h>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace twell::io {

Symbols::Symbols(const Options& options) : options_(options) { of_byte_.fill(-1); }

void Symbols::add(std::string_view content, std::int32_t id) {
  if (content.empty()) return;
  std::size_t end = 0;
  const char32_t code = next_code(content, end);
  if (options_.byte_level) {
    if (end != content.size()) return;
    if (const auto byte = bytes_from_symbols(content)) {
      of_byte_[static_cast<unsigned char>(byte->front())] = id;
    }
    return;
  }
  if (end == content.size()) {
    of_code_.emplace(code, id);
  } else if (const auto byte = byte_of_name(content)) {
    const auto value = static_cast<unsigned char>(*byte);
    if (content == fmt::format("<0x{:02X}>", value)) of_byte_.at(value) = id;
  }
}

bool Symbols::append_bytes(std::string_view bytes, std::vector<std::int32_t>& out) const {
  const std::size_t before = out.size();
  for (const char c : bytes) {
    const std::int32_t id = of_byte_[static_cast<unsigned char>(c)];
    if (id < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(id);
  }
  return true;
}

void Symbols::append(std::string_view word, std::vector<std::int32_t>& out) const {
  // The last unknown token, which is not written before the next symbol: as in `tokenizers`, the
  // bytes of other characters overtake it.
  bool unknown = false;
  const auto write = [&](std::int32_t id) {
    if (unknown) out.push_back(options_.unknown);
    unknown = false;
    out.push_back(id);
  };
  const auto miss = [&] {
    if (options_.unknown < 0) return;
    if (unknown && !options_.fuse_unknown) out.push_back(options_.unknown);
    unknown = true;
  };
  if (options_.byte_level) {
    for (const char c : word) {
      const std::int32_t id = of_byte_[static_cast<unsigned char>(c)];
      id >= 0 ? write(id) : miss();
    }
  } else {
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      const auto found = of_code_.find(next_code(word, at));
      if (found != of_code_.end()) {
        write(found->second);
      } else if (!options_.byte_fallback || !append_bytes(word.substr(begin, at - begin), out)) {
        miss();
      }
    }
  }
  if (unknown) out.push_back(options_.unknown);
}

}  // namespace twell::io
