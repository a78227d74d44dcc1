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
#include "gguf/stored_model.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr WeightScheme kCodes = {.bits = 8, .group = kSymmetricBlock, .packed = true};

// A tensor in the file, and what becomes of it.
struct Planned : StoredTensor {
  bool codes = false;

  std::int64_t scales() const { return tensor.columns() / kSymmetricBlock; }

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
      : options_(options), model_(from, options.allow_unused) {
    out_.config = model_.config();
    for (const StoredTensor& tensor : model_.tensors()) planned_.push_back({tensor});
  }

  ImportedModel write(const std::filesystem::path& to) && {
    choose_types();
    out_.config.dtype = dtype_ == SafeDType::BF16  ? "bfloat16"
                        : dtype_ == SafeDType::F16 ? "float16"
                                                   : "float32";
    // Before the weights: what cannot be read is told at once.
    write_side_files(model_.file(), out_.config, to, options_.tokenizer);
    write_tensors(to);
    return std::move(out_);
  }

 private:
  void choose_types() {
    const auto symmetric = [](const Planned& one) {
      return !one.tensor.of_block_matrix() || is_symmetric(one.stored->type);
    };
    if (options_.dtype) {
      dtype_ = *options_.dtype;
    } else if (std::ranges::all_of(planned_, symmetric)) {
      dtype_ = SafeDType::F32;
      keep_codes();
    } else {
      dtype_ = float_type_of(model_.tensors());
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
      model_.file().drop_pages(*one.stored);
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
      dequantize(one.stored->type, model_.row(one, r), blocks, row.data());
      if (!quantize_finite(wanted, row, out.data() + r * row_bytes)) fail_not_finite(one);
    }
    writer.write(one.tensor.name, out);
  }

  [[noreturn]] void fail_not_finite(const Planned& one) const {
    fail_file(model_.file().name(), "tensor {} holds a number that is not finite in {}",
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
      std::uint16_t* to = scale.data() + r * scales;
      const bool held = take_codes(one.stored->type, model_.row(one, r), scales, codes.data(), to);
      const bool finite = std::all_of(
          to, to + scales, [](std::uint16_t s) { return std::isfinite(float_of_half(s)); });
      if (!held || !finite) {
        fail_file(
            model_.file().name(), "tensor {} holds {}: is it damaged?", in_quotes(tensor.gguf),
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
  StoredModel model_;
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
