// The header, read tensor by tensor and without building the whole document, so that a hostile one
// of 100 MB costs little more memory than what it names.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "checkpoint/safetensors.h"
#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

// The cap of the `safetensors` package.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeName {
  SafeDType dtype;
  const char* name;
  std::size_t bytes;
};
constexpr std::array<DTypeName, 15> kDTypes = {{
    {SafeDType::BOOL, "BOOL", 1},
    {SafeDType::U8, "U8", 1},
    {SafeDType::I8, "I8", 1},
    {SafeDType::F8_E5M2, "F8_E5M2", 1},
    {SafeDType::F8_E4M3, "F8_E4M3", 1},
    {SafeDType::I16, "I16", 2},
    {SafeDType::U16, "U16", 2},
    {SafeDType::F16, "F16", 2},
    {SafeDType::BF16, "BF16", 2},
    {SafeDType::I32, "I32", 4},
    {SafeDType::U32, "U32", 4},
    {SafeDType::F32, "F32", 4},
    {SafeDType::F64, "F64", 8},
    {SafeDType::I64, "I64", 8},
    {SafeDType::U64, "U64", 8},
}};

std::optional<SafeDType> find_dtype(std::string_view name) {
  for (const auto& entry : kDTypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

std::vector<std::uint64_t> whole_numbers(const JsonObject& tensor, const char* key) {
  std::vector<std::uint64_t> out;
  for (const Json& value : tensor.array(key)) {
    if (!value.is_number_unsigned()) {
      fail_file(tensor.file(), "{} holds {}, expected whole numbers", tensor.path_of(key),
                value.is_number_integer() ? "a negative number" : kind_of(value));
    }
    out.push_back(value.get<std::uint64_t>());
  }
  return out;
}

TensorInfo read_tensor(const std::string& name, const Json& json, const std::string& file) {
  const std::string tensor = "tensor " + in_quotes(name);
  const JsonObject fields(json, file, tensor);
  const std::string dtype = fields.string("dtype");
  const auto known = find_dtype(dtype);
  if (!known) fail_file(file, "{}: unknown dtype {}", tensor, in_quotes(dtype));
  TensorInfo out{name, *known, {}};
  for (const std::uint64_t dimension : whole_numbers(fields, "shape")) {
    if (dimension > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail_file(file, "{}: dimension {} is too large", tensor, dimension);
    }
    out.shape.push_back(static_cast<std::int64_t>(dimension));
  }
  const auto offsets = whole_numbers(fields, "data_offsets");
  if (offsets.size() != 2) {
    fail_file(file, "{}: data_offsets must be two numbers, got {}", tensor, offsets.size());
  }
  out.begin = offsets[0];
  out.end = offsets[1];
  return out;
}

// Takes the entries of a header out of the document as they come:
//   {"__metadata__": {key: string, ...}, name: {"dtype": .., "shape": [..], "data_offsets": [..]}}
// What else a tensor holds never enters it.
class HeaderVisitor {
 public:
  HeaderVisitor(SafetensorsHeader& out, const std::string& file) : out_(out), file_(file) {}

  bool operator()(int depth, JsonEvent event, const Json& value) {
    if (depth == 0) return true;
    if (depth == 1) return entry(event, value);
    return name_ == kMetadataKey ? metadata(event, value) : field(depth, event, value);
  }

 private:
  bool entry(JsonEvent event, const Json& value) {
    const bool metadata = name_ == kMetadataKey;
    switch (event) {
      case JsonEvent::key:
        name_ = value;
        fields_.clear();
        values_ = 0;
        return true;
      case JsonEvent::object_start:
        return true;
      case JsonEvent::object_end:
        if (!metadata) out_.tensors.push_back(read_tensor(name_, value, file_));
        return false;
      default:
        if (metadata && value.is_null()) return true;
        fail_file(file_, "{} {} is {}, expected an object", metadata ? "key" : "tensor",
                  in_quotes(name_), kind_of(value));
    }
  }

  bool metadata(JsonEvent event, const Json& value) {
    if (event == JsonEvent::key) {
      key_ = value;
      return false;
    }
    if (!value.is_string()) {
      fail_file(file_, "{} must map names to strings, got {}", kMetadataKey, kind_of(value));
    }
    if (!out_.metadata.emplace(key_, value).second) duplicate(kMetadataKey);
    return true;
  }

  bool field(int depth, JsonEvent event, const Json& value) {
    if (event == JsonEvent::key) {
      if (depth > 2) return false;
      key_ = value;
      kept_ = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
      if (kept_ && !fields_.insert(key_).second) duplicate("tensor " + in_quotes(name_));
      return kept_;
    }
    if (kept_ && ++values_ > kMostValues) {
      fail_file(file_, "tensor {}: more than {} values", in_quotes(name_), kMostValues);
    }
    return true;
  }

  [[noreturn]] void duplicate(std::string_view where) {
    fail_file(file_, "duplicate key {} in {}", in_quotes(key_), where);
  }

  static constexpr int kMostValues = 100;  // of a tensor; it has few dimensions

  SafetensorsHeader& out_;
  const std::string& file_;
  std::string name_, key_;        // of the entry, and in it
  std::set<std::string> fields_;  // of the tensor
  bool kept_ = false;             // the field
  int values_ = 0;                // in the tensor's fields
};

// Every byte behind the header belongs to exactly one tensor, which has exactly the length that
// its shape asks for.
void check_layout(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes,
                  const std::string& file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (const auto& tensor : tensors) {
    const std::string name = in_quotes(tensor.name);
    if (tensor.end < tensor.begin || tensor.end > data_bytes) {
      fail_file(file, "tensor {}: data_offsets [{}, {}] leave the {} bytes of data", name,
                tensor.begin, tensor.end, data_bytes);
    }
    if (tensor.begin != expected) {
      fail_file(file, "tensor {}: begins at data byte {}, expected {} ({} in the data)", name,
                tensor.begin, expected, tensor.begin < expected ? "overlap" : "gap");
    }
    std::uint64_t bytes = size_of(tensor.dtype);
    for (const std::int64_t dimension : tensor.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
        fail_file(file, "tensor {}: its shape overflows 64 bits", name);
      }
    }
    if (bytes != tensor.end - tensor.begin) {
      fail_file(file, "tensor {}: dtype {} and shape {} need {} bytes, data_offsets give {}", name,
                name_of(tensor.dtype), in_brackets(tensor.shape), bytes, tensor.end - tensor.begin);
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    fail_file(file, "{} bytes of data, but the tensors cover {}: truncated or trailing bytes",
              data_bytes, expected);
  }
}

}  // namespace

std::size_t size_of(SafeDType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)).bytes; }

