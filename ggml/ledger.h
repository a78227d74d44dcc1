// What has been taken and what has been left, for the line that users see when a model is loaded.
#pragma once

#include <string>

#include "twell/ggml.h"

namespace twell::ggml {

class Ledger {
 public:
  // The process' own.
  static Ledger& get();

  // A weight will come, if the model is loaded and not only measured: llama.cpp first loads it
  // without its numbers to see what memory it needs.
  void expect();
  void take(GgmlOrder order, const std::string& format);
  // Noted once for each tensor.
  void leave(const std::string& tensor, const std::string& why);
  // Prints one line of what has come since the last one, if anything, and nothing while all that
  // was expected is missing.
  void print();

 private:
  struct State;
  Ledger();
  State* state_;  // never freed: backends may outlive static objects
};

}  // namespace twell::ggml
