// Energy of the processor packages, where the machine reports it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace twell::lm {

// Reads the RAPL counters of Linux (/sys/class/powercap/intel-rapl:N, also on AMD). Most systems
// let only root read them, virtual machines seldom have them.
class EnergyMeter {
 public:
  explicit EnergyMeter(const std::string& root = "/sys/class/powercap");
  bool available() const { return !packages_.empty(); }
  // Joules of all packages since the last call of start(); none where not available.
  void start();
  std::optional<double> joules() const;

 private:
  struct Package {
    std::string file;
    double range_uj;  // the counter wraps here
    double begin_uj = 0;
  };
  std::vector<Package> packages_;
};

}  // namespace twell::lm
