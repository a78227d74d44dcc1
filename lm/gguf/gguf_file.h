// GGUF, the files of llama.cpp: "GGUF", a version, metadata, a list of tensors, their data. Source
// of the rules: https://github.com/ggml-org/ggml, docs/gguf.md. Read are versions 2 and 3 in
// little-endian order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "files/mapped_file.h"
#include "gguf/block_types.h"
#include "gguf/metadata.h"

namespace twell::io {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr std::uint64_t kGgufAlignment = 32;  // of data, where the file names none

struct GgufTensor {
  std::string name;
  BlockType type = BlockType::f32;
  std::vector<std::int64_t> shape;  // row-major, as in safetensors: [rows, columns]
  std::uint64_t begin = 0;          // byte offsets in the file, end exclusive
  std::uint64_t end = 0;

  std::int64_t columns() const { return shape.back(); }
  std::int64_t rows() const;
  std::uint64_t row_bytes() const;
};

struct GgufHeader {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the order of the file
};

// `file` is the whole file and stays where it is, `name` its name in messages. All of the header is
// checked against the file's length, and memory grows with what the file really holds. Throws Error
// naming the file, the key or tensor, and the cause: environment where the file is damaged,
// unsupported where it is legal but not read here.
GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& name);

// Mapped, never copied. Tensors are aligned as the file says, at least to 4 bytes.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  const GgufMetadata& metadata() const { return header_.metadata; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }
  const GgufTensor* find(const std::string& name) const;  // null where absent
  const std::byte* data(const GgufTensor& tensor) const { return file_.data() + tensor.begin; }
  void drop_pages(const GgufTensor& tensor) const {
    file_.drop_pages(tensor.begin, tensor.end - tensor.begin);
  }
  std::string name() const { return file_.path().string(); }

 private:
  MappedFile file_;
  GgufHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

// Whether a path names a GGUF file: one that begins as such, or is not there and ends in ".gguf".
bool is_gguf(const std::filesystem::path& path);

}  // namespace twell::io
