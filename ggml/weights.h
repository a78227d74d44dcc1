// Which weights are taken: of layers whose activation has exact zeros, by their architecture and
// their name.
#pragma once

#include <ggml.h>

#include <optional>
#include <string>

#include "twell/ggml.h"

namespace twell::ggml {

// libtwell's name of a type; nothing for those that it lacks.
std::optional<GgmlFormat> format_of(ggml_type type);

// Down, whose inputs are mostly zero, or else up and gate, by name.
GgmlOrder order_of(const ggml_tensor& weight);

// Whether to take this weight, which llama.cpp asks about by its name while it loads the file. What
// is left, and why, goes into the ledger.
bool wanted(const ggml_tensor& weight);

}  // namespace twell::ggml
