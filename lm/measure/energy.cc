#include "measure/energy.h"

#include <filesystem>
#include <fstream>

namespace twell::lm {
namespace {

std::optional<double> read_number(const std::string& file) {
  std::ifstream in(file);
  double value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

}  // namespace

EnergyMeter::EnergyMeter(const std::string& root) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    // Packages are intel-rapl:0, :1, ...; with a second colon come their parts.
    const std::string name = entry.path().filename().string();
    if (name.rfind("intel-rapl:", 0) != 0 || name.find(':') != name.rfind(':')) continue;
    const std::string file = (entry.path() / "energy_uj").string();
    const auto range = read_number((entry.path() / "max_energy_range_uj").string());
    if (read_number(file) && range) packages_.push_back({file, *range});
  }
}

void EnergyMeter::start() {
  for (Package& package : packages_) package.begin_uj = read_number(package.file).value_or(0);
}

std::optional<double> EnergyMeter::joules() const {
  if (packages_.empty()) return std::nullopt;
  double sum = 0;
  for (const Package& package : packages_) {
    const auto now = read_number(package.file);
    if (!now) return std::nullopt;
    const double used = *now - package.begin_uj;
    sum += used < 0 ? used + package.range_uj : used;
  }
  return sum / 1e6;
}

}  // namespace twell::lm
