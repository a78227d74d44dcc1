#include "ops/ggml_rows.h"

#include <cstring>

#include "ops/scratch.h"

namespace twell {
namespace {

// The places that are not zero, of groups of so many. Eight bytes that are all zero are passed
// over together.
template <class T>
void list_nonzeros(const T* values, std::int64_t groups, std::int64_t group, std::int32_t* fired,
                   std::int32_t* starts) {
  constexpr auto kTogether = static_cast<std::int64_t>(8 / sizeof(T));
  // −0 is zero.
  constexpr std::uint64_t kBits = sizeof(T) == 1 ? ~std::uint64_t{0} : 0x7FFFFFFF7FFFFFFFU;
  std::int32_t count = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    starts[g] = count;
    for (std::int64_t i = g * group; i < (g + 1) * group; i += kTogether) {
      std::uint64_t bits;
      std::memcpy(&bits, values + i, sizeof bits);
      if ((bits & kBits) == 0) continue;
      for (std::int64_t j = i; j < i + kTogether; ++j) {
        fired[count] = static_cast<std::int32_t>(j);
        count += values[j] != 0 ? 1 : 0;
      }
    }
  }
  starts[groups] = count;
}

}  // namespace

GgmlRows::GgmlRows(Context& context, const GgmlLayout& layout, GgmlInputs inputs, std::int64_t rows)
    : layout_(layout),
      inputs_(inputs),
      groups_(layout.inputs / layout.traits.group),
      stride_((bytes_of_row() + 63) / 64 * 64),
      memory_(static_cast<std::byte*>(
          context.scratch(0, kGgmlRowsOfInputs, static_cast<std::size_t>(rows * stride_)))) {}

void GgmlRows::prepare(const GgmlKernels& kernels, const float* x, std::int64_t row) const {
  const Places to = row_at(row);
  const std::int64_t group = layout_.traits.group;
  const bool listed = layout_.order == GgmlOrder::inputs;
  if (inputs_ == GgmlInputs::rounded) {
    kernels.round(x, layout_.inputs, layout_.traits.numbers, to.codes, to.units);
    if (listed) list_nonzeros(to.codes, groups_, group, to.fired, to.starts);
    return;
  }
  if (listed) list_nonzeros(x, groups_, group, to.fired, to.starts);
  for (std::int64_t g = 0; layout_.traits.minima && g < groups_; ++g) {
    float sum = 0;
    for (std::int64_t i = g * group; i < (g + 1) * group; ++i) sum -= x[i];
    to.sums[g] = sum;
  }
}

GgmlInputRow GgmlRows::row(std::int64_t row, const float* x) const {
  const Places from = row_at(row);
  return {.codes = from.codes,
          .units = from.units,
          .x = x,
          .sums = from.sums,
          .fired = from.fired,
          .starts = from.starts};
}

GgmlRows::Places GgmlRows::row_at(std::int64_t row) const {
  const bool rounded = inputs_ == GgmlInputs::rounded;
  auto* const units = reinterpret_cast<float*>(memory_ + row * stride_);
  float* const sums = units + (rounded ? layout_.blocks() : 0);
  auto* const starts = reinterpret_cast<std::int32_t*>(sums + (rounded ? 0 : groups_));
  std::int32_t* const fired = starts + groups_ + 1;
  return {units, sums, starts, fired, reinterpret_cast<std::int8_t*>(fired + layout_.inputs)};
}

std::int64_t GgmlRows::bytes_of_row() const {
  const std::int64_t lists = 4 * (groups_ + 1 + layout_.inputs);
  return inputs_ == GgmlInputs::rounded ? lists + 4 * layout_.blocks() + layout_.inputs
                                        : lists + 4 * groups_;
}

}  // namespace twell
