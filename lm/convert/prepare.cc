#include "convert/prepare.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "decoder/prepared_file.h"
#include "twell/status.h"

namespace twell::lm {

Prepared prepare_model(const std::string& directory, std::span<const std::int64_t> tokens,
                       const LoadOptions& options) {
  if (std::ssize(tokens) < kFewestInputs) {
    throw Error(
        ErrorKind::invalid_argument, "prepare",
        fmt::format("expected a text of {} tokens or more, got {}", kFewestInputs, tokens.size()));
  }
  LoadOptions load = options;
  load.path = FfnPath::sparse;
  load.prepare = false;
  // Before gigabytes are mapped and converted.
  const io::ModelConfig config = io::load_config(directory, options.architectures);
  if (const std::int64_t experts = config.block.experts.count; experts > 0) {
    throw Error(
        ErrorKind::unsupported, "prepare",
        fmt::format("there is nothing to find: the gates of {} experts are not screened", experts));
  }
  const auto model = load_model(directory, load);
  // In one call, as sequences of what the model has positions for: a layer decides by its first.
  const std::int64_t longest = std::min<std::int64_t>(512, model->config().max_position_embeddings);
  std::vector<Chunk> chunks;
  for (std::size_t begin = 0; begin < tokens.size(); begin += static_cast<std::size_t>(longest)) {
    const std::size_t left = tokens.size() - begin;
    chunks.push_back({0, tokens.subspan(begin, std::min(left, static_cast<std::size_t>(longest)))});
  }
  const c10::InferenceMode inference;
  model->hidden_states(chunks);
  Prepared out;
  for (std::int64_t layer = 0; layer < model->layers(); ++layer) {
    const FeedForward& ffn = model->feed_forward(layer);
    if (ffn.findings() == nullptr) {
      throw Error(ErrorKind::unsupported, "prepare",
                  fmt::format("there is nothing to find: no gate is screened that is stored as "
                              "codes, nor on processors of tier {}",
                              name_of(default_cpu_tier())));
    }
    out.layers.push_back(*ffn.findings());
    out.forms.push_back(ffn.gate_form().value_or(GateForm::packed));
  }
  const std::filesystem::path path(directory);
  const std::string& weights = model->config().weights_file;
  const io::Checkpoint checkpoint(weights.empty() ? path : path / weights);
  save_findings(path, checkpoint, *model, out.layers);
  out.file = (path / kPreparedFile).string();
  return out;
}

}  // namespace twell::lm
