// Tables of the sides that a benchmark compares.
#pragma once

#include <span>
#include <string>

#include "measure/layer_compare.h"
#include "measure/model_compare.h"

namespace twell::cli {

// A line for each side of "prefill" or "decode".
std::string speed_table(const std::string& name, const lm::CompareOptions& options,
                        const lm::Speed& speed, bool colour);
// A line for each layer, and the correlation.
std::string layer_table(std::span<const lm::LayerSpeed> layers, bool colour);

// "12.3", or "-" where there is none.
std::string energy_cell(const std::optional<double>& mj);
std::string memory_cell(const std::optional<double>& bytes);

}  // namespace twell::cli
