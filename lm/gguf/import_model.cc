#include "gguf/import_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_tensor.h"
#include "files/file_error.h"
#include "gguf/gguf_file.h"
#include "gguf/model_config.h"
#include "gguf/model_tensors.h"
#include "gguf/tokenizer_files.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr WeightScheme kCodes = {.bits = 8, .group = kSymmetricBlock, .packed = true};

// A tensor in the file, and what becomes of it.
struct Planned {
  ModelTensor tensor;
  const GgufTensor* stored;
  bool codes = false;

  std::int64_t scales() const { return tensor.columns() / kSymmetricBlock; }
  // The row of the file that becomes this one. A vector's numbers are rows of their own.
  std::int64_t stored_row(std::int64_t row) const {
    return tensor.heads == 0 ? row : row_in_gguf(row, tensor.shape[0] / tensor.heads);
  }

  std::vector<TensorSpec> specs(SafeDType dtype) const {
    if (!codes) return {{tensor.name, dtype, tensor.shape}};
    return {{tensor.module() + ".weight_packed",
             SafeDType::I32,
             {tensor.rows(), packed_words(tensor.columns(), kCodes.bits)}},
            {tensor.module() + ".weight_scale", SafeDType::F16, {tensor.rows(), scales()}},
            {tensor.module() + ".weight_shape", SafeDType::I64, {2}}};
  }
};

class Importer {
 public:
  Importer(const std::filesystem::path& from, const ImportOptions& options)
      : options_(options), file_(from) {}

  ImportedModel write(const std::filesystem::path& to) && {
    refuse_parts();
    const GgufArchitecture& as =
        gguf_architecture(file_.metadata().string("general.architecture"), file_.name());
    out_.config = config_of(file_, as, options_.allow_unused);
    plan(as);
    choose_types();
    out_.config.dtype = dtype_ == SafeDType::BF16  ? "bfloat16"
                        : dtype_ == SafeDType::F16 ? "float16"
                                                   : "float32";
    // Before the weights: what cannot be read is told at once.
    TokenizerFiles tokenizer;
    if (options_.tokenizer) tokenizer = tokenizer_files_of(file_.metadata(), out_.config);
    write_tensors(to);
    if (options_.tokenizer) {
      write_file_atomically(to / "tokenizer.json", tokenizer.tokenizer);
      write_file_atomically(to / "tokenizer_config.json", tokenizer.config);
    }
    const std::string generation = generation_config_of(out_.config);
    if (!generation.empty()) write_file_atomically(to / "generation_config.json", generation);
    save_config(to, out_.config);
    return std::move(out_);
  }

 private:
  // Files that are not a whole model.
  void refuse_parts() const {
    const GgufMetadata& values = file_.metadata();
    if (values.integer("split.count", 0, UINT16_MAX, 0) > 1) {
      fail_unsupported(file_.name(),
                       "is one of several files of a model: put them together with "
                       "llama-gguf-split --merge");
    }
    if (const auto type = values.string("general.type", "model"); type != "model") {
      fail_unsupported(file_.name(), "holds a {}, expected a model", in_quotes(type));
    }
  }

  void plan(const GgufArchitecture& as) {
    std::set<std::string> used = {kRopeFactors};
    for (ModelTensor& tensor : tensors_of(out_.config, as)) {
      const GgufTensor* stored = file_.find(tensor.gguf);
      if (stored == nullptr) {
        fail_file(file_.name(), "has no tensor {}", in_quotes(tensor.gguf));
      }
      if (stored->shape != tensor.shape) {
        fail_file(file_.name(), "tensor {} has the shape {}, expected {}", in_quotes(tensor.gguf),
                  in_brackets(stored->shape), in_brackets(tensor.shape));
      }
      used.insert(tensor.gguf);
      planned_.push_back({std::move(tensor), stored});
    }
    for (const GgufTensor& tensor : file_.tensors()) {
      if (options_.allow_unused || used.contains(tensor.name)) continue;
      fail_unsupported(file_.name(),
                       "tensor {} is none of a {} model's (--allow-unused leaves it out)",
                       in_quotes(tensor.name), out_.config.architecture->name);
    }
  }

  void choose_types() {
    if (options_.dtype) {
      dtype_ = *options_.dtype;
      return;
    }
    std::set<BlockType> types;  // of the blocks' linear layers
    for (const Planned& one : planned_) {
      if (one.tensor.linear && one.tensor.gguf.starts_with("blk.")) types.insert(one.stored->type);
    }
    if (std::ranges::all_of(types, is_symmetric)) {
      dtype_ = SafeDType::F32;
      keep_codes();
    } else if (std::ranges::any_of(types, is_quantised)) {
      dtype_ = SafeDType::BF16;
    } else if (types.size() == 1 && !types.contains(BlockType::f32)) {
      dtype_ = types.contains(BlockType::bf16) ? SafeDType::BF16 : SafeDType::F16;
    } else {
      dtype_ = SafeDType::F32;
    }
  }

