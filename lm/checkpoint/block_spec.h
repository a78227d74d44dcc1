// What a decoder computes besides its sizes, as values. An architecture is a choice of them
// (architectures.cc); the engine computes any.
#pragma once

#include <cstdint>

#include "twell/activation.h"

namespace twell::io {

// Over the last dimension: x / √(mean(x²) + ε), or (x - mean(x)) / √(variance(x) + ε).
struct NormSpec {
  enum class Kind : std::uint8_t { none, rms, layer };
  Kind kind = Kind::none;
  bool weight = true;     // then multiplied by a weight
  bool plus_one = false;  // which is stored less one
  bool bias = false;      // then a bias is added
  double eps = 1e-6;

  bool operator==(const NormSpec&) const = default;
};

// Where the norms of a block are; f is attention or the feed-forward layer.
enum class NormOrder : std::uint8_t {
  pre,     // x + f(norm(x))
  post,    // norm(x + f(x)), and there is none before the head
  output,  // x + norm(f(x))
  both,    // x + norm(f(norm(x))), of two norms
};

// What a block's feed-forward layer reads.
enum class Arrangement : std::uint8_t {
  sequential,         // the sum of the block's input and its attention
  parallel,           // the block's input, as attention does, each through its own norm
  parallel_one_norm,  // the same, both through the norm of attention
};

struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1.0;
  // llama3 and yarn: dimensions that turn often enough within so many positions keep their
  // frequency
  std::int64_t original_max_position_embeddings = 8192;
  // llama3 only
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn only
  double beta_slow = 1.0;
  double beta_fast = 32.0;
  bool truncate = true;           // the bounds between dimensions are whole numbers
  double attention_factor = 1.0;  // of queries and keys, as far as they are rotated

  bool operator==(const RopeScaling&) const = default;
};

// How a token's position enters.
struct PositionSpec {
  enum class Kind : std::uint8_t { none, rope, learned };
  Kind kind = Kind::rope;
  // rope: queries and keys are rotated, of each head the first `share` of its dimensions.
  double theta = 10000.0;
  RopeScaling scaling = {};
  double share = 1.0;
  bool reversed = false;             // the other way round, by the negative angles
  std::int64_t unrotated_every = 0;  // layer l is not rotated if this divides it; 0: all are
  // learned: row `offset` + position of a table is added to the token's embedding.
  std::int64_t offset = 0;

  bool operator==(const PositionSpec&) const = default;
};

// Factors on what passes between layers. Depth and width are those of the model whose learning
// rates and deviations this one took over.
struct Scales {
  double embedding = 1.0;  // of a token's embedding
  double depth = 0.0;      // what a layer adds is multiplied by depth / √layers; 0: by 1
  double width = 0.0;      // what the head reads is multiplied by width / D; 0: by 1
  double logit_cap = 0.0;  // logits become cap · tanh(logits / cap); 0: they do not

  bool operator==(const Scales&) const = default;
};

// A mixture of experts: several feed-forward layers, of which each token goes to a few. A router,
// one row of weights for each expert, gives scores; the highest choose, and what they are after a
// sigmoid or softmax, divided by its sum over the chosen, are the shares of the experts' outputs.
struct ExpertSpec {
  std::int64_t count = 0;  // 0: one feed-forward layer, and no router
  std::int64_t active = 0;
  bool softmax = false;
  bool early = false;  // the router reads the block's input, not what the experts do

  bool operator==(const ExpertSpec&) const = default;
};

struct BlockSpec {
  NormSpec norm = {.kind = NormSpec::Kind::rms};  // all norms of a model are alike
  NormOrder order = NormOrder::pre;
  Arrangement arrangement = Arrangement::sequential;
  PositionSpec positions = {};
  bool qkv_bias = false;  // biases of q, k, v
  bool o_bias = false;
  bool head_norms = false;      // norms of each head of q, and of k, before they are rotated
  bool inner_norms = false;     // weighted RMS norms in front of o and of down
  bool embedding_norm = false;  // a norm of the embedding
  Activation up = Activation::identity;  // of up, beside that of the gate: relu makes it dReLU
  ExpertSpec experts = {};
  Scales scales = {};

  bool operator==(const BlockSpec&) const = default;
};

}  // namespace twell::io
