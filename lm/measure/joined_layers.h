// The faster dense variant on GPUs: gate and up as one GEMM. A second model would take
// its weights a second time; here they are laid out once, so that one GEMM or two may read them.
#pragma once

#include <memory>

#include "decoder/model.h"

namespace twell::lm {

class JoinedLayers {
 public:
  // Every layer's gate and up become parts of one matrix [2H, D], in place of the memory they had,
  // and its feed-forward layer one that does either. The model has a gate, plain layers
  // (is_plain()) and a dense path, and goes on running two GEMMs until it is told otherwise.
  explicit JoinedLayers(Model& model);
  // Whether layers multiply gate and up at once, from now on.
  void join(bool joined) { *joined_ = joined; }

 private:
  std::shared_ptr<bool> joined_ = std::make_shared<bool>(false);
};

}  // namespace twell::lm
