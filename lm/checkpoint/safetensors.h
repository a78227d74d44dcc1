// The safetensors format: u64 little-endian header length, JSON header, tensor bytes.
// Source of the rules: https://github.com/huggingface/safetensors (README "Format"). Accepts and
// refuses the same files as the `safetensors` package, but also refuses duplicate keys and a header
// whose first byte is not '{' (which the format forbids and the package lets pass).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "files/atomic_file.h"
#include "files/mapped_file.h"

namespace twell::io {

// In the order in which the `safetensors` package sorts tensors, last first.
enum class SafeDType : std::uint8_t {
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  F64,
  I64,
  U64,
};

std::size_t size_of(SafeDType dtype);         // bytes
const char* name_of(SafeDType dtype);         // "BF16"
SafeDType safe_dtype(std::string_view name);  // throws Error (invalid_argument) where unknown

struct TensorInfo {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<std::int64_t> shape;  // row-major; [] is a scalar; a 0 makes it empty
  std::uint64_t begin = 0;          // byte offsets in the file, end exclusive
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  std::int64_t elements() const;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// What the header of a file says, all of it checked against the file's length.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;
  std::uint64_t data_begin = 0;
};

// `file` is the whole file, `name` its name in messages. Throws Error (environment) naming the
// file, the tensor and the cause.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name);

// A file opened for reading: mapped, never copied. 8-byte alignment of tensors is usual, but not
// promised by the format: use memcpy or an unaligned load for wider elements.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const TensorInfo* find(const std::string& name) const;  // null where absent
  const std::byte* data(const TensorInfo& tensor) const { return file_.data() + tensor.begin; }
  void drop_pages(const TensorInfo& tensor) const {
    file_.drop_pages(tensor.begin, tensor.bytes());
  }
  const MappedFile& file() const { return file_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

// A tensor to be written. `begin` and `end` of its info are ignored.
struct TensorSpec {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;  // throws Error (invalid_argument) on a negative or huge shape
};
struct TensorData : TensorSpec {
  const void* data = nullptr;  // bytes() bytes, row-major
};

// Writes one file, tensor by tensor and in any order, so that only one tensor need be in memory at
// a time. Bytes are laid out as the `safetensors` package does: wider types first, then by name.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const SafetensorsMetadata& metadata = {});

  // The whole tensor at once; exactly its number of bytes.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Throws Error (invalid_argument) where a tensor has not been written.
  void commit();

 private:
  struct Slot {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool written = false;
  };
  AtomicFile file_;
  std::unordered_map<std::string, Slot> slots_;
  std::uint64_t data_begin_ = 0;
};

void save_safetensors(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                      const SafetensorsMetadata& metadata = {{"format", "pt"}});

}  // namespace twell::io
