#include "models/decoder.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "models/registry.h"
#include "models/resident_exp.h"
#include "models/rms_norm.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::invalid_argument, "model", message);
}

void check_token(std::int64_t token, std::int64_t vocabulary) {
  if (token < 0 || token >= vocabulary) {
    fail(fmt::format("token id {} is outside the vocabulary of {}; is this the model's tokenizer?",
                     token, vocabulary));
  }
}

}  // namespace

Decoder::Decoder(const Architecture& architecture, const io::ModelConfig& config,
                 ParameterSource& source)
    : architecture_(architecture), config_(config), rope_(config) {
  visit([&](const ParameterSpec& spec, at::Tensor& tensor) { tensor = source.take(spec); });
  rope_ = RopeTable(config, device());
}

void Decoder::visit(const ParameterVisitor& visitor) const {
  architecture_.visit(config_, weights_, visitor);
}

void Decoder::use_dense_ffn(bool prepack, ParameterSource& source) {
  for (Block& block : weights_.blocks) {
    block.ffn = make_dense_feed_forward(block.ffn_parameters, activation(), prepack);
    if (!prepack) continue;
    FfnParameters& ffn = block.ffn_parameters;
    visit([&](const ParameterSpec& spec, at::Tensor& tensor) {
      if (&tensor == &ffn.gate || &tensor == &ffn.up || &tensor == &ffn.down) source.release(spec);
    });
    ffn.gate = ffn.up = ffn.down = at::Tensor();
  }
}

void Decoder::use_sparse_ffn(FfnPath path, ParameterSource& source) {
  own_linears_ = true;
  for (Block& block : weights_.blocks) {
    FfnParameters& ffn = block.ffn_parameters;
    // A gated layer goes on using `up` where it lies, and a neuron-major `down`.
    const bool keeps_down = ffn.down.t().is_contiguous();
    block.ffn = make_sparse_feed_forward(ffn, activation(), path);
    visit([&](const ParameterSpec& spec, at::Tensor& tensor) {
      // Packed, or, where it is screened, read again when its screen is made.
      const bool gate = &tensor == (ffn.gated() ? &ffn.gate : &ffn.up);
      if (gate || (&tensor == &ffn.down && !keeps_down)) source.release(spec);
    });
    (ffn.gated() ? ffn.gate : ffn.up) = at::Tensor();
    if (!keeps_down) ffn.down = at::Tensor();
    Attention& attention = block.attention;
    for (Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.o}) {
      pack(*linear, source);
    }
  }
}

void Decoder::pack(Linear& linear, ParameterSource& source) {
  if (linear.weight.scalar_type() != at::kBFloat16 || !linear.weight.is_cpu()) return;
  linear.pack();
  visit([&](const ParameterSpec& spec, at::Tensor& tensor) {
    if (&tensor == &linear.weight) source.release(spec);
  });
}

NamedTensors Decoder::parameters() const {
  NamedTensors out;
  visit([&](const ParameterSpec& spec, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(spec.name, tensor);
  });
  return out;
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t total = 0;
  visit([&](const ParameterSpec&, at::Tensor& tensor) {
    if (tensor.defined()) total += static_cast<std::int64_t>(tensor.nbytes());
  });
  for (const Block& block : weights_.blocks) {
    total += block.ffn->own_bytes();
    for (const Linear* linear :
         {&block.attention.q, &block.attention.k, &block.attention.v, &block.attention.o}) {
      if (linear->packed.defined()) total += static_cast<std::int64_t>(linear->packed.nbytes());
    }
  }
  return total;
}

at::Tensor Decoder::embed(const at::Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong) {
    fail(fmt::format("tokens must be int64 [batch, length], got {} dimensions of {}", tokens.dim(),
                     c10::toString(tokens.scalar_type())));
  }
  if (tokens.size(1) > config_.max_position_embeddings) {
    fail(fmt::format("{} tokens are longer than the model's context of {}", tokens.size(1),
                     config_.max_position_embeddings));
  }
  if (tokens.numel() > 0) {
    check_token(tokens.min().item<std::int64_t>(), config_.vocab_size);
    check_token(tokens.max().item<std::int64_t>(), config_.vocab_size);
  }
  if (device().is_cpu()) keep_exp_resident();
  return at::embedding(weights_.embedding, tokens.to(device()));
}

