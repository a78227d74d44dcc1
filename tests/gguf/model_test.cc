// Models of GGUF files as directories: names, order of rows, config.json, and what is refused.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "files/note.h"
#include "gguf/export_model.h"
#include "gguf/import_model.h"
#include "gguf/model_tensors.h"
#include "tests/gguf/raw_gguf.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tokenizer/tokenizer.h"
#include "twell/half.h"

namespace twell::io {
namespace {

// D = 8, two heads of four, one of keys, H = 16, 4 tokens, one layer. Each tensor counts from a
// hundred of its own.
class TinyGguf : public RawGguf {
 public:
  explicit TinyGguf(const std::string& name = "llama") : name_(name) {
    put("general.architecture", name);
    size("block_count", 1);
    size("context_length", 64);
    size("embedding_length", 8);
    size("feed_forward_length", 16);
    size("attention.head_count", 2);
    size("attention.head_count_kv", 1);
    put(key("attention.layer_norm_rms_epsilon"), 1e-5F);
    put("tokenizer.ggml.model", "gpt2");
    put("tokenizer.ggml.pre", "smollm");
    put("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<s>"});
    put("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1, 1, 3});
    put("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    put("tokenizer.ggml.bos_token_id", 3U);
    put("tokenizer.ggml.eos_token_id", 3U);
    counted("token_embd.weight", {8, 4});
    counted("output_norm.weight", {8});
    block("attn_norm", {8});
    block("attn_q", {8, 8});
    block("attn_k", {8, 4});
    block("attn_v", {8, 4});
    block("attn_output", {8, 8});
    block("ffn_norm", {8});
    if (name != "arcee") block("ffn_gate", {8, 16});
    block("ffn_up", {8, 16});
    block("ffn_down", {16, 8});
  }

  std::string key(const std::string& rest) const { return name_ + "." + rest; }
  void size(const std::string& rest, std::uint32_t number) { put(key(rest), number); }
  void block(const std::string& name, const std::vector<std::uint64_t>& sizes,
             const std::string& kind = "weight") {
    counted("blk.0." + name + "." + kind, sizes);
  }
  void counted(const std::string& name, const std::vector<std::uint64_t>& sizes) {
    const auto count =
        std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{1}, std::multiplies<>());
    std::vector<float> numbers(count);
    std::iota(numbers.begin(), numbers.end(), static_cast<float>(next_++ * 1000));
    tensor(name, sizes, numbers);
  }
  // Drops what has this name, of values and of tensors.
  void drop(const std::string& name) {
    const auto has = [&](const std::string& one) { return one.starts_with(raw_text(name)); };
    std::erase_if(values, has);
    std::erase_if(tensors, has);
  }
  template <class T>
  void replace(const std::string& name, const T& value) {
    drop(name);
    put(name, value);
  }

