// A LayerBlock in one piece of memory: a header, then regions at multiples of 64 bytes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "layer/block_builder.h"
#include "ops/validate.h"
#include "twell/tuning.h"

namespace twell {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are little-endian");

constexpr const char* kView = "LayerBlock::view";
constexpr char kMagic[8] = {'t', 'w', 'e', 'l', 'l', 'b', 'l', 'k'};
constexpr std::uint32_t kVersion = 2;  // 1 had room for four vectors
constexpr std::uint64_t kAlign = 64;

// Bytes from the block's beginning; of no bytes: there is none.
struct Region {
  std::uint64_t at = 0, bytes = 0;
};
struct WeightEntry {
  std::int64_t rows = 0, cols = 0, row_stride = 0;  // of no rows: there is none
  Region data, scales;                              // panels have their scales in `data`
  std::uint8_t type = 0, layout = 0, scaled_by = 0, zero[5] = {};
};
struct Header {
  char magic[8];
  std::uint32_t version = kVersion, header_bytes = sizeof(Header);
  std::uint64_t bytes = 0, digest = 0;  // of all; 64-bit FNV-1a of the header where this is 0
  std::uint8_t dtype = 0, gate = 0, up = 0, has_norm = 0;
  float threshold = 0, epsilon = 0;
  std::uint32_t has_candidates = 0;
  double candidates = 0;
  std::int64_t inputs = 0;                 // of the findings
  WeightEntry weights[3];                  // gate, up, down
  Region screen, mean, fired, vectors[8];  // as kFormVectors has them, and room for more
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 432);
static_assert(kFormVectors.size() <= std::extent_v<decltype(Header::vectors)>);

std::uint64_t digest_of(Header header) {
  header.digest = 0;
  std::byte bytes[sizeof header];
  std::memcpy(bytes, &header, sizeof header);
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::byte b : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3U;
  return hash;
}

std::uint64_t bytes_of_data(const WeightEntry& w) {
  const auto type = static_cast<WeightType>(w.type);
  return static_cast<WeightLayout>(w.layout) == WeightLayout::panels
             ? packed_bytes(type, w.rows, w.cols)
             : static_cast<std::uint64_t>(bytes_of(type, w.rows * w.row_stride));
}

// Where everything goes.
Header header_of(const LayerBlock& block) {
  Header out;
  std::memcpy(out.magic, kMagic, sizeof kMagic);
  std::uint64_t end = sizeof(Header);
  const auto place = [&](Region& region, std::uint64_t bytes) {
    if (bytes == 0) return;
    end = (end + kAlign - 1) / kAlign * kAlign;
    region = {end, bytes};
    end += bytes;
  };
  const FfnWeights& w = block.weights();
  const auto weight = [&](WeightEntry& entry, const WeightView& view) {
    const std::int64_t spread =
        spread_stride(view.cols, static_cast<std::size_t>(element_bytes(view.type)));
    const bool stays = view.layout == WeightLayout::panels || view.row_stride == spread;
    entry.rows = view.rows;
    entry.cols = view.cols;
    entry.row_stride = stays ? view.row_stride : view.cols;
    entry.type = static_cast<std::uint8_t>(view.type);
    entry.layout = static_cast<std::uint8_t>(view.layout);
    entry.scaled_by = static_cast<std::uint8_t>(view.scaled_by);
    place(entry.data, bytes_of_data(entry));
    if (view.layout == WeightLayout::rows) {
      place(entry.scales, 4 * static_cast<std::uint64_t>(view.scale_count()));
    }
  };
  weight(out.weights[0], w.gate);
  if (w.up) weight(out.weights[1], *w.up);
  weight(out.weights[2], w.down);
  if (w.screen.data != nullptr) place(out.screen, screen_bytes(w.screen.rows, w.screen.cols));

  const FfnForm& form = block.form();
  out.dtype = static_cast<std::uint8_t>(block.shape().dtype);
  out.gate = static_cast<std::uint8_t>(form.gate.kind);
  out.threshold = form.gate.threshold;
  out.up = static_cast<std::uint8_t>(form.up);
  out.has_norm = form.norm_epsilon ? 1 : 0;
  out.epsilon = form.norm_epsilon.value_or(0.0F);
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    place(out.vectors[i], form[i].size() * sizeof(float));
  }
  if (const LayerFindings* findings = block.findings()) {
    out.inputs = findings->inputs;
    out.has_candidates = findings->candidates ? 1 : 0;
    out.candidates = findings->candidates.value_or(0.0);
    place(out.mean, findings->mean.size() * sizeof(float));
    place(out.fired, findings->fired.size() * sizeof(std::int64_t));
  }
  out.bytes = (end + kAlign - 1) / kAlign * kAlign;
  out.digest = digest_of(out);
  return out;
}

