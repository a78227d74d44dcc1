#include "core/cpu_quota.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace twell {
namespace {

namespace fs = std::filesystem;

// cpu_quota() of a system with these files.
std::optional<double> quota_of(const std::map<std::string, std::string>& files) {
  const fs::path root = fs::path(testing::TempDir()) / "cpu_quota";
  fs::remove_all(root);
  for (const auto& [path, text] : files) {
    const fs::path file = root / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const auto quota = cpu_quota(root.string());
  fs::remove_all(root);
  return quota;
}

constexpr const char* kGroups = "proc/self/cgroup";

TEST(CpuQuota, OfVersion2) {
  EXPECT_EQ(quota_of({{kGroups, "0::/\n"}, {"sys/fs/cgroup/cpu.max", "150000 100000\n"}}), 1.5);
  EXPECT_EQ(quota_of({{kGroups, "0::/\n"}, {"sys/fs/cgroup/cpu.max", "max 100000\n"}}),
            std::nullopt);
  EXPECT_EQ(quota_of({{kGroups, "0::/a/b\n"}, {"sys/fs/cgroup/a/b/cpu.max", "50000 100000\n"}}),
            0.5);
}

TEST(CpuQuota, TheLeastOfTheGroupsAround) {
  EXPECT_EQ(quota_of({{kGroups, "0::/a/b/c\n"},
                      {"sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
                      {"sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"},
                      {"sys/fs/cgroup/a/cpu.max", "300000 100000\n"},
                      {"sys/fs/cgroup/other/cpu.max", "100000 100000\n"}}),
            3.0);
}

TEST(CpuQuota, OfVersion1) {
  const std::string groups = "5:memory:/m\n3:cpu,cpuacct:/a\n1:cpuset:/\n0::/x\n";
  EXPECT_EQ(quota_of({{kGroups, groups},
                      {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n"},
                      {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"},
                      {"sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "100000\n"},
                      {"sys/fs/cgroup/memory/m/cpu.cfs_period_us", "100000\n"}}),
            2.0);
  EXPECT_EQ(quota_of({{kGroups, groups},
                      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}),
            std::nullopt);
}

// As within a container: the path is the host's, the folder the container's own.
TEST(CpuQuota, OfAPathThatIsNotHere) {
  EXPECT_EQ(
      quota_of({{kGroups, "0::/docker/1234\n"}, {"sys/fs/cgroup/cpu.max", "400000 100000\n"}}),
      4.0);
}

TEST(CpuQuota, NoneWhereNothingSaysSo) {
  EXPECT_EQ(quota_of({}), std::nullopt);
  EXPECT_EQ(quota_of({{kGroups, "nonsense\n::\n0::\n"}, {"sys/fs/cgroup/cpu.max", "x y\n"}}),
            std::nullopt);
  EXPECT_EQ(quota_of({{kGroups, "0::/\n"}, {"sys/fs/cgroup/cpu.max", "100000 0\n"}}), std::nullopt);
}

}  // namespace
}  // namespace twell
