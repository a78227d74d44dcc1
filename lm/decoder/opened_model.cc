#include "decoder/opened_model.h"

#include <fmt/format.h>

#include "files/note.h"

namespace twell::lm {

void OpenedModel::note_dequantized() const {
  const auto [stored, in_memory, wide_scales] = source_->dequantized();
  if (stored == 0) return;
  constexpr double kGiga = 1e9;
  io::note(fmt::format(
      "{}: quantised weights are computed with as floating-point numbers: {:.2f} GB in memory, "
      "{:.2f} GB in the file{}",
      name_, static_cast<double>(in_memory) / kGiga, static_cast<double>(stored) / kGiga,
      wide_scales ? "; with --round-scales those of int4 stay codes" : ""));
}

}  // namespace twell::lm
