// The buffer type of the weights that are taken: they are packed as they come in.
#pragma once

#include <ggml-backend-impl.h>

#include "ggml/weight.h"

namespace twell::ggml {

// `device`: which owns it.
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device = nullptr);

// Whether a tensor lies in a buffer of weights of this type. llama.cpp says so only after it has
// made the buffer; tensors of a LoRA come into the same type and stay as they are.
bool is_weight(const ggml_tensor& tensor);
// The weight that such a tensor holds; null before it has its numbers.
Weight* weight_of(const ggml_tensor& tensor);

}  // namespace twell::ggml
