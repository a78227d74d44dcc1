// How popular the neurons of a model are, and how many of them windows of tokens fire together:
// collected of one layer after the other, shown as tables, JSON and charts.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "measure/trace_statistics.h"

namespace twell::cli {

struct PopularityOptions {
  double hot_share = lm::kHotShare;
  std::vector<std::size_t> windows;  // tokens of each
  std::uint64_t seed = 1;            // of the random order
};

class PopularityReport {
 public:
  // `token_ids`: of all tokens, or empty where they are not known.
  PopularityReport(PopularityOptions options, std::size_t tokens,
                   const std::vector<std::uint32_t>& token_ids);
  // Calls `tick` before each of its pieces().
  void add(std::int64_t layer, const io::ActivityRows& rows, std::uint32_t neurons,
           const std::function<void()>& tick);
  std::int64_t pieces() const;  // of the work on a layer
  std::string tables(bool colour) const;
  nlohmann::json json_of(std::size_t index) const;  // of the layer that was added as number `index`
  nlohmann::json json() const;                      // what was asked for
  // The share of tokens that fire a neuron, by popularity: a complete SVG file.
  std::string chart() const;

 private:
  struct Union {
    std::size_t window;
    const char* order;
    lm::WindowUnion found;
  };
  struct Layer {
    std::int64_t number;
    std::uint32_t neurons;
    lm::NeuronFirings firings;
    std::vector<Union> unions;  // by window, then by order
  };
  std::string popularity_table(bool colour) const;
  std::string union_table(bool colour) const;
  std::vector<std::string> union_cells(const std::vector<const Layer*>& layers,
                                       std::size_t window) const;

  PopularityOptions options_;
  std::vector<std::pair<const char*, lm::TokenOrder>> orders_;
  std::vector<Layer> layers_;
};

}  // namespace twell::cli
