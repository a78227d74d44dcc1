#include "cuda/layer/device_screen.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/found_memory.h"

namespace twell::lm {

DeviceScreen::DeviceScreen(const FfnShape& shape, DeviceRuntime& runtime)
    : runtime_(runtime),
      neurons_(shape.neurons),
      share_(shape.neurons),
      counts_(runtime, [this](std::int64_t count, std::int64_t rows) { share_.saw(count, rows); }) {
  for (std::int64_t rows = 1; rows <= kMostRows; ++rows) {
    const double limit = runtime.candidates_limit(shape, rows);
    if (limit <= 0) break;
    limits_.push_back(limit);
  }
}

void DeviceScreen::saw(const at::Tensor& x) {
  if (!wanted() || x.size(0) == 0 || runtime_.capturing()) return;
  // New tensors: those of inference mode must not be changed outside of it, and x is the caller's.
  const at::Tensor sum = x.sum(0, /*keepdim=*/false, at::kFloat);
  axis_ = axis_.defined() ? axis_ + sum : sum;
  const std::int64_t kept = sample_.defined() ? sample_.size(0) : 0;
  if (kept == kRows) return;
  const at::Tensor more = x.narrow(0, 0, std::min(kRows - kept, x.size(0)));
  sample_ = sample_.defined() ? at::cat({sample_, more}) : more.clone();
}

void DeviceScreen::make(
    const std::function<at::Tensor(const at::Tensor&)>& weight_screen,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& candidates) {
  const at::Tensor axis = std::exchange(axis_, {});
  const at::Tensor sample = std::exchange(sample_, {});
  if (!wanted() || !sample.defined()) return;
  const bool made = found_memory([&] {
    screen_ = weight_screen(axis);
    at::Tensor left;
    // As few rows at a time as the plan screens.
    for (const at::Tensor& rows : sample.split(std::ssize(limits_))) {
      const at::Tensor count = candidates(screen_, rows);
      left = left.defined() ? left + count : count;
    }
    counts_.send(left, sample.size(0));
  });
  state_ = made ? State::made : State::without_memory;
  if (!made) screen_.reset();
}

void DeviceScreen::make(const LayerFindings& findings,
                        const std::function<at::Tensor(const at::Tensor&)>& weight_screen) {
  if (!wanted() || !findings.candidates) return;
  const bool made = found_memory(
      [&] { screen_ = weight_screen(at::tensor(findings.mean, at::TensorOptions(at::kFloat))); });
  state_ = made ? State::made : State::without_memory;
  const double left = *findings.candidates * static_cast<double>(kRows * neurons_);
  share_.saw(std::llround(left), kRows);
  look();
}

void DeviceScreen::saw_candidates(const at::Tensor& candidates, std::int64_t rows) {
  if (state_ == State::made) counts_.send(candidates, rows);
}

void DeviceScreen::look() {
  if (state_ != State::made) return;
  counts_.look();
  if (share_.value().value_or(0) <= limits_.front()) return;
  state_ = State::given_up;
  if (!recorded_) screen_.reset();
}

bool DeviceScreen::serves(std::int64_t rows) const {
  return state_ == State::made && share_.value() && rows >= 1 && rows <= std::ssize(limits_) &&
         *share_.value() <= limits_[static_cast<std::size_t>(rows - 1)];
}

at::Tensor DeviceScreen::take(std::int64_t rows) {
  if (!serves(rows)) return {};
  recorded_ = recorded_ || runtime_.capturing();
  return screen_;
}

std::int64_t DeviceScreen::bytes() const {
  return screen_.defined() ? static_cast<std::int64_t>(screen_.nbytes()) : 0;
}

std::string DeviceScreen::describe() const {
  if (state_ == State::awaited) return {};
  if (state_ == State::without_memory) return "no memory for a screen";
  if (!share_.value()) return "a screen, its candidates not counted yet";
  const double left = 100 * *share_.value();
  if (state_ == State::given_up) return fmt::format("no screen, it left {:.1f} %", left);
  const auto rows = std::count_if(limits_.begin(), limits_.end(),
                                  [&](double limit) { return *share_.value() <= limit; });
  return fmt::format("a screen for up to {} tokens left {:.1f} %", rows, left);
}

}  // namespace twell::lm
