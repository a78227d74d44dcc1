// The header, read without building a document: a hostile one of 100 MB costs no more memory than
// its own size.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "io/file_error.h"
#include "io/safetensors.h"

namespace twell::io {
namespace {

using Json = nlohmann::json;

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

// Follows the only structure that a header may have:
//   {"__metadata__": {key: string, ...}, name: {"dtype": .., "shape": [..], "data_offsets": [..]}}
// Unknown keys inside a tensor are skipped, as the package does.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(SafetensorsHeader& out, const std::string& file) : out_(out), file_(file) {}

  bool null() override {
    // "__metadata__": null means none.
    if (state_ == State::metadata_value) {
      state_ = State::top;
      return true;
    }
    return scalar("null");
  }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_float(double, const std::string&) override { return scalar("a fraction"); }
  bool binary(Json::binary_t&) override { return scalar("binary"); }
  bool number_integer(std::int64_t value) override {
    if (state_ == State::shape || state_ == State::offsets) {
      fail_file(file_, "tensor {}: negative number {} in {}", tensor(), value, field());
    }
    return scalar("a number");
  }
  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail_file(file_, "tensor {}: dimension {} is too large", tensor(), value);
      }
      current_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (offsets_ >= 2) fail_file(file_, "tensor {}: more than two data_offsets", tensor());
      (offsets_++ == 0 ? current_.begin : current_.end) = value;
      return true;
    }
    return scalar("a number");
  }
  bool string(std::string& value) override {
    if (state_ == State::metadata) {
      if (!out_.metadata.emplace(key_, value).second) duplicate(key_, "__metadata__");
      return true;
    }
    if (state_ == State::dtype_value) {
      const auto dtype = find_dtype(value);
      if (!dtype) fail_file(file_, "tensor {}: unknown dtype {}", tensor(), in_quotes(value));
      current_.dtype = *dtype;
      state_ = State::tensor;
      return true;
    }
    return scalar("a string");
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::begin:
        state_ = State::top;
        return true;
      case State::metadata_value:
        state_ = State::metadata;
        return true;
      case State::tensor_value:
        state_ = State::tensor;
        return true;
      default:
        return open("an object");
    }
  }
  bool end_object() override {
    switch (state_) {
      case State::top:
        state_ = State::end;
        return true;
      case State::metadata:
        state_ = State::top;
        return true;
      case State::tensor:
        finish_tensor();
        state_ = State::top;
        return true;
      default:
        return close();
    }
  }
  bool start_array(std::size_t) override {
    if (state_ == State::shape_value) {
      state_ = State::shape;
      return true;
    }
    if (state_ == State::offsets_value) {
      state_ = State::offsets;
      return true;
    }
    return open("an array");
  }
  bool end_array() override {
    if (state_ == State::shape || state_ == State::offsets) {
      state_ = State::tensor;
      return true;
    }
    return close();
  }

  bool key(std::string& name) override {
    switch (state_) {
      case State::top:
        if (!names_.insert(name).second) duplicate(name, "header");
        key_ = name;
        if (name == kMetadataKey) {
          state_ = State::metadata_value;
        } else {
          current_ = TensorInfo{};
          current_.name = name;
          seen_dtype_ = seen_shape_ = seen_offsets_ = false;
          offsets_ = 0;
          state_ = State::tensor_value;
        }
        return true;
      case State::metadata:
        key_ = name;
        return true;
      case State::tensor:
        if (name == "dtype") return field_key(seen_dtype_, name, State::dtype_value);
        if (name == "shape") return field_key(seen_shape_, name, State::shape_value);
        if (name == "data_offsets") return field_key(seen_offsets_, name, State::offsets_value);
        state_ = State::skip;
        skip_depth_ = 0;
        return true;
      default:
        return true;  // inside a skipped value
    }
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    fail_file(file_, "the header is not valid JSON at its byte {}", position);
  }

 private:
  enum class State {
    begin,
    top,
    metadata_value,
    metadata,
    tensor_value,
    tensor,
    dtype_value,
    shape_value,
    shape,
    offsets_value,
    offsets,
    skip,
    end,
  };

  std::string tensor() const { return in_quotes(current_.name); }
  const char* field() const {
    switch (state_) {
      case State::dtype_value:
        return "dtype";
      case State::shape_value:
      case State::shape:
        return "shape";
      case State::offsets_value:
      case State::offsets:
        return "data_offsets";
      default:
        return "";
    }
  }

  bool field_key(bool& seen, const std::string& name, State next) {
    if (seen) duplicate(name, "tensor " + tensor());
    seen = true;
    state_ = next;
    return true;
  }

  // A value where none of its kind belongs.
  [[noreturn]] void unexpected(const char* what) {
    if (state_ == State::begin) fail_file(file_, "the header is {}, expected an object", what);
    if (state_ == State::metadata_value || state_ == State::metadata) {
      fail_file(file_, "__metadata__ must map names to strings, got {}", what);
    }
    if (state_ == State::tensor_value) {
      fail_file(file_, "tensor {} is {}, expected an object", tensor(), what);
    }
    fail_file(file_, "tensor {}: unexpected {} in {}", tensor(), what, field());
  }
  [[noreturn]] void duplicate(const std::string& name, const std::string& where) {
    fail_file(file_, "duplicate key {} in {}", in_quotes(name), where);
  }

  bool scalar(const char* what) {
    if (state_ != State::skip) unexpected(what);
    if (skip_depth_ == 0) state_ = State::tensor;
    return true;
  }
  bool open(const char* what) {
    if (state_ != State::skip) unexpected(what);
    ++skip_depth_;
    return true;
  }
  bool close() {
    if (--skip_depth_ == 0) state_ = State::tensor;
    return true;
  }

  void finish_tensor() {
    if (!seen_dtype_) fail_file(file_, "tensor {}: no dtype", tensor());
    if (!seen_shape_) fail_file(file_, "tensor {}: no shape", tensor());
    if (!seen_offsets_ || offsets_ != 2) {
      fail_file(file_, "tensor {}: data_offsets must be two numbers", tensor());
    }
    out_.tensors.push_back(std::move(current_));
  }

  SafetensorsHeader& out_;
  const std::string& file_;
  State state_ = State::begin;
  std::string key_;
  TensorInfo current_;
  int offsets_ = 0;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  std::uint64_t skip_depth_ = 0;
  std::unordered_set<std::string> names_;
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
      fail_file(file, "tensor {}: dtype {} and shape [{}] need {} bytes, data_offsets give {}",
                name, name_of(tensor.dtype), fmt::join(tensor.shape, ", "), bytes,
                tensor.end - tensor.begin);
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
  // The JSON library takes a zero byte for the end of its input.
  if (json.find('\0') != json.npos) fail_file(name, "the header holds a zero byte");
  SafetensorsHeader out;
  out.data_begin = kLengthBytes + header_bytes;
  HeaderHandler handler(out, name);
  Json::sax_parse(json.begin(), json.end(), &handler);
  check_layout(out.tensors, file.size() - out.data_begin, name);
  for (auto& tensor : out.tensors) {
    tensor.begin += out.data_begin;
    tensor.end += out.data_begin;
  }
  return out;
}

}  // namespace twell::io
