#include "gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "files/file_error.h"

namespace twell::io {
namespace {

constexpr std::uint32_t kOldest = 2, kNewest = 3;
constexpr std::uint64_t kLongestKey = 65535;  // the format's own limit
constexpr std::uint64_t kLongestName = 64;
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::int64_t kLargestDimension = std::int64_t{1} << 40;

// The header, taken from the front. No number in it is believed before what it counts has been
// seen: whoever claims a billion values must have sent them.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, const std::string& name)
      : file_(file), name_(name), out_{GgufMetadata(name), {}} {}

  GgufHeader parse() && {
    begin();
    const auto tensors = take<std::uint64_t>("the number of tensors");
    const auto values = take<std::uint64_t>("the number of values");
    for (std::uint64_t i = 0; i < values; ++i) take_value();
    for (std::uint64_t i = 0; i < tensors; ++i) take_tensor();
    place_tensors();
    return std::move(out_);
  }

 private:
  std::uint64_t left() const { return file_.size() - at_; }

  std::span<const std::byte> take_bytes(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      fail_file(name_, "{} needs {} bytes at byte {}, but the file has {} in all: truncated?", what,
                count, at_, file_.size());
    }
    const auto out = file_.subspan(at_, count);
    at_ += count;
    return out;
  }

  template <class T>
  T take(std::string_view what) {
    T out;
    std::memcpy(&out, take_bytes(sizeof out, what).data(), sizeof out);
    return out;
  }

