// twell prepare: what a text shows of a model's sparse layers, kept beside the checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decoder/model.h"
#include "twell/findings.h"

namespace twell::lm {

// Runs the tokens, kFewestInputs or more, through the model in `directory` on its sparse path, and
// writes kPreparedFile there (decoder/prepared_file.h). Where a layer has its form by now, says
// `forms`: of this processor. On the CPU. Throws twell::Error as load_model() does, and where the
// file cannot be written.
struct Prepared {
  std::vector<LayerFindings> layers;
  std::vector<GateForm> forms;
  std::string file;
};
Prepared prepare_model(const std::string& directory, std::span<const std::int64_t> tokens,
                       const LoadOptions& options = {});

}  // namespace twell::lm
