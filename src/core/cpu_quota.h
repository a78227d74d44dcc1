// How much processor time the system grants, which a container sees of nothing else: it has all
// cores of the machine, and a quota.
#pragma once

#include <optional>
#include <string>

namespace twell {

// Cores' worth of time, of the control groups (cgroup v1 or v2) that the process is in: the least
// of its own and of those around it. None where nothing bounds it. `root`: of the file system.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace twell
