#include "decoder/decoder.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "decoder/ggml_layers.h"
#include "decoder/parameters.h"
#include "decoder/resident_exp.h"
#include "device/device.h"
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

// By which a gate is packed.
LayerFindings no_candidates(const io::ModelConfig& config) {
  LayerFindings out;
  out.mean.resize(static_cast<std::size_t>(config.hidden_size));
  out.fired.resize(static_cast<std::size_t>(config.intermediate_size));
  return out;
}

at::Tensor capped(const at::Tensor& logits, double cap) {
  if (at::GradMode::is_enabled()) return logits.div(cap).tanh().mul(cap);
  return logits.div_(cap).tanh_().mul_(cap);
}

}  // namespace

Decoder::Decoder(const io::ModelConfig& config, ParameterSource& source, at::Device device)
    : config_(config), weights_(weights_of(config)), rope_(config, device) {
  for_each_parameter(weights_, [&](Parameter& parameter) {
    parameter.format = source.format_of(parameter);
    parameter.tensor = source.take(parameter).to(device);
    if (!device.is_cpu()) source.drop_pages(parameter);
  });
  // Norms have the model's type too.
  const Norm& norm = weights_.final_norm;
  const Parameter& typed = weights_.embedding.format ? norm.weight : weights_.embedding;
  dtype_ = typed.tensor.scalar_type();
}

FfnParameters Decoder::ffn_of(const FfnTensors& from) const {
  return {{from.gate.bias.tensor, from.up.bias.tensor, from.down.bias.tensor,
           from.inner_norm.weight.tensor},
          from.gate.weight.tensor,
          from.up.weight.tensor,
          from.down.weight.tensor,
          dtype()};
}

template <class Make>
void Decoder::make_ffn(Block& block, const Make& make) {
  if (config_.block.experts.count == 0) {
    block.ffn = make(block.ffn_from.front());
    return;
  }
  std::vector<std::unique_ptr<FeedForward>> experts;
  for (FfnTensors& from : block.ffn_from) experts.push_back(make(from));
  block.experts = std::make_unique<Experts>(block.router.weight.tensor, std::move(experts),
                                            config_.block.experts);
}

std::unique_ptr<FeedForward> Decoder::make_float_ffn(FfnTensors& from, FfnPath path,
                                                     ParameterSource& source,
                                                     const LayerFindings* findings) const {
  if (path == FfnPath::dense || !io::yields_zeros(config_.hidden_act)) {
    return make_dense_feed_forward(ffn_of(from), activation());
  }
  auto ffn = make_sparse_feed_forward(ffn_of(from), activation(), path, findings);
  // The gate is packed, or, where it is screened, read again when its screen is made.
  for (Linear* linear : {&from.gate, &from.up, &from.down}) {
    if (!ffn->keeps(linear->weight.tensor)) source.release(linear->weight);
  }
  return ffn;
}

void Decoder::use_dense_ffn(bool prepack, ParameterSource& source) {
  for (Block& block : weights_.blocks) {
    make_ffn(block, [&](FfnTensors& from) {
      auto ffn = make_dense_feed_forward(ffn_of(from), activation(), prepack);
      for (Linear* linear : {&from.gate, &from.up, &from.down}) {
        if (prepack) source.release(linear->weight);
      }
      return ffn;
    });
  }
}

void Decoder::round_inputs() {
  rounds_inputs_ = true;
  for (Block& block : weights_.blocks) block.attention.rounds_inputs = true;
}

void Decoder::use_sparse_ffn(FfnPath path, ParameterSource& source,
                             const std::vector<LayerFindings>& findings) {
  own_linears_ = true;
  // A screen leaves too much of an expert, which is made for the tokens that it gets; and which it
  // gets first is by chance.
  const LayerFindings none = no_candidates(config_);
  const bool has_experts = config_.block.experts.count > 0;
  for (Block& block : weights_.blocks) {
    const auto layer = static_cast<std::size_t>(&block - weights_.blocks.data());
    const LayerFindings* known = layer < findings.size() ? &findings[layer] : nullptr;
    if (has_experts) known = &none;
    make_ffn(block, [&](FfnTensors& from) { return make_float_ffn(from, path, source, known); });
    pack_attention(block, source);
  }
  // Others stay as they are stored: the embedding may be the same.
  if (weights_.head.has_codes()) weights_.head.pack(source);
}

