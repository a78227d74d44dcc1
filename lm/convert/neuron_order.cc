#include "convert/neuron_order.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "convert/trace_recorder.h"
#include "decoder/projections.h"
#include "engine/ffn_statistics.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

constexpr std::int64_t kBlock = 16;  // neurons of a panel of the packed gate, see packed.h

// For each neuron the tokens it fired for, a bit each.
struct Firing {
  std::int64_t tokens = 0;
  std::vector<std::vector<std::uint64_t>> bits;  // [H], of the words so far that are not all zero
  std::vector<std::int64_t> count;               // [H]

  void add(std::span<const std::uint32_t> neurons) {
    const auto word = static_cast<std::size_t>(tokens / 64);
    for (const std::uint32_t n : neurons) {
      bits[n].resize(word + 1, 0);
      bits[n][word] |= std::uint64_t{1} << (tokens % 64);
      ++count[n];
    }
    ++tokens;
  }
  std::int64_t together(std::size_t a, std::size_t b) const {
    const std::size_t words = std::min(bits[a].size(), bits[b].size());
    std::int64_t sum = 0;
    for (std::size_t w = 0; w < words; ++w) sum += std::popcount(bits[a][w] & bits[b][w]);
    return sum;
  }
};

class FiringRecorder final : public FfnObserver {
 public:
  explicit FiringRecorder(const Model& model) : layers(static_cast<std::size_t>(model.layers())) {
    const auto neurons = static_cast<std::size_t>(model.config().intermediate_size);
    for (Firing& layer : layers) {
      layer.bits.resize(neurons);
      layer.count.resize(neurons, 0);
    }
  }
  bool wants_hidden() const override { return true; }
  void observe(const FfnActivity& activity) override {
    Firing& layer = layers[static_cast<std::size_t>(activity.layer)];
    for_each_row(activity.gate, [&](std::span<const std::uint32_t> row) { layer.add(row); });
  }
  std::vector<Firing> layers;
};

// Mean number of blocks of 16 neurons with a firing one, of a token.
double mean_blocks(const Firing& firing, const std::vector<std::int64_t>& order) {
  std::int64_t total = 0;
  for (std::size_t first = 0; first < order.size(); first += kBlock) {
    std::vector<std::uint64_t> any;
    for (std::size_t i = first; i < std::min(order.size(), first + kBlock); ++i) {
      const auto& bits = firing.bits[static_cast<std::size_t>(order[i])];
      if (any.size() < bits.size()) any.resize(bits.size(), 0);
      for (std::size_t w = 0; w < bits.size(); ++w) any[w] |= bits[w];
    }
    for (const std::uint64_t word : any) total += std::popcount(word);
  }
  return firing.tokens == 0 ? 0.0 : static_cast<double>(total) / static_cast<double>(firing.tokens);
}

// Blocks of 16: the most popular neuron that is left, and those that fire most like it (largest
// share of the tokens for which either fires). Popular blocks come first; the order does not depend
// on the machine.
std::vector<std::int64_t> cluster(const Firing& firing, const std::vector<std::int64_t>& live) {
  std::vector<std::int64_t> left = live, order;
  std::stable_sort(left.begin(), left.end(), [&](std::int64_t a, std::int64_t b) {
    return firing.count[static_cast<std::size_t>(a)] > firing.count[static_cast<std::size_t>(b)];
  });
  struct Likeness {
    double share;
    std::size_t index;  // in `left`
  };
  std::vector<Likeness> likeness;
  while (!left.empty()) {
    const auto seed = static_cast<std::size_t>(left.front());
    likeness.clear();
    for (std::size_t i = 1; i < left.size(); ++i) {
      const auto other = static_cast<std::size_t>(left[i]);
      const auto both = static_cast<double>(firing.together(seed, other));
      const auto either = static_cast<double>(firing.count[seed] + firing.count[other]) - both;
      likeness.push_back({both / either, i});
    }
    const std::size_t take = std::min<std::size_t>(kBlock - 1, likeness.size());
    std::partial_sort(likeness.begin(), likeness.begin() + static_cast<std::ptrdiff_t>(take),
                      likeness.end(), [](const Likeness& a, const Likeness& b) {
                        return a.share != b.share ? a.share > b.share : a.index < b.index;
                      });
    order.push_back(left.front());
    left.front() = -1;
    for (std::size_t i = 0; i < take; ++i) {
      order.push_back(left[likeness[i].index]);
      left[likeness[i].index] = -1;
    }
    std::erase(left, -1);
  }
  return order;
}

