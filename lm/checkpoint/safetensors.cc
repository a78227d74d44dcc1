#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "files/file_error.h"

namespace twell::io {
namespace {

constexpr std::size_t kHeaderAlignment = 8;  // as the package pads it, so that data is aligned

// Wider types first, then by name: the order of the package, so that equal tensors give equal
// files.
void sort_as_package(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    if (a.dtype != b.dtype) return a.dtype > b.dtype;
    return a.name < b.name;
  });
}

}  // namespace

std::int64_t TensorInfo::elements() const {
  return static_cast<std::int64_t>(bytes() / size_of(dtype));
}

std::uint64_t TensorSpec::bytes() const {
  std::uint64_t out = size_of(dtype);
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(out, static_cast<std::uint64_t>(dimension), &out) ||
        out > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail_argument("TensorSpec", "tensor {}: impossible shape {}", in_quotes(name),
                    in_brackets(shape));
    }
  }
  return out;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(path) {
  sort_as_package(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes();
    const bool fresh = tensor.name != "__metadata__" &&
                       slots_.emplace(tensor.name, Slot{offset, end, offset == end}).second;
    if (!fresh) {
      fail_argument("SafetensorsWriter", "tensor name {} is reserved or used twice",
                    in_quotes(tensor.name));
    }
    // ordered_json looks a key up in linear time; these are known to be new.
    header.get_ref<nlohmann::ordered_json::object_t&>().push_back(
        {tensor.name, nlohmann::ordered_json{{"dtype", name_of(tensor.dtype)},
                                             {"shape", tensor.shape},
                                             {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail_argument("SafetensorsWriter", "{}: a tensor name or the metadata is not UTF-8",
                  path.string());
  }
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFFU);
  }
  file_.write(length);
  file_.write(text);
  data_begin_ = file_.size();
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) {
    fail_argument("SafetensorsWriter::write", "{}: no tensor {} was announced",
                  file_.path().string(), in_quotes(name));
  }
  Slot& slot = found->second;
  if (bytes.size() != slot.end - slot.begin) {
    fail_argument("SafetensorsWriter::write", "{}: tensor {} has {} bytes, got {}",
                  file_.path().string(), in_quotes(name), slot.end - slot.begin, bytes.size());
  }
  file_.write_at(data_begin_ + slot.begin, bytes);
  slot.written = true;
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    if (!slot.written) {
      fail_argument("SafetensorsWriter::commit", "{}: tensor {} was never written",
                    file_.path().string(), in_quotes(name));
    }
  }
  file_.commit();
}

void save_safetensors(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                      const SafetensorsMetadata& metadata) {
  SafetensorsWriter writer(path, {tensors.begin(), tensors.end()}, metadata);
  for (const auto& tensor : tensors) {
    writer.write(tensor.name, {static_cast<const std::byte*>(tensor.data),
                               static_cast<std::size_t>(tensor.bytes())});
  }
  writer.commit();
}

}  // namespace twell::io