 private:
  std::string name_;
  int next_ = 0;
};

struct Imported {
  explicit Imported(const RawGguf& gguf, const ImportOptions& options = {}) {
    spit(dir / "m.gguf", gguf.file());
    model = import_gguf(dir / "m.gguf", dir / "out", options);
  }
  std::filesystem::path out() const { return dir / "out"; }
  std::vector<float> numbers(const std::string& name) const {
    const Checkpoint checkpoint(out());
    const CheckpointTensor tensor = checkpoint.at(name);
    EXPECT_EQ(tensor.info->dtype, SafeDType::F32);
    std::vector<float> values(static_cast<std::size_t>(tensor.info->elements()));
    std::memcpy(values.data(), tensor.data, tensor.info->bytes());
    return values;
  }
  TempDir dir;
  ImportedModel model;
};

TEST(ImportGguf, RowsOfQAndKAreInTheOrderOfTransformers) {
  const Imported llama{TinyGguf()};
  // Of heads of four the rows 0, 2, 1, 3.
  const std::vector<float> q = llama.numbers("model.layers.0.self_attn.q_proj.weight");
  ASSERT_EQ(q.size(), 64U);
  const int order[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int row = 0; row < 8; ++row) {
    EXPECT_EQ(q[static_cast<std::size_t>(row * 8)], 3000 + order[row] * 8) << row;
  }
  EXPECT_EQ(llama.numbers("model.layers.0.self_attn.k_proj.weight")[8], 4000 + 2 * 8);
  EXPECT_EQ(llama.numbers("model.layers.0.self_attn.v_proj.weight")[8], 5000 + 8);
  TinyGguf plain("qwen2");
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    plain.block(name, {name == std::string("attn_q") ? 8U : 4U}, "bias");
  }
  const Imported qwen{plain};
  EXPECT_EQ(qwen.numbers("model.layers.0.self_attn.q_proj.weight")[8], 3000 + 8);
  EXPECT_EQ(qwen.numbers("model.layers.0.self_attn.q_proj.bias").size(), 8U);
  for (std::int64_t row = 0; row < 24; ++row) {
    EXPECT_EQ(row_from_gguf(row_in_gguf(row, 12), 12), row);
  }
}

TEST(ImportGguf, BiasesTurnToo) {
  TinyGguf file;
  for (const char* name : {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    file.block(
        name,
        {std::string_view(name).starts_with("ffn") && name != std::string("ffn_down") ? 16U : 8U},
        "bias");
  }
  for (const char* name : {"attn_k", "attn_v"}) file.block(name, {4}, "bias");
  const Imported with{file};
  EXPECT_TRUE(with.model.config.block.qkv_bias && with.model.config.mlp_bias);
  const auto bias = with.numbers("model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(bias[1], bias[0] + 2);
  EXPECT_EQ(bias[2], bias[0] + 1);
}

TEST(ImportGguf, ConfigSaysWhatTheFileSays) {
  TinyGguf file;
  file.put("llama.rope.freq_base", 5e5F);
  file.put("llama.attention.key_length", 4U);
  file.put("llama.rope.dimension_count", 4U);
  file.put("llama.rope.scaling.type", "linear");
  file.put("llama.rope.scaling.factor", 2.5F);
  file.put("tokenizer.ggml.eot_token_id", 2U);
  file.put("tokenizer.ggml.add_bos_token", 0U);
  file.values.back() = raw_text("tokenizer.ggml.add_bos_token") + raw(kRawBool) + '\1';
  file.put("tokenizer.chat_template", "{{ messages }}");
  const Imported made{file};
  const ModelConfig config = load_config(made.out());
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.intermediate_size, 16);
  EXPECT_EQ(config.num_key_value_heads, 1);
  EXPECT_EQ(config.vocab_size, 4);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_EQ(config.block.norm.eps, 1e-5);
  EXPECT_EQ(config.block.positions.theta, 5e5);
  EXPECT_EQ(config.block.positions.scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(config.block.positions.scaling.factor, 2.5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token_id, 3);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{3, 2}));
  EXPECT_EQ(config.dtype, "float32");
  const Tokenizer tokenizer = Tokenizer::load(made.out());
  EXPECT_EQ(tokenizer.encode("ab<s>"), (std::vector<std::int32_t>{3, 2, 3}));
  EXPECT_TRUE(tokenizer.is_special(3));
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_NE(slurp(made.out() / "tokenizer_config.json").find("{{ messages }}"), std::string::npos);
}

// As converters wrote them where config.json said -1.
TEST(ImportGguf, IdsThatSayNone) {
  TinyGguf file;
  file.replace("tokenizer.ggml.bos_token_id", UINT32_MAX);
  file.put("tokenizer.ggml.padding_token_id", UINT32_MAX);
  file.put("tokenizer.ggml.eot_token_id", 99U);  // beyond the tokens: told, and left out
  file.value("tokenizer.ggml.unknown_token_id", kRawU64, raw(UINT64_MAX));
  file.value("tokenizer.ggml.eom_token_id", kRawI32, raw(std::int32_t{-1}));
  std::vector<std::string> notes;
  set_note_sink([&](const std::string& line) { notes.push_back(line); });
  const Imported made{file};
  set_note_sink({});
  const ModelConfig config = load_config(made.out());
  EXPECT_FALSE(config.bos_token_id);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{3}));
  const std::string text = slurp(made.out() / "tokenizer_config.json");
  EXPECT_EQ(text.find("pad_token"), std::string::npos);
  EXPECT_EQ(text.find("unk_token"), std::string::npos);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].ends_with(
      "tokenizer.ggml.eot_token_id is 99, but there are 4 tokens: it is left out"));
  file.replace("tokenizer.ggml.bos_token_id", 4U);
  EXPECT_FALSE(load_config(Imported{file}.out()).bos_token_id);
}

