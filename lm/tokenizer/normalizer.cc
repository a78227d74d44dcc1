#include "tokenizer/normalizer.h"

#include "files/file_error.h"
#include "tokenizer/unicode.h"

namespace twell::io {

Normalizer::Normalizer(const JsonObject& json) { read(json); }

void Normalizer::read(const JsonObject& json) {
  const std::string type = json.string("type");
  if (type == "Sequence") {
    for (const JsonObject& step : json.objects("normalizers")) read(step);
  } else if (type == "NFC") {
    steps_.push_back({Kind::nfc});
  } else if (type == "NFKC") {
    steps_.push_back({Kind::nfkc});
  } else if (type == "Prepend") {
    steps_.push_back({Kind::prepend, json.string("prepend")});
  } else if (type == "Replace") {
    steps_.push_back({Kind::replace, json.string("content"), Pattern::read(json)});
  } else {
    fail_unsupported(json.file(),
                     "normalizer {} is not supported (supported: NFC, NFKC, Prepend, Replace, "
                     "Sequence)",
                     in_quotes(type));
  }
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::nfc:
        out = to_nfc(out);
        break;
      case Kind::nfkc:
        out = to_nfkc(out);
        break;
      case Kind::prepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::replace:
        out = step.pattern->replace(out, step.content);
        break;
    }
  }
  return out;
}

}  // namespace twell::io
