// What the environment variable TWELL_GGML asks for.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace twell::ggml {

struct Options {
  bool off = false;         // takes no weight
  bool down_alone = false;  // takes none of up and gate
  bool stats = false;       // prints how often each weight was used and how much fired
};
inline const Options& options() {
  static const Options one = [] {
    const char* const text = std::getenv("TWELL_GGML");  // NOLINT(concurrency-mt-unsafe)
    const std::string_view asked = text == nullptr ? "" : text;
    if (!asked.empty() && asked != "off" && asked != "down" && asked != "stats") {
      std::fprintf(stderr, "twell: TWELL_GGML=%s is ignored; it may be off, down or stats\n", text);
    }
    return Options{asked == "off", asked == "down", asked == "stats"};
  }();
  return one;
}

}  // namespace twell::ggml
