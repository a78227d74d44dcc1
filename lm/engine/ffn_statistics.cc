#include "engine/ffn_statistics.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "twell/status.h"

namespace twell::lm {
namespace {

// Tells two observers; the second one may be absent.
class Both final : public FfnObserver {
 public:
  Both(FfnObserver& first, FfnObserver* second) : first_(first), second_(second) {}
  bool wants_hidden() const override {
    return first_.wants_hidden() || (second_ != nullptr && second_->wants_hidden());
  }
  bool wants_counts() const override {
    return first_.wants_counts() || (second_ != nullptr && second_->wants_counts());
  }
  void begin(std::span<const std::int64_t> positions) override {
    first_.begin(positions);
    if (second_ != nullptr) second_->begin(positions);
  }
  void observe(const FfnActivity& activity) override {
    first_.observe(activity);
    if (second_ != nullptr) second_->observe(activity);
  }

 private:
  FfnObserver& first_;
  FfnObserver* second_;
};

}  // namespace

void FfnStatistics::begin(std::span<const std::int64_t> positions) {
  positions_.assign(positions.begin(), positions.end());
}

void FfnStatistics::observe(const FfnActivity& activity) {
  const auto layer = static_cast<std::size_t>(activity.layer);
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  const bool placed = std::ssize(positions_) == activity.rows;
  layers_[layer].add(activity.counts, placed ? std::span(positions_) : std::span<std::int64_t>());
}

double FfnStatistics::nnz_mean() const {
  double nnz = 0.0;
  double rows = 0.0;
  for (const auto& layer : layers_) {
    nnz += static_cast<double>(layer.nnz);
    rows += static_cast<double>(layer.rows);
  }
  return rows == 0.0 ? 0.0 : nnz / rows;
}

std::int64_t default_window(const Model& model) {
  return std::min<std::int64_t>(model.config().max_position_embeddings, 2048);
}

FfnStatistics measure_ffn(Model& model, std::span<const std::int64_t> stream, std::int64_t window,
                          const ScoreOptions& options) {
  const std::int64_t context = model.config().max_position_embeddings;
  if (window <= 0) window = default_window(model);
  if (stream.empty() || window > context) {
    throw Error(ErrorKind::invalid_argument, "measure_ffn",
                fmt::format("needs at least one token and a window within the context of {}, got "
                            "{} tokens and a window of {}",
                            context, stream.size(), window));
  }
  const c10::InferenceMode inference;
  FfnStatistics statistics;
  Both observer(statistics, options.observer);
  const auto total = static_cast<std::int64_t>(stream.size());
  std::int64_t done = 0;
  while (done < total) {
    std::vector<Chunk> chunks;
    std::int64_t rows = 0;
    while (done < total && (chunks.empty() || rows + window <= options.rows)) {
      const std::int64_t length = std::min(window, total - done);
      chunks.push_back(
          {0, stream.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(length))});
      rows += length;
      done += length;
    }
    model.hidden_states(chunks, nullptr, &observer);
    if (options.on_progress) options.on_progress(done, total);
  }
  return statistics;
}

}  // namespace twell::lm
