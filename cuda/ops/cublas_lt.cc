#include "cuda/ops/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>

namespace twell::cuda {

CublasLt::CublasLt() {
  void* handle = nullptr;
  // One that is loaded already comes before one that is merely installed.
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}) {
      if (handle == nullptr) handle = dlopen(name, flags);
    }
  }
  const auto find = [&](auto& function, const char* name) {
    void* symbol = handle == nullptr ? nullptr : dlsym(handle, name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(symbol);
    complete = complete && symbol != nullptr;
  };
  find(create, "cublasLtCreate");
  find(matmul, "cublasLtMatmul");
  find(desc_create, "cublasLtMatmulDescCreate");
  find(desc_destroy, "cublasLtMatmulDescDestroy");
  find(desc_set, "cublasLtMatmulDescSetAttribute");
  find(layout_create, "cublasLtMatrixLayoutCreate");
  find(layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(preference_create, "cublasLtMatmulPreferenceCreate");
  find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
}

const CublasLt& cublas_lt() {
  static const CublasLt loaded;
  return loaded;
}

}  // namespace twell::cuda
