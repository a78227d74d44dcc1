#include "gguf/export_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_tensor.h"
#include "files/file_error.h"
#include "gguf/gguf_writer.h"
#include "gguf/model_config.h"
#include "gguf/model_tensors.h"
#include "gguf/tokenizer_files.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr std::size_t kBytesAtOnce = 1 << 20;

// A tensor of the checkpoint, row by row, and what becomes of it.
struct Source {
  ModelTensor tensor;
  std::optional<CheckpointTensor> plain;
  std::optional<QuantizedTensor> quantized;
  BlockType type = BlockType::f32;
  bool codes = false;  // as they are

  std::string stored_as(const WeightScheme& scheme) const {
    return plain ? name_of(plain->info->dtype) : text_of(scheme);
  }
};

// general.file_type
std::uint32_t file_type(BlockType type) {
  switch (type) {
    case BlockType::f16:
      return 1;
    case BlockType::q8_0:
      return 7;
    case BlockType::bf16:
      return 32;
    default:
      return 0;
  }
}

class Exporter {
 public:
  Exporter(const std::filesystem::path& from, const ExportOptions& options)
      : from_(from),
        options_(options),
        config_file_((from / "config.json").string()),
        config_(load_config(from)),
        checkpoint_(config_.weights_file.empty() ? from : from / config_.weights_file) {}

  ExportedModel write(const std::filesystem::path& to) && {
    const GgufArchitecture& as = gguf_architecture(config_, config_file_);
    untie();
    find_all(as);
    GgufWriter out;
    out.put("general.architecture", as.name);
    out.put("general.type", "model");
    out.put("general.name", to.stem().string());
    out.put("general.file_type", file_type(sources_.front().type));
    if (std::ranges::any_of(sources_, [](const Source& s) { return is_quantised(s.type); })) {
      constexpr std::uint32_t kQuantisation = 2;  // ggml's version of what blocks look like
      out.put("general.quantization_version", kQuantisation);
    }
    write_config(config_, as, config_file_, out);
    write_tokenizer(options_.tokenizer.empty() ? from_ : options_.tokenizer, config_, out);
    write_tensors(to, out);
    out_.config = config_;
    out_.architecture = as.name;
    return std::move(out_);
  }

 private:
  // A head that is stored, and differs, is not tied.
  void untie() {
    const TensorNames& names = config_.architecture->tensors;
    const std::string head = std::string(names.head) + "weight";
    const std::string embedding = std::string(names.embedding) + "weight";
    if (!config_.tie_word_embeddings || !checkpoint_.contains(head) ||
        !checkpoint_.contains(embedding)) {
      return;
    }
    config_.tie_word_embeddings = same_bytes(checkpoint_.at(head), checkpoint_.at(embedding));
    if (config_.tie_word_embeddings) used_.insert(head);
  }

  std::optional<WeightScheme> scheme_of(const ModelTensor& tensor) const {
    if (!config_.quantization || !tensor.is_matrix()) return {};
    return config_.quantization->scheme_of(tensor.module(), tensor.linear ? "Linear" : "Embedding",
                                           config_file_);
  }

  void find_all(const GgufArchitecture& as) {
    for (ModelTensor& tensor : tensors_of(config_, as)) {
      Source one;
      const auto scheme = scheme_of(tensor);
      if (scheme) {
        one.quantized.emplace(checkpoint_, tensor.module(), *scheme);
        const std::vector<std::int64_t> shape{one.quantized->rows(), one.quantized->columns()};
        if (shape != tensor.shape) {
          fail_file(checkpoint_.path().string(), "tensor {} has the shape {}, expected {}",
                    in_quotes(tensor.name), in_brackets(shape), in_brackets(tensor.shape));
        }
        for (const std::string& name : one.quantized->names()) used_.insert(name);
      } else {
        one.plain = checkpoint_.expect(tensor.name, tensor.shape);
        used_.insert(tensor.name);
        if (!block_type(one.plain->info->dtype)) {
          fail_unsupported(one.plain->file->path().string(),
                           "tensor {} is {}; weights must be F32, F16 or BF16",
                           in_quotes(tensor.name), name_of(one.plain->info->dtype));
        }
      }
      one.tensor = std::move(tensor);
      choose_type(one);
      ExportedPart& part =
          out_.parts[{one.stored_as(scheme.value_or(WeightScheme{})), layout_of(one.type).name}];
      ++part.tensors;
      part.numbers += one.tensor.rows() * one.tensor.columns();
      sources_.push_back(std::move(one));
    }
    for (const std::string& name : checkpoint_.names()) {
      if (options_.allow_unused || used_.contains(name) || name.ends_with("rotary_emb.inv_freq")) {
        continue;
      }
      fail_file(checkpoint_.path().string(),
                "config.json has no use for tensor {} (--allow-unused leaves it out)",
                in_quotes(name));
    }
  }

