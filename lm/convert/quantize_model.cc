#include "convert/quantize_model.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_tensor.h"
#include "decoder/model_directory.h"
#include "decoder/parameters.h"
#include "files/file_error.h"
#include "twell/weight.h"

namespace twell::lm {
namespace {

// A target for all modules of that name: ".mlp.down_proj." as "re:.*\.mlp\.down_proj$".
std::string target_of(const std::string& name) {
  std::string out = "re:.*\\.";
  for (const char c : name.substr(0, name.size() - 1)) out += c == '.' ? "\\." : std::string(1, c);
  return out + "$";
}

io::WeightScheme head_scheme(const QuantizeOptions& options) {
  if (options.head_bits == 8) return {.bits = 8};
  return {.bits = options.head_bits, .group = options.bits == 4 ? options.group : kInt4Group};
}

// By name too where all are: vLLM's head is no Linear.
void add_head(io::QuantizationConfig& out, const std::string& head,
              const QuantizeOptions& options) {
  if (options.head_bits == 0) return;
  const io::WeightScheme scheme = head_scheme(options);
  for (io::QuantizationConfig::Group& group : out.groups) {
    if (group.scheme == scheme) {
      group.targets.push_back(head);
      return;
    }
  }
  out.groups.push_back({{head}, scheme});
}

// Every target holds for modules that no other holds for, so that the order in which readers look
// at them does not matter.
io::QuantizationConfig quantization_of(const io::ModelConfig& config,
                                       const QuantizeOptions& options) {
  const io::TensorNames& names = config.architecture->tensors;
  const std::string head(names.head, std::string_view(names.head).size() - 1);
  io::QuantizationConfig out;
  if (options.head_bits == 0) out.ignore.push_back(head);
  if (*names.router != '\0') out.ignore.push_back(target_of(names.router));
  const io::WeightScheme rows{.bits = 8};
  if (options.bits == 8 && options.group == 0 && options.head_bits != 4) {
    out.groups.push_back({{"Linear"}, rows});
    add_head(out, head, options);
    return out;
  }
  io::QuantizationConfig::Group& many = out.groups.emplace_back();
  many.scheme = {.bits = options.bits, .group = options.group};
  for (const char* name : {names.q, names.k, names.v, names.o}) {
    many.targets.push_back(target_of(name));
  }
  if (config.gated) many.targets.push_back(target_of(names.gate));
  many.targets.push_back(target_of(names.up));
  io::QuantizationConfig::Group& other = out.groups.emplace_back();
  other.scheme = rows;
  other.targets.push_back(target_of(names.down));
  add_head(out, head, options);
  return out;
}

std::vector<Parameter> parameters_of(const io::ModelConfig& config) {
  std::vector<Parameter> out;
  const DecoderWeights weights = weights_of(config);
  for_each_parameter(weights, [&](const Parameter& parameter) { out.push_back(parameter); });
  return out;
}

// What is written of a parameter.
struct Part {
  Parameter from;
  std::optional<io::WeightScheme> scheme = {};
  std::string module = {};

