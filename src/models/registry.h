// The architectures this library knows. Adding one: a file beside llama.cc that lists its
// parameters, its declaration here, and its line in registry.cc.
#pragma once

#include "models/decoder.h"

namespace twell::lm {

struct Architecture {
  const char* name;  // model_type
  // Visits every parameter once, in checkpoint order; makes weights.blocks where empty.
  void (*visit)(const io::ModelConfig&, DecoderWeights&, const ParameterVisitor&);
};

void visit_llama(const io::ModelConfig&, DecoderWeights&, const ParameterVisitor&);  // llama.cc
void visit_qwen2(const io::ModelConfig&, DecoderWeights&, const ParameterVisitor&);  // qwen2.cc

// Throws twell::Error for an architecture that is not registered.
const Architecture& find_architecture(io::Architecture architecture);

}  // namespace twell::lm