  void choose_type(Source& one) const {
    if (!one.tensor.is_matrix()) return;
    const bool has_codes = one.quantized && one.quantized->type() == WeightType::int8 &&
                           one.quantized->group() == kSymmetricBlock && halves_hold_scales(one);
    if (!options_.type) {
      one.codes = has_codes;
      one.type = has_codes   ? BlockType::q8_0
                 : one.plain ? *block_type(one.plain->info->dtype)
                             : BlockType::bf16;
      return;
    }
    one.type = *options_.type;
    one.codes = one.type == BlockType::q8_0 && has_codes;
    if (one.tensor.columns() % layout_of(one.type).numbers != 0) one.type = BlockType::bf16;
  }

  static bool halves_hold_scales(const Source& one) {
    std::vector<float> scales(static_cast<std::size_t>(one.quantized->groups()));
    for (std::int64_t r = 0; r < one.quantized->rows(); ++r) {
      one.quantized->scales(r, r + 1, scales.data());
      const bool held =
          std::ranges::all_of(scales, [](float s) { return float_of_half(half_of_float(s)) == s; });
      if (!held) return false;
    }
    return true;
  }

  void write_tensors(const std::filesystem::path& to, GgufWriter& out) {
    const std::vector<float> factors = rope_factors(config_);
    std::vector<GgufWriter::Tensor> tensors;
    if (!factors.empty()) tensors.push_back({kRopeFactors, BlockType::f32, {std::ssize(factors)}});
    for (const Source& one : sources_) {
      tensors.push_back({one.tensor.gguf, one.type, one.tensor.shape});
    }
    out.announce(std::move(tensors));
    auto source = sources_.begin();
    out.save(to, [&](const GgufWriter::Tensor& tensor, AtomicFile& file) {
      if (tensor.name == kRopeFactors) return file.write(std::as_bytes(std::span(factors)));
      if (options_.on_progress) {
        options_.on_progress(source - sources_.begin(), std::ssize(sources_), tensor.name);
      }
      write_tensor(*source, file);
      if (source->plain) {
        source->plain->drop_pages();
      } else {
        source->quantized->drop_pages();
      }
      ++source;
    });
  }

  void write_tensor(const Source& one, AtomicFile& file) const {
    const ModelTensor& tensor = one.tensor;
    const std::int64_t columns = tensor.is_matrix() ? tensor.columns() : 1;
    const BlockLayout& layout = layout_of(one.type);
    const std::int64_t blocks = columns / layout.numbers;
    const auto row_bytes = static_cast<std::size_t>(blocks * layout.bytes);
    std::vector<float> row(static_cast<std::size_t>(columns));
    std::vector<std::byte> out;
    for (std::int64_t r = 0; r < tensor.shape[0]; ++r) {
      const std::int64_t from =
          tensor.heads == 0 ? r : row_from_gguf(r, tensor.shape[0] / tensor.heads);
      out.resize(out.size() + row_bytes);
      std::byte* const to = out.data() + out.size() - row_bytes;
      if (one.codes) {
        copy_codes(*one.quantized, from, to);
      } else {
        read_row(one, from, row);
        if (!quantize_finite(one.type, row, to)) fail_not_finite(one);
      }
      if (out.size() < kBytesAtOnce && r + 1 < tensor.shape[0]) continue;
      file.write(out);
      out.clear();
    }
  }

  static void read_row(const Source& one, std::int64_t r, std::vector<float>& row) {
    if (one.quantized) return one.quantized->dequantize(r, r + 1, row.data());
    const BlockType type = *block_type(one.plain->info->dtype);
    const std::int64_t bytes = layout_of(type).bytes;
    dequantize(type, one.plain->data + r * std::ssize(row) * bytes, std::ssize(row), row.data());
  }

  static void copy_codes(const QuantizedTensor& tensor, std::int64_t r, std::byte* to) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(tensor.columns()));
    std::vector<float> scales(static_cast<std::size_t>(tensor.groups()));
    tensor.codes(r, r + 1, codes.data());
    tensor.scales(r, r + 1, scales.data());
    const std::int64_t bytes = layout_of(BlockType::q8_0).bytes;
    for (std::int64_t g = 0; g < tensor.groups(); ++g) {
      put_codes(codes.data() + g * kSymmetricBlock,
                half_of_float(scales[static_cast<std::size_t>(g)]), to + g * bytes);
    }
  }

  [[noreturn]] void fail_not_finite(const Source& one) const {
    fail_file(checkpoint_.path().string(), "tensor {} holds a number that is not finite in {}",
              in_quotes(one.tensor.name), layout_of(one.type).name);
  }

  std::filesystem::path from_;
  const ExportOptions& options_;
  std::string config_file_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  std::set<std::string> used_;
  std::vector<Source> sources_;
  ExportedModel out_;
};

}  // namespace

ExportedModel export_gguf(const std::filesystem::path& from, const std::filesystem::path& to,
                          const ExportOptions& options) {
  return Exporter(from, options).write(to);
}

}  // namespace twell::io
