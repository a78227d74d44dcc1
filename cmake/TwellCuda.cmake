# The CUDA language, if there is a compiler for it, and the architectures to build for.
#
# TWELL_CUDA: build libtwell_cuda. Its default is whether nvcc is found; asked for without nvcc, it fails.
# TWELL_CUBLASLT: use cuBLASLt, which is loaded when the program runs. Its default is whether the toolkit has
# cublasLt.h, a package of its own in some distributions.
# TWELL_CUDA_ARCHITECTURES: machine code for sm_80 runs on 8.x, sm_100 on 10.x, sm_120 on 12.x; sm_90a on
# 9.0 alone. PTX of compute_80 comes along for GPUs that none of these serves.
include(CheckLanguage)
if(NOT DEFINED TWELL_CUDA)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(_found ON)
  else()
    set(_found OFF)
  endif()
  option(TWELL_CUDA "Build the CUDA kernels (needs nvcc, no GPU)" ${_found})
endif()
if(TWELL_CUDA)
  set(TWELL_CUDA_ARCHITECTURES "80;90a-real;100-real;120-real" CACHE STRING
      "As CMAKE_CUDA_ARCHITECTURES: NN for machine code and PTX, NN-real for machine code, native")
  set(CMAKE_CUDA_ARCHITECTURES ${TWELL_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake 3.25 asks the host compiler's simulated version and misses that nvcc 12 and later have C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  # For the kernels what twell_flags has for C++: warnings of nvcc, of ptxas (spills, local memory) and of
  # the host compiler.
  set(TWELL_CUDA_WARNINGS -Xptxas=-warn-spills,-warn-lmem-usage -Xcompiler=-Wall,-Wextra)
  if(TWELL_WERROR)
    list(APPEND TWELL_CUDA_WARNINGS -Werror=all-warnings)
  endif()
  find_package(CUDAToolkit REQUIRED)
  find_path(TWELL_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  mark_as_advanced(TWELL_CUBLASLT_INCLUDE)
  if(TWELL_CUBLASLT_INCLUDE)
    set(_found ON)
  else()
    set(_found OFF)
  endif()
  option(TWELL_CUBLASLT "Multiply by cuBLASLt where it is installed (needs its header)" ${_found})
  if(TWELL_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()
