#include "ggml/ledger.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

namespace twell::ggml {

struct Ledger::State {
  std::mutex mutex;
  std::map<GgmlOrder, std::map<std::string, int>> taken;  // by format
  std::map<std::string, int> left;                        // by reason
  std::set<std::string> seen;                             // tensors left, each with its reason
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

void Ledger::take(GgmlOrder order, const std::string& format) {
  const std::lock_guard lock(state_->mutex);
  ++state_->taken[order][format];
}

void Ledger::leave(const std::string& tensor, const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  if (state_->seen.insert(tensor + '\n' + why).second) ++state_->left[why];
}

void Ledger::print() {
  const std::lock_guard lock(state_->mutex);
  if (state_->taken.empty() && (state_->expects || state_->left.empty())) return;
  std::string line = state_->taken.empty() ? "twell: takes no weight" : "twell: takes";
  for (const auto& [order, formats] : state_->taken) {
    int sum = 0;
    std::string counts;
    for (const auto& [format, count] : formats) {
      sum += count;
      counts += (counts.empty() ? "" : ", ") + std::to_string(count) + " in " + format;
    }
    line += (line.back() == 's' ? " " : ", ") + std::to_string(sum);
    line +=
        (order == GgmlOrder::inputs ? " down weights (" : " gate and up weights (") + counts + ")";
  }
  for (const auto& [why, count] : state_->left) {
    line += "; leaves " + std::to_string(count) + ": " + why;
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  state_->taken.clear();
  state_->left.clear();
  state_->expects = false;
}

}  // namespace twell::ggml
