// Registers the CUDA implementations; libtwell_torch.so, loaded before, has the schemas.
#include <torch/csrc/stable/library.h>

#include "torch_ops_cuda/ops.h"

STABLE_TORCH_LIBRARY_IMPL(twell, CUDA, m) {
  namespace ops = twell::torch_ops::on_cuda;
  m.impl("pack_weight", TORCH_BOX(&ops::pack_weight));
  m.impl("unpack_weight", TORCH_BOX(&ops::unpack_weight));
  m.impl("gated_ffn", TORCH_BOX(&ops::gated_ffn));
  m.impl("gated_ffn_stats", TORCH_BOX(&ops::gated_ffn_stats));
  m.impl("ffn", TORCH_BOX(&ops::ffn));
  m.impl("ffn_stats", TORCH_BOX(&ops::ffn_stats));
}