TEST(ImportGguf, TextsEndAtTheNamesThatLlamaCppKnows) {
  const auto ends = [](const std::vector<std::string>& tokens) {
    TinyGguf file;
    for (const char* key : {"tokens", "token_type", "merges"}) {
      file.drop(std::string("tokenizer.ggml.") + key);
    }
    file.put("tokenizer.ggml.tokens", tokens);
    file.put("tokenizer.ggml.token_type", std::vector<std::int32_t>(tokens.size(), 3));
    return load_config(Imported{file}.out()).eos_token_ids;
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ends({"a", "b", "ab", "<|im_end|>"}), Ids{3});
  EXPECT_EQ(ends({"<|endoftext|>", "b", "<|im_end|>", "c"}), (Ids{3, 2, 0}));
  EXPECT_EQ(ends({"<end_of_turn>", "<|eot_id|>", "<|end|>", "c"}), (Ids{3, 1, 0, 2}));
  EXPECT_EQ(ends({"<|return|>", "<|call|>", "<|end|>", "c"}), (Ids{3, 0, 1}));
  EXPECT_EQ(ends({"<|flush|>", "<|calls|>", "<|end|>", "c"}), (Ids{3, 1, 0}));
  EXPECT_EQ(ends({"<|call|>", "b", "<|end|>", "c"}), (Ids{3, 2, 0}));
  EXPECT_EQ(ends({"</s>", "<|tool_response>", "[PAD]", "c"}), (Ids{3, 2, 1}));
  TinyGguf file;
  file.put("tokenizer.ggml.fim_sep_token_id", 1U);
  file.put("tokenizer.ggml.fim_pad_token_id", 0U);
  EXPECT_EQ(load_config(Imported{file}.out()).eos_token_ids, (Ids{3, 0, 1}));
}