LayerOrder order_layer(const Firing& firing, std::span<const std::int64_t> removed) {
  LayerOrder out;
  out.removed = static_cast<std::int64_t>(removed.size());
  std::vector<std::int64_t> all, live, silent;
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(firing.count.size()); ++n) {
    all.push_back(n);
    if (std::binary_search(removed.begin(), removed.end(), n)) continue;
    (firing.count[static_cast<std::size_t>(n)] > 0 ? live : silent).push_back(n);
  }
  out.silent = static_cast<std::int64_t>(silent.size());
  out.neurons = cluster(firing, live);
  out.neurons.insert(out.neurons.end(), silent.begin(), silent.end());
  out.blocks_before = mean_blocks(firing, all);
  out.blocks_after = mean_blocks(firing, out.neurons);
  return out;
}

}  // namespace

std::vector<std::int64_t> neurons_without_effect(const FfnParameters& p,
                                                 const ActivationChoice& activation) {
  if (activation.norm_eps) return {};  // its mean is of all neurons, those that are zero too
  const at::NoGradGuard no_grad;
  const auto zero_rows = [](const at::Tensor& rows) { return rows.eq(0).all(1); };  // [H]
  const Projections projections(p);
  const at::Tensor &first = projections.first, &first_bias = projections.gate_bias;
  at::Tensor none = zero_rows(p.down.t());
  at::Tensor silent = zero_rows(first);
  if (first_bias.defined()) silent = silent.logical_and(activate(first_bias, activation).eq(0));
  none = none.logical_or(silent);
  if (projections.up.defined()) {
    at::Tensor nothing = zero_rows(p.up);
    if (p.up_bias.defined()) {
      nothing = nothing.logical_and(activate_up(p.up_bias, activation).eq(0));
    }
    none = none.logical_or(nothing);
  }
  const at::Tensor ids = none.nonzero().contiguous();
  const auto* first_id = ids.const_data_ptr<std::int64_t>();
  return {first_id, first_id + ids.numel()};
}

std::vector<LayerOrder> order_neurons(Model& model, std::span<const std::int64_t> stream,
                                      bool remove, const ScoreOptions& options) {
  const ActivationChoice activation = model.activation();
  if (activate(at::full({1}, -1.0), activation).item<double>() != 0.0) {
    throw Error(ErrorKind::unsupported, "reorder",
                fmt::format("every neuron of a model with {} fires for every token; expected one "
                            "with one of {}",
                            io::name_of(activation.kind), io::sparse_names()));
  }
  FiringRecorder firing(model);
  ScoreOptions watched = options;
  watched.observer = &firing;
  measure_ffn(model, stream, 0, watched);

  std::vector<std::vector<std::int64_t>> dead(firing.layers.size());
  std::size_t common = remove ? firing.layers[0].count.size() - 1 : 0;  // a layer keeps a neuron
  for (std::size_t l = 0; remove && l < dead.size(); ++l) {
    dead[l] =
        neurons_without_effect(model.ffn_parameters(static_cast<std::int64_t>(l)), activation);
    common = std::min(common, dead[l].size());
  }
  std::vector<LayerOrder> out(firing.layers.size());
  at::parallel_for(0, static_cast<std::int64_t>(out.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const auto l = static_cast<std::size_t>(i);
                       dead[l].resize(common);
                       out[l] = order_layer(firing.layers[l], dead[l]);
                     }
                   });
  return out;
}

NamedTensors reordered(const Model& model, std::span<const LayerOrder> orders) {
  const at::NoGradGuard no_grad;
  NamedTensors out = model.parameters();
  for (std::size_t l = 0; l < orders.size(); ++l) {
    const FfnNames names = model.ffn_names(static_cast<std::int64_t>(l));
    const at::Tensor order = at::tensor(orders[l].neurons);
    for (auto& [name, tensor] : out) {
      bool rows = name == names.gate || name == names.up;
      for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
        rows = rows || (!kFormVectors[i].of_columns && name == names[i]);
      }
      if (rows || name == names.down) tensor = tensor.index_select(rows ? 0 : 1, order);
    }
  }
  return out;
}

}  // namespace twell::lm
