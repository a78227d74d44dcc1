#include "device/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

class CpuGraph final : public StepGraph {
 public:
  void capture(const std::function<void()>& step) override { step_ = step; }
  void replay() override { step_(); }

 private:
  std::function<void()> step_;
};

class CpuMarker final : public Marker {
 public:
  void set() override {}
  bool reached() override { return true; }
};

// The number after `key` in a file of the system, or its first one; 0 where there is none.
std::int64_t number_in(const char* file, std::string_view key = {}) {
  std::ifstream in(file);
  std::int64_t number = 0;
  for (std::string word; !key.empty() && word != key;) {
    if (!(in >> word)) return 0;
  }
  return in >> number ? number : 0;
}

// Everything is done as it is called.
class CpuRuntime final : public DeviceRuntime {
 public:
  std::string describe() const override { return "cpu"; }
  void synchronize() override {}
  std::unique_ptr<StepGraph> make_graph() override { return std::make_unique<CpuGraph>(); }
  std::unique_ptr<Marker> make_marker() override { return std::make_unique<CpuMarker>(); }
  bool capturing() const override { return false; }
  at::Tensor host_buffer(std::int64_t elements, at::ScalarType dtype) override {
    return at::zeros({elements}, at::TensorOptions(dtype));
  }
  std::int64_t peak_bytes() override { return 0; }
  void reset_peak_bytes() override {}
  std::int64_t free_bytes() override {
    std::int64_t free = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    // A container's own limit, of both versions, where it has one ("max" reads as 0). File pages
    // that nobody uses count as used there, but are given up.
    const auto limited = [&free](const char* most, const char* now, const char* stat,
                                 const char* pages) {
      const std::int64_t limit = number_in(most);
      if (limit <= 0) return;
      const std::int64_t used = number_in(now) - number_in(stat, pages);
      free = std::min(free, std::max<std::int64_t>(1, limit - used));
    };
    limited("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
            "/sys/fs/cgroup/memory.stat", "inactive_file");
    limited("/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
            "total_inactive_file");
    return free;
  }
  std::string uuid() const override { return {}; }
  bool is_cpu() const override { return true; }
};

[[noreturn]] void fail(std::string_view device, const std::string& message) {
  throw Error(ErrorKind::unsupported, fmt::format("device {}", device), message);
}

// The directory of a library that this process has loaded, or an empty path.
fs::path directory_of(std::string_view library) {
  struct Search {
    std::string_view name;
    fs::path found;
  } search{library, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const fs::path path(info->dlpi_name);
        if (path.filename() != wanted.name) return 0;
        wanted.found = path.parent_path();
        return 1;
      },
      &search);
  return search.found;
}

void* load(std::string_view device, const fs::path& file, const char* without) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle != nullptr) return handle;
  const char* why = dlerror();
  fail(device, fmt::format("{} ({})", without, why == nullptr ? file.string() : why));
}

// twell's library of this name: beside libtwell_torch.so, or where the variable says.
fs::path own_library(const char* variable, const char* name) {
  const char* named = std::getenv(variable);
  if (named != nullptr && *named != '\0') return named;
  return directory_of("libtwell_torch.so") / name;
}

CudaRuntimeFactory load_cuda(std::string_view device) {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
    fail(device,
         "no NVIDIA GPU is visible; the driver's libcuda.so.1 is not installed. Use --device cpu");
  }
  load(device, directory_of("libtorch_cpu.so") / "libtorch_cuda.so",
       "this PyTorch is built without CUDA; install one with CUDA, or use --device cpu");
  constexpr const char* kNotBuilt =
      "twell is built without its CUDA libraries; build it where nvcc is (-DTWELL_CUDA=ON), or use "
      "--device cpu";
  load(device, own_library("TWELL_TORCH_CUDA_LIBRARY", "libtwell_torch_cuda.so"), kNotBuilt);
  void* own = load(device, own_library("TWELL_LM_CUDA_LIBRARY", "libtwell_lm_cuda.so"), kNotBuilt);
  void* factory = dlsym(own, kCudaRuntimeSymbol);
  if (factory == nullptr) fail(device, kNotBuilt);
  return reinterpret_cast<CudaRuntimeFactory>(factory);  // NOLINT: as POSIX has it
}

std::map<int, DeviceRuntime*>& opened() {
  static std::map<int, DeviceRuntime*> devices;  // by ordinal; they live as long as the process
  return devices;
}
std::mutex& opened_mutex() {
  static std::mutex mutex;
  return mutex;
}

int ordinal_of(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda";
  int ordinal = 0;
  std::string_view rest = name;
  if (rest.substr(0, kPrefix.size()) == kPrefix) {
    rest.remove_prefix(kPrefix.size());
    if (rest.empty()) return 0;
    if (rest[0] == ':') {
      rest.remove_prefix(1);
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), ordinal);
      if (error == std::errc() && end == rest.data() + rest.size() && ordinal >= 0 &&
          ordinal < 128) {
        return ordinal;
      }
    }
  }
  throw Error(ErrorKind::invalid_argument, "device",
              fmt::format("expected cpu, cuda or cuda:N, got '{}'", name));
}

}  // namespace

at::Device open_device(std::string_view name) {
  if (name == "cpu") return at::kCPU;
  const int ordinal = ordinal_of(name);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(ordinal));
  const std::lock_guard lock(opened_mutex());
  if (opened().count(ordinal) != 0) return device;
  const CudaRuntimeFactory factory = load_cuda(name);
  if (!at::detail::getCUDAHooks().hasCUDART()) {  // a stub, which also counts no GPUs
    fail(name, "PyTorch was used before its CUDA half was loaded; call open_device() first");
  }
  const int count = at::detail::getCUDAHooks().getNumGPUs();
  if (count < 1) {
    fail(name,
         "no NVIDIA GPU is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device "
         "cpu");
  }
  if (ordinal >= count) {
    fail(name, fmt::format("expected cuda:0 to cuda:{}, as many GPUs are visible", count - 1));
  }
  opened()[ordinal] = factory(ordinal);
  return device;
}

DeviceRuntime& runtime_of(at::Device device) {
  static CpuRuntime cpu;
  if (!device.is_cuda()) return cpu;
  const std::lock_guard lock(opened_mutex());
  const auto found = opened().find(device.has_index() ? device.index() : 0);
  if (found == opened().end()) fail(device.str(), "was not opened; call open_device() first");
  return *found->second;
}

}  // namespace twell::lm
