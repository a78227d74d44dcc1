// Hot neurons in the forward pass: GEMMs, with the product between them.
#include "cuda/ops/library_run.h"

namespace twell::cuda {

void LibraryRun::multiply_hot(std::int64_t first, std::int64_t rows) const {
  if (b_.up != nullptr) {
    multiply({.a = rows_from(call_.x, first),
              .b = call_.up,
              .c = hot_u(first),
              .c_stride = b_.hot_stride,
              .rows = rows,
              .cols = plan_.hot,
              .depth = problem_.width});
    HotProductArgs product;
    product.gate = dense_gate();
    if (!unpacked()) {
      product.gate.data = hot_g(first);
      product.gate.stride = b_.hot_stride;
      product.gate.wide = product.gate.activates = false;
    }
    product.up = hot_u(first);
    product.out = b_.up;
    product.stride = b_.hot_stride;
    product.rows = static_cast<int>(rows);
    product.cols = static_cast<int>(plan_.hot);
    launch_hot_product(problem_.dtype, product, call_.stream);
  }
  LibraryGemm down = {.a = {hot_h(first), b_.hot_stride},
                      .b = call_.down,
                      .b_by_depth = true,
                      .c = b_.sums,
                      .c_stride = b_.sums_stride,
                      .wide = true,
                      .rows = rows,
                      .cols = problem_.width,
                      .depth = plan_.hot};
  if (all_hot()) {
    down.c = call_.y + first * call_.y_stride;
    down.c_stride = call_.y_stride;
    down.wide = false;
  }
  multiply(down);
}

void LibraryRun::start_l1(std::int64_t first, std::int64_t rows) const {
  launch_absolute_sums(problem_.dtype,
                       {hot_h(first), b_.hot_stride, call_.keeping->l1 + first,
                        static_cast<int>(rows), static_cast<int>(plan_.hot)},
                       call_.stream);
}

}  // namespace twell::cuda
