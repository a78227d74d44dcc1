#include "device/calibration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/json_reader.h"
#include "files/mapped_file.h"
#include "files/note.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

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
  if (file.empty() || !fs::exists(file) || fs::is_empty(file)) return io::Json::object();
  const io::MappedFile mapped(file);
  return io::parse_json(
      {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()}, file.string());
}

}  // namespace

std::string machine_key(CpuTier tier, int threads) {
  return fmt::format("{}, {}, {} threads", processor_name(), name_of(tier), threads);
}

namespace {

// The figures by machine. Throws Error where the file is no calibration, or damaged.
std::map<std::string, CostModel> read_all(const fs::path& file) {
  try {
    const io::Json document = read(file);
    if (!document.is_object()) throw Error(ErrorKind::environment, "calibration", "no object");
    std::map<std::string, CostModel> out;
    for (const auto& [key, value] : document.items()) {
      out[key] = parse(io::JsonObject(value, file.string(), key));
      out[key].measured_on = key;
    }
    return out;
  } catch (const Error& error) {
    std::string what = error.what();
    if (const std::string name = file.string() + ": "; what.rfind(name, 0) == 0) {
      what.erase(0, name.size());
    }
    throw Error(ErrorKind::environment, file.string(),
                what + "; if it is a calibration, delete it and run twell calibrate again");
  }
}

}  // namespace

CostModel load_cost_model(CpuTier tier, int threads) {
  const fs::path file = calibration_file();
  // That of another user, perhaps: models run without one.
  if (!file.empty() && ::access(file.c_str(), R_OK) != 0 && errno != ENOENT && errno != ENOTDIR) {
    io::note(fmt::format("{}: cannot be read: {}; built-in figures take its place", file.string(),
                         io::system_reason(errno)));
    return built_in_cost_model(tier);
  }
  const auto all = read_all(file);
  const auto found = all.find(machine_key(tier, threads));
  return found == all.end() ? built_in_cost_model(tier) : found->second;
}

void check_calibration_file() {
  const fs::path file = calibration_file();
  if (file.empty()) {
    throw Error(ErrorKind::environment, "calibration",
                "no cache folder: neither HOME nor XDG_CACHE_HOME is set; name a file in "
                "TWELL_CALIBRATION");
  }
  std::error_code error;
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
  if (error) {
    throw Error(ErrorKind::environment, file.parent_path().string(),
                "cannot be made, for the calibration: " + io::system_reason(error.value()));
  }
  read_all(file);
  const io::AtomicFile probe(file);
}

void save_cost_model(const CostModel& model) {
  check_calibration_file();
  const fs::path file = calibration_file();
  io::Json document = read(file);
  document[model.measured_on] = to_json(model);
  io::write_file_atomically(file, document.dump(1) + "\n");
}

bool built_in_figures_are_scaled() {
  const char* value = std::getenv("TWELL_CALIBRATION");
  return value == nullptr || *value != '\0';
}

fs::path calibration_file() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (std::getenv("TWELL_CALIBRATION") != nullptr) return variable("TWELL_CALIBRATION");
  // Relative ones do not count: they would name another place in every folder.
  fs::path folder = variable("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {
    folder = variable("HOME").is_absolute() ? variable("HOME") / ".cache" : fs::path();
  }
  return folder.empty() ? fs::path() : folder / "twell" / "calibration.json";
}

}  // namespace twell::lm