void Decoder::pack_attention(Block& block, ParameterSource& source, GgmlPacking how) {
  Attention& attention = block.attention;
  for (Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.o}) {
    linear->pack(source, how);
  }
}

bool Decoder::has_ggml_weights() const {
  bool any = false;
  for_each_parameter(weights_, [&](const Parameter& parameter) { any = any || parameter.format; });
  return any;
}

void Decoder::use_ggml_ffn(FfnPath path, GgmlInputs inputs, ParameterSource& source) {
  own_linears_ = true;
  ggml_inputs_ = inputs;
  const GgmlPacking how = {.inputs = inputs};
  for (Block& block : weights_.blocks) {
    make_ffn(block, [&](FfnTensors& from) {
      const bool in_blocks =
          from.gate.weight.format || from.up.weight.format || from.down.weight.format;
      return in_blocks ? make_ggml_feed_forward(from, activation(), path, inputs, source)
                       : make_float_ffn(from, path, source, nullptr);
    });
    pack_attention(block, source, how);
  }
  Linear& head = weights_.head;
  if (config_.tie_word_embeddings) {  // the embedding stays, as the file has it
    Linear tied;
    tied.weight = weights_.embedding;
    if (tied.weight.format) tied.pack(source, how);
    head.ggml = tied.ggml;
  } else if (head.weight.format) {
    head.pack(source, how);
  }
}

NamedTensors Decoder::parameters() const {
  NamedTensors out;
  for_each_parameter(weights_, [&](const Parameter& parameter) {
    if (parameter.tensor.defined()) out.emplace_back(parameter.name, parameter.tensor);
  });
  return out;
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t total = 0;
  const auto add = [&total](const at::Tensor& tensor) {
    if (tensor.defined()) total += static_cast<std::int64_t>(tensor.nbytes());
  };
  for_each_parameter(weights_, [&](const Parameter& parameter) { add(parameter.tensor); });
  for (const Block& block : weights_.blocks) {
    total += (block.experts ? *block.experts : *block.ffn).own_bytes();
    const Attention& attention = block.attention;
    for (const Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.o}) {
      total += linear->own_bytes();
    }
  }
  return total + weights_.head.own_bytes();
}

at::Tensor Decoder::look_up(const at::Tensor& ids, const at::Tensor& positions) {
  if (device().is_cpu()) keep_exp_resident();
  const Parameter& embedding = weights_.embedding;
  at::Tensor x = embedding.format ? ggml_look_up(embedding, ids, dtype())
                                  : at::embedding(embedding.tensor, ids.to(device()));
  if (const double scale = config_.block.scales.embedding; scale != 1.0) x = x * scale;
  if (const at::Tensor& table = weights_.positions.tensor; table.defined()) {
    x = x + at::embedding(table, positions.to(device()) + config_.block.positions.offset);
  }
  return norm(x, weights_.embedding_norm);
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
  return look_up(tokens, at::arange(tokens.size(1)));
}

at::Tensor Decoder::norm(const at::Tensor& x, const Norm& norm) const {
  const PieceTimer timer(profile_, Piece::norm_and_rope);
  return norm(x);
}

at::Tensor Decoder::plus(const at::Tensor& x, at::Tensor y) const {
  const double depth = config_.block.scales.depth;
  if (depth > 0) return at::add(x, y, depth / std::sqrt(static_cast<double>(layers())));
  return at::GradMode::is_enabled() ? x + y : y.add_(x);
}

