# What libtwell_cuda is made of, apart from what calls cuBLASLt. The tests compile these sources over an
# emulated GPU.
set(TWELL_CUDA_SOURCES
  # The kernels, one translation unit an operation.
  kernels/sm80/gemm_relu_twell.cu
  kernels/sm80/pack_gate.cu
  kernels/sm80/screen_relu_twell.cu
  kernels/sm80/train.cu
  kernels/sm80/twell_dense.cu
  kernels/sm80/twell_gated_ffn.cu
  ops/arguments.cc
  ops/buffers.cc
  ops/cost.cc
  ops/cost_train.cc
  ops/describe_gemm.cc
  ops/device.cc
  ops/ffn.cc
  ops/ffn_backward.cc
  ops/ffn_forward.cc
  ops/gather_backward.cc
  ops/gemm_relu_twell.cc
  ops/hot.cc
  ops/multiply_backward.cc
  ops/multiply_forward.cc
  ops/plan_ffn.cc
  ops/plan_gemm.cc
  ops/plan_library.cc
  ops/plan_train.cc
  ops/rates.cc
  ops/run_fused.cc
  ops/run_library.cc
  ops/screen.cc
  ops/train_buffers.cc
  ops/twell_dense.cc
  ops/twell_gated_ffn.cc)
list(TRANSFORM TWELL_CUDA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
