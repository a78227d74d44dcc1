#include "io/llama2c.h"

#include <array>
#include <cstring>

#include "io/config_names.h"
#include "io/file_error.h"

namespace twell::io {
namespace {

constexpr std::size_t kHeaderInts = 7;
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);
constexpr std::int32_t kVersionedMagic = 0x616b3432;  // "ak42": the later, versioned layouts

// A kind of weight: one of it, or one for every layer, in the order of the file.
struct Kind {
  const char* name;  // within the layer, or the whole name
  bool per_layer;
  std::vector<std::int64_t> shape;
  std::int64_t rope_heads = 0;
};

std::vector<Kind> kinds_of(const ModelConfig& c) {
  const std::int64_t d = c.hidden_size;
  const std::int64_t h = c.intermediate_size;
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  return {
      {"model.embed_tokens.weight", false, {c.vocab_size, d}},
      {"input_layernorm.weight", true, {d}},
      {"self_attn.q_proj.weight", true, {q, d}, c.num_attention_heads},
      {"self_attn.k_proj.weight", true, {kv, d}, c.num_key_value_heads},
      {"self_attn.v_proj.weight", true, {kv, d}},
      {"self_attn.o_proj.weight", true, {d, q}},
      {"post_attention_layernorm.weight", true, {d}},
      {"mlp.gate_proj.weight", true, {h, d}},
      {"mlp.down_proj.weight", true, {d, h}},
      {"mlp.up_proj.weight", true, {h, d}},
      {"model.norm.weight", false, {d}},
      // The tables of rotary angles: computed anew, skipped.
      {"", false, {c.max_position_embeddings, c.head_dim}},
  };
}

std::size_t bytes_of(const std::vector<std::int64_t>& shape) {
  std::size_t out = sizeof(float);
  for (const std::int64_t dimension : shape) out *= static_cast<std::size_t>(dimension);
  return out;
}

ModelConfig read_config(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kHeaderBytes) {
    fail_file(name, "has {} bytes, too few for a llama2.c checkpoint", file.size());
  }
  std::array<std::int32_t, kHeaderInts> ints{};
  std::memcpy(ints.data(), file.data(), kHeaderBytes);
  if (ints[0] == kVersionedMagic) {
    fail_unsupported(name, "is a llama2.c checkpoint of a later version; export it as version 0");
  }
  constexpr std::array<const char*, kHeaderInts> kNames = {
      "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"};
  for (std::size_t i = 0; i < kHeaderInts; ++i) {
    if (ints[i] == 0 || ints[i] == INT32_MIN || (ints[i] < 0 && i != 5)) {
      fail_file(name, "{} is {}: not a llama2.c checkpoint?", kNames[i], ints[i]);
    }
  }
  ModelConfig out;
  out.hidden_size = ints[0];
  out.intermediate_size = ints[1];
  out.num_hidden_layers = ints[2];
  out.num_attention_heads = ints[3];
  out.num_key_value_heads = ints[4];
  out.vocab_size = std::abs(ints[5]);
  out.tie_word_embeddings = ints[5] > 0;
  out.max_position_embeddings = ints[6];
  if (out.hidden_size % out.num_attention_heads != 0) {
    fail_file(name, "dim {} is no multiple of n_heads {}: not a llama2.c checkpoint?",
              out.hidden_size, out.num_attention_heads);
  }
  out.head_dim = out.hidden_size / out.num_attention_heads;
  out.rms_norm_eps = 1e-5;
  if (out.vocab_size > 2) {
    out.bos_token_id = 1;
    out.eos_token_ids = {2};
  }
  if (const std::string problem = problem_of(out); !problem.empty()) {
    fail_file(name, "{}: not a llama2.c checkpoint?", problem);
  }
  return out;
}

}  // namespace

Llama2cHeader parse_llama2c(std::span<const std::byte> file, const std::string& name) {
  Llama2cHeader out;
  out.config = read_config(file, name);
  std::vector<Kind> kinds = kinds_of(out.config);
  if (!out.config.tie_word_embeddings) {
    kinds.push_back({"lm_head.weight", false, {out.config.vocab_size, out.config.hidden_size}});
  }
  // The ranges of problem_of() keep every product and this sum below 2^62.
  const std::int64_t layers = out.config.num_hidden_layers;
  std::size_t expected = kHeaderBytes;
  for (const Kind& kind : kinds) {
    expected += bytes_of(kind.shape) * static_cast<std::size_t>(kind.per_layer ? layers : 1);
  }
  if (file.size() != expected) {
    fail_file(name, "has {} bytes, its header asks for {}: truncated or no llama2.c checkpoint?",
              file.size(), expected);
  }
  std::size_t offset = kHeaderBytes;
  for (const Kind& kind : kinds) {
    for (std::int64_t layer = 0; layer < (kind.per_layer ? layers : 1); ++layer) {
      if (*kind.name != '\0') {
        out.tensors.push_back(
            {kind.per_layer ? fmt::format("model.layers.{}.{}", layer, kind.name) : kind.name,
             kind.shape, offset, kind.rope_heads});
      }
      offset += bytes_of(kind.shape);
    }
  }
  return out;
}

void interleaved_to_half_split(std::span<const float> in, std::int64_t heads, std::int64_t cols,
                               std::span<float> out) {
  const auto total = static_cast<std::int64_t>(in.size());
  const std::int64_t dim = heads > 0 && cols > 0 ? total / (heads * cols) : 0;  // of a head
  if (in.size() != out.size() || in.data() == out.data() || heads <= 0 || cols <= 0 ||
      dim * heads * cols != total || dim % 2 != 0) {
    fail_argument("interleaved_to_half_split",
                  "{} values are not {} heads of an even number of rows of {}", in.size(), heads,
                  cols);
  }
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t row = 0; row < dim; ++row) {
      // Row 2i + s of a head (s: 0 first, 1 second of the pair) becomes row i + s * dim / 2.
      const std::int64_t target = row / 2 + (row % 2) * (dim / 2);
      std::memcpy(out.data() + (head * dim + target) * cols, in.data() + (head * dim + row) * cols,
                  static_cast<std::size_t>(cols) * sizeof(float));
    }
  }
}

Llama2cFile::Llama2cFile(const std::filesystem::path& path)
    : file_(path), header_(parse_llama2c(file_.bytes(), path.string())) {}

std::vector<float> Llama2cFile::values(const Llama2cTensor& tensor) const {
  std::vector<float> out(bytes_of(tensor.shape) / sizeof(float));
  std::memcpy(out.data(), file_.data() + tensor.offset, out.size() * sizeof(float));
  if (tensor.rope_heads == 0) return out;
  std::vector<float> permuted(out.size());
  interleaved_to_half_split(out, tensor.rope_heads, tensor.shape[1], permuted);
  return permuted;
}

}  // namespace twell::io
