// Writes a GGUF file of version 3: metadata in the order of the calls, then tensors one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/atomic_file.h"
#include "gguf/block_types.h"
#include "gguf/metadata.h"

namespace twell::io {

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    BlockType type = BlockType::f32;
    std::vector<std::int64_t> shape;  // row-major
  };

  // Whole numbers are u32, as llama.cpp's keys have them, numbers f32.
  void put(const std::string& key, std::uint32_t value);
  void put(const std::string& key, float value);
  void put(const std::string& key, bool value);
  void put(const std::string& key, std::string_view value);
  void put(const std::string& key, const std::vector<std::string>& values);
  void put(const std::string& key, const std::vector<std::int32_t>& values);
  void put(const std::string& key, const std::vector<float>& values);
  // Without this a string literal would be a bool.
  void put(const std::string& key, const char* value) { put(key, std::string_view(value)); }

  // All of them, before the first is written; their data lies in this order.
  void announce(std::vector<Tensor> tensors) { tensors_ = std::move(tensors); }
  // Makes the file, which appears whole or not at all. `write` is called for each tensor in order
  // and appends its bytes.
  template <class Write>
  void save(const std::filesystem::path& path, const Write& write) const {
    AtomicFile file(path);
    file.write(header());
    for (const Tensor& tensor : tensors_) {
      write(tensor, file);
      pad(file);
    }
    file.commit();
  }

 private:
  void begin(const std::string& key, GgufKind kind);
  void begin_array(const std::string& key, GgufKind element, std::size_t count);
  std::string header() const;
  static void pad(AtomicFile& file);

  std::string metadata_;
  std::uint64_t values_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace twell::io
