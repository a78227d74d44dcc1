#include "cli/speed_table.h"

#include <fmt/format.h>

#include "cli/table.h"

namespace twell::cli {

std::string energy_cell(const std::optional<double>& mj) {
  return mj ? fmt::format("{:.2f}", *mj) : "-";
}

std::string memory_cell(const std::optional<double>& bytes) {
  return bytes ? format_bytes(*bytes) : "-";
}

std::string speed_table(const std::string& name, const lm::CompareOptions& options,
                        const lm::Speed& speed, bool colour) {
  const std::string what =
      name == "prefill" ? fmt::format("{}, {} x {}", name, options.sequences, options.prompt_tokens)
                        : fmt::format("{}, {} x 1", name, options.sequences);
  Table table(
      {what, "tokens/s", "slowest", "fastest", "first call", "mJ/token", "memory", "speedup"});
  for (const lm::SideSpeed& side : speed.sides) {
    const auto rate = [&](double us) {
      return fmt::format("{:.1f}", static_cast<double>(speed.tokens) * 1e6 / us);
    };
    const bool own = &side == &speed.sparse();
    table.row({side.name, rate(side.timing.median_us), rate(side.timing.max_us),
               rate(side.timing.min_us), format_us(side.timing.first_us), energy_cell(side.mj),
               memory_cell(side.peak_bytes), own ? "" : format_ratio(speed.over_sparse(side))});
  }
  return table.to_string(colour);
}

std::string layer_table(std::span<const lm::LayerSpeed> layers, bool colour) {
  Table table({"layer", "non-zeros", "dense", "sparse", "speedup"});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const lm::LayerSpeed& layer = layers[i];
    table.row({fmt::format("{}", i), fmt::format("{:.1f}", layer.nnz_mean),
               format_us(layer.dense.median_us), format_us(layer.sparse.median_us),
               format_ratio(layer.speedup())});
  }
  const auto found = lm::correlation(layers);
  return fmt::format("\n{}Correlation of non-zeros and speedup: {}\n", table.to_string(colour),
                     found ? fmt::format("{:.3f}", *found) : "none");
}

}  // namespace twell::cli
