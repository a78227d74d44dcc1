# What every target of this project is compiled with.
find_program(TWELL_CCACHE ccache)
if(TWELL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TWELL_CCACHE})
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(twell_flags INTERFACE)
target_compile_features(twell_flags INTERFACE cxx_std_20)
# No contraction: where a kernel wants a fused multiply-add it says so, and the same source gives
# the same bits at every optimisation level.
target_compile_options(twell_flags INTERFACE -Wall -Wextra -ffp-contract=off)
if(TWELL_WERROR)
  target_compile_options(twell_flags INTERFACE -Werror)
endif()
if(TWELL_SANITIZE)
  target_compile_options(twell_flags INTERFACE -fsanitize=${TWELL_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(twell_flags INTERFACE -fsanitize=${TWELL_SANITIZE})
endif()
