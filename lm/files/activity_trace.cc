#include "files/activity_trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "files/atomic_file.h"
#include "files/file_error.h"

namespace twell::io {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

constexpr std::uint32_t kWithoutIds = 1, kWithIds = 2;  // versions
constexpr std::uint32_t kMaxLayers = 1 << 16, kMaxUnits = 1 << 24;

// The layout of the file, see the header.
struct RawHeader {
  char magic[8];
  std::uint32_t version, layers, width, neurons, gated, window;
  std::uint64_t tokens;
  std::uint8_t zeros[24];
};
static_assert(sizeof(RawHeader) == 64);

void put_varint(std::uint32_t value, std::vector<std::byte>& out) {
  for (; value >= 0x80; value >>= 7U) out.push_back(static_cast<std::byte>(value | 0x80U));
  out.push_back(static_cast<std::byte>(value));
}

// Reads varints; `good` is false from the first one that is cut off or longer than 28 bits.
struct VarintReader {
  std::span<const std::byte> bytes;
  std::size_t at = 0;
  bool good = true;

  std::uint32_t next() {
    std::uint32_t value = 0;
    for (unsigned shift = 0; shift < 28 && at < bytes.size(); shift += 7) {
      const auto byte = static_cast<std::uint32_t>(bytes[at++]);
      value |= (byte & 0x7fU) << shift;
      if ((byte & 0x80U) == 0) return value;
    }
    good = false;
    return 0;
  }
};

// The first `most` of `tokens` rows, which is all that there is where `most` is no fewer.
ActivityRows decode(std::span<const std::byte> bytes, std::uint64_t tokens, std::uint64_t most,
                    std::uint32_t neurons, std::uint32_t layer, const std::string& name) {
  VarintReader in{bytes};
  ActivityRows out;
  for (std::uint64_t token = 0; token < std::min(most, tokens); ++token) {
    const std::uint32_t count = in.next();
    // Each of them takes a byte at least, so this bounds the memory as well.
    bool good = in.good && count <= neurons && count <= in.bytes.size() - in.at;
    std::uint64_t next = 0;
    for (std::uint32_t i = 0; good && i < count; ++i) {
      next += in.next();
      good = in.good && next < neurons;
      out.neurons.push_back(static_cast<std::uint32_t>(next++));
    }
    if (!good) {
      fail_file(name, "layer {}, token {}: no ascending neurons below {}: damaged?", layer, token,
                neurons);
    }
    out.starts.push_back(out.neurons.size());
  }
  if (most >= tokens && in.at != in.bytes.size()) {
    fail_file(name, "layer {} has {} bytes behind its last token: damaged?", layer,
              in.bytes.size() - in.at);
  }
  return out;
}

}  // namespace

ActivityTrace::ActivityTrace(const std::filesystem::path& path) : name_(path.string()) {
  mapped_.emplace_back(path);
  bytes_ = mapped_.front().bytes();
  parse();
}

ActivityTrace::ActivityTrace(std::span<const std::byte> file, std::string name)
    : bytes_(file), name_(std::move(name)) {
  parse();
}

void ActivityTrace::parse() {
  RawHeader raw;
  if (bytes_.size() < sizeof raw) {
    fail_file(name_, "has {} bytes, too few for an activity trace: truncated?", bytes_.size());
  }
  std::memcpy(&raw, bytes_.data(), sizeof raw);
  if (std::memcmp(raw.magic, kActivityTraceMagic.data(), sizeof raw.magic) != 0) {
    fail_file(name_, "is not an activity trace (make one with `twell stats --trace`)");
  }
  if (raw.version != kWithoutIds && raw.version != kWithIds) {
    fail_file(name_, "is an activity trace of version {}, expected {} or {}", raw.version,
              kWithoutIds, kWithIds);
  }
  if (raw.layers < 1 || raw.layers > kMaxLayers || raw.width < 1 || raw.width > kMaxUnits ||
      raw.neurons < 1 || raw.neurons > kMaxUnits || raw.gated > 1) {
    fail_file(name_, "claims {} layers of D = {}, H = {}, gated = {}: damaged?", raw.layers,
              raw.width, raw.neurons, raw.gated);
  }
  if (std::any_of(std::begin(raw.zeros), std::end(raw.zeros), [](auto b) { return b != 0; })) {
    fail_file(name_, "has bytes other than zero in the reserved part of its header");
  }
  const std::uint64_t first = sizeof raw + 8 * std::uint64_t{raw.layers};
  if (bytes_.size() < first) {
    fail_file(name_, "has {} bytes, too few for a table of {} layers: truncated?", bytes_.size(),
              raw.layers);
  }
  if (raw.version == kWithIds) {
    if (raw.tokens > (bytes_.size() - first) / sizeof(std::uint32_t)) {
      fail_file(name_, "has {} bytes, too few for the ids of {} tokens: truncated?", bytes_.size(),
                raw.tokens);
    }
    id_bytes_ = sizeof(std::uint32_t) * raw.tokens;
  }
  offsets_.push_back(first + id_bytes_);
  for (std::uint32_t layer = 0; layer < raw.layers; ++layer) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes_.data() + sizeof raw + 8 * std::size_t{layer}, 8);
    const std::uint64_t left = bytes_.size() - offsets_.back();
    // A row has at least one byte.
    if (size > left || raw.tokens > size) {
      fail_file(name_, "claims {} bytes for {} tokens of layer {}, {} are left: truncated?", size,
                raw.tokens, layer, left);
    }
    offsets_.push_back(offsets_.back() + size);
  }
  if (offsets_.back() != bytes_.size()) {
    fail_file(name_, "has {} bytes behind its last layer", bytes_.size() - offsets_.back());
  }
  header_ = {raw.layers, raw.width, raw.neurons, raw.gated == 1, raw.window, raw.tokens};
}

