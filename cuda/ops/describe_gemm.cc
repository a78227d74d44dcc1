// A gate GEMM's plan in words.
#include <array>

#include "core/check.h"
#include "twell/cuda.h"

namespace twell::cuda {

const char* name_of(GemmShape shape) {
  constexpr std::array kNames = {"stream 8x16",  "stream 16x32", "stream 32x32", "tile 64x64",
                                 "tile 128x128", "library",      "screen 32x32"};
  return kNames.at(static_cast<std::size_t>(shape));
}

std::string GemmPlan::to_string() const {
  if (shape == GemmShape::library) {
    return concat("gate GEMM: cuBLASLt ", name_of(dtype), ", blocks of ", block_rows, " rows in ",
                  wide ? "f32" : name_of(dtype), ", packed from L2, TwELL tile ", tile);
  }
  return concat("gate GEMM: ", name_of(shape), " ", name_of(dtype), aligned ? "" : " unaligned",
                ", ", threads, " threads, ", stages, " stages, ", shared_bytes,
                " B shared, raster of ", raster_group, ", TwELL tile ", tile);
}

}  // namespace twell::cuda
