#include "twell/cost.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string>

#include "twell/tuning.h"

namespace twell {
namespace {

// The place of x in ascending `at`: at[i] + f (at[i + 1] - at[i]), clamped to the ends.
struct Place {
  std::size_t i = 0;
  double f = 0.0;

  double of(double low, double high) const { return low + f * (high - low); }
};
template <class T>
Place place_of(double x, const std::vector<T>& at, double (*scale)(double)) {
  if (at.size() == 1 || x <= static_cast<double>(at.front())) return {};
  std::size_t i = 0;
  while (i + 2 < at.size() && x >= static_cast<double>(at[i + 1])) ++i;
  const double low = scale(static_cast<double>(at[i]));
  const double high = scale(static_cast<double>(at[i + 1]));
  return {i, std::min((scale(x) - low) / (high - low), 1.0)};
}
double linear(double x) { return x; }
double logarithm(double x) { return std::log(x); }

// Values at the measured tokens, to `rows` of them.
double at_rows(std::int64_t rows, const std::vector<std::int64_t>& tokens,
               const std::vector<double>& values) {
  const Place place = place_of(static_cast<double>(rows), tokens, logarithm);
  const double low = std::log(values[place.i]);
  const double high = std::log(values[std::min(place.i + 1, values.size() - 1)]);
  const double beyond = static_cast<double>(rows) / static_cast<double>(tokens.back());
  return std::exp(place.of(low, high)) * std::max(beyond, 1.0);
}

double at_density(double density, const std::vector<double>& densities,
                  const std::vector<double>& values) {
  const Place place = place_of(density, densities, linear);
  return place.of(values[place.i], values[std::min(place.i + 1, values.size() - 1)]);
}

double us(double ns_per_weight, const FfnShape& shape) {
  return ns_per_weight * static_cast<double>(shape.neurons * shape.width) * 1e-3;
}

}  // namespace

double CostModel::dense_us(std::int64_t rows, const FfnShape& shape) const {
  const double gemms = gated && !shape.gated ? 2.0 / 3.0 : 1.0;
  return us(at_rows(rows, tokens, dense) * gemms, shape);
}

double CostModel::sparse_us(std::int64_t rows, double density, const FfnShape& shape) const {
  std::vector<double> at_tokens;
  for (const auto& row : sparse) {
    const double all = at_density(density, densities, row);
    // Without a gate, half of what comes after the first GEMM.
    at_tokens.push_back(gated && !shape.gated ? (all + row.front()) / 2 : all);
  }
  return us(at_rows(rows, tokens, at_tokens), shape);
}

std::string CostModel::source() const {
  if (!measured_on.empty()) return "measured on " + measured_on;
  std::ostringstream out;
  out << "built-in figures of another machine";
  if (scales.empty()) return out.str();
  const auto list = [&](const char* name, auto figure) {
    out << name;
    for (const CostScale& scale : scales)
      out << (&scale == &scales.front() ? "" : ", ") << figure(scale);
  };
  out << std::fixed << std::setprecision(2);
  list(", scaled by timing a layer: dense by ", [](const CostScale& s) { return s.dense; });
  list(", sparse by ", [](const CostScale& s) { return s.sparse; });
  list(" at ", [](const CostScale& s) { return s.tokens; });
  out << " tokens";
  return out.str();
}

CostModel built_in_cost_model(CpuTier tier) {
  const FfnCostTable& table = tuning_of(tier).cost;
  CostModel model;
  model.tokens.assign(table.kTokens.begin(), table.kTokens.end());
  model.densities.assign(table.kDensities.begin(), table.kDensities.end());
  model.dense.assign(table.dense.begin(), table.dense.end());
  for (const auto& row : table.sparse) model.sparse.emplace_back(row.begin(), row.end());
  return model;
}

}  // namespace twell
