#include "tokenizer/metaspace.h"

#include "files/file_error.h"
#include "tokenizer/unicode.h"

namespace twell::io {

Metaspace read_metaspace(const JsonObject& json) {
  Metaspace out;
  out.replacement = read_character(json, "replacement");
  out.split = json.boolean("split", true);
  const bool prefix = json.boolean("add_prefix_space", true);
  const std::string scheme = json.string("prepend_scheme", prefix ? "always" : "never");
  if (scheme == "first") {
    out.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    out.prepend = Metaspace::Prepend::never;
  } else if (scheme != "always") {
    fail_unsupported(json.file(), "{} is {}, which is not supported",
                     json.path_of("prepend_scheme"), in_quotes(scheme));
  }
  if (!prefix && out.prepend != Metaspace::Prepend::never) {
    fail_file(json.file(), "{} is {}, but add_prefix_space is false",
              json.path_of("prepend_scheme"), in_quotes(scheme));
  }
  return out;
}

std::string read_character(const JsonObject& json, const char* key) {
  std::string out = json.string(key);
  std::size_t end = 0;
  if (!out.empty()) next_code(out, end);
  if (out.empty() || end != out.size()) {
    fail_file(json.file(), "{} is {}, expected one character", json.path_of(key), in_quotes(out));
  }
  return out;
}

}  // namespace twell::io
