// Time and memory of loading. A checkpoint of 256 MB by default; TWELL_LOAD_TEST_MB=1024 measures
// the size that the requirement is stated for.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "engine/generate.h"
#include "tests/decoder/tiny_model.h"

namespace twell::lm {
namespace {

using test::ScratchDirectory;

// A field of /proc/self/status in bytes, for example VmRSS or VmHWM.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

// Of all threads, user and system.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The largest resident memory is counted from here on.
bool reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5";
  clear.flush();
  return clear.good();
}

// A checkpoint of about `megabytes` in bf16, shaped as the paper's models, written tensor by
// tensor.
io::ModelConfig write_checkpoint(const std::filesystem::path& directory, std::int64_t megabytes) {
  io::ModelConfig config;
  config.hidden_size = 2048;
  config.intermediate_size = 5632;
  config.num_attention_heads = config.num_key_value_heads = 32;
  config.head_dim = 64;
  config.vocab_size = 8192;
  config.max_position_embeddings = 2048;
  config.tie_word_embeddings = true;
  config.hidden_act = io::HiddenAct::relu;
  config.dtype = "bfloat16";
  constexpr std::int64_t kLayerBytes = 2 * (4 * 2048 * 2048 + 3 * 2048 * 5632);
  config.num_hidden_layers = std::max<std::int64_t>(1, megabytes * 1000000 / kLayerBytes);
  io::ModelConfig one = config;
  one.num_hidden_layers = 1;
  const auto model = make_model(one, at::kBFloat16, 1);
  std::vector<io::TensorSpec> specs;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : model->parameters()) {
    const auto at = name.find("layers.0.");
    for (std::int64_t i = 0; i < (at == std::string::npos ? 1 : config.num_hidden_layers); ++i) {
      std::string to = name;
      if (at != std::string::npos) {
        to = name.substr(0, at) + "layers." + std::to_string(i) + name.substr(at + 8);
      }
      specs.push_back({to, io::SafeDType::BF16, tensor.sizes().vec()});
      tensors.emplace_back(to, tensor);
    }
  }
  io::CheckpointWriter writer(directory, specs);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.commit();
  io::save_config(directory, config);
  return config;
}

void expect_lean_load(FfnPath path) {
  const char* wanted = std::getenv("TWELL_LOAD_TEST_MB");
  ScratchDirectory directory;
  write_checkpoint(directory.path(), wanted != nullptr ? std::stoll(wanted) : 256);
  const auto weights =
      static_cast<double>(std::filesystem::file_size(directory.path() / "model.safetensors"));
  {
    // Warm: in the page cache, kernels and thread pools initialised.
    const auto once = load_model(directory.string(), {.path = path});
    const std::vector<std::int64_t> prompt = {1, 2, 3};
    generate(*once, {&prompt, 1}, {.max_tokens = 2});
  }
  if (!reset_peak()) GTEST_SKIP() << "the peak of resident memory cannot be reset here";
  const double before = memory("VmRSS");
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  const auto model = load_model(directory.string(), {.path = path});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double cpu = cpu_seconds() - cpu_before;
  const double resident = memory("VmRSS") - before;
  const double peak = memory("VmHWM") - before;
  const std::vector<std::int64_t> prompt = {1, 2, 3};
  generate(*model, {&prompt, 1}, {.max_tokens = 4});
  const double used = memory("VmRSS") - before;
  std::printf(
      "%s: %.0f MB in %.2f s, %.2f s of CPU; resident %.2f, peak %.2f, after use %.2f of the "
      "weights\n",
      name_of(path), weights / 1e6, seconds, cpu, resident / weights, peak / weights,
      used / weights);
  // 2 s a GB on two cores; of CPU, as others may be using the machine.
  EXPECT_LE(cpu, 4.0 * weights / 1e9);
  // 16 MB: activations, the allocator's and OpenMP's own.
  EXPECT_LE(resident, 1.15 * weights + 16e6);
  EXPECT_LE(used, 1.15 * weights + 16e6);
  EXPECT_LT(peak, 1.5 * weights);
  // Screens, which layers make in their first call, are half a gate each: a sixth of an FFN.
  EXPECT_GE(static_cast<double>(model->weight_bytes()), 0.99 * weights);
  EXPECT_LE(static_cast<double>(model->weight_bytes()), 1.13 * weights);
}

TEST(Load, DensePathIsMapped) { expect_lean_load(FfnPath::dense); }
TEST(Load, SparsePathConvertsOnce) { expect_lean_load(FfnPath::sparse); }

}  // namespace
}  // namespace twell::lm