  std::vector<io::TensorSpec> specs(io::SafeDType kept) const {
    if (!scheme) return {{from.name, kept, from.shape}};
    const std::int64_t rows = from.shape[0], columns = from.shape[1];
    const std::int64_t groups = scheme->group == 0 ? 1 : columns / scheme->group;
    return {{module + ".weight_packed",
             io::SafeDType::I32,
             {rows, io::packed_words(columns, scheme->bits)}},
            {module + ".weight_scale", io::SafeDType::BF16, {rows, groups}},
            {module + ".weight_shape", io::SafeDType::I64, {2}}};
  }
};

void require_whole_groups(const Part& part, const std::string& name) {
  const std::int64_t columns = part.from.shape[1], group = part.scheme->group;
  if (group > 0 && columns % group != 0) {
    io::fail_argument("--group", "{} has {} columns, no multiple of the groups of {}", name,
                      columns, group);
  }
}

std::vector<Part> parts_of(const io::ModelConfig& config, const io::QuantizationConfig& schemes,
                           const QuantizeOptions& options) {
  std::vector<Part> out;
  for (Parameter& parameter : parameters_of(config)) {
    Part& part = out.emplace_back(std::move(parameter));
    part.scheme = scheme_of(schemes, part.from, "quantize");
    if (!part.scheme) continue;
    part.module = module_of(part.from);
    require_whole_groups(part, part.from.name);
  }
  if (config.tie_word_embeddings && options.head_bits > 0) {
    Part& head = out.emplace_back(out.front());  // the embedding
    head.scheme = head_scheme(options);
    const std::string name = config.architecture->tensors.head;
    head.module = name.substr(0, name.size() - 1);
    require_whole_groups(head, head.module);
  }
  return out;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

io::RoundingError write_quantized(const Part& part, const at::Tensor& tensor,
                                  io::CheckpointWriter& writer) {
  const std::int64_t rows = tensor.size(0), columns = tensor.size(1);
  const auto specs = part.specs({});
  const std::int64_t words = specs[0].shape[1], groups = specs[1].shape[1];
  const at::Tensor packed = at::empty({rows, words}, at::TensorOptions(at::kInt));
  const at::Tensor scales = at::empty({rows, groups}, at::TensorOptions(at::kBFloat16));
  auto* const word = static_cast<std::byte*>(packed.mutable_data_ptr());
  auto* const scale = static_cast<std::uint16_t*>(scales.mutable_data_ptr());
  std::vector<io::RoundingError> errors(static_cast<std::size_t>(rows));
  constexpr std::int64_t kRowsATask = 16;
  at::parallel_for(0, rows, kRowsATask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(columns));
    for (std::int64_t first = begin; first < end; first += kRowsATask) {
      const std::int64_t count = std::min(kRowsATask, end - first);
      const at::Tensor floats = tensor.narrow(0, first, count).to(at::kFloat).contiguous();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = first + i;
        const std::span<const float> weights(floats.const_data_ptr<float>() + i * columns,
                                             codes.size());
        errors[static_cast<std::size_t>(row)] =
            io::quantize_row(weights, *part.scheme, codes.data(), scale + row * groups);
        io::pack_codes(codes, part.scheme->bits, word + row * words * packed.element_size());
      }
    }
  });
  writer.write(specs[0].name, bytes_of(packed));
  writer.write(specs[1].name, bytes_of(scales));
  const std::int64_t shape[] = {rows, columns};
  writer.write(specs[2].name, std::as_bytes(std::span(shape)));
  io::RoundingError total;  // in the order of rows
  for (const io::RoundingError& error : errors) total += error;
  return total;
}

}  // namespace

QuantizedModel quantize_model(const std::filesystem::path& from, const std::filesystem::path& to,
                              const QuantizeOptions& options) {
  const at::NoGradGuard no_grad;
  QuantizedModel out;
  out.config = io::load_config(from);
  if (out.config.quantization) {
    io::fail_file((from / "config.json").string(),
                  "has a quantization_config: the model is quantised already");
  }
  const ModelDirectory opened(from, out.config, {.keep_f16 = true});
  out.config = opened.config();
  const io::QuantizationConfig schemes = quantization_of(out.config, options);
  const std::vector<Part> parts = parts_of(out.config, schemes, options);

  ParameterSource& source = opened.source();
  at::Tensor tensor = source.take(parts.front().from);  // its type is that of all that is kept
  const io::SafeDType kept = tensor_data("", tensor).dtype;
  std::vector<io::TensorSpec> specs;
  for (const Part& part : parts) {
    for (io::TensorSpec& spec : part.specs(kept)) {
      out.bytes_after += spec.bytes();
      specs.push_back(std::move(spec));
    }
  }
  io::CheckpointWriter writer(to, specs);
  for (const Part& part : parts) {
    const auto done = &part - parts.data();
    if (options.on_progress) options.on_progress(done, std::ssize(parts), part.from.name);
    tensor = source.take(part.from);
    if (part.scheme) {
      QuantizedPart& sum = out.parts[io::text_of(*part.scheme)];
      ++sum.tensors;
      sum.weights += tensor.numel();
      sum.error += write_quantized(part, tensor, writer);
    } else {
      ++out.kept;
      writer.write(part.from.name, bytes_of(tensor.contiguous()));
    }
    const bool again = part.from.name == parts.front().from.name && part.scheme;
    if (!again) out.bytes_before += tensor.nbytes();
    source.drop_pages(part.from);
  }
  if (!options.allow_unused) opened.check_all_used();
  writer.commit();
  const char* const dtypes[] = {"bfloat16", "float16", "float32"};
  out.config.dtype = dtypes[kept == io::SafeDType::BF16 ? 0 : kept == io::SafeDType::F16 ? 1 : 2];
  if (options.head_bits > 0) out.config.tie_word_embeddings = false;
  out.config.quantization = schemes;
  return out;
}

}  // namespace twell::lm