at::Tensor Decoder::run_block(std::int64_t layer, const at::Tensor& x, const Rows& rows,
                              FfnObserver* observer) {
  const Block& block = weights_.blocks[index(layer)];
  if (x.numel() == 0) return x;
  const auto attention = [&](const at::Tensor& in) {
    return attend(block.attention, in, rows, layer, profile_);
  };
  const bool early = block.experts && config_.block.experts.early;
  const Routing routing =
      early ? timed(profile_, Piece::other_linear, [&] { return block.experts->route(x); })
            : Routing();
  const auto ffn = [&](const at::Tensor& normed) {
    const PieceTimer timer(profile_, Piece::ffn);
    const at::Tensor in = rounds_inputs_ ? rounded_inputs(normed) : normed;
    if (early) return block.experts->forward(in, routing, layer, observer);
    return feed_forward(layer).forward(in, layer, observer);
  };
  const auto around = [&](const ResidualNorms& norms, const at::Tensor& in, const auto& f) {
    return norm(plus(in, norm(f(norm(in, norms.before)), norms.after)), norms.sum);
  };
  if (config_.block.arrangement == io::Arrangement::sequential) {
    return around(block.ffn_norms, around(block.attention_norms, x, attention), ffn);
  }
  const at::Tensor in = norm(x, block.attention_norms.before);
  const bool one_norm = config_.block.arrangement == io::Arrangement::parallel_one_norm;
  const at::Tensor ffn_in = one_norm ? in : norm(x, block.ffn_norms.before);
  return plus(plus(x, attention(in)), ffn(ffn_in));
}

at::Tensor Decoder::run(at::Tensor x, const Rows& rows, FfnObserver* observer) {
  for (std::int64_t layer = 0; layer < layers(); ++layer) x = run_block(layer, x, rows, observer);
  return final_norm(x);
}

PackedRows Decoder::whole(std::int64_t batch, std::int64_t length) {
  std::vector<PackedRows::Run> runs;
  for (std::int64_t b = 0; b < batch; ++b) runs.push_back({b, 0, length});
  return {std::move(runs), rope_};
}

at::Tensor Decoder::block(std::int64_t layer, const at::Tensor& x, FfnObserver* observer) {
  const PackedRows rows = whole(x.size(0), x.size(1));
  return run_block(layer, x.flatten(0, 1), rows, observer).view(x.sizes());
}

at::Tensor Decoder::forward(const at::Tensor& tokens, FfnObserver* observer) {
  const at::Tensor x = embed(tokens);  // [B, S, D]
  const PackedRows rows = whole(x.size(0), x.size(1));
  if (observer != nullptr) observer->begin(rows.position_list());
  return head(run(x.flatten(0, 1), rows, observer).view(x.sizes()));
}

at::Tensor Decoder::head(const at::Tensor& normalised) {
  const PieceTimer timer(profile_, Piece::logits);
  const bool tied = config_.tie_word_embeddings && !weights_.head.ggml;
  const at::Tensor& weight = (tied ? weights_.embedding : weights_.head.weight).tensor;
  const io::Scales& scales = config_.block.scales;
  at::Tensor x = normalised;
  if (scales.width > 0) x = x * (scales.width / static_cast<double>(config_.hidden_size));
  // Rounded to bf16, the two largest logits tie in one position of 27 (docs/decisions.md).
  const bool rounded = at::GradMode::is_enabled() || !x.is_cpu() || dtype_ != at::kBFloat16;
  const auto product = [&] {
    if (!weight.defined()) return rounded ? weights_.head(x) : weights_.head.sums(x);
    if (!rounded) return sums_as_stored(x, weight);
    return own_linears_ ? linear_as_stored(x, weight) : linear_of(x, weight);
  };
  const at::Tensor logits = product();
  return scales.logit_cap > 0 ? capped(logits, scales.logit_cap) : logits;
}

PackedRows Decoder::plan(std::span<const Chunk> chunks, const KvCache* cache) {
  if (chunks.empty()) fail("no tokens to run");
  std::vector<PackedRows::Run> runs;
  std::vector<bool> seen(cache == nullptr ? 0 : static_cast<std::size_t>(cache->slots()), false);
  for (std::int64_t i = 0; const Chunk& chunk : chunks) {
    PackedRows::Run run{i, 0, std::ssize(chunk.tokens)};
    if (run.count == 0) fail(fmt::format("sequence {} of the batch is empty", i));
    for (const std::int64_t token : chunk.tokens) check_token(token, config_.vocab_size);
    std::int64_t limit = config_.max_position_embeddings;
    if (cache != nullptr) {
      run.slot = chunk.slot;
      const auto slot = static_cast<std::size_t>(run.slot);
      if (slot >= seen.size() || seen[slot]) {
        fail(fmt::format("sequence {}: cache slot {} is used twice or outside 0..{}", i, run.slot,
                         cache->slots() - 1));
      }
      seen[slot] = true;
      run.start = cache->length(run.slot);
      limit = std::min(limit, cache->capacity());
    }
    if (run.start + run.count > limit) {
      fail(fmt::format("sequence {} has {} tokens, the {} holds {}", i, run.start + run.count,
                       limit == config_.max_position_embeddings ? "model's context" : "cache",
                       limit));
    }
    runs.push_back(run);
    ++i;
  }
  return {std::move(runs), rope_, cache};
}

