#include "checkpoint/config.h"

#include <fmt/format.h>

#include <limits>

#include "checkpoint/architecture.h"
#include "tests/support/files.h"

namespace twell::io {
namespace {

const std::string kFile = "dir/config.json";

// A small llama, with `more` (keys and values, a comma behind each) before its other keys.
std::string llama(const std::string& more = "") {
  return R"({"model_type":"llama",)" + more +
         R"("hidden_size":64,"intermediate_size":172,"num_hidden_layers":2,)"
         R"("num_attention_heads":8,"vocab_size":512})";
}

// The same with one value replaced.
std::string llama_with(const std::string& key, const std::string& value) {
  std::string text = llama();
  const std::string quoted = "\"" + key + "\":";
  const std::size_t at = text.find(quoted);
  if (at == std::string::npos) return llama(quoted + value + ",");
  const std::size_t begin = at + quoted.size();
  return text.replace(begin, text.find_first_of(",}", begin) - begin, value);
}

// The same of another model_type.
std::string of(const std::string& type, const std::string& more = "") {
  std::string text = llama(more);
  return text.replace(text.find("\"llama\""), 7, "\"" + type + "\"");
}

ModelConfig parse(const std::string& text) { return ModelConfig::from_json(text, kFile); }

void refused(const std::string& text, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(text);
  expect_file_error([&] { parse(text); }, kFile, parts);
}
void unsupported(const std::string& text, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(text);
  expect_error([&] { parse(text); }, ErrorKind::unsupported, kFile, parts);
}

TEST(ModelConfig, DefaultsAreThoseOfTransformers) {
  const ModelConfig c = parse(llama());
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_EQ(c.block.norm.eps, 1e-6);
  EXPECT_EQ(c.block.positions.theta, 10000.0);
  EXPECT_EQ(c.block.positions.scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(c.hidden_act, HiddenAct::silu);
  EXPECT_TRUE(c.gated);
  EXPECT_FALSE(c.tie_word_embeddings || c.block.qkv_bias || c.block.o_bias || c.mlp_bias ||
               c.sparse_lm);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{2});
  const ModelConfig none = parse(llama(R"("bos_token_id":null,"eos_token_id":null,)"));
  EXPECT_FALSE(none.bos_token_id.has_value());
  EXPECT_TRUE(none.eos_token_ids.empty());
  EXPECT_EQ(c.dtype, "float32");
  std::string qwen = llama(R"("head_dim":2,)");
  qwen.replace(qwen.find("\"num_attention_heads\":8"), 23, "\"num_attention_heads\":64");
  qwen.replace(qwen.find("\"llama\""), 7, "\"qwen2\"");
  EXPECT_EQ(parse(qwen).num_key_value_heads, 32);
  EXPECT_TRUE(parse(qwen).eos_token_ids.empty());
  qwen.replace(qwen.find("\"hidden_size\""), 0, "\"num_key_value_heads\":null,");
  EXPECT_EQ(parse(qwen).num_key_value_heads, 64);
  EXPECT_TRUE(parse(llama_with("head_dim", "32")).head_dim == 32);
}

TEST(ModelConfig, OwnKeysSurviveARoundTrip) {
  ModelConfig c = parse(llama());
  c.hidden_act = HiddenAct::fat_relu;
  c.fat_relu_threshold = 0.125;
  c.gated = false;
  c.eos_token_ids = {2, 3, 5};
  c.bos_token_id = 1;
  c.dtype = "bfloat16";
  c.block.positions.theta = 100'000.5;
  c.block.positions.scaling = {RopeScaling::Kind::llama3, 8, 4096, 1, 4};
  EXPECT_EQ(parse(c.to_json()), c);
  for (const HiddenAct act : {HiddenAct::silu, HiddenAct::gelu, HiddenAct::gelu_tanh,
                              HiddenAct::relu, HiddenAct::relu_squared}) {
    c.hidden_act = act;
    c.fat_relu_threshold = 0;
    EXPECT_EQ(parse(c.to_json()), c);
  }
  const TempDir dir;
  save_config(dir / "model", c);
  EXPECT_EQ(load_config(dir / "model"), c);
  EXPECT_EQ(load_config(dir / "model" / "config.json"), c);
}

TEST(ModelConfig, Activations) {
  const auto act = [](const std::string& name) {
    return parse(llama_with("hidden_act", "\"" + name + "\"")).hidden_act;
  };
  EXPECT_EQ(act("relu2"), HiddenAct::relu_squared);
  EXPECT_EQ(act("relu_squared"), HiddenAct::relu_squared);
  EXPECT_EQ(act("swish"), HiddenAct::silu);
  EXPECT_TRUE(yields_zeros(act("relu")));
  EXPECT_TRUE(yields_zeros(act("relu2")));
  EXPECT_TRUE(yields_zeros(HiddenAct::fat_relu));
  EXPECT_FALSE(yields_zeros(act("silu")) || yields_zeros(act("gelu")));
  unsupported(llama_with("hidden_act", "\"tanh\""), {"hidden_act", "\"tanh\"", "relu2"});
  refused(llama_with("hidden_act", "\"fat_relu\""), {"twell_fat_relu_threshold is missing"});
  refused(llama("\"hidden_act\":\"fat_relu\",\"twell_fat_relu_threshold\":-1,"),
          {"twell_fat_relu_threshold is -1"});
  // As ProSparse's files say it.
  const ModelConfig published = parse(llama(R"("hidden_act":"fatrelu","hidden_act_param":0.01,)"));
  EXPECT_EQ(published.hidden_act, HiddenAct::fat_relu);
  EXPECT_EQ(published.fat_relu_threshold, 0.01);
  EXPECT_EQ(parse(published.to_json()), published);
  // Written so, whichever of the two was read.
  const ModelConfig old =
      parse(llama(R"("hidden_act":"fat_relu","twell_fat_relu_threshold":0.01,)"));
  EXPECT_EQ(old, published);
  EXPECT_EQ(old.to_json(), published.to_json());
  EXPECT_NE(old.to_json().find(R"("hidden_act": "fatrelu")"), std::string::npos);
  refused(llama(R"("hidden_act":"fatrelu",)"), {"hidden_act_param is missing"});
  refused(llama(R"("hidden_act":"fatrelu","hidden_act_param":-0.5,)"),
          {"hidden_act_param is -0.5"});
}

TEST(ModelConfig, DReluIsOfTheGateAndOfUp) {
  const ModelConfig both = parse(llama(R"("hidden_act":"drelu",)"));
  EXPECT_EQ(both.hidden_act, HiddenAct::relu);
  EXPECT_EQ(both.block.up, Activation::relu);
  EXPECT_EQ(parse(both.to_json()), both);
  EXPECT_NE(both.to_json().find(R"("hidden_act": "drelu")"), std::string::npos);
  // A threshold is the gate's.
  const ModelConfig fat = parse(llama(R"("hidden_act":"drelu","hidden_act_param":0.25,)"));
  EXPECT_EQ(fat.hidden_act, HiddenAct::fat_relu);
  EXPECT_EQ(fat.fat_relu_threshold, 0.25);
  EXPECT_EQ(fat.block.up, Activation::relu);
  EXPECT_EQ(parse(fat.to_json()), fat);
  EXPECT_EQ(parse(llama(R"("hidden_act":"relu",)")).block.up, Activation::identity);
  refused(llama(R"("hidden_act":"drelu","hidden_act_param":-1,)"), {"hidden_act_param is -1"});
  unsupported(llama(R"("hidden_act":"drelu","twell_gated":false,)"), {"drelu", "without a gate"});
  // As twell.hf's callbacks write them in the middle of a training.
  unsupported(llama(R"("hidden_act":"silu_to_drelu_0.5",)"), {"silu_to_drelu_0.5", "on its way"});
  for (const char* act : {"drelu", "fatrelu"}) {
    unsupported(
        llama(fmt::format(R"("hidden_act":"{}","hidden_act_param":{{"a.0":1,"a.1":2}},)", act)),
        {"hidden_act_param", "twell.hf.fold_thresholds"});
  }
  unsupported(of("arcee", R"("hidden_act":"drelu",)"), {"drelu", "without a gate"});
  // Bamboo's name for it is relu.
  const ModelConfig bamboo = parse(of("bamboo", R"("sliding_window":null,"hidden_act":"drelu",)"));
  EXPECT_EQ(bamboo, parse(of("bamboo", R"("sliding_window":null,"hidden_act":"relu",)")));
}

TEST(ModelConfig, ArchitecturesDifferWhereTheirFilesSayNothing) {
  const ModelConfig mistral = parse(of("mistral", R"("sliding_window":null,)"));
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  const ModelConfig qwen3 = parse(of("qwen3", R"("num_key_value_heads":4,)"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.block.head_norms);
  EXPECT_FALSE(qwen3.block.qkv_bias);
  const ModelConfig arcee = parse(of("arcee"));
  EXPECT_FALSE(arcee.gated);
  EXPECT_EQ(arcee.hidden_act, HiddenAct::relu_squared);
  EXPECT_EQ(arcee.block.norm.eps, 1e-5);
  EXPECT_FALSE(arcee.bos_token_id.has_value()) << "128000 is outside the vocabulary";
  const ModelConfig nemotron = parse(of("nemotron"));
  EXPECT_EQ(nemotron.rotated_dims(), 4);
  EXPECT_TRUE(nemotron.block.norm.plus_one);
  EXPECT_EQ(nemotron.bos_token_id, 2);
  EXPECT_EQ(nemotron.eos_token_ids, std::vector<std::int32_t>{3});
  const ModelConfig bitnet = parse(of("bitnet", R"("num_key_value_heads":4,)"));
  EXPECT_TRUE(bitnet.block.inner_norms);
  EXPECT_EQ(bitnet.block.positions.theta, 500000);
  const ModelConfig nano = parse(of("nanochat"));
  EXPECT_EQ(nano.block.scales.logit_cap, 15);
  EXPECT_EQ(parse(of("nanochat", R"("final_logit_softcapping":null,)")).block.scales.logit_cap, 0);
  EXPECT_FALSE(nano.block.norm.weight);
  const ModelConfig minicpm = parse(of("minicpm"));
  EXPECT_TRUE(minicpm.tie_word_embeddings);
  EXPECT_EQ(minicpm.block.scales.width, 1);
  EXPECT_EQ(parse(of("bamboo", R"("sliding_window":null,)")).block.up, Activation::relu);
  std::string opt = of("opt");
  opt.replace(opt.find("intermediate_size"), 17, "ffn_dim");
  EXPECT_TRUE(parse(opt).mlp_bias && parse(opt).block.o_bias);
  EXPECT_EQ(parse(opt).hidden_act, HiddenAct::relu);
  refused(of("opt"), {"ffn_dim is missing"});
}

// Every row reads what it writes, and keeps what it was told.
TEST(ModelConfig, ArchitecturesSurviveARoundTrip) {
  const auto survives = [](const std::string& text) {
    SCOPED_TRACE(text);
    const ModelConfig c = parse(text);
    EXPECT_EQ(parse(c.to_json()), c);
    c.validate();
    return c;
  };
  survives(of("mistral", R"("sliding_window":131072,)"));
  survives(of("qwen3", R"("num_key_value_heads":2,"attention_bias":true,"head_dim":32,)"));
  survives(of("arcee", R"("mlp_bias":true,)"));
  survives(of("nemotron", R"("partial_rotary_factor":0.25,"norm_eps":1e-6,)"));
  survives(of("bitnet", R"("num_key_value_heads":2,"attention_bias":true,)"));
  survives(of("nanochat", R"("final_logit_softcapping":7.5,)"));
  survives(of("nanochat", R"("final_logit_softcapping":null,"attention_bias":true,)"));
  survives(of("bamboo", R"("hidden_act":"relu2","max_position_embeddings":4096,)"));
  const std::string fat = R"("hidden_act":"fatrelu","hidden_act_param":0.25,)";
  survives(of("sparsellama", fat));
  const ModelConfig minicpm =
      survives(of("minicpm", fat + R"("scale_emb":12,"scale_depth":1.4,"dim_model_base":256,)"));
  EXPECT_EQ(minicpm.block.scales, (Scales{12, 1.4, 256, 0}));
  EXPECT_NE(minicpm.to_json().find(R"("hidden_act": "fatrelu")"), std::string::npos);
  EXPECT_NE(minicpm.to_json().find(R"("hidden_act_param": 0.25)"), std::string::npos);
  std::string opt = of("opt", R"("do_layer_norm_before":false,"enable_bias":false,)");
  survives(opt.replace(opt.find("intermediate_size"), 17, "ffn_dim"));
  std::string thinker = of(
      "smallthinker", R"("rope_layout":[0,1],"moe_num_active_primary_experts":2,)"
                      R"("moe_primary_router_apply_softmax":true,"sliding_window_layout":null,)");
  thinker.replace(thinker.find("intermediate_size"), 17, "moe_ffn_hidden_size");
  EXPECT_EQ(survives(thinker).block.experts,
            (ExpertSpec{.count = 32, .active = 2, .softmax = true, .early = true}));
  EXPECT_EQ(survives(thinker).block.positions.unrotated_every, 2);
  // A class name is enough, as in files that are written by hand.
  std::string bare = of("minicpm");
  bare.replace(bare.find(R"("model_type":"minicpm")"), 22,
               R"("architectures":["MiniCPMForCausalLM"])");
  EXPECT_EQ(survives(bare).architecture, minicpm.architecture);
}

TEST(ModelConfig, ReleasedSparseModelsAreRelu) {
  std::string text = llama_with("hidden_act", "\"silu\"");
  text.replace(text.find("\"llama\""), 7, "\"llama_sparse_relu\"");
  const ModelConfig c = parse(text);
  EXPECT_TRUE(c.sparse_lm);
  EXPECT_EQ(c.hidden_act, HiddenAct::relu);
  EXPECT_EQ(c.architecture, &kLlama);
  // Their key for a gate is another; as a Llama they are written with what was read.
  text.insert(1, "\"twell_gated\":false,");
  EXPECT_TRUE(parse(text).gated);
  EXPECT_TRUE(parse(parse(text).to_json()).gated);
}

TEST(ModelConfig, HostileValuesNameTheirKey) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "max_position_embeddings", "num_key_value_heads", "head_dim"}) {
    for (const char* value : {"0", "-1", "1e3", "9223372036854775807", "18446744073709551615",
                              "1.5", "\"64\"", "[64]", "true", "1099511627776"}) {
      refused(llama_with(key, value), {key});
    }
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size"}) {
    refused(llama_with(key, "null"), {key, "missing"});
  }
  refused(llama_with("rms_norm_eps", "-1e-5"), {"rms_norm_eps"});
  refused(llama_with("rms_norm_eps", "\"x\""), {"rms_norm_eps is a string"});
  refused(llama_with("rope_theta", "0"), {"rope_theta"});
  refused(llama_with("rope_theta", "1e300"), {"rope_theta"});
  refused(llama_with("rope_theta", "1e999"), {"too large"});
  refused(llama_with("tie_word_embeddings", "1"), {"tie_word_embeddings"});
  refused(llama_with("bos_token_id", "512"), {"bos_token_id is 512", "512"});
  refused(llama_with("bos_token_id", "-2"), {"bos_token_id"});
  refused(llama_with("eos_token_id", "[2,4294967298]"), {"eos_token_id"});
  refused(llama_with("eos_token_id", "[2,\"3\"]"), {"eos_token_id"});
  refused(llama_with("eos_token_id", "512"), {"eos_token_id is 512"});
}