  void keep_codes() {
    QuantizationConfig schemes;
    schemes.groups = {{{"Linear"}, kCodes}};
    const TensorNames& names = out_.config.architecture->tensors;
    const std::string head(names.head, std::string_view(names.head).size() - 1);
    bool head_has_codes = false;
    for (Planned& one : planned_) {
      one.codes = one.tensor.linear && is_symmetric(one.stored->type);
      head_has_codes = head_has_codes || (one.codes && one.tensor.module() == head);
    }
    if (!head_has_codes) schemes.ignore = {head};
    out_.config.quantization = schemes;
  }

  void write_tensors(const std::filesystem::path& to) {
    std::vector<TensorSpec> specs;
    for (const Planned& one : planned_) {
      for (TensorSpec& spec : one.specs(dtype_)) specs.push_back(std::move(spec));
    }
    CheckpointWriter writer(to, specs);
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      const Planned& one = planned_[i];
      if (options_.on_progress) {
        options_.on_progress(static_cast<std::int64_t>(i), std::ssize(planned_), one.tensor.name);
      }
      const std::string as = one.codes ? text_of(kCodes) : name_of(dtype_);
      ImportedPart& part = out_.parts[{layout_of(one.stored->type).name, as}];
      ++part.tensors;
      part.numbers += one.tensor.rows() * one.tensor.columns();
      if (one.codes) {
        write_codes(one, writer);
      } else {
        write_numbers(one, writer);
        out_.rounded = out_.rounded || (is_quantised(one.stored->type) && dtype_ != SafeDType::F32);
      }
      file_.drop_pages(*one.stored);
    }
    writer.commit();
  }

  void write_numbers(const Planned& one, CheckpointWriter& writer) const {
    const BlockType wanted = *block_type(dtype_);
    const BlockLayout& layout = layout_of(one.stored->type);
    // Of a vector each number is a row, whose order may differ.
    const std::int64_t columns = one.tensor.is_matrix() ? one.tensor.columns() : 1;
    const std::int64_t rows = one.tensor.shape[0];
    const std::int64_t blocks = columns / layout.numbers;
    const auto row_bytes = static_cast<std::int64_t>(size_of(dtype_)) * columns;
    std::vector<std::byte> out(static_cast<std::size_t>(rows * row_bytes));
    std::vector<float> row(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* from = file_.data(*one.stored) + one.stored_row(r) * blocks * layout.bytes;
      dequantize(one.stored->type, from, blocks, row.data());
      if (!quantize_finite(wanted, row, out.data() + r * row_bytes)) fail_not_finite(one);
    }
    writer.write(one.tensor.name, out);
  }

  [[noreturn]] void fail_not_finite(const Planned& one) const {
    fail_file(file_.name(), "tensor {} holds a number that is not finite in {}",
              in_quotes(one.tensor.gguf), name_of(dtype_));
  }

  void write_codes(const Planned& one, CheckpointWriter& writer) const {
    const ModelTensor& tensor = one.tensor;
    const std::int64_t rows = tensor.rows(), columns = tensor.columns(), scales = one.scales();
    const auto words = static_cast<std::size_t>(packed_words(columns, kCodes.bits)) * 4;
    std::vector<std::byte> packed(static_cast<std::size_t>(rows) * words);
    std::vector<std::uint16_t> scale(static_cast<std::size_t>(rows * scales));
    std::vector<std::int8_t> codes(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* from =
          file_.data(*one.stored) +
          one.stored_row(r) * static_cast<std::int64_t>(one.stored->row_bytes());
      std::uint16_t* to = scale.data() + r * scales;
      const bool held = take_codes(one.stored->type, from, scales, codes.data(), to);
      const bool finite = std::all_of(
          to, to + scales, [](std::uint16_t s) { return std::isfinite(float_of_half(s)); });
      if (!held || !finite) {
        fail_file(
            file_.name(), "tensor {} holds {}: is it damaged?", in_quotes(tensor.gguf),
            finite ? "the code -128 of a negative scale" : "a scale that is no finite number");
      }
      pack_codes(codes, kCodes.bits, packed.data() + static_cast<std::size_t>(r) * words);
    }
    const std::vector<TensorSpec> specs = one.specs(dtype_);
    const std::int64_t shape[] = {rows, columns};
    writer.write(specs[0].name, packed);
    writer.write(specs[1].name, std::as_bytes(std::span(scale)));
    writer.write(specs[2].name, std::as_bytes(std::span(shape)));
  }

  const ImportOptions& options_;
  GgufFile file_;
  ImportedModel out_;
  std::vector<Planned> planned_;
  SafeDType dtype_ = SafeDType::F32;
};

}  // namespace

ImportedModel import_gguf(const std::filesystem::path& from, const std::filesystem::path& to,
                          const ImportOptions& options) {
  return Importer(from, options).write(to);
}

}  // namespace twell::io
