# One precompiled header for every translation unit that uses LibTorch.
#
#   twell_use_torch_pch(TARGET)   after target_link_libraries(TARGET ... LibTorch::cpu ...)
#
# Sources still include what they use: <torch/types.h> (tensors, at:: and torch:: functions, factories)
# and <torch/utils.h> (NoGradGuard) are in the header and cost nothing more; single headers such as
# <torch/csrc/autograd/custom_function.h> (0.7 s) or <torch/optim/adamw.h> (1 s) may follow.
# <torch/torch.h> defeats it.
#
# A unit of 20 lines, g++ 12 -O3, on one core, seconds:
#   <torch/torch.h>                     20     (with a header of its own precompiled: 7.6)
#   <torch/types.h>, <torch/utils.h>     8.2
#   <ATen/core/Tensor.h>, <ATen/ops/…>   3.9
#   this header, precompiled             2.3   and 15-20 s once for the header itself
include_guard(GLOBAL)

function(twell_use_torch_pch TARGET)
  if(NOT TARGET twell_torch_pch)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cc CONTENT "// Carries the precompiled header.\n")
    add_library(twell_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cc)
    target_link_libraries(twell_torch_pch PRIVATE twell_flags twell LibTorch::cpu)
    target_precompile_headers(twell_torch_pch PRIVATE <torch/types.h> <torch/utils.h>)
    # Lets ccache see the precompiled header in the preprocessed source.
    target_compile_options(twell_torch_pch PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
  # g++ takes a precompiled header only under the code model it was made with, and CMake compiles
  # programs with -fPIE; -fPIC objects link into a position-independent program as well.
  get_target_property(type ${TARGET} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${TARGET} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${TARGET} PRIVATE -fPIC)
  endif()
  # The same flags as the header was made with.
  target_link_libraries(${TARGET} PRIVATE twell_flags twell)
  target_compile_options(${TARGET} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_precompile_headers(${TARGET} REUSE_FROM twell_torch_pch)
  twell_merge_sources(${TARGET})
endfunction()