  std::string take_name(std::uint64_t longest, const char* what) {
    const auto length = take<std::uint64_t>(what);
    if (length == 0 || length > longest) {
      fail_file(name_, "{} at byte {} has {} bytes, expected 1 to {}", what, at_, length, longest);
    }
    const auto bytes = take_bytes(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void begin() {
    constexpr std::string_view kWhat = "the begin of a GGUF file";
    const std::string_view text(reinterpret_cast<const char*>(file_.data()), file_.size());
    refuse_lfs_pointer(text, name_);
    if (!text.starts_with(kGgufMagic)) {
      fail_file(name_, "does not begin with \"{}\": no GGUF file", kGgufMagic);
    }
    take_bytes(kGgufMagic.size(), kWhat);
    const auto version = take<std::uint32_t>(kWhat);
    if (version >= kOldest && version <= kNewest) return;
    if ((version & 0xFFFFU) == 0) {
      fail_unsupported(name_, "is a GGUF file in big-endian order, which is not supported");
    }
    fail_unsupported(name_,
                     "is a GGUF file of version {}, which is not supported (supported: {} "
                     "and {})",
                     version, kOldest, kNewest);
  }

  GgufKind take_kind(const std::string& what) {
    const auto number = take<std::uint32_t>(what);
    if (number > static_cast<std::uint32_t>(GgufKind::f64)) {
      fail_file(name_, "{} has the unknown type {}", what, number);
    }
    return static_cast<GgufKind>(number);
  }

  void skip_string(const std::string& what) { take_bytes(take<std::uint64_t>(what), what); }

  void take_value() {
    const std::string key = take_name(kLongestKey, "a key");
    const std::string what = "the value of " + in_quotes(key);
    GgufValue value;
    value.kind = take_kind(what);
    if (value.kind == GgufKind::array) {
      value.element = take_kind(what);
      value.count = take<std::uint64_t>(what);
      if (value.element == GgufKind::array) {
        fail_unsupported(name_, "{} is an array of arrays, which is not supported", what);
      }
    }
    const GgufKind of = value.kind == GgufKind::array ? value.element : value.kind;
    if (of == GgufKind::string) {
      const bool alone = value.kind == GgufKind::string;
      const std::uint64_t length = alone ? take<std::uint64_t>(what) : 0, first = at_;
      if (alone) take_bytes(length, what);
      for (std::uint64_t i = 0; !alone && i < value.count; ++i) skip_string(what);
      value.bytes = file_.subspan(first, at_ - first);
    } else {
      std::uint64_t bytes = 0;
      if (__builtin_mul_overflow(value.count, size_of(of), &bytes)) bytes = ~std::uint64_t{0};
      value.bytes = take_bytes(bytes, what);
    }
    if (!out_.metadata.add(key, value)) fail_file(name_, "duplicate key {}", in_quotes(key));
  }

  void take_tensor() {
    constexpr const char* kWhat = "the name of a tensor";
    GgufTensor tensor;
    tensor.name = take_name(kLongestName, kWhat);
    const std::string what = "tensor " + in_quotes(tensor.name);
    const auto dimensions = take<std::uint32_t>(what);
    if (dimensions == 0 || dimensions > kMostDimensions) {
      fail_file(name_, "{} has {} dimensions, expected 1 to {}", what, dimensions, kMostDimensions);
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = take<std::uint64_t>(what);
      if (size == 0 || size > static_cast<std::uint64_t>(kLargestDimension)) {
        fail_file(name_, "{} has a dimension of {}, expected 1 to {}", what, size,
                  kLargestDimension);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto number = take<std::uint32_t>(what);
    const auto type = block_type(number);
    if (!type) {
      fail_unsupported(name_,
                       "{} has the type {} ({}), which is not supported (supported: F32, F16, "
                       "BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)",
                       what, type_name(number), number);
    }
    tensor.type = *type;
    tensor.begin = take<std::uint64_t>(what);  // behind the header, for the moment
    const BlockLayout& layout = layout_of(*type);
    if (tensor.columns() % layout.numbers != 0) {
      fail_file(name_, "{} has rows of {}, no multiple of the {} of a block of {}", what,
                tensor.columns(), layout.numbers, layout.name);
    }
    auto bytes = static_cast<std::uint64_t>(tensor.columns() / layout.numbers * layout.bytes);
    for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(tensor.shape[i]), &bytes)) {
        fail_file(name_, "{}: its shape {} overflows 64 bits", what, in_brackets(tensor.shape));
      }
    }
    if (__builtin_add_overflow(tensor.begin, bytes, &tensor.end)) {
      fail_file(name_, "{}: its end overflows 64 bits", what);
    }
    out_.tensors.push_back(std::move(tensor));
  }

  // Where the data is, and that every tensor lies in it, apart from all others.
  void place_tensors() {
    const char* key = "general.alignment";
    const auto alignment = static_cast<std::uint64_t>(
        out_.metadata.integer(key, 1, UINT32_MAX, static_cast<std::int64_t>(kGgufAlignment)));
    if ((alignment & (alignment - 1)) != 0 || alignment < sizeof(float)) {
      fail_file(name_, "{} is {}, expected a power of two from {} on", key, alignment,
                sizeof(float));
    }
    const std::uint64_t data = (at_ + alignment - 1) / alignment * alignment;
    const std::uint64_t room = file_.size() > data ? file_.size() - data : 0;
    for (GgufTensor& tensor : out_.tensors) {
      if (tensor.begin % alignment != 0) {
        fail_file(name_, "tensor {} begins at data byte {}, no multiple of the alignment {}",
                  in_quotes(tensor.name), tensor.begin, alignment);
      }
      if (tensor.end > room) {
        fail_file(name_, "tensor {} ends at data byte {}, but there are {}: truncated?",
                  in_quotes(tensor.name), tensor.end, room);
      }
      tensor.begin += data;
      tensor.end += data;
    }
    std::vector<const GgufTensor*> sorted;
    std::set<std::string_view> names;
    for (const GgufTensor& tensor : out_.tensors) {
      if (!names.insert(tensor.name).second) {
        fail_file(name_, "there are two tensors {}", in_quotes(tensor.name));
      }
      sorted.push_back(&tensor);
    }
    std::ranges::sort(sorted, {}, &GgufTensor::begin);
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->begin < sorted[i - 1]->end) {
        fail_file(name_, "the tensors {} and {} overlap", in_quotes(sorted[i - 1]->name),
                  in_quotes(sorted[i]->name));
      }
    }
  }

  std::span<const std::byte> file_;
  const std::string& name_;
  std::uint64_t at_ = 0;
  GgufHeader out_;
};

}  // namespace

std::int64_t GgufTensor::rows() const {
  std::int64_t out = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) out *= shape[i];
  return out;
}

std::uint64_t GgufTensor::row_bytes() const {
  return (end - begin) / static_cast<std::uint64_t>(rows());
}

GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& name) {
  return GgufParser(file, name).parse();
}

GgufFile::GgufFile(const std::filesystem::path& path)
    : file_(path), header_(parse_gguf(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return path.extension() == ".gguf";
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::string magic(kGgufMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return magic == kGgufMagic || path.extension() == ".gguf";
}

}  // namespace twell::io