TEST(ModelConfig, ContradictionsAreNamed) {
  refused(llama_with("num_key_value_heads", "3"), {"num_key_value_heads is 3", "divisor"});
  refused(llama_with("num_attention_heads", "7"), {"hidden_size 64", "7"});
  refused(llama_with("head_dim", "7"), {"head_dim is 7", "even"});
  refused(llama_with("num_key_value_heads", "16"), {"num_key_value_heads is 16"});
}

TEST(ModelConfig, BrokenFiles) {
  refused("", {"not valid JSON"});
  refused("{", {"not valid JSON at byte"});
  refused("[]", {"expected an object"});
  refused("{\"model_type\":\"llama\"}", {"hidden_size is missing"});
  refused("{}", {"model_type is missing"});
  refused(llama("\"hidden_size\":64,"), {"duplicate key \"hidden_size\""});
  refused(llama() + std::string(1, '\0'), {"zero byte"});
  refused(std::string(100'000, '['), {"deep"});
  refused("{\"a\":\"\xff\"}", {"not valid JSON"});
  const TempDir dir;
  expect_file_error([&] { load_config(dir.path()); }, (dir / "config.json").string(),
                    {"No such file"});
}

TEST(ModelConfig, UnsupportedIsNotInvalid) {
  unsupported(R"({"model_type":"mamba"})", {"\"mamba\"", "llama", "qwen2"});
  unsupported(of("mistral"), {"sliding_window 4096", "max_position_embeddings 131072"});
  unsupported(of("mistral", R"("sliding_window":16,"max_position_embeddings":17,)"),
              {"sliding_window 16", "17"});
  unsupported(of("bamboo", R"("sliding_window":16,)"), {"sliding_window 16"});
  unsupported(of("bamboo", R"("sliding_window":null,"hidden_act":"silu",)"),
              {"hidden_act", "\"silu\"", "up"});
  unsupported(of("qwen3", R"("num_key_value_heads":8,"use_sliding_window":true,)"
                          R"("max_window_layers":1,)"),
              {"use_sliding_window"});
  unsupported(of("minicpm", R"("num_experts":8,)"), {"num_experts"});
  const auto thinker = [](const std::string& more) {
    std::string text = of("smallthinker", more);
    return text.replace(text.find("intermediate_size"), 17, "moe_ffn_hidden_size");
  };
  const std::string windows = R"("sliding_window_layout":[0,1],"sliding_window_size":16,)";
  unsupported(thinker(windows), {"sliding_window_size 16"});
  unsupported(thinker(R"("rope_layout":[1,0],)"), {"rope_layout"});
  unsupported(thinker(R"("moe_layer_layout":[1,0],)"), {"moe_layer_layout"});
  unsupported(thinker(R"("moe_enable_secondary_experts":true,)"), {"moe_enable_secondary_experts"});
  unsupported(thinker(R"("use_qk_norm":true,)"), {"use_qk_norm"});
  refused(thinker(R"("rope_layout":[1,1,1],)"), {"rope_layout has 3 entries", "2 layers"});
  refused(thinker(R"("rope_layout":[1,2],)"), {"rope_layout", "0 and 1"});
  refused(thinker(R"("moe_num_primary_experts":3,)"), {"number of experts of a token is 4"});
  refused(thinker(R"("moe_num_primary_experts":40000,)"), {"number of experts in all layers"});
  unsupported(of("minicpm", R"("sparse_config":{"topk":64},)"), {"sparse_config"});
  refused(of("minicpm", R"("scale_depth":0,)"), {"scale_depth is 0"});
  refused(of("nanochat", R"("final_logit_softcapping":0,)"), {"final_logit_softcapping is 0"});
  unsupported(of("bitnet", R"("quantization_config":{"quant_method":"bitnet"},)"),
              {"quantization_config.quant_method", "\"bitnet\""});
  const auto opt = [](const std::string& more) {
    std::string text = of("opt", more);
    return text.replace(text.find("intermediate_size"), 17, "ffn_dim");
  };
  unsupported(opt(R"("word_embed_proj_dim":32,)"), {"word_embed_proj_dim 32", "hidden_size 64"});
  unsupported(opt(R"("_remove_final_layer_norm":true,)"), {"_remove_final_layer_norm"});
  unsupported(llama_with("dtype", "\"int8\""), {"int8"});
  unsupported(llama_with("quantization_config", "{}"), {"quantization_config.quant_method"});
  unsupported(llama_with("partial_rotary_factor", "0.5"), {"partial_rotary_factor"});
  unsupported(llama_with("layer_types", "[\"sliding_attention\"]"), {"layer_types"});
  const auto qwen = [](const std::string& more) {
    std::string text = llama(R"("use_sliding_window":true,"num_key_value_heads":8,)" + more);
    return text.replace(text.find("\"llama\""), 7, "\"qwen2\"");
  };
  unsupported(qwen("\"max_window_layers\":1,"), {"use_sliding_window"});
  // No layer has a window.
  parse(qwen(""));  // of 28 layers all see everything, and there are two
  parse(qwen("\"max_window_layers\":0,\"sliding_window\":null,"));
  parse(qwen(R"("max_window_layers":0,"layer_types":["full_attention","full_attention"],)"));
}

TEST(ModelConfig, RopeScaling) {
  const auto rope = [](const std::string& value) { return llama_with("rope_scaling", value); };
  EXPECT_EQ(parse(rope("{}")).block.positions.scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(parse(rope(R"({"type":"linear","factor":4})")).block.positions.scaling.factor, 4.0);
  unsupported(rope(R"({"rope_type":"dynamic","factor":4})"), {"\"dynamic\"", "llama3"});
  const ModelConfig yarn = parse(rope(R"({"type":"yarn","factor":4,"truncate":false})"));
  EXPECT_NEAR(yarn.block.positions.scaling.attention_factor, 1.1386, 1e-4);  // 0.1 log(4) + 1
  EXPECT_EQ(yarn.block.positions.scaling.original_max_position_embeddings, 2048);
  EXPECT_FALSE(yarn.block.positions.scaling.truncate);
  EXPECT_EQ(parse(yarn.to_json()), yarn);
  refused(rope(R"({"rope_type":"yarn"})"), {"rope_scaling.factor is missing"});
  refused(rope(R"({"rope_type":"yarn","factor":4,"beta_fast":1,"beta_slow":2})"),
          {"beta_slow is 2"});
  refused(rope(R"({"rope_type":"yarn","factor":4,"rope_theta":1})"), {"rope_theta is 1"});
  unsupported(rope(R"({"full_attention":{"rope_type":"default"}})"), {"differ by layer"});
  refused(rope(R"({"rope_type":"linear"})"), {"rope_scaling.factor is missing"});
  refused(rope(R"({"rope_type":"linear","factor":0})"), {"rope_scaling.factor is 0"});
  refused(rope(R"({"rope_type":"linear","factor":"2"})"), {"rope_scaling.factor is a string"});
  refused(rope("3"), {"rope_scaling is a number"});
  refused(rope(R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,)"
               R"("original_max_position_embeddings":8192})"),
          {"low_freq_factor is 4"});
  EXPECT_EQ(parse(rope(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,)"
                       R"("high_freq_factor":4})"))
                .block.positions.scaling.original_max_position_embeddings,
            2048);  // max_position_embeddings
}

TEST(ModelConfig, RopeParametersAndTheirOlderKeys) {
  const auto theta = [](const std::string& more) {
    return parse(llama(more)).block.positions.theta;
  };
  EXPECT_EQ(theta(R"("rope_parameters":{"rope_theta":5,"rope_type":"default"},"rope_theta":7,)"),
            5);
  EXPECT_EQ(theta(R"("rope_parameters":{"rope_type":"linear","factor":2},"rope_theta":7,)"), 7);
  EXPECT_EQ(theta(R"("rope_scaling":{},"rope_theta":7,)"), 7);
  EXPECT_EQ(theta(R"("rope_scaling":null,"rope_parameters":{"rope_theta":5},)"), 5);
  // rope_parameters is forgotten where there is rope_scaling.
  EXPECT_EQ(theta(R"("rope_scaling":{"rope_type":"linear","factor":2},)"
                  R"("rope_parameters":{"rope_theta":5},)"),
            10000);
}

TEST(ModelConfig, GenerationConfigEndsTexts) {
  const TempDir dir;
  const auto ids = [&](const std::string& config, const std::string& generation) {
    spit(dir / "config.json", llama(config));
    spit(dir / "generation_config.json", generation);
    return load_config(dir.path()).eos_token_ids;
  };
  using Ids = std::vector<std::int32_t>;
  const std::string eos = "\"eos_token_id\":5,";
  EXPECT_EQ(ids(eos, R"({"eos_token_id":[6,7]})"), (Ids{6, 7}));
  EXPECT_EQ(ids(eos, R"({"eos_token_id":6})"), Ids{6});
  EXPECT_EQ(ids("\"eos_token_id\":null,", R"({"eos_token_id":6})"), Ids{6});
  EXPECT_EQ(ids("\"eos_token_id\":-1,\"bos_token_id\":-1,", "{}"), Ids{});
  EXPECT_FALSE(load_config(dir.path()).bos_token_id);
  // One that names none leaves those of config.json.
  EXPECT_EQ(ids(eos, R"({"temperature":0.6,"time":Infinity})"), Ids{5});
  EXPECT_EQ(ids(eos, R"({"eos_token_id":null})"), Ids{5});
  EXPECT_EQ(ids(eos, R"({"eos_token_id":-1})"), Ids{5});
  EXPECT_EQ(ids(eos, R"({"eos_token_id":4294967295})"), Ids{5});
  EXPECT_EQ(load_config(dir / "config.json").eos_token_ids, Ids{5});
  const std::string file = (dir / "generation_config.json").string();
  expect_file_error([&] { ids(eos, R"({"eos_token_id":512})"); }, file, {"512"});
  expect_file_error([&] { ids(eos, R"({"eos_token_id":[-1]})"); }, file, {"eos_token_id"});
  expect_file_error([&] { ids(eos, "{"); }, file, {"not valid JSON"});
}

// As Python's json writes them, and as no JSON has them.
TEST(ModelConfig, NaNAndInfinityAreNotNumbersHere) {
  const ModelConfig c = parse(llama(
      R"("router":NaN,"limits":[0.0,Infinity,-Infinity],"words":"NaN \"Infinity\" -Infinity",)"));
  const std::string written = c.to_json();
  EXPECT_NE(written.find("\"router\": NaN"), std::string::npos) << written;
  EXPECT_NE(written.find("Infinity,\n    -Infinity\n"), std::string::npos) << written;
  EXPECT_NE(written.find(R"("words": "NaN \"Infinity\" -Infinity")"), std::string::npos) << written;
  EXPECT_EQ(parse(written), c);
  refused(llama_with("rms_norm_eps", "NaN"), {"rms_norm_eps"});
  refused(llama_with("rope_theta", "Infinity"), {"rope_theta"});
  refused(llama("\"x\":Nan,"), {"not valid JSON"});
  parse("\xef\xbb\xbf" + llama());  // a byte order mark
}

TEST(ModelConfig, KeepsWhatChangesNothing) {
  const ModelConfig c = parse(llama(
      R"("pad_token_id":3,"pretraining_tp":1,"auto_map":{"AutoModel":"x.y"},"task":{"a":[1]},)"));
  EXPECT_EQ(c.other_keys, R"({"pad_token_id":3,"pretraining_tp":1,"task":{"a":[1]}})");
  EXPECT_NE(c.to_json().find("\"pad_token_id\": 3"), std::string::npos);
  EXPECT_EQ(parse(c.to_json()), c);
  EXPECT_EQ(parse(llama(R"("transformers_weights":"a/b.safetensors",)")).weights_file,
            "a/b.safetensors");
  refused(llama(R"("transformers_weights":"../b.safetensors",)"), {"transformers_weights"});
  refused(llama(R"("transformers_weights":"b.bin",)"), {"transformers_weights"});
}

TEST(ModelConfig, ValidateChecksWhatCodeMade) {
  ModelConfig c = parse(llama());
  c.validate();
  const auto invalid = [&](auto change, const std::string& part) {
    ModelConfig copy = c;
    change(copy);
    expect_error([&] { copy.validate(); }, ErrorKind::invalid_argument, "ModelConfig", {part});
  };
  invalid([](auto& x) { x.hidden_size = 0; }, "hidden_size");
  invalid([](auto& x) { x.num_attention_heads = 0; }, "num_attention_heads");
  invalid([](auto& x) { x.block.norm.eps = std::numeric_limits<double>::quiet_NaN(); },
          "rms_norm_eps");
  invalid([](auto& x) { x.block.qkv_bias = true; }, "biases");
  invalid([](auto& x) { x.architecture = &kQwen2; }, "biases");
  // What config.json of this architecture cannot say.
  invalid([](auto& x) { x.block.norm.kind = NormSpec::Kind::layer; }, "norms");
  invalid([](auto& x) { x.block.arrangement = Arrangement::parallel; }, "norms");
  invalid([](auto& x) { x.block.positions.kind = PositionSpec::Kind::learned; }, "positions");
  invalid([](auto& x) { x.block.positions.share = 0.5; }, "positions");
  invalid([](auto& x) { x.block.head_norms = true; }, "norms");
  invalid([](auto& x) { x.block.inner_norms = true; }, "norms");
  invalid([](auto& x) { x.block.up = Activation::relu; }, "activations");
  invalid([](auto& x) { x.block.scales.depth = 1.4; }, "scales");
  invalid([](auto& x) { x.block.scales.embedding = 0; }, "scale of embeddings");
  invalid([](auto& x) { x.dtype = "int8"; }, "dtype");
  invalid([](auto& x) { x.head_dim = 1 << 20; }, "head_dim");
  const TempDir dir;
  c.vocab_size = -1;
  EXPECT_THROW(save_config(dir.path(), c), Error);
  EXPECT_FALSE(std::filesystem::exists(dir / "config.json"));
}

}  // namespace
}  // namespace twell::io