// Reads a header that need not be one.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {
    require(bytes.size() >= sizeof(Header), kView, "bytes", "expected a block's, got ",
            bytes.size(), " bytes, fewer than its header has");
    std::memcpy(&header_, bytes.data(), sizeof header_);
    require(std::memcmp(header_.magic, kMagic, sizeof kMagic) == 0, kView, "bytes",
            "expected a block's, which begin with 'twellblk'");
    require(header_.version == kVersion, kView, "bytes", "expected version ", kVersion, ", got ",
            header_.version, "; make the block anew");
    require(header_.digest == digest_of(header_) && header_.header_bytes == sizeof(Header), kView,
            "bytes", "the header is damaged");
    require(header_.bytes <= bytes.size(), kView, "bytes", "expected ", header_.bytes,
            ", as the header says, got ", bytes.size(), ": they were cut off");
    // That of its numbers. Allocators of other languages promise no more.
    require(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::int64_t) == 0, kView,
            "bytes", "expected them at a multiple of 8 bytes");
  }

  const Header& header() const { return header_; }
  // A region of this size.
  const std::byte* at(const Region& region, const char* what, std::uint64_t bytes) const {
    require(region.bytes == bytes && region.at % kAlign == 0 && region.at >= sizeof(Header) &&
                region.at <= header_.bytes && bytes <= header_.bytes - region.at,
            kView, what, "expected ", bytes, " bytes within the block, got ", region.bytes, " at ",
            region.at);
    return bytes_.data() + region.at;
  }
  template <class T>
  std::span<const T> entries(const Region& region, const char* what, std::uint64_t count) const {
    if (region.bytes == 0) return {};
    return {reinterpret_cast<const T*>(at(region, what, count * sizeof(T))), count};
  }
  WeightView weight(const WeightEntry& entry, const char* what) const {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    require(entry.type < kWeightTypes && entry.layout <= 1 && entry.scaled_by <= 1, kView, what,
            "expected a weight of a type that is known");
    require(entry.rows >= 1 && entry.rows <= kMost && entry.cols >= 1 && entry.cols <= kMost &&
                entry.row_stride >= entry.cols && entry.row_stride <= kMost,
            kView, what, "expected 1 to ", kMost, " rows and columns, got [", entry.rows, ", ",
            entry.cols, "]");
    // A number has four bits or more.
    require(static_cast<std::uint64_t>(entry.rows * entry.row_stride) <= 2 * header_.bytes, kView,
            what, "expected one that fits into ", header_.bytes, " bytes, got [", entry.rows, ", ",
            entry.cols, "]");
    const auto type = static_cast<WeightType>(entry.type);
    const std::byte* data = at(entry.data, what, bytes_of_data(entry));
    if (static_cast<WeightLayout>(entry.layout) == WeightLayout::panels) {
      return packed_view(data, type, entry.rows, entry.cols);
    }
    const auto by = static_cast<ScaledBy>(entry.scaled_by);
    const auto scales = static_cast<std::uint64_t>(by == ScaledBy::row ? entry.rows : entry.cols);
    return WeightView::codes(type, data, entry.rows, entry.cols, entry.row_stride,
                             entries<float>(entry.scales, what, scales).data(), by);
  }

 private:
  std::span<const std::byte> bytes_;
  Header header_;
};

FfnForm form_of(const Reader& reader, std::int64_t neurons, std::int64_t columns) {
  const Header& header = reader.header();
  constexpr auto kLast = static_cast<std::uint8_t>(Activation::identity);
  require(header.gate <= kLast && header.up <= kLast, kView, "form",
          "expected activations that are known");
  FfnForm form(static_cast<Activation>(header.gate), header.threshold);
  form.up = static_cast<Activation>(header.up);
  if (header.has_norm != 0) form.norm_epsilon = header.epsilon;
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    const std::int64_t size = kFormVectors[i].entries(neurons, columns);
    form[i] = reader.entries<float>(header.vectors[i], kFormVectors[i].name,
                                    static_cast<std::uint64_t>(size));
  }
  return form;
}

