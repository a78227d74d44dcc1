// The architectures this library knows: each a function, in a file of its own, that names and
// shapes the parameters of a model. How to add one: docs/adding-a-model.md.
#pragma once

#include <string>

#include "decoder/decoder.h"

namespace twell::lm {

// Without tensors, of the model that config.json describes.
DecoderWeights llama_weights(const io::ModelConfig& config);  // llama.cc

// Of the architecture that the configuration names; the one place that knows them all.
DecoderWeights weights_of(const io::ModelConfig& config);

// --- pieces that they share, in parameters.cc; `prefix` ends in a dot ---

Linear linear_parameters(const std::string& prefix, std::int64_t out, std::int64_t in, bool bias,
                         ParameterKind kind = ParameterKind::matrix);
// Queries, keys, values and output, with the biases that the configuration says.
Attention attention_parameters(const std::string& prefix, const io::ModelConfig& config);
// Sets the block's gate, up and down, also under the names and in the orientations of the released
// SparseLM models.
void set_ffn_parameters(const std::string& prefix, const io::ModelConfig& config, Block& block);

}  // namespace twell::lm
