#include "measure/fit.h"

#include <fmt/core.h>

#include <algorithm>

#include "twell/status.h"

namespace twell::lm {
namespace {

double wide(std::int64_t value) { return static_cast<double>(value); }

// Parameters outside of the blocks, and of a block.
double outer_parameters(const io::ModelConfig& c) {
  return wide(c.vocab_size * c.hidden_size) * (c.tie_word_embeddings ? 1 : 2);
}
double block_parameters(const io::ModelConfig& c) {
  const double heads = wide(2 * (c.num_attention_heads + c.num_key_value_heads) * c.head_dim);
  const double neurons = wide(c.intermediate_size * (c.gated ? 3 : 2)) *
                         wide(std::max<std::int64_t>(1, c.block.experts.count));
  return wide(c.hidden_size) * (heads + neurons);
}

}  // namespace

MemoryNeed inference_need(const io::ModelConfig& config, const CompareOptions& options,
                          double copies, double caches, double element) {
  const double rows = wide(options.sequences * options.prompt_tokens);
  const double cached = wide(options.tokens() * config.num_key_value_heads * config.head_dim * 2);
  // A layer's values: its inputs, q, k, v and what attention makes of them; gate and up joined, and
  // their product. fp32 copies of the first in norms.
  const double values = rows * (wide(12 * config.hidden_size) + wide(4 * config.intermediate_size));
  constexpr double kWorkspace = 0.5e9;  // libraries' own
  return {outer_parameters(config) * element * copies + values * element + kWorkspace,
          (block_parameters(config) * copies + cached * caches) * element};
}

MemoryNeed training_need(const io::ModelConfig& config, std::int64_t context, bool recompute) {
  // fp32 masters and two moments, bf16 weights and gradients and their fp32 sum; beside them the
  // eager side's fp32 gradients and bf16 copies.
  constexpr double kBytes = 12 + 2 + 2 + 4 + 4 + 2;
  const auto rows = wide(context);
  // What autograd keeps of a block in eager mode: some twenty values of D, of which norms have half
  // in fp32, and v, g, u and h.
  const double kept =
      rows * (wide(30 * config.hidden_size) + wide(5 * config.intermediate_size)) * 2;
  const double logits = rows * wide(config.vocab_size) * 12;  // in bf16, fp32, and their gradient
  constexpr double kWorkspace = 1.5e9;
  MemoryNeed need{outer_parameters(config) * kBytes + logits + kWorkspace,
                  block_parameters(config) * kBytes};
  (recompute ? need.fixed : need.per_layer) += kept;
  if (recompute) need.per_layer += rows * wide(config.hidden_size) * 4;
  return need;
}

std::int64_t layers_that_fit(const MemoryNeed& need, std::int64_t layers, std::int64_t free_bytes,
                             const std::string& device) {
  if (free_bytes <= 0) return layers;
  const double room = 0.9 * wide(free_bytes) - need.fixed;
  const auto fit = static_cast<std::int64_t>(std::max(0.0, room / need.per_layer));
  if (fit == 0) {
    throw Error(ErrorKind::out_of_memory, device,
                fmt::format("{:.1f} GB are free, and one layer with embedding and values takes "
                            "{:.1f} GB; use a smaller model, fewer tokens or a smaller --batch",
                            wide(free_bytes) / 1e9, (need.fixed + need.per_layer) / 1e9));
  }
  return std::min(layers, fit);
}

}  // namespace twell::lm
