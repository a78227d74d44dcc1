#include "ops/packed_chosen.h"

#include "ops/scratch.h"

namespace twell {
namespace {

std::size_t panel_bytes(const PackedView& view) {
  return packed_bytes(view.dtype, view.rows, view.cols);
}

}  // namespace

PackedView PackedChosen::view() const {
  const ConstMatrixView& m = rows_.matrix;
  return as_ == As::neurons ? PackedView{panels_, m.dtype, rows_.count, m.cols}
                            : PackedView{panels_, m.dtype, m.cols, rows_.count};
}

std::size_t PackedChosen::bytes() const {
  const std::int64_t pointers = as_ == As::inputs ? rows_.count : 0;
  return panel_bytes(view()) + (static_cast<std::size_t>(pointers) * sizeof(void*) + 63) / 64 * 64;
}

void PackedChosen::place(std::byte* memory) {
  panels_ = memory;
  if (as_ == As::neurons) return;
  pointers_ = reinterpret_cast<const void**>(memory + panel_bytes(view()));
  for (std::int64_t i = 0; i < rows_.count; ++i) pointers_[i] = rows_.row(i);
}

std::int64_t PackedChosen::units() const { return (view().rows + kColumnBlock - 1) / kColumnBlock; }

void PackedChosen::pack(std::int64_t unit, const Kernels& kernels) const {
  const PackedView all = view();
  const std::int64_t first = unit * kColumnBlock;
  const std::int64_t count = std::min(kColumnBlock, all.rows - first);
  std::byte* to = panels_ + packed_bytes(all.dtype, first, all.cols);
  if (as_ == As::neurons) {
    pack_as_neurons(kernels, rows_, first, count, to);
  } else {
    kernels.pack_inputs(pointers_, rows_.count, first, count, to);
  }
}

void place_all(Context& context, std::span<PackedChosen> all) {
  std::size_t bytes = 0;
  for (const PackedChosen& one : all) bytes += one.bytes();
  auto* memory = static_cast<std::byte*>(context.scratch(0, kPieces, bytes));
  for (PackedChosen& one : all) {
    one.place(memory);
    memory += one.bytes();
  }
}

void pack_all(const Kernels& kernels, std::span<const PackedChosen> all) {
  for (const PackedChosen& one : all) {
#pragma omp for schedule(dynamic, 1) nowait
    for (std::int64_t unit = 0; unit < one.units(); ++unit) one.pack(unit, kernels);
  }
#pragma omp barrier
}

}  // namespace twell
