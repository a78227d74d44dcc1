#include "ggml/ledger.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

namespace twell::ggml {

struct Ledger::State {
  std::mutex mutex;
  std::map<std::string, int> taken, left;  // by format; by reason
  std::set<std::string> seen;              // tensors left, each with its reason
  bool expects = false;
};

Ledger::Ledger() : state_(new State) {}

Ledger& Ledger::get() {
  static Ledger one;
  return one;
}

void Ledger::expect() {
  const std::lock_guard lock(state_->mutex);
  state_->expects = true;
}

void Ledger::take(const std::string& format) {
  const std::lock_guard lock(state_->mutex);
  ++state_->taken[format];
}

void Ledger::leave(const std::string& tensor, const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  if (state_->seen.insert(tensor + '\n' + why).second) ++state_->left[why];
}

void Ledger::print() {
  const std::lock_guard lock(state_->mutex);
  if (state_->taken.empty() && (state_->expects || state_->left.empty())) return;
  std::string line = "twell: ";
  int sum = 0;
  std::string formats;
  for (const auto& [format, count] : state_->taken) {
    sum += count;
    formats += (formats.empty() ? "" : ", ") + std::to_string(count) + " in " + format;
  }
  line += sum == 0 ? "takes no layer" : "takes down of " + std::to_string(sum) + " layers, ";
  line += formats;
  for (const auto& [why, count] : state_->left) {
    line += "; leaves " + std::to_string(count) + ": " + why;
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  state_->taken.clear();
  state_->left.clear();
  state_->expects = false;
}

}  // namespace twell::ggml