// A vocabulary of words without what makes them would cut every text into bytes.
TEST(ImportGguf, WordsWithoutMerges) {
  TinyGguf file;
  file.drop("tokenizer.ggml.merges");
  const std::string why = test::message_of([&] { Imported{file}; });
  EXPECT_NE(why.find("has no tokenizer.ggml.merges, of which token 2 (\"ab\") would be made; "
                     "twell convert --tokenizer takes another"),
            std::string::npos)
      << why;
  file.drop("tokenizer.ggml.tokens");
  file.put("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "\xC4\xA0", "<s>"});
  EXPECT_EQ(Tokenizer::load(Imported{file}.out()).encode("ab "),
            (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(ImportGguf, HeadsAndOtherModelsOfTheTable) {
  TinyGguf untied;
  untied.counted("output.weight", {8, 4});
  EXPECT_FALSE(Imported{untied}.model.config.tie_word_embeddings);
  const Imported arcee{TinyGguf("arcee")};
  EXPECT_FALSE(arcee.model.config.gated);
  EXPECT_EQ(arcee.model.config.hidden_act, HiddenAct::relu_squared);
  TinyGguf qwen3("qwen3");
  qwen3.block("attn_q_norm", {4});
  qwen3.block("attn_k_norm", {4});
  EXPECT_TRUE(Imported{qwen3}.model.config.block.head_norms);
}

// Of a head of four dimensions two waves: of 2 π positions, which is kept, and of 2 π · √θ, which
// from 8192 on is divided by the whole factor.
TEST(ImportGguf, Llama3sFactorsBecomeItsScaling) {
  TinyGguf file;
  file.put("llama.rope.freq_base", 1e9F);
  file.tensor("rope_freqs.weight", {2}, {1, 32});
  const RopeScaling scaling = Imported{file}.model.config.block.positions.scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(scaling.factor, 32);
  EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
}

TEST(ImportGguf, SymmetricBlocksKeepTheirCodes) {
  TinyGguf file;
  // Blocks need 32 columns: a wider model.
  for (const auto& [key, size] :
       {std::pair{"embedding_length", 32U}, {"feed_forward_length", 64U}}) {
    file.replace(file.key(key), size);
  }
  file.tensors.clear();
  file.data.clear();
  file.counted("token_embd.weight", {32, 4});
  for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
    file.counted(name + std::string(".weight"), {32});
  }
  const auto coded = [&](const std::string& name, std::uint64_t columns, std::uint64_t rows) {
    file.data.resize((file.data.size() + 31) / 32 * 32);
    file.describe("blk.0." + name + ".weight", {columns, rows}, 8, file.data.size());
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t block = 0; block < columns / 32; ++block) {
        file.data += raw(half_of_float(0.5F)) + std::string(32, static_cast<char>(row));
      }
    }
  };
  coded("attn_q", 32, 32);
  coded("attn_k", 32, 16);
  coded("attn_v", 32, 16);
  coded("attn_output", 32, 32);
  coded("ffn_gate", 32, 64);
  coded("ffn_up", 32, 64);
  coded("ffn_down", 64, 32);
  const Imported kept{file};
  ASSERT_TRUE(kept.model.config.quantization);
  EXPECT_FALSE(kept.model.rounded);
  const std::string module = "model.layers.0.self_attn.q_proj";
  const auto scheme = load_config(kept.out()).quantization->scheme_of(module, "Linear", "f");
  EXPECT_EQ(scheme, (WeightScheme{8, 32, true}));
  EXPECT_FALSE(kept.model.config.quantization->scheme_of("lm_head", "Linear", "f"));
  const Checkpoint checkpoint(kept.out());
  EXPECT_EQ(checkpoint.at(module + ".weight_scale").info->dtype, SafeDType::F16);
  // Row 1 of the first head (of 16) is row 2 of the file; a code has 128 more.
  EXPECT_EQ(std::to_integer<int>(checkpoint.at(module + ".weight_packed").data[32]), 130);
  const Imported plain{file, {.dtype = SafeDType::F32}};
  EXPECT_FALSE(plain.model.config.quantization);
  EXPECT_EQ(plain.numbers(module + ".weight")[32], 1.0F);
}

struct Refused {
  const char* what;
  std::function<void(TinyGguf&)> change;
  std::vector<std::string> parts;
  bool unsupported = false;
};

TEST(ImportGguf, WhatIsNoSuchModelIsOneLine) {
  const auto value = [](const std::string& key, const auto& is) {
    return [=](TinyGguf& f) { f.replace(key, is); };
  };
  using Texts = std::vector<std::string>;
  const Refused table[] = {
      {"architecture", value("general.architecture", "gemma3"), {"\"gemma3\"", "qwen2"}, true},
      {"no architecture",
       [](TinyGguf& f) { f.drop("general.architecture"); },
       {"general.architecture is missing"}},
      {"adapter", value("general.type", "adapter"), {"\"adapter\"", "a model"}, true},
      {"split", value("split.count", 3U), {"llama-gguf-split --merge"}, true},
      {"no size", [](TinyGguf& f) { f.drop("llama.block_count"); }, {"llama.block_count"}},
      {"layers", value("llama.block_count", 1U << 31), {"llama.block_count", "2147483648"}},
      {"heads", value("llama.attention.head_count", 3U), {"no multiple", "key_length"}},
      {"odd head", value("llama.attention.key_length", 5U), {"head_dim is 5", "even"}},
      {"head's values", value("llama.attention.value_length", 8U), {"value_length"}, true},
      {"rotated", value("llama.rope.dimension_count", 2U), {"rope.dimension_count"}, true},
      {"heads by layer",
       value("llama.attention.head_count", std::vector<std::int32_t>{2}),
       {"head_count is an array"}},
      {"experts", value("llama.expert_count", 8U), {"experts", "llama.expert_count"}, true},
      {"window", value("llama.attention.sliding_window", 32U), {"sliding_window 32", "64"}, true},
      {"scaling", value("llama.rope.scaling.type", "longrope"), {"\"longrope\"", "yarn"}, true},
      {"other key",
       value("llama.logit_scale", 2.0F),
       {"llama.logit_scale", "--allow-unused"},
       true},
      {"factors",
       [](TinyGguf& f) {
         f.tensor("rope_freqs.weight", {2}, {3, 5});
       },
       {"rope_freqs.weight", "Llama 3"},
       true},
      {"shape of factors",
       [](TinyGguf& f) {
         f.tensor("rope_freqs.weight", {3}, {1, 1, 1});
       },
       {"rope_freqs.weight", "[3]", "[2]"}},
      {"no embedding",
       [](TinyGguf& f) { f.drop("token_embd.weight"); },
       {"no tensor \"token_embd.weight\""}},
      {"no tensor",
       [](TinyGguf& f) { f.drop("blk.0.ffn_up.weight"); },
       {"no tensor \"blk.0.ffn_up.weight\""}},
      {"shape",
       value("llama.feed_forward_length", 24U),
       {"\"blk.0.ffn_gate.weight\"", "[16, 8]", "[24, 8]"}},
      {"other tensor",
       [](TinyGguf& f) { f.block("attn_sinks", {2}); },
       {"\"blk.0.attn_sinks.weight\"", "--allow-unused"},
       true},
      {"biases of q alone",
       [](TinyGguf& f) { f.block("attn_q", {8}, "bias"); },
       {"biases of q, k, v: true"}},
      {"tokens",
       value("tokenizer.ggml.tokens", Texts{"a", "b", "c", "d", "e"}),
       {"5 tokens", "4 rows"}},
      {"no tokens", [](TinyGguf& f) { f.drop("tokenizer.ggml.tokens"); }, {"--tokenizer"}},
      {"twice",
       value("tokenizer.ggml.tokens", Texts{"a", "b", "ab", "b"}),
       {"tokens 1 and 3", "\"b\""}},
      {"UTF-8",
       value("tokenizer.ggml.tokens", Texts{"a", "b", "ab", "\xff"}),
       {"token 3", "UTF-8"}},
      {"types",
       value("tokenizer.ggml.token_type", std::vector<std::int32_t>{1}),
       {"4 tokens", "1 tokenizer.ggml.token_type"}},
      {"kind", value("tokenizer.ggml.model", "t5"), {"\"t5\"", "gpt2, llama", "--tokenizer"}, true},
      {"words", value("tokenizer.ggml.pre", "viking"), {"\"viking\"", "smollm"}, true},
      {"merge", value("tokenizer.ggml.merges", Texts{"ab"}), {"merge 0", "\"ab\""}},
      {"merge of others", value("tokenizer.ggml.merges", Texts{"a c"}), {"merge 0", "\"c\""}},
      {"no scores", value("tokenizer.ggml.model", "llama"), {"0 tokenizer.ggml.scores"}},
      {"NaN",
       [](TinyGguf& f) {
         f.drop("output_norm.weight");
         f.tensor("output_norm.weight", {8}, {1, 1, 1, NAN, 1, 1, 1, 1});
       },
       {"\"output_norm.weight\"", "not finite"}},
  };
  for (const Refused& refused : table) {
    SCOPED_TRACE(refused.what);
    TinyGguf file;
    refused.change(file);
    const TempDir dir;
    const auto path = dir / "m.gguf";
    spit(path, file.file());
    expect_error([&] { import_gguf(path, dir / "out", {}); },
                 refused.unsupported ? ErrorKind::unsupported : ErrorKind::environment,
                 path.string(), refused.parts);
  }
  TinyGguf more;
  more.put("llama.logit_scale", 2.0F);
  more.block("attn_sinks", {2});
  EXPECT_EQ(Imported(more, {.allow_unused = true}).model.config.num_hidden_layers, 1);
}

TEST(ImportGguf, NumbersBeyondATypeAreOneLine) {
  TinyGguf file;
  file.drop("output_norm.weight");
  file.tensor("output_norm.weight", {8}, std::vector<float>(8, 1e6F));
  const TempDir dir;
  spit(dir / "m.gguf", file.file());
  expect_file_error([&] { import_gguf(dir / "m.gguf", dir / "out", {.dtype = SafeDType::F16}); },
                    (dir / "m.gguf").string(), {"\"output_norm.weight\"", "F16"});
}

// From a directory back to a file, and what no file can say.
TEST(ExportGguf, IsTheSameModelAgain) {
  const Imported made{TinyGguf()};
  const auto path = made.dir / "again.gguf";
  const ExportedModel out = export_gguf(made.out(), path, {});
  EXPECT_EQ(out.architecture, "llama");
  const TempDir other;
  import_gguf(path, other / "out", {});
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json",
                           "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(slurp(other / "out" / name), slurp(made.out() / name)) << name;
  }
}

