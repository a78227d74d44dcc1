// A GGUF file, opened.
#pragma once

#include <memory>

#include "decoder/opened_model.h"
#include "gguf/stored_model.h"

namespace twell::lm {

// Where options.keep_codes, a matrix in blocks that libtwell multiplies stays as the file has it
// (Parameter::format), and so does the embedding beside such. All else becomes floating-point
// numbers of options.dtype. Where that is none, they are f32 beside blocks, and otherwise of the
// linear layers' type (io::float_type_of()). `config`: the model's, or one of fewer layers.
class GgufModel final : public OpenedModel {
 public:
  GgufModel(std::shared_ptr<const io::StoredModel> model, io::ModelConfig config,
            const CheckpointSourceOptions& options);
};

}  // namespace twell::lm
