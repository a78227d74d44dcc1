// Registers the CUDA implementations of what the headers of torch_ops/ declare, and what is asked
// of a GPU alone; libtwell_torch.so, loaded before, has the schemas.
#include <torch/csrc/stable/library.h>

#include "cuda/torch/plan_ops.h"
#include "torch_ops/ffn_ops.h"
#include "torch_ops/steps.h"
#include "torch_ops/train_ops.h"
#include "torch_ops/weight_ops.h"

STABLE_TORCH_LIBRARY_IMPL(twell, CUDA, m) {
  namespace ops = twell::torch_ops;
  m.impl("pack_weight", TORCH_BOX(&ops::pack_weight));
  m.impl("unpack_weight", TORCH_BOX(&ops::unpack_weight));
  m.impl("screen_weight", TORCH_BOX(&ops::screen_weight));
  m.impl("ffn", TORCH_BOX(&ops::ffn));
  m.impl("ffn_stats", TORCH_BOX(&ops::ffn_stats));
  m.impl("ffn_train", TORCH_BOX(&ops::ffn_train));
  m.impl("ffn_train_backward", TORCH_BOX(&ops::ffn_train_backward));
  m.impl("ffn_train_backward_add", TORCH_BOX(&ops::ffn_train_backward_add));
  m.impl("gemm_relu_twell", TORCH_BOX(&ops::gemm_relu_twell));
  m.impl("twell_gated_ffn", TORCH_BOX(&ops::twell_gated_ffn));
  m.impl("twell_spmm", TORCH_BOX(&ops::twell_spmm));
  m.impl("dense_to_twell", TORCH_BOX(&ops::dense_to_twell));
  m.impl("twell_to_dense", TORCH_BOX(&ops::twell_to_dense));
}

// Of no tensor on a GPU: their argument `device` names it.
STABLE_TORCH_LIBRARY_IMPL(twell, CompositeExplicitAutograd, m) {
  m.impl("choose_hot", TORCH_BOX(&twell::torch_ops::choose_hot));
  m.impl("choose_training", TORCH_BOX(&twell::torch_ops::choose_training));
  m.impl("screen_pays", TORCH_BOX(&twell::torch_ops::screen_pays));
}