std::shared_ptr<const LayerFindings> findings_of(const Reader& reader, const FfnShape& shape) {
  const Header& header = reader.header();
  if (header.mean.bytes == 0) return nullptr;
  const auto mean =
      reader.entries<float>(header.mean, "mean", static_cast<std::uint64_t>(shape.width));
  const auto fired = reader.entries<std::int64_t>(header.fired, "fired",
                                                  static_cast<std::uint64_t>(shape.neurons));
  require(std::ssize(fired) == shape.neurons, kView, "fired", "expected ", shape.neurons,
          " numbers, got none");
  auto out = std::make_shared<LayerFindings>();
  out->inputs = header.inputs;
  out->mean.assign(mean.begin(), mean.end());
  out->fired.assign(fired.begin(), fired.end());
  if (header.has_candidates != 0) out->candidates = header.candidates;
  require_findings(kView, *out, shape);
  return out;
}

}  // namespace

std::size_t LayerBlock::size() const { return header_of(*this).bytes; }

void LayerBlock::write(void* out) const {
  const Header header = header_of(*this);
  auto* const to = static_cast<std::byte*>(out);
  require(reinterpret_cast<std::uintptr_t>(out) % kAlign == 0, "LayerBlock::write", "out",
          "expected memory at a multiple of 64 bytes");
  std::uint64_t end =
      0;  // of what is written; gaps are zeros, so that equal blocks are equal bytes
  const auto begin_at = [&](std::uint64_t at) {
    std::fill(to + end, to + at, std::byte{});
    end = at;
  };
  const auto put = [&](const Region& region, const void* data) {
    if (region.bytes == 0) return;
    begin_at(region.at);
    std::memcpy(to + region.at, data, region.bytes);
    end += region.bytes;
  };
  const auto weight = [&](const WeightEntry& entry, const WeightView& view) {
    if (view.layout == WeightLayout::panels) return put(entry.data, view.data);
    begin_at(entry.data.at);
    const auto row = static_cast<std::size_t>(bytes_of(view.type, view.cols));
    for (std::int64_t r = 0; r < view.rows; ++r) {
      begin_at(entry.data.at +
               static_cast<std::uint64_t>(bytes_of(view.type, r * entry.row_stride)));
      std::memcpy(to + end, view.row_bytes(r), row);
      end += row;
    }
    begin_at(entry.data.at + entry.data.bytes);
    put(entry.scales, view.scales);
  };
  put({0, sizeof header}, &header);
  weight(header.weights[0], weights_.gate);
  if (weights_.up) weight(header.weights[1], *weights_.up);
  weight(header.weights[2], weights_.down);
  put(header.screen, weights_.screen.data);
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    put(header.vectors[i], form_[i].data());
  }
  if (findings_) {
    put(header.mean, findings_->mean.data());
    put(header.fired, findings_->fired.data());
  }
  begin_at(header.bytes);
}

LayerBlock LayerBlock::view(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  const Reader reader(bytes);
  const Header& header = reader.header();
  FfnWeights weights{
      reader.weight(header.weights[0], "gate"), {}, reader.weight(header.weights[2], "down")};
  if (header.weights[1].rows != 0) weights.up = reader.weight(header.weights[1], "up");
  const std::int64_t neurons = weights.gate.rows, width = weights.gate.cols;
  if (header.screen.bytes != 0) {
    weights.screen = {reader.at(header.screen, "screen", screen_bytes(neurons, width)), neurons,
                      width};
  }
  const auto dtype = static_cast<DType>(header.dtype);
  require(dtype == DType::bf16 || dtype == DType::f32, kView, "dtype", "expected bf16 or f32");
  const FfnShape shape = weights.shape(dtype);
  const FfnForm form = form_of(reader, neurons, weights.down.cols);
  // All that a call checks, on no rows.
  const ConstMatrixView none(nullptr, shape.dtype, 0, width);
  require_ffn(kView, none, weights, form, MatrixView(nullptr, shape.dtype, 0, weights.down.cols));
  return BlockBuilder::of(shape, weights, form, findings_of(reader, shape), std::move(owner),
                          static_cast<std::int64_t>(header.bytes));
}

}  // namespace twell