at::Tensor Decoder::hidden_states(std::span<const Chunk> chunks, KvCache* cache,
                                  FfnObserver* observer) {
  const at::NoGradGuard no_grad;
  const PackedRows rows = plan(chunks, cache);
  std::vector<std::int64_t> ids;
  for (const Chunk& chunk : chunks) {
    ids.insert(ids.end(), chunk.tokens.begin(), chunk.tokens.end());
    if (cache != nullptr) cache->reserve(chunk.slot, std::ssize(chunk.tokens));
  }
  if (observer != nullptr) observer->begin(rows.position_list());
  const at::Tensor out = run(look_up(at::tensor(ids), rows.positions), rows, observer);
  for (const Chunk& chunk : chunks) {
    if (cache != nullptr) cache->advance(chunk.slot, std::ssize(chunk.tokens));
  }
  return out;
}

KvCache Decoder::make_cache(std::int64_t slots, std::int64_t capacity, bool fixed) const {
  return {layers(),
          slots,
          config_.num_key_value_heads,
          capacity,
          config_.head_dim,
          weights_.embedding.tensor.options().dtype(dtype()),
          fixed || !device().is_cpu()};
}

at::Tensor Decoder::step(const at::Tensor& tokens, const at::Tensor& positions,
                         const KvCache& cache) {
  if (!cache.fixed()) fail("a step needs a fixed cache");
  const at::NoGradGuard no_grad;
  return run(look_up(tokens, positions), StepRows(positions, rope_, cache), nullptr);
}

std::size_t Decoder::index(std::int64_t layer) const {
  if (layer < 0 || layer >= layers()) {
    fail(fmt::format("no layer {}; the model has {}", layer, layers()));
  }
  return static_cast<std::size_t>(layer);
}

FeedForward& Decoder::feed_forward(std::int64_t layer) {
  const Block& block = weights_.blocks[index(layer)];
  if (block.experts) return *block.experts;
  return *block.ffn;
}

std::unique_ptr<FeedForward> Decoder::set_feed_forward(std::int64_t layer,
                                                       std::unique_ptr<FeedForward> ffn) {
  only_ffn(layer);
  return std::exchange(weights_.blocks[index(layer)].ffn, std::move(ffn));
}

const FfnTensors& Decoder::only_ffn(std::int64_t layer) const {
  const Block& block = weights_.blocks[index(layer)];
  if (const auto count = std::ssize(block.ffn_from); count != 1 || block.experts) {
    throw Error(ErrorKind::unsupported, "model",
                fmt::format("layer {} is a mixture of {} experts; this is for models whose layers "
                            "have one feed-forward layer each",
                            layer, count));
  }
  return block.ffn_from.front();
}

FfnParameters Decoder::ffn_parameters(std::int64_t layer) const {
  const FfnParameters ffn = ffn_of(only_ffn(layer));
  if (!ffn.up.defined() || !ffn.down.defined() || ffn.gated() != config_.gated) {
    fail(
        fmt::format("layer {} has given up its checkpoint weights for converted ones; load the "
                    "model with the dense path or trainable = true",
                    layer));
  }
  return ffn;
}

FfnNames Decoder::ffn_names(std::int64_t layer) const {
  const FfnTensors& of = only_ffn(layer);
  return {{of.gate.bias.name, of.up.bias.name, of.down.bias.name, of.inner_norm.weight.name},
          of.gate.weight.name,
          of.up.weight.name,
          of.down.weight.name};
}

ActivationChoice Decoder::activation() const {
  const io::BlockSpec& block = config_.block;
  ActivationChoice out{config_.hidden_act, static_cast<float>(config_.fat_relu_threshold),
                       block.up};
  if (block.inner_norms) out.norm_eps = block.norm.eps;
  return out;
}

}  // namespace twell::lm
