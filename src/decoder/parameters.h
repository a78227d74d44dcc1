// The parameters of a model: names, shapes, kinds, and other layouts that files may have.
#pragma once

#include "decoder/decoder.h"

namespace twell::lm {

// Without tensors, of the model that the configuration describes, as its architecture names them.
DecoderWeights weights_of(const io::ModelConfig& config);

}  // namespace twell::lm
