// The operators' schemas, shared by every device, and their CPU implementations. A device added
// later brings its own library with another STABLE_TORCH_LIBRARY_IMPL block for the same names.
#include <torch/csrc/stable/library.h>

#include "torch_ops/cpu_context.h"
#include "torch_ops/ffn_ops.h"
#include "torch_ops/layer_ops.h"
#include "torch_ops/linear_ops.h"
#include "torch_ops/steps.h"
#include "torch_ops/train_ops.h"
#include "torch_ops/weight_ops.h"

STABLE_TORCH_LIBRARY(twell, m) {
  m.def("pack_weight(Tensor weight) -> Tensor");
  m.def("unpack_weight(Tensor packed) -> Tensor");
  m.def("linear(Tensor x, Tensor weight_packed, Tensor? bias=None) -> Tensor");
  m.def("linear_as_stored(Tensor x, Tensor weight, bool float_sums=False) -> Tensor");
  m.def("round_inputs(Tensor x) -> Tensor");
  // `weights`: gate, up, down and the vectors (form_arguments.h); `form`: form_text.h.
  m.def(
      "ffn(Tensor x, Tensor?[] weights, Tensor? screen=None, str form=\"relu\", int hot=0) -> "
      "Tensor");
  m.def(
      "ffn_stats(Tensor x, Tensor?[] weights, Tensor? screen=None, str form=\"relu\", int hot=0) "
      "-> (Tensor y, Tensor row_nnz, Tensor neuron_nnz, Tensor candidates)");
  m.def("screen_weight(Tensor weight, Tensor? axis=None) -> Tensor");
  m.def("screen_limit() -> float");
  // Asked of a GPU alone: implemented in cuda/torch/.
  m.def(
      "choose_hot(Tensor rates, int tokens, int width, int device, str activation=\"relu\", "
      "bool gated=True, bool joined=False, bool training=False) -> int");
  m.def(
      "choose_training(Tensor rates, int tokens, int width, int device, str activation=\"relu\", "
      "bool gated=True) -> int");
  m.def("screen_pays(int tokens, int width, int neurons, float? candidates, int device) -> bool");
  m.def("processor_name() -> str");
  m.def("cpu_tier() -> str");
  m.def("cpu_tier_available(str tier) -> bool");
  m.def(
      "ffn_train(Tensor x, Tensor?[] weights, Tensor? screen=None, str form=\"relu\", int hot=0) "
      "-> (Tensor y, Tensor l1, Tensor row_nnz, Tensor neuron_nnz, Tensor offsets, Tensor neurons, "
      "Tensor values)");
  // `kept`: the last three of ffn_train.
  const std::string backward =
      "ffn_train_backward(Tensor dy, Tensor x, Tensor?[] weights, Tensor[] kept, Tensor? l1_grad, "
      "str form=\"relu\", int hot=0) -> " +
      twell::torch_ops::gradients_schema();
  m.def(backward.c_str());
  m.def(
      "ffn_train_backward_add(Tensor dy, Tensor x, Tensor?[] weights, Tensor[] kept, "
      "Tensor? l1_grad, Tensor(a!)?[] gradients, str form=\"relu\", int hot=0) -> Tensor");
  // A layer that is prepared once.
  m.def(
      "examine_layer(Tensor x, Tensor?[] weights, str form) -> (Tensor mean, "
      "Tensor fired, Tensor seen)");
  m.def(
      "make_block(Tensor?[] weights, str form, ScalarType dtype, "
      "Tensor[] findings) -> Tensor");
  m.def("unpack_block(Tensor block) -> Tensor[]");
  m.def("form_of_block(Tensor block) -> str");
  m.def("has_screen(Tensor block) -> bool");
  m.def("open_layer(Tensor block, str path, Tensor[] cost) -> Tensor");
  m.def("close_layer(Tensor layer) -> ()");
  m.def("run_layer(Tensor x, Tensor block, Tensor layer, SymInt columns) -> Tensor");
  m.def("layer_gradient(Tensor dy, Tensor x, Tensor block) -> Tensor");  // python/twell/_rules.py
  m.def("describe_layer(Tensor block, Tensor layer, int rows) -> str");
  // The steps of the layer one by one, for inspection and tests.
  m.def(
      "gemm_relu_twell(Tensor x, Tensor weight_packed, str activation=\"relu\", "
      "float threshold=0., int tile=256, int capacity=32) -> (Tensor counts, Tensor slots, "
      "Tensor overflow)");
  m.def(
      "twell_gated_ffn(Tensor x, Tensor counts, Tensor slots, Tensor overflow, Tensor up, "
      "Tensor down) -> Tensor");
  m.def("twell_spmm(Tensor counts, Tensor slots, Tensor overflow, Tensor down) -> Tensor");
  m.def(
      "dense_to_twell(Tensor dense, int tile=256, int capacity=32) -> (Tensor counts, "
      "Tensor slots, Tensor overflow)");
  m.def(
      "twell_to_dense(Tensor counts, Tensor slots, Tensor overflow, SymInt cols, "
      "ScalarType dtype) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(twell, CPU, m) {
  namespace ops = twell::torch_ops;
  m.impl("pack_weight", TORCH_BOX(&ops::pack_weight));
  m.impl("unpack_weight", TORCH_BOX(&ops::unpack_weight));
  m.impl("linear", TORCH_BOX(&ops::linear));
  m.impl("linear_as_stored", TORCH_BOX(&ops::linear_as_stored));
  m.impl("round_inputs", TORCH_BOX(&ops::round_inputs));
  m.impl("ffn", TORCH_BOX(&ops::ffn));
  m.impl("ffn_stats", TORCH_BOX(&ops::ffn_stats));
  m.impl("screen_weight", TORCH_BOX(&ops::screen_weight));
  m.impl("ffn_train", TORCH_BOX(&ops::ffn_train));
  m.impl("ffn_train_backward", TORCH_BOX(&ops::ffn_train_backward));
  m.impl("ffn_train_backward_add", TORCH_BOX(&ops::ffn_train_backward_add));
  m.impl("examine_layer", TORCH_BOX(&ops::examine_layer));
  m.impl("make_block", TORCH_BOX(&ops::make_block));
  m.impl("unpack_block", TORCH_BOX(&ops::unpack_block));
  m.impl("form_of_block", TORCH_BOX(&ops::form_of_block));
  m.impl("has_screen", TORCH_BOX(&ops::has_screen));
  m.impl("open_layer", TORCH_BOX(&ops::open_layer));
  m.impl("close_layer", TORCH_BOX(&ops::close_layer));
  m.impl("run_layer", TORCH_BOX(&ops::run_layer));
  m.impl("describe_layer", TORCH_BOX(&ops::describe_layer));
  m.impl("gemm_relu_twell", TORCH_BOX(&ops::gemm_relu_twell));
  m.impl("twell_gated_ffn", TORCH_BOX(&ops::twell_gated_ffn));
  m.impl("twell_spmm", TORCH_BOX(&ops::twell_spmm));
  m.impl("dense_to_twell", TORCH_BOX(&ops::dense_to_twell));
  m.impl("twell_to_dense", TORCH_BOX(&ops::twell_to_dense));
}

// Of no tensor, so of no device.
STABLE_TORCH_LIBRARY_IMPL(twell, CompositeExplicitAutograd, m) {
  m.impl("screen_limit", TORCH_BOX(&twell::torch_ops::screen_limit));
  m.impl("processor_name", TORCH_BOX(&twell::torch_ops::processor_name));
  m.impl("cpu_tier", TORCH_BOX(&twell::torch_ops::cpu_tier));
  m.impl("cpu_tier_available", TORCH_BOX(&twell::torch_ops::cpu_tier_available));
}