std::vector<std::uint32_t> ActivityTrace::token_ids() const {
  std::vector<std::uint32_t> ids(id_bytes_ / sizeof(std::uint32_t));
  // The ids stand in front of the first layer's rows.
  if (!ids.empty()) std::memcpy(ids.data(), bytes_.data() + offsets_[0] - id_bytes_, id_bytes_);
  return ids;
}

ActivityRows ActivityTrace::read(std::uint32_t layer, std::uint64_t most) const {
  if (layer >= header_.layers) {
    fail_argument("ActivityTrace::read", "{} has {} layers, asked for layer {}", name_,
                  header_.layers, layer);
  }
  const auto rows = bytes_.subspan(offsets_[layer], offsets_[layer + 1] - offsets_[layer]);
  return decode(rows, header_.tokens, most, header_.neurons, layer, name_);
}

ActivityTraceWriter::ActivityTraceWriter(const ActivityTraceHeader& header)
    : header_(header), layers_(header.layers), tokens_(header.layers, 0) {
  if (header.layers < 1 || header.layers > kMaxLayers || header.width < 1 ||
      header.width > kMaxUnits || header.neurons < 1 || header.neurons > kMaxUnits) {
    fail_argument("ActivityTraceWriter", "impossible shape: {} layers of D = {}, H = {}",
                  header.layers, header.width, header.neurons);
  }
}

void ActivityTraceWriter::append(std::uint32_t layer, std::span<const std::uint32_t> neurons) {
  if (layer >= header_.layers) {
    fail_argument("ActivityTraceWriter::append", "layer {} of {}", layer, header_.layers);
  }
  std::uint64_t next = 0;  // the smallest id that may follow
  for (const std::uint32_t neuron : neurons) {
    if (neuron < next || neuron >= header_.neurons) {
      fail_argument("ActivityTraceWriter::append",
                    "neuron {}: expected ascending ones below {}, at least {}", neuron,
                    header_.neurons, next);
    }
    next = std::uint64_t{neuron} + 1;
  }
  std::vector<std::byte>& out = layers_[layer];
  put_varint(static_cast<std::uint32_t>(neurons.size()), out);
  std::uint32_t expected = 0;
  for (const std::uint32_t neuron : neurons) {
    put_varint(neuron - expected, out);
    expected = neuron + 1;
  }
  ++tokens_[layer];
}

ActivityRows ActivityTraceWriter::read(std::uint32_t layer) const {
  if (layer >= header_.layers) {
    fail_argument("ActivityTraceWriter::read", "layer {} of {}", layer, header_.layers);
  }
  return decode(layers_[layer], tokens_[layer], tokens_[layer], header_.neurons, layer, "trace");
}

std::uint64_t ActivityTraceWriter::bytes() const {
  std::uint64_t total =
      sizeof(RawHeader) + 8 * layers_.size() + sizeof(std::uint32_t) * token_ids_.size();
  for (const auto& layer : layers_) total += layer.size();
  return total;
}

void ActivityTraceWriter::save(const std::filesystem::path& path) {
  for (std::size_t layer = 1; layer < tokens_.size(); ++layer) {
    if (tokens_[layer] != tokens_[0]) {
      fail_argument("ActivityTraceWriter::save", "layer {} has {} tokens, layer 0 has {}", layer,
                    tokens_[layer], tokens_[0]);
    }
  }
  if (!token_ids_.empty() && token_ids_.size() != tokens_[0]) {
    fail_argument("ActivityTraceWriter::save", "ids of {} tokens, there are {}", token_ids_.size(),
                  tokens_[0]);
  }
  RawHeader raw{};
  std::memcpy(raw.magic, kActivityTraceMagic.data(), sizeof raw.magic);
  raw.version = token_ids_.empty() ? kWithoutIds : kWithIds;
  raw.layers = header_.layers;
  raw.width = header_.width;
  raw.neurons = header_.neurons;
  raw.gated = header_.gated ? 1 : 0;
  raw.window = header_.window;
  raw.tokens = tokens_[0];
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&raw, 1)));
  for (const auto& layer : layers_) {
    const std::uint64_t size = layer.size();
    file.write(std::as_bytes(std::span(&size, 1)));
  }
  file.write(std::as_bytes(std::span(token_ids_)));
  for (const auto& layer : layers_) file.write(layer);
  file.commit();
}

}  // namespace twell::io
