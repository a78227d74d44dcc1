#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace twell {
namespace {

// v2: "MAX PERIOD" or "max PERIOD" in microseconds; v1 has a file for each, and -1 for none.
std::optional<double> ratio(std::istream& quota, std::istream& period) {
  double used = 0, of = 0;
  if (!(quota >> used) || !(period >> of) || used <= 0 || of <= 0) return {};
  return used / of;
}

std::optional<double> quota_in(const std::string& folder) {
  if (std::ifstream both(folder + "/cpu.max"); both) return ratio(both, both);
  std::ifstream quota(folder + "/cpu.cfs_quota_us"), period(folder + "/cpu.cfs_period_us");
  return ratio(quota, period);
}

// Of the group at `path` below `base`, "/a/b", and of those around it. Within a container a path
// may be the host's, of which there are no folders here.
std::optional<double> least_quota(const std::string& base, std::string path) {
  std::optional<double> least;
  for (;;) {
    if (const auto quota = quota_in(base + path)) least = std::min(least.value_or(*quota), *quota);
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  // "ID:CONTROLLERS:/PATH"; v2 is 0 and has none.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
    bool bounds_cpu = controllers.empty();
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) bounds_cpu |= name == "cpu";
    if (!bounds_cpu) continue;
    // v1 is mounted under its controllers' names, v2 at the top or, beside v1, under "unified".
    const std::string top = root + "/sys/fs/cgroup/";
    const bool v2 = controllers.empty();
    for (const char* folder : {v2 ? "." : controllers.c_str(), v2 ? "unified" : "cpu"}) {
      const std::string base = top + folder;
      if (const auto quota = least_quota(base, path)) {
        least = std::min(least.value_or(*quota), *quota);
      }
    }
  }
  return least;
}

}  // namespace twell
