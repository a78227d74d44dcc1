// Packs a row with libtwell and unpacks it again.
#include <cstdio>
#include <vector>

#include "twell/format.h"

int main() {
  const std::vector<float> dense = {0.0F, 1.5F, 0.0F, -2.0F, 0.0F, 0.0F, 3.0F, 0.0F};
  std::vector<float> back(dense.size(), -1.0F);
  const twell::TwellLayout layout{
      .rows = 2, .cols = 4, .tile = 16, .capacity = 2, .dtype = twell::DType::f32};
  const auto packed = twell::pack({dense.data(), twell::DType::f32, 2, 4}, layout);
  twell::unpack(packed, {back.data(), twell::DType::f32, 2, 4});
  std::printf("%lld non-zeros\n", static_cast<long long>(packed.nnz()));
  return packed.nnz() == 3 && back == dense ? 0 : 1;
}
