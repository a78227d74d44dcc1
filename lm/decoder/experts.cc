#include "decoder/experts.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <span>

#include "decoder/linear.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// The tokens of one expert.
struct Group {
  std::vector<std::int64_t> rows;    // of x, ascending
  std::vector<std::int64_t> places;  // in the flattened [N, active] routing
};

std::vector<Group> groups_of(const at::Tensor& experts, std::size_t count) {
  const at::Tensor chosen = experts.contiguous();
  const auto* expert = chosen.const_data_ptr<std::int64_t>();
  const std::int64_t active = chosen.size(1);
  std::vector<Group> groups(count);
  for (std::int64_t place = 0; place < chosen.numel(); ++place) {
    Group& group = groups[static_cast<std::size_t>(expert[place])];
    group.rows.push_back(place / active);
    group.places.push_back(place);
  }
  return groups;
}

// What the experts of a layer tell, as of one layer.
class Together final : public FfnObserver {
 public:
  Together(std::int64_t layer, std::int64_t rows, std::size_t experts, bool counts)
      : experts_(static_cast<std::int64_t>(experts)), counts_(counts) {
    all_.layer = layer;
    all_.rows = rows;
    if (counts) all_.counts.row_nnz.resize(static_cast<std::size_t>(rows));
  }
  bool wants_counts() const override { return counts_; }
  // The next that is told of.
  void expect(std::int64_t expert, std::span<const std::int64_t> rows) {
    expert_ = expert;
    rows_ = rows;
  }
  void observe(const FfnActivity& one) override {
    all_.neurons = one.neurons * experts_;
    if (one.path == FfnPath::sparse) all_.path = FfnPath::sparse;
    if (!counts_) return;
    FfnCounts& counts = all_.counts;
    counts.neuron_nnz.resize(static_cast<std::size_t>(all_.neurons));
    std::ranges::copy(one.counts.neuron_nnz, counts.neuron_nnz.begin() + expert_ * one.neurons);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      counts.row_nnz[static_cast<std::size_t>(rows_[i])] += one.counts.row_nnz[i];
    }
    counts.candidates += one.counts.candidates;
  }
  const FfnActivity& all() const { return all_; }

 private:
  FfnActivity all_;
  std::int64_t experts_;
  bool counts_;
  std::int64_t expert_ = 0;
  std::span<const std::int64_t> rows_;
};

}  // namespace

Routing route(const at::Tensor& scores, const io::ExpertSpec& spec) {
  const auto [highest, experts] = scores.topk(spec.active, -1);
  const at::Tensor wide = highest.to(at::kFloat);
  if (spec.softmax) return {experts, wide.softmax(-1)};
  const at::Tensor open = wide.sigmoid();
  return {experts, open / open.sum(-1, true)};
}

Experts::Experts(const at::Tensor& router, std::vector<std::unique_ptr<FeedForward>> experts,
                 const io::ExpertSpec& spec)
    : router_(router), experts_(std::move(experts)), spec_(spec) {}

Routing Experts::route(const at::Tensor& x) const {
  return lm::route(linear_as_stored(x, router_), spec_);
}

at::Tensor Experts::forward(const at::Tensor& x, const Routing& routing, std::int64_t layer,
                            FfnObserver* observer) {
  if (observer != nullptr && observer->wants_hidden()) {
    throw Error(
        ErrorKind::unsupported, "experts",
        "hidden activations of a mixture of experts are not shown: training, traces and new "
        "orders of neurons are for models without experts");
  }
  Together together(layer, x.size(0), experts_.size(),
                    observer != nullptr && observer->wants_counts());
  const std::vector<Group> groups = groups_of(routing.experts, experts_.size());
  const at::Tensor shares = routing.shares.flatten();
  const at::Tensor y = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for (std::size_t e = 0; e < groups.size(); ++e) {
    const auto& [rows, places] = groups[e];
    if (rows.empty()) continue;
    together.expect(static_cast<std::int64_t>(e), rows);
    const at::Tensor index = at::tensor(rows);
    const at::Tensor in = x.size(0) == 1 ? x : x.index_select(0, index);
    const at::Tensor out =
        experts_[e]->forward(in, layer, observer == nullptr ? nullptr : &together);
    const at::Tensor share = shares.index_select(0, at::tensor(places)).unsqueeze(1);
    y.index_add_(0, index, out * share);
  }
  if (observer != nullptr) observer->observe(together.all());
  return y.to(x.scalar_type());
}

std::int64_t Experts::own_bytes() const {
  std::int64_t total = 0;
  for (const auto& expert : experts_) total += expert->own_bytes();
  return total;
}

std::string Experts::describe(std::int64_t tokens) const {
  const auto count = static_cast<std::int64_t>(experts_.size());
  const std::int64_t each = (tokens * spec_.active + count - 1) / count;
  return fmt::format("{} of {} experts for each token, one of them {}", spec_.active, count,
                     experts_.front()->describe(each));
}

}  // namespace twell::lm
