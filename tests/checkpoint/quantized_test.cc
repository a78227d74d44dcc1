// Codes and scales: what is written is read back, roundings are as small as they should be, and
// every file that is not what config.json says is one line.
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/config.h"
#include "checkpoint/quantize.h"
#include "checkpoint/quantized_tensor.h"
#include "files/json_reader.h"
#include "tests/support/files.h"

namespace twell::io {
namespace {

constexpr const char* kModule = "model.layers.0.mlp.up_proj";

float of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::vector<float> normals(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// A weight as it is rounded, and written as compressed-tensors does.
struct Written {
  Written(const std::vector<float>& weights, std::int64_t rows, const WeightScheme& scheme)
      : scheme(scheme), rows(rows), columns(std::ssize(weights) / rows) {
    const std::int64_t groups = scheme.group == 0 ? 1 : columns / scheme.group;
    codes.resize(weights.size());
    scales.resize(static_cast<std::size_t>(rows * groups));
    words.resize(static_cast<std::size_t>(rows * packed_words(columns, scheme.bits) * 4));
    shape = {rows, columns};
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::span row(weights.data() + r * columns, static_cast<std::size_t>(columns));
      std::int8_t* code = codes.data() + r * columns;
      error += quantize_row(row, scheme, code, scales.data() + r * groups);
      pack_codes({code, row.size()}, scheme.bits,
                 words.data() + r * packed_words(columns, scheme.bits) * 4);
    }
    const std::string module = kModule;
    if (scheme.packed) {
      tensors = {
          {{module + ".weight_packed", SafeDType::I32, {rows, packed_words(columns, scheme.bits)}},
           words.data()},
          {{module + ".weight_shape", SafeDType::I64, {2}}, shape.data()}};
    } else {
      tensors = {{{module + ".weight", SafeDType::I8, {rows, columns}}, codes.data()}};
    }
    tensors.push_back({{module + ".weight_scale", SafeDType::BF16, {rows, groups}}, scales.data()});
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  TensorData& tensor(const std::string& suffix) {
    for (TensorData& one : tensors) {
      if (one.name == kModule + suffix) return one;
    }
    throw std::runtime_error("no such tensor");
  }
  void drop(const std::string& suffix) {
    std::erase_if(tensors, [&](const TensorData& one) { return one.name == kModule + suffix; });
  }

  WeightScheme scheme;
  std::int64_t rows, columns;
  std::vector<std::int8_t> codes;
  std::vector<std::uint16_t> scales;
  std::vector<std::byte> words;
  std::vector<std::int64_t> shape;
  std::vector<TensorData> tensors;
  RoundingError error;
};

const WeightScheme kSchemes[] = {{8, 0, true},  {8, 0, false}, {8, 128, true}, {8, 32, false},
                                 {4, 32, true}, {4, 64, true}, {4, 0, true}};

TEST(Quantized, IsReadAsItWasWritten) {
  for (const WeightScheme& scheme : kSchemes) {
    // Of a channel's columns the last word is not full.
    const std::int64_t columns = scheme.group == 0 ? 131 : 256;
    Written written(normals(static_cast<std::size_t>(5 * columns)), 5, scheme);
    SCOPED_TRACE(text_of(scheme));
    const TempDir dir;
    save_checkpoint(dir.path(), written.tensors);
    const Checkpoint checkpoint(dir.path());
    const QuantizedTensor read(checkpoint, kModule, scheme);
    ASSERT_EQ(read.rows(), 5);
    ASSERT_EQ(read.columns(), columns);
    EXPECT_EQ(read.group(), scheme.group == 0 ? columns : scheme.group);
    EXPECT_EQ(read.names().size(), written.tensors.size());
    std::vector<std::int8_t> codes(written.codes.size());
    read.codes(0, 2, codes.data());
    read.codes(2, 5, codes.data() + 2 * columns);
    EXPECT_EQ(codes, written.codes);
    std::vector<float> scales(written.scales.size()), numbers(codes.size());
    read.scales(0, 5, scales.data());
    std::vector<std::uint16_t> bits(codes.size());
    read.dequantize(0, 5, numbers.data());
    read.dequantize(0, 5, bits.data());
    double noise = 0;
    const auto weights = normals(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto group = i / static_cast<std::size_t>(read.group());
      ASSERT_EQ(scales[group], of_bf16(written.scales[group]));
      const double exact = static_cast<double>(codes[i]) * scales[group];
      ASSERT_EQ(numbers[i], exact);
      int exponent = 0;  // to the nearest of 8 bits, ties to even
      const double mantissa = std::frexp(exact, &exponent);
      ASSERT_EQ(of_bf16(bits[i]), std::ldexp(std::nearbyint(mantissa * 256), exponent - 8));
      if (scheme.bits == 4) {
        ASSERT_EQ(of_bf16(bits[i]), exact);
      }
      noise += (weights[i] - exact) * (weights[i] - exact);
    }
    EXPECT_NEAR(noise / written.error.noise, 1, 1e-5);  // which is summed in f32
  }
}

// A simulation in PyTorch: positive scales of 5 bits, errors by size 21.06 dB; int8 by rows of 2048
// 41.7 dB; 0.1 dB are four deviations of these samples.
TEST(Quantized, RoundingIsAsSmallAsSimulated) {
  const auto weights = normals(1 << 18);
  const auto decibels = [&](const WeightScheme& scheme) {
    return Written(weights, 128, scheme).error.decibels();
  };
  EXPECT_NEAR(decibels({4, 32, true}), 21.06, 0.1);
  EXPECT_NEAR(decibels({4, 64, true}), 20.19, 0.1);
  EXPECT_NEAR(decibels({4, 128, true}), 19.56, 0.1);
  EXPECT_NEAR(decibels({8, 0, true}), 41.77, 0.1);
  EXPECT_NEAR(decibels({8, 128, true}), 43.80, 0.1);
}

TEST(Quantized, ScalesHaveFewBitsAndArePositive) {
  auto weights = normals(64 * 64);
  std::fill_n(weights.begin(), 64, 0.0F);
  for (std::size_t i = 64; i < 128; ++i) weights[i] *= 1e-30F;
  for (std::size_t i = 128; i < 192; ++i) weights[i] *= 1e30F;
  for (std::size_t i = 192; i < 256; ++i) weights[i] *= 1e-38F;  // down to subnormal ones
  const Written written(weights, 64, {4, 32, true});
  for (const std::uint16_t scale : written.scales) {
    EXPECT_EQ(scale & 0x7U, 0U);  // of the 8 bits that count the lower three
    EXPECT_GT(of_bf16(scale), 0);
  }
  EXPECT_EQ(of_bf16(written.scales[0]), 1);
  EXPECT_EQ(written.codes[0], 0);
  EXPECT_TRUE(std::isfinite(written.error.noise));
}

struct Bad {
  const char* what;
  std::function<void(Written&)> change;
  std::vector<std::string> parts;
  WeightScheme scheme = {4, 32, true};
};

TEST(Quantized, FilesThatAreNotWhatConfigSaysAreOneLine) {
  static float wide_scales[16] = {};
  static std::int64_t other_shape[2] = {4, 128};
  static std::vector<float> floats(4 * 128, 1.0F);
  const auto scale_of = [](std::uint16_t bits) {
    return [bits](Written& w) { w.scales[3] = bits; };
  };
  const auto add = [](const std::string& suffix) {
    return [suffix](Written& w) {
      w.tensors.push_back({{kModule + suffix, SafeDType::F32, {1}}, floats.data()});
    };
  };
  const Bad table[] = {
      {"zero", scale_of(0), {"weight_scale", "element 3", "scale 0", "positive"}},
      {"negative", scale_of(0xBF80), {"weight_scale", "scale -1", "positive"}},
      {"NaN", scale_of(0x7FC0), {"weight_scale", "nan", "positive"}},
      {"infinite", scale_of(0x7F80), {"weight_scale", "inf", "positive"}},
      {"no scales", [](Written& w) { w.drop(".weight_scale"); }, {"weight_scale", "missing"}},
      {"no shape", [](Written& w) { w.drop(".weight_shape"); }, {"weight_shape", "missing"}},
      {"no codes", [](Written& w) { w.drop(".weight_packed"); }, {"weight_packed", "missing"}},
      {"groups", [](Written&) {}, {"128 columns", "groups of 96"}, {4, 96, true}},
      {"fewer scales", [](Written&) {}, {"weight_scale", "[4, 4]", "[4, 2]"}, {4, 64, true}},
      {"cut short",
       [](Written& w) {
         w.tensor(".weight_packed").shape = {4, 15};
       },
       {"weight_packed", "[4, 15]", "[4, 16]"}},
      {"rows",
       [](Written& w) {
         w.tensor(".weight_packed").shape = {3, 16};
       },
       {"weight_packed", "[3, 16]", "[4, 16]"}},
      {"other bits", [](Written&) {}, {"weight_packed", "[4, 16]", "[4, 32]"}, {8, 0, true}},
      {"floats",
       [](Written& w) {
         w.drop(".weight_packed");
         w.tensors.push_back(
             {{kModule + std::string(".weight"), SafeDType::F32, {4, 128}}, floats.data()});
       },
       {".weight\" is F32", "int4, groups of 32"}},
      {"unpacked", [](Written&) {}, {"weight_packed\" is I32", "int8"}, {8, 0, false}},
      {"type of codes",
       [](Written& w) { w.tensor(".weight_packed").dtype = SafeDType::F32; },
       {"weight_packed", "F32", "expected I32"}},
      {"type of scales",
       [](Written& w) {
         w.tensor(".weight_scale") = {
             {kModule + std::string(".weight_scale"), SafeDType::U8, {4, 4}}, wide_scales};
       },
       {"weight_scale", "U8", "BF16"}},
      {"shape's shape",
       [](Written& w) { w.tensor(".weight_shape").shape = {1}; },
       {"weight_shape", "[1]"}},
      {"shape",
       [](Written& w) {
         other_shape[1] = 1LL << 62;
         w.tensor(".weight_shape").data = other_shape;
       },
       {"weight_packed", "weight_shape", "4611686018427387904"}},
      {"negative shape",
       [](Written& w) {
         other_shape[1] = -128;
         w.tensor(".weight_shape").data = other_shape;
       },
       {"weight_packed", "weight_shape", "-128"}},
      {"zero points", add(".weight_zero_point"), {"weight_zero_point", "not supported"}},
      {"g_idx", add(".weight_g_idx"), {"weight_g_idx", "not supported"}},
      {"GPTQ", add(".qweight"), {"qweight", "AWQ and GPTQ", "not supported"}},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.what);
    Written written(normals(4 * 128), 4, {4, 32, true});
    bad.change(written);
    const TempDir dir;
    save_checkpoint(dir.path(), written.tensors);
    const Checkpoint checkpoint(dir.path());
    const bool supported = std::none_of(bad.parts.begin(), bad.parts.end(),
                                        [](const auto& part) { return part == "not supported"; });
    expect_error([&] { QuantizedTensor(checkpoint, kModule, bad.scheme); },
                 supported ? ErrorKind::environment : ErrorKind::unsupported, dir.path().string(),
                 bad.parts);
  }
}

// --- quantization_config ---

const std::string kFile = "dir/config.json";

std::string group(const std::string& targets, const std::string& weights,
                  const std::string& more = "") {
  return R"({"targets":[)" + targets + R"(],"weights":{)" + weights + "}" + more + "}";
}
std::string config(const std::string& groups, const std::string& more = "") {
  return R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{)" +
         groups + "}" + more + "}";
}
const std::string kInt4 =
    R"("num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32)";
const std::string kInt8 = R"("num_bits":8,"type":"int","strategy":"channel")";

QuantizationConfig parse(const std::string& text) {
  const Json document = parse_python_json(text, kFile);
  return QuantizationConfig::from_json(JsonObject(document, kFile, "quantization_config"));
}

TEST(QuantizationConfig, TargetsAreThoseOfCompressedTensors) {
  const QuantizationConfig c =
      parse(config(R"("a":)" + group(R"("Linear")", kInt4) + R"(,"b":)" +
                       group(R"("re:.*down_proj$","model.layers.1.mlp.up_proj")", kInt8),
                   R"(,"ignore":["lm_head","re:model\\.layers\\.2\\..*"])"));
  const WeightScheme int4{4, 32, true}, int8{8, 0, true};
  const auto of = [&](const std::string& name, const char* kind = "Linear") {
    return c.scheme_of(name, kind, kFile);
  };
  EXPECT_EQ(of("model.layers.0.mlp.up_proj"), int4);
  EXPECT_EQ(of("model.layers.1.mlp.up_proj"), int8);
  EXPECT_EQ(of("model.layers.1.mlp.down_proj"), int8);
  EXPECT_EQ(of("model.layers.2.mlp.down_proj"), std::nullopt);
  EXPECT_EQ(of("lm_head"), std::nullopt);
  EXPECT_EQ(of("model.embed_tokens", "Embedding"), std::nullopt);
  // As re.match: from the begin, and not to the end.
  const QuantizationConfig begin =
      parse(config(R"("a":)" + group(R"("re:model\\.layers\\.0")", kInt8)));
  EXPECT_TRUE(begin.scheme_of("model.layers.01", "Linear", kFile));
  EXPECT_FALSE(begin.scheme_of("a.model.layers.0", "Linear", kFile));
  EXPECT_EQ(parse(c.to_json().dump()), c);
}

TEST(QuantizationConfig, WhatIsNotReadIsNamed) {
  const std::string linear = R"("Linear")";
  const auto with = [&](const std::string& weights, const std::string& more = "") {
    return config(R"("g":)" + group(linear, weights, more));
  };
  const std::pair<std::string, std::vector<std::string>> unsupported[] = {
      {R"({"quant_method":"gptq","bits":4})", {"quant_method", "\"gptq\"", "compressed-tensors"}},
      {R"({"quant_method":"awq"})", {"\"awq\""}},
      {R"({"quant_method":"bitnet"})", {"\"bitnet\""}},
      {"{}", {"quant_method", "none"}},
      {with(R"("num_bits":8,"type":"float","strategy":"channel")"), {"\"float\"", "int"}},
      {with(R"("num_bits":4,"type":"float","strategy":"tensor_group","group_size":16)"),
       {"\"float\""}},
      {with(R"("num_bits":2,"strategy":"channel")"), {"2 bits"}},
      {with(kInt4 + R"(,"actorder":"group")"), {"actorder", "g_idx"}},
      {with(kInt4 + R"(,"actorder":true)"), {"actorder"}},
      {with(kInt8 + R"(,"symmetric":false)"), {"symmetric", "zero points"}},
      {with(kInt8 + R"(,"dynamic":true)"), {"dynamic"}},
      {with(R"("num_bits":8)"), {"strategy", "\"tensor\""}},
      {with(R"("num_bits":8,"strategy":"block","block_structure":[128,128])"), {"\"block\""}},
      {with(R"("num_bits":4,"group_size":16)"), {"group_size", "16", "32"}},
      {with(R"("num_bits":4,"group_size":256)"), {"group_size", "256"}},
      {with(kInt8, R"(,"input_activations":{"num_bits":8})"), {"input_activations"}},
      {with(kInt8, R"(,"format":"marlin-24")"), {"format", "\"marlin-24\""}},
      {with(kInt4, R"(,"format":"int-quantized")"), {"4 bits", "pack-quantized"}},
      {config("", R"(,"quantization_status":"frozen")"), {"quantization_status", "\"frozen\""}},
      {config("", R"(,"kv_cache_scheme":{"num_bits":8})"), {"kv_cache_scheme"}},
      {config("", R"(,"transform_config":{"config_groups":{}})"), {"transform_config"}},
      {config("", R"(,"sparsity_config":{"format":"sparse-24-bitmask"})"), {"sparse-24-bitmask"}},
  };
  for (const auto& [text, parts] : unsupported) {
    SCOPED_TRACE(text);
    expect_error([&] { parse(text); }, ErrorKind::unsupported, kFile, parts);
  }
  const std::pair<std::string, std::vector<std::string>> wrong[] = {
      {R"({"quant_method":"compressed-tensors"})", {"config_groups is missing"}},
      {config(R"("g":3)"), {"config_groups", "g"}},
      {config(R"("g":{"targets":["Linear"]})"), {"weights is missing"}},
      {config(R"("g":{"weights":{}})"), {"targets is missing"}},
      {with("\"num_bits\":\"4\""), {"num_bits"}},
      {config(R"("g":)" + group("3", kInt8)), {"targets", "number"}},
      {config(R"("g":)" + group("\"re:(\"", kInt8)), {"the target \"(\"", "regular expression"}},
      {config(R"("g":)" + group(linear, kInt8) + R"(,"h":)" + group(linear, kInt4)),
       {"\"Linear\"", "twice"}},
  };
  for (const auto& [text, parts] : wrong) {
    SCOPED_TRACE(text);
    expect_file_error([&] { parse(text); }, kFile, parts);
  }
  const QuantizationConfig slow = parse(config(R"("g":)" + group(R"("re:(a|aa)+[^a]")", kInt8)));
  expect_file_error([&] { slow.scheme_of(std::string(60, 'a'), "Linear", kFile); }, kFile,
                    {"too many steps"});
  // Ignored are what changes nothing.
  parse(
      with(kInt8 + R"(,"actorder":"weight","observer":"mse","scale_dtype":null,"zp_dtype":null)"));
  parse(config(R"("g":)" + group(linear, kInt8),
               R"(,"sparsity_config":{},"transform_config":{},"global_compression_ratio":1.5)"));
}

TEST(QuantizationConfig, IsPartOfConfigJson) {
  const std::string llama =
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":172,"num_hidden_layers":2,)"
      R"("num_attention_heads":8,"vocab_size":512,"quantization_config":)" +
      config(R"("g":)" + group("\"Linear\"", kInt4), R"(,"ignore":["lm_head"])") + "}";
  const ModelConfig c = ModelConfig::from_json(llama, kFile);
  ASSERT_TRUE(c.quantization);
  EXPECT_EQ(c.quantization->ignore, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(ModelConfig::from_json(c.to_json(), kFile), c);
}

}  // namespace
}  // namespace twell::io