// There are keys for three; the others have to be known by their names.
TEST(ExportGguf, ManyEnds) {
  TinyGguf file;
  for (const char* key : {"tokens", "token_type", "merges"}) {
    file.drop(std::string("tokenizer.ggml.") + key);
  }
  file.put("tokenizer.ggml.tokens", std::vector<std::string>{"<|im_end|>", "</s>", "x", "y"});
  file.put("tokenizer.ggml.token_type", std::vector<std::int32_t>(4, 3));
  const Imported made{file};
  std::vector<std::string> notes;
  const auto ends_again = [&](const std::string& ends) {
    spit(made.out() / "generation_config.json", "{\"eos_token_id\": " + ends + "}");
    set_note_sink([&](const std::string& line) { notes.push_back(line); });
    const TempDir dir;
    export_gguf(made.out(), dir / "o.gguf", {});
    set_note_sink({});
    import_gguf(dir / "o.gguf", dir / "out", {});
    std::vector<std::int32_t> ids = load_config(dir / "out").eos_token_ids;
    std::ranges::sort(ids);
    return ids;
  };
  EXPECT_EQ(ends_again("[0, 1, 2, 3]"), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(notes.empty());
}

TEST(ExportGguf, Llama3sScalingIsATensor) {
  const Imported made{TinyGguf()};
  ModelConfig config = load_config(made.out());
  config.block.positions.theta = 1e9;
  config.block.positions.scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8};
  save_config(made.out(), config);
  const auto path = made.dir / "again.gguf";
  export_gguf(made.out(), path, {});
  const TempDir other;
  import_gguf(path, other / "out", {});
  EXPECT_EQ(load_config(other / "out").block, config.block);
}

TEST(ExportGguf, WhatLlamaCppDoesNotComputeIsOneLine) {
  const Imported made{TinyGguf()};
  const auto refuse = [&](const std::function<void(ModelConfig&)>& change,
                          const std::vector<std::string>& parts) {
    ModelConfig config = load_config(made.out());
    change(config);
    const TempDir dir;
    std::filesystem::copy(made.out(), dir / "m");
    save_config(dir / "m", config);
    expect_error([&] { export_gguf(dir / "m", dir / "o.gguf", {}); }, ErrorKind::unsupported,
                 (dir / "m" / "config.json").string(), parts);
    EXPECT_FALSE(std::filesystem::exists(dir / "o.gguf"));
  };
  refuse([](ModelConfig& c) { c.hidden_act = HiddenAct::relu; }, {"a llama with relu", "silu"});
  refuse([](ModelConfig& c) { c.gated = false; }, {"silu, without a gate"});
  refuse(
      [](ModelConfig& c) {
        c.block.positions.scaling = {.kind = RopeScaling::Kind::yarn,
                                     .factor = 2,
                                     .original_max_position_embeddings = 32,
                                     .attention_factor = 3};
      },
      {"yarn", "attention_factor"});
}

}  // namespace
}  // namespace twell::io