const char* name_of(SafeDType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)).name; }

SafeDType safe_dtype(std::string_view name) {
  const auto dtype = find_dtype(name);
  if (!dtype) fail_argument("safe_dtype", "unknown dtype {}", in_quotes(name));
  return *dtype;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kLengthBytes) {
    fail_file(name, "has {} bytes, too few for a safetensors file", file.size());
  }
  refuse_lfs_pointer({reinterpret_cast<const char*>(file.data()), file.size()}, name);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    header_bytes = (header_bytes << 8) | std::to_integer<std::uint64_t>(file[i]);
  }
  if (header_bytes > kMaxHeaderBytes) {
    fail_file(name, "claims a header of {} bytes, more than {}: not a safetensors file?",
              header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > file.size() - kLengthBytes) {
    fail_file(name, "claims a header of {} bytes, but has {} in all: truncated?", header_bytes,
              file.size());
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              header_bytes);
  if (!json.starts_with('{')) fail_file(name, "the header does not begin with '{{'");
  SafetensorsHeader out;
  out.data_begin = kLengthBytes + header_bytes;
  parse_json(json, name + ": header", HeaderVisitor(out, name));
  check_layout(out.tensors, file.size() - out.data_begin, name);
  for (auto& tensor : out.tensors) {
    tensor.begin += out.data_begin;
    tensor.end += out.data_begin;
  }
  return out;
}

}  // namespace twell::io
