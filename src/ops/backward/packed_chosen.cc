#include "ops/backward/packed_chosen.h"

#include "ops/scratch.h"

namespace twell {

Weight PackedChosen::view() const {
  const Weight& w = rows_.w;
  return as_ == As::neurons ? w.packed(panels_, rows_.count, w.cols)
                            : w.packed(panels_, w.cols, rows_.count);
}

std::size_t PackedChosen::bytes() const {
  const Weight all = view();
  return packed_bytes(all.type, all.rows, all.cols);
}

std::int64_t PackedChosen::units() const { return (view().rows + kColumnBlock - 1) / kColumnBlock; }

void PackedChosen::pack(std::int64_t unit) const {
  const Weight all = view();
  const std::int64_t first = unit * kColumnBlock;
  const std::int64_t count = std::min(kColumnBlock, all.rows - first);
  std::byte* to = panels_ + packed_bytes(all.type, first, all.cols);
  if (as_ == As::neurons) {
    pack_as_neurons(rows_, first, count, to);
  } else {
    rows_.w.kernels->pack_inputs(rows_.w, rows_.list, rows_.count, first, count, to);
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

void pack_all(Team& team, std::span<const PackedChosen> all) {
  for (const PackedChosen& one : all) {
    team.for_dynamic_nowait(one.units(), 1, [&](std::int64_t unit) { one.pack(unit); });
  }
  team.barrier();
}

}  // namespace twell
