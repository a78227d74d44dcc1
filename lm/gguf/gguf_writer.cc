#include "gguf/gguf_writer.h"

#include <cstring>

#include "gguf/gguf_file.h"

namespace twell::io {
namespace {

constexpr std::uint32_t kVersion = 3;

template <class T>
void append(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

std::uint64_t padding_behind(std::uint64_t size) {
  return (kGgufAlignment - size % kGgufAlignment) % kGgufAlignment;
}

}  // namespace

void GgufWriter::begin(const std::string& key, GgufKind kind) {
  append_text(metadata_, key);
  append(metadata_, static_cast<std::uint32_t>(kind));
  ++values_;
}

void GgufWriter::put(const std::string& key, std::uint32_t value) {
  begin(key, GgufKind::u32);
  append(metadata_, value);
}

void GgufWriter::put(const std::string& key, float value) {
  begin(key, GgufKind::f32);
  append(metadata_, value);
}

void GgufWriter::put(const std::string& key, bool value) {
  begin(key, GgufKind::boolean);
  append(metadata_, static_cast<std::uint8_t>(value ? 1 : 0));
}

void GgufWriter::put(const std::string& key, std::string_view value) {
  begin(key, GgufKind::string);
  append_text(metadata_, value);
}

void GgufWriter::begin_array(const std::string& key, GgufKind element, std::size_t count) {
  begin(key, GgufKind::array);
  append(metadata_, static_cast<std::uint32_t>(element));
  append(metadata_, static_cast<std::uint64_t>(count));
}

void GgufWriter::put(const std::string& key, const std::vector<std::string>& values) {
  begin_array(key, GgufKind::string, values.size());
  for (const std::string& value : values) append_text(metadata_, value);
}

void GgufWriter::put(const std::string& key, const std::vector<std::int32_t>& values) {
  begin_array(key, GgufKind::i32, values.size());
  for (const std::int32_t value : values) append(metadata_, value);
}

void GgufWriter::put(const std::string& key, const std::vector<float>& values) {
  begin_array(key, GgufKind::f32, values.size());
  for (const float value : values) append(metadata_, value);
}

std::string GgufWriter::header() const {
  std::string out(kGgufMagic);
  append(out, kVersion);
  append(out, static_cast<std::uint64_t>(tensors_.size()));
  append(out, values_);
  out += metadata_;
  std::uint64_t at = 0;
  for (const Tensor& tensor : tensors_) {
    const BlockLayout& layout = layout_of(tensor.type);
    append_text(out, tensor.name);
    append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    std::int64_t numbers = 1;
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      append(out, static_cast<std::uint64_t>(*size));
      numbers *= *size;
    }
    append(out, layout.number);
    append(out, at);
    at += static_cast<std::uint64_t>(numbers / layout.numbers * layout.bytes);
    at += padding_behind(at);
  }
  out.append(padding_behind(out.size()), '\0');
  return out;
}

void GgufWriter::pad(AtomicFile& file) {
  file.write(std::string(padding_behind(file.size()), '\0'));
}

}  // namespace twell::io