at::Tensor Decoder::block(std::int64_t layer, const at::Tensor& x, FfnObserver* observer) {
  Block& block = at(layer);
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t width = x.size(2);
  rope_.reserve(length);
  if (!at::GradMode::is_enabled()) {
    if (x.numel() == 0) return x;
    PackedRows rows;
    for (std::int64_t b = 0; b < batch; ++b) rows.add(b, 0, length);
    if (!device().is_cpu()) rows.place(rope_, device());
    at::Tensor packed = x.reshape({batch * length, width}).clone();
    return run_packed(block, layer, packed, rows, nullptr, observer).view({batch, length, width});
  }
  const at::Tensor normed = rms_norm(x, block.attention_norm, config_.rms_norm_eps);
  const at::Tensor attended = x + attend(block.attention, normed, rope_);
  const at::Tensor ffn_in = rms_norm(attended, block.ffn_norm, config_.rms_norm_eps);
  const at::Tensor out = block.ffn->forward(ffn_in.reshape({-1, width}), layer, observer);
  return attended + out.view({batch, length, width});
}

at::Tensor Decoder::run_packed(Block& block, std::int64_t layer, at::Tensor x,
                               const PackedRows& rows, const KvCache* cache,
                               FfnObserver* observer) {
  const at::Tensor normed = timed(profile_, Piece::norm_and_rope, [&] {
    return rms_norm(x, block.attention_norm, config_.rms_norm_eps);
  });
  x.add_(attend(block.attention, normed, rope_, rows, cache, layer, profile_));
  const at::Tensor ffn_in = timed(profile_, Piece::norm_and_rope, [&] {
    return rms_norm(x, block.ffn_norm, config_.rms_norm_eps);
  });
  x.add_(timed(profile_, Piece::ffn, [&] { return block.ffn->forward(ffn_in, layer, observer); }));
  return x;
}

at::Tensor Decoder::final_norm(const at::Tensor& x) {
  const PieceTimer timer(profile_, Piece::norm_and_rope);
  return rms_norm(x, weights_.final_norm, config_.rms_norm_eps);
}

at::Tensor Decoder::head(const at::Tensor& normalised) {
  const PieceTimer timer(profile_, Piece::logits);
  const at::Tensor& weight = weights_.head.defined() ? weights_.head : weights_.embedding;
  return own_linears_ ? linear_as_stored(normalised, weight) : at::linear(normalised, weight);
}

at::Tensor Decoder::forward(const at::Tensor& tokens, FfnObserver* observer) {
  at::Tensor x = embed(tokens);
  if (observer != nullptr) {
    PackedRows rows;
    for (std::int64_t b = 0; b < tokens.size(0); ++b) rows.add(b, 0, tokens.size(1));
    observer->begin(rows.positions);
  }
  for (std::int64_t layer = 0; layer < layers(); ++layer) x = block(layer, x, observer);
  return head(final_norm(x));
}

PackedRows Decoder::plan(std::span<const Chunk> chunks, const KvCache* cache) const {
  if (chunks.empty()) fail("no tokens to run");
  PackedRows rows;
  std::vector<bool> seen(cache == nullptr ? 0 : static_cast<std::size_t>(cache->slots()), false);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    if (count == 0) fail(fmt::format("sequence {} of the batch is empty", i));
    for (const std::int64_t token : chunk.tokens) check_token(token, config_.vocab_size);
    std::int64_t start = 0;
    std::int64_t limit = config_.max_position_embeddings;
    if (cache != nullptr) {
      if (chunk.slot < 0 || chunk.slot >= cache->slots() ||
          seen[static_cast<std::size_t>(chunk.slot)]) {
        fail(fmt::format("sequence {}: cache slot {} is used twice or outside 0..{}", i, chunk.slot,
                         cache->slots() - 1));
      }
      seen[static_cast<std::size_t>(chunk.slot)] = true;
      start = cache->length(chunk.slot);
      limit = std::min(limit, cache->capacity());
    }
    if (start + count > limit) {
      fail(fmt::format("sequence {} has {} tokens, the {} holds {}", i, start + count,
                       limit == config_.max_position_embeddings ? "model's context" : "cache",
                       limit));
    }
    rows.add(cache == nullptr ? static_cast<std::int64_t>(i) : chunk.slot, start, count);
  }
  return rows;
}

