#include "models/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "io/atomic_file.h"
#include "io/json_reader.h"
#include "io/mapped_file.h"
#include "twell/screen.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

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

double us(double ns_per_weight, const LayerSize& layer) {
  return ns_per_weight * static_cast<double>(layer.weights) * 1e-3;
}

constexpr double kLongest = 1e6;  // ns per weight: a second for a thousand

std::vector<double> numbers(const io::JsonObject& object, const char* key, double low,
                            double high) {
  std::vector<double> out;
  for (const io::Json& value : object.array(key)) {
    if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high)) {
      throw Error(ErrorKind::environment, key,
                  fmt::format("expected numbers from {} to {}", low, high));
    }
    out.push_back(value.get<double>());
  }
  return out;
}

void require_shape(bool good) {
  if (!good) throw Error(ErrorKind::environment, "calibration", "sizes do not fit each other");
}

CostModel parse(const io::JsonObject& object) {
  CostModel model;
  for (const double m : numbers(object, "tokens", 1, 1e9)) {
    model.tokens.push_back(static_cast<std::int64_t>(m));
  }
  model.densities = numbers(object, "densities", 0, 1);
  model.dense = numbers(object, "dense_ns_per_weight", 1e-9, kLongest);
  for (const io::JsonObject& row : object.objects("sparse")) {
    model.sparse.push_back(numbers(row, "ns_per_weight", 1e-9, kLongest));
    require_shape(model.sparse.back().size() == model.densities.size());
  }
  const auto ascending = [](const auto& v) {
    return !v.empty() && std::adjacent_find(v.begin(), v.end(), std::greater_equal<>()) == v.end();
  };
  require_shape(ascending(model.tokens) && ascending(model.densities));
  require_shape(model.dense.size() == model.tokens.size() &&
                model.sparse.size() == model.tokens.size());
  return model;
}

io::Json to_json(const CostModel& model) {
  io::Json sparse = io::Json::array();
  for (const auto& row : model.sparse) sparse.push_back({{"ns_per_weight", row}});
  return {{"tokens", model.tokens},
          {"densities", model.densities},
          {"dense_ns_per_weight", model.dense},
          {"sparse", sparse}};
}

io::Json read(const fs::path& file) {
  if (file.empty() || !fs::exists(file)) return io::Json::object();
  const io::MappedFile mapped(file);
  return io::parse_json(
      {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()}, file.string());
}

}  // namespace

double CostModel::dense_us(std::int64_t rows, const LayerSize& layer) const {
  return us(at_rows(rows, tokens, dense) * (layer.gated ? 1.0 : 2.0 / 3.0), layer);
}

double CostModel::sparse_us(std::int64_t rows, double density, const LayerSize& layer) const {
  std::vector<double> at_tokens;
  for (const auto& row : sparse) {
    // Without a gate, half of what comes after the first GEMM.
    const double all = at_density(density, densities, row);
    at_tokens.push_back(layer.gated ? all : (all + row.front()) / 2);
  }
  return us(at_rows(rows, tokens, at_tokens), layer);
}

std::string machine_key(CpuTier tier, int threads) {
  return fmt::format("{}, {}, {} threads", processor_name(), name_of(tier), threads);
}

// Measured on two cores of a Zen 5 with AVX-512-BF16, D = 2048, H = 5632. Without BF16 instructions
// PyTorch's dense layers fall behind further than the sparse ones.
CostModel built_in_cost_model(CpuTier tier) {
  CostModel model;
  model.tokens = {1, 8, 64, 512};
  model.densities = {0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0};
  model.dense = {0.100, 0.150, 0.515, 3.55};
  if (screen_limit(tier) > 0) {
    model.sparse = {{0.0060, 0.0080, 0.0112, 0.0222, 0.0300, 0.0414, 0.0689, 0.164},
                    {0.0150, 0.0250, 0.0490, 0.0850, 0.1295, 0.1600, 0.2430, 0.335},
                    {0.0840, 0.1500, 0.2480, 0.3000, 0.4474, 0.5610, 0.6338, 0.830},
                    {0.6500, 1.0300, 1.5300, 2.1000, 2.6000, 3.2500, 3.5000, 4.300}};
    return model;
  }
  // Without the screen.
  model.sparse = {{0.0125, 0.0125, 0.0134, 0.0197, 0.0300, 0.0409, 0.0588, 0.119},
                  {0.0350, 0.0350, 0.0580, 0.0835, 0.1095, 0.1600, 0.2177, 0.308},
                  {0.1474, 0.1717, 0.2480, 0.2950, 0.4474, 0.5610, 0.6338, 0.830},
                  {1.2000, 1.4500, 1.8000, 2.1000, 2.6000, 3.2500, 3.5000, 4.300}};
  if (tier != CpuTier::amx) return model;
  // AMX multiplies about four times as fast where tokens are many and reads memory no faster.
  for (std::size_t t = 2; t < model.tokens.size(); ++t) {
    const double gemm = model.dense[t] * 3 / 4;
    model.dense[t] -= gemm;
    for (double& ns : model.sparse[t]) ns -= gemm / 3;
  }
  return model;
}

CostModel load_cost_model(CpuTier tier, int threads) {
  const fs::path file = calibration_file();
  const std::string key = machine_key(tier, threads);
  try {
    const io::Json document = read(file);
    if (!document.is_object()) throw Error(ErrorKind::environment, "calibration", "no object");
    if (!document.contains(key)) return built_in_cost_model(tier);
    CostModel model = parse(io::JsonObject(document.at(key), file.string(), key));
    model.measured_on = key;
    return model;
  } catch (const Error& error) {
    std::string what = error.what();
    if (const std::string name = file.string() + ": "; what.rfind(name, 0) == 0) {
      what.erase(0, name.size());
    }
    throw Error(ErrorKind::environment, file.string(),
                what + "; run twell calibrate again, or delete the file");
  }
}

void save_cost_model(const CostModel& model) {
  const fs::path file = calibration_file();
  if (file.empty()) {
    throw Error(ErrorKind::environment, "calibration",
                "no cache folder: neither HOME nor XDG_CACHE_HOME is set; name a file in "
                "TWELL_CALIBRATION");
  }
  io::Json document;
  try {
    document = read(file);
  } catch (const Error&) {  // damaged: of no use to anybody
  }
  if (!document.is_object()) document = io::Json::object();
  document[model.measured_on] = to_json(model);
  if (file.has_parent_path()) fs::create_directories(file.parent_path());
  io::write_file_atomically(file, document.dump(1) + "\n");
}

fs::path calibration_file() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (std::getenv("TWELL_CALIBRATION") != nullptr) return variable("TWELL_CALIBRATION");
  fs::path folder = variable("XDG_CACHE_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") / ".cache";
  return folder.empty() ? fs::path() : folder / "twell" / "calibration.json";
}

}  // namespace twell::lm
