// What is read from files, by the first byte: a calibration, the index of a checkpoint in several
// files, or a vocab.json (a zero byte, then its merges.txt). Any bytes are one, or a twell::Error.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/checkpoint.h"
#include "device/calibration.h"
#include "tokenizer/tokenizer.h"
#include "twell/status.h"

namespace fs = std::filesystem;

namespace {

// In memory, where there is such a file system.
fs::path scratch() {
  const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  fs::path out = base / ("twell-fuzz-" + std::to_string(::getpid()));
  fs::create_directories(out);
  ::setenv("TWELL_CALIBRATION", (out / "calibration.json").c_str(), 1);
  // A file that indices can name: one tensor "a" of one byte.
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::ofstream file(out / "a.safetensors", std::ios::binary);
  const std::uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << '\1';
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fs::path directory = scratch();
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto write = [](const char* name, std::string_view bytes) {
    std::ofstream(directory / name, std::ios::binary) << bytes;
    return directory / name;
  };
  try {
    if (data[0] % 3 == 0) {
      write("calibration.json", input);
      const auto cost = twell::lm::load_cost_model(twell::CpuTier::portable, 1);
      const twell::FfnShape shape = {64, 64, true, twell::DType::f32};
      if (!(cost.dense_us(7, shape) > 0 && cost.sparse_us(7, 0.3, shape) > 0)) std::abort();
    } else if (data[0] % 3 == 1) {
      write("model.safetensors.index.json", input);
      if (twell::io::Checkpoint(directory).names() != std::vector<std::string>{"a"}) std::abort();
    } else {
      const std::size_t zero = std::min(input.find('\0'), input.size());
      write("merges.txt", input.substr(std::min(zero + 1, input.size())));
      const auto tokenizer = twell::io::Tokenizer::load(write("vocab.json", input.substr(0, zero)));
      for (const auto id : tokenizer.encode("ab 12 é\n")) {
        if (!tokenizer.id_to_token(id)) std::abort();
      }
    }
  } catch (const twell::Error&) {
  }
  return 0;
}