at::Tensor Decoder::hidden_states(std::span<const Chunk> chunks, KvCache* cache,
                                  FfnObserver* observer) {
  const at::NoGradGuard no_grad;
  PackedRows rows = plan(chunks, cache);
  std::int64_t furthest = 0;
  for (const auto& run : rows.runs) {
    furthest = std::max(furthest, run.start + run.count);
    if (cache != nullptr) cache->reserve(run.slot, run.count);
  }
  rope_.reserve(furthest);
  if (device().is_cpu()) {
    keep_exp_resident();
  } else {
    rows.place(rope_, device());
  }

  at::Tensor tokens = at::empty({static_cast<std::int64_t>(rows.positions.size())}, at::kLong);
  auto* ids = tokens.mutable_data_ptr<std::int64_t>();
  for (const Chunk& chunk : chunks) ids = std::copy(chunk.tokens.begin(), chunk.tokens.end(), ids);

  at::Tensor x = device().is_cpu()
                     ? at::embedding(weights_.embedding, tokens)
                     : at::index(weights_.embedding, {tokens.to(device())});  // [N, D]
  if (observer != nullptr) observer->begin(rows.positions);
  for (std::int64_t layer = 0; layer < layers(); ++layer) {
    x = run_packed(at(layer), layer, x, rows, cache, observer);
  }
  if (cache != nullptr) {
    for (const auto& run : rows.runs) cache->advance(run.slot, run.count);
  }
  return final_norm(x);
}

KvCache Decoder::make_cache(std::int64_t slots, std::int64_t capacity, bool fixed) const {
  return {layers(),
          slots,
          config_.num_key_value_heads,
          capacity,
          config_.head_dim,
          weights_.embedding.options(),
          fixed || !device().is_cpu()};
}

at::Tensor Decoder::step(const at::Tensor& tokens, const at::Tensor& positions,
                         const KvCache& cache) {
  if (!cache.fixed()) fail("a step needs a fixed cache");
  const at::NoGradGuard no_grad;
  rope_.reserve(cache.capacity());
  const StepRows rows(positions, rope_, cache);
  at::Tensor x = at::index(weights_.embedding, {tokens});  // [slots, D]
  for (std::int64_t layer = 0; layer < layers(); ++layer) {
    Block& block = at(layer);
    x.add_(attend(block.attention, rms_norm(x, block.attention_norm, config_.rms_norm_eps), rows,
                  cache, layer));
    x.add_(block.ffn->forward(rms_norm(x, block.ffn_norm, config_.rms_norm_eps), layer, nullptr));
  }
  return final_norm(x);
}

Block& Decoder::at(std::int64_t layer) {
  if (layer < 0 || layer >= layers()) {
    fail(fmt::format("no layer {}; the model has {}", layer, layers()));
  }
  return weights_.blocks[static_cast<std::size_t>(layer)];
}
const Block& Decoder::at(std::int64_t layer) const { return const_cast<Decoder*>(this)->at(layer); }

FeedForward& Decoder::feed_forward(std::int64_t layer) { return *at(layer).ffn; }

void Decoder::set_feed_forward(std::int64_t layer, std::unique_ptr<FeedForward> ffn) {
  at(layer).ffn = std::move(ffn);
}

FfnParameters Decoder::ffn_parameters(std::int64_t layer) const {
  const FfnParameters& ffn = at(layer).ffn_parameters;
  if (!ffn.up.defined() || !ffn.down.defined() || ffn.gated() != config_.gated) {
    fail(
        fmt::format("layer {} has given up its checkpoint weights for converted ones; load the "
                    "model with the dense path or trainable = true",
                    layer));
  }
  return ffn;
}

ActivationChoice Decoder::activation() const {
  return {config_.hidden_act, static_cast<float>(config_.fat_relu_threshold)};
}

}  // namespace twell::lm
