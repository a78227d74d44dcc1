#include "tokenizer/token_decoder.h"

#include <algorithm>

#include "files/file_error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::size_t kMostSteps = 64;                     // each is a call within the one before

}  // namespace

TokenDecoder::TokenDecoder() { steps_.push_back({Kind::byte_level}); }

TokenDecoder::TokenDecoder(const JsonObject& json) {
  read(json);
  if (steps_.size() > kMostSteps) {
    fail_unsupported(json.file(), "more than {} decoders are not supported", kMostSteps);
  }
  const auto is_byte_level = [](const Step& step) { return step.kind == Kind::byte_level; };
  if (steps_.size() > 1 && std::ranges::any_of(steps_, is_byte_level)) {
    fail_unsupported(json.file(), "decoder ByteLevel among others is not supported");
  }
  bool fused = false;
  for (Step& step : steps_) {
    step.fused = fused;
    if (step.kind == Kind::fuse) fused = true;
    if (fused && step.kind != Kind::fuse && step.kind != Kind::strip) {
      fail_unsupported(json.file(), "a decoder behind Fuse is not supported (supported: Strip)");
    }
  }
}

void TokenDecoder::read(const JsonObject& json) {
  const std::string type = json.string("type");
  if (type == "Sequence") {
    for (const JsonObject& step : json.objects("decoders")) read(step);
  } else if (type == "ByteLevel") {
    steps_.push_back({Kind::byte_level});
  } else if (type == "ByteFallback") {
    steps_.push_back({Kind::byte_fallback});
  } else if (type == "Fuse") {
    steps_.push_back({Kind::fuse});
  } else if (type == "Replace") {
    steps_.push_back({Kind::replace, false, Pattern::read(json), json.string("content")});
  } else if (type == "Metaspace") {
    Metaspace metaspace = read_metaspace(json);
    Step step{Kind::metaspace, false, Pattern(std::move(metaspace.replacement))};
    step.count = metaspace.prepend == Metaspace::Prepend::never ? 0 : 1;
    steps_.push_back(std::move(step));
  } else if (type == "Strip") {
    Step step{Kind::strip, false, {}, read_character(json, "content")};
    step.count = static_cast<std::size_t>(json.integer("start", 0, INT32_MAX));
    if (json.integer("stop", 0, INT32_MAX) != 0) {
      fail_unsupported(json.file(), "{} is not 0, which is not supported", json.path_of("stop"));
    }
    steps_.push_back(std::move(step));
  } else {
    fail_unsupported(json.file(),
                     "decoder {} is not supported (supported: ByteLevel, ByteFallback, Fuse, "
                     "Metaspace, Replace, Strip, Sequence)",
                     in_quotes(type));
  }
}

std::string TokenDecoder::input(std::string_view content) const {
  if (steps_.empty() || steps_[0].kind != Kind::byte_level) return std::string(content);
  return bytes_from_symbols(content).value_or(std::string(content));
}

TokenDecoder::Run::Run(const TokenDecoder& decoder)
    : decoder_(&decoder), states_(decoder.steps_.size()) {}

void TokenDecoder::Run::push(std::string_view token, std::string& out) { feed(0, token, out); }

void TokenDecoder::Run::feed(std::size_t at, std::string_view token, std::string& out) {
  if (at == states_.size()) {
    out += token;
    return;
  }
  const Step& step = decoder_->steps_[at];
  State& state = states_[at];
  switch (step.kind) {
    case Kind::fuse:
      return feed(at + 1, token, out);
    case Kind::byte_level: {
      state.bytes += token;
      std::string text;
      take_utf8(state.bytes, text, false);
      return feed(at + 1, text, out);
    }
    case Kind::replace:
      return feed(at + 1, step.pattern->replace(token, step.content), out);
    case Kind::byte_fallback:
      if (const auto byte = byte_of_name(token)) {
        state.bytes += *byte;
        return;
      }
      flush_bytes(at, out);
      return feed(at + 1, token, out);
    case Kind::strip:
      return strip(at, token, out);
    case Kind::metaspace: {
      const std::string_view space = state.taken < step.count ? "" : " ";
      state.taken = std::min(state.taken + 1, step.count);
      return feed(at + 1, step.pattern->replace(token, space), out);
    }
  }
}

// Bytes that follow one another are one token where they are UTF-8 together, else each of them is
// one that cannot be read. So none can be told before the last.
void TokenDecoder::Run::flush_bytes(std::size_t at, std::string& out) {
  std::string bytes;
  bytes.swap(states_[at].bytes);
  if (bytes.empty()) return;
  if (find_invalid_utf8(bytes) == std::string_view::npos) return feed(at + 1, bytes, out);
  for (std::size_t i = 0; i < bytes.size(); ++i) feed(at + 1, kNoCharacter, out);
}

void TokenDecoder::Run::strip(std::size_t at, std::string_view token, std::string& out) {
  const Step& step = decoder_->steps_[at];
  State& state = states_[at];
  if (!step.fused) state = {};
  while (!state.begun && state.taken < step.count && token.starts_with(step.content)) {
    token.remove_prefix(step.content.size());
    ++state.taken;
  }
  state.begun = state.begun || !token.empty();
  feed(at + 1, token, out);
}

void TokenDecoder::Run::finish(std::string& out) {
  for (std::size_t at = 0; at < states_.size(); ++at) {
    const Kind kind = decoder_->steps_[at].kind;
    if (kind == Kind::byte_fallback) flush_bytes(at, out);
    if (kind == Kind::byte_level) {
      std::string text;
      take_utf8(states_[at].bytes, text, true);
      feed(at + 1, text, out);
    }
  }
  states_.assign(states_.size(), {});
}

}  // namespace twell::io
