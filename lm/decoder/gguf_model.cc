#include "decoder/gguf_model.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "decoder/ggml_layers.h"
#include "files/file_error.h"

namespace twell::lm {
namespace {

constexpr std::int64_t kRowsATask = 64;

std::optional<GgmlFormat> format_named(std::string_view name) {
  for (std::size_t i = 0; i < kGgmlFormats; ++i) {
    const auto format = static_cast<GgmlFormat>(i);
    if (name == name_of(format)) return format;
  }
  return {};
}

class GgufSource final : public ParameterSource {
 public:
  GgufSource(std::shared_ptr<const io::StoredModel> model, const CheckpointSourceOptions& options)
      : model_(std::move(model)), options_(options) {
    for (const io::StoredTensor& tensor : model_->tensors()) {
      by_name_[tensor.tensor.name] = &tensor;
      const bool in_blocks = tensor.tensor.linear && format_named(type_of(tensor)).has_value();
      keeps_blocks_ = keeps_blocks_ || (options_.keep_codes && in_blocks);
    }
    if (!options_.dtype) options_.dtype = own_dtype();
  }

  std::optional<GgmlFormat> format_of(const Parameter& parameter) const override {
    const bool kept = keeps_blocks_ && (parameter.kind == ParameterKind::embedding ||
                                        parameter.kind == ParameterKind::matrix ||
                                        parameter.kind == ParameterKind::residual_matrix);
    if (!kept) return {};
    return format_named(type_of(find(parameter)));
  }

  at::Tensor take(const Parameter& parameter) override {
    const io::StoredTensor& tensor = find(parameter);
    if (const auto format = format_of(parameter)) {
      const at::Tensor blocks = blocks_of(tensor);
      const bool looked_up = parameter.kind == ParameterKind::embedding;  // others: when packed
      if (options_.check_finite && looked_up) check_blocks(tensor, *format, blocks);
      return blocks;
    }
    at::Tensor out = numbers_of(tensor);
    if (options_.check_finite && out.numel() > 0) {
      const auto [low, high] = at::aminmax(out.flatten());
      if (!at::isfinite(low).item<bool>() || !at::isfinite(high).item<bool>()) {
        fail_not_finite(tensor, c10::toString(*options_.dtype));
      }
    }
    return out;
  }

  void drop_pages(const Parameter& parameter) override {
    model_->file().drop_pages(*find(parameter).stored);
  }
  Dequantized dequantized() const override { return dequantized_; }
  std::string where(const Parameter& parameter) const override {
    return model_->file().name() + ": tensor " + io::in_quotes(find(parameter).tensor.gguf);
  }

 private:
  static const char* type_of(const io::StoredTensor& tensor) {
    return io::layout_of(tensor.stored->type).name;
  }
  const io::StoredTensor& find(const Parameter& parameter) const {
    return *by_name_.at(parameter.name);
  }

  at::ScalarType own_dtype() const {
    if (keeps_blocks_) return at::kFloat;
    switch (io::float_type_of(model_->tensors())) {
      case io::SafeDType::BF16:
        return at::kBFloat16;
      case io::SafeDType::F16:
        return options_.keep_f16 ? at::kHalf : at::kFloat;
      default:
        return at::kFloat;
    }
  }

  // A tensor on the mapping, which lives as long. Nothing writes through it.
  at::Tensor mapped(const io::StoredTensor& tensor, at::IntArrayRef shape,
                    at::ScalarType dtype) const {
    auto* const data =
        const_cast<std::byte*>(model_->file().data(*tensor.stored));  // NOLINT(*-const-cast)
    return at::from_blob(
        data, shape, [keep = model_](void*) {}, at::TensorOptions(dtype));
  }

  at::Tensor blocks_of(const io::StoredTensor& tensor) const {
    const auto row_bytes = static_cast<std::int64_t>(tensor.stored->row_bytes());
    const std::int64_t rows = tensor.tensor.rows();
    if (tensor.tensor.heads == 0) return mapped(tensor, {rows, row_bytes}, at::kByte);
    at::Tensor out = at::empty({rows, row_bytes}, at::TensorOptions(at::kByte));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(out.mutable_data_ptr<std::uint8_t>() + r * row_bytes, model_->row(tensor, r),
                  static_cast<std::size_t>(row_bytes));
    }
    return out;
  }

  at::Tensor numbers_of(const io::StoredTensor& tensor) {
    const io::BlockType stored = tensor.stored->type;
    const at::ScalarType wanted = *options_.dtype;
    const bool same = (stored == io::BlockType::f32 && wanted == at::kFloat) ||
                      (stored == io::BlockType::bf16 && wanted == at::kBFloat16) ||
                      (stored == io::BlockType::f16 && wanted == at::kHalf);
    if (same && tensor.tensor.heads == 0 && !options_.own_copies) {
      return mapped(tensor, tensor.tensor.shape, wanted);
    }
    const io::BlockLayout& layout = io::layout_of(stored);
    const std::int64_t rows = tensor.tensor.shape[0];
    const std::int64_t columns = tensor.tensor.is_matrix() ? tensor.tensor.columns() : 1;
    at::Tensor out = at::empty({rows, columns}, at::TensorOptions(wanted));
    const bool inference = c10::InferenceMode::is_enabled();
    at::parallel_for(0, rows, kRowsATask, [&](std::int64_t begin, std::int64_t end) {
      const c10::InferenceMode mode(inference);  // which belongs to a thread
      const at::Tensor some =
          at::empty({std::min(end - begin, kRowsATask), columns}, at::TensorOptions(at::kFloat));
      for (std::int64_t first = begin; first < end; first += kRowsATask) {
        const std::int64_t count = std::min(kRowsATask, end - first);
        for (std::int64_t r = 0; r < count; ++r) {
          io::dequantize(stored, model_->row(tensor, first + r), columns / layout.numbers,
                         some.mutable_data_ptr<float>() + r * columns);
        }
        out.narrow(0, first, count).copy_(some.narrow(0, 0, count));
      }
    });
    if (io::is_quantised(stored)) {
      dequantized_.stored += rows * static_cast<std::int64_t>(tensor.stored->row_bytes());
      dequantized_.in_memory += static_cast<std::int64_t>(out.nbytes());
    }
    model_->file().drop_pages(*tensor.stored);
    return out.view(tensor.tensor.shape);
  }

  void check_blocks(const io::StoredTensor& tensor, GgmlFormat format,
                    const at::Tensor& blocks) const {
    std::atomic<bool> finite = true;
    at::parallel_for(0, blocks.size(0), kRowsATask, [&](std::int64_t begin, std::int64_t end) {
      const GgmlView view = ggml_view(format, blocks);
      std::vector<float> row(static_cast<std::size_t>(view.cols));
      for (std::int64_t r = begin; r < end && finite; ++r) {
        const auto* const from = static_cast<const std::byte*>(view.blocks) + r * view.row_bytes();
        dequantize(format, from, view.cols / traits_of(format).numbers, row.data());
        if (!std::ranges::all_of(row, [](float v) { return std::isfinite(v); })) finite = false;
      }
    });
    if (!finite) fail_not_finite(tensor, name_of(format));
  }

  [[noreturn]] void fail_not_finite(const io::StoredTensor& tensor, const char* type) const {
    io::fail_file(model_->file().name(), "tensor {} holds a number that is not finite in {}",
                  io::in_quotes(tensor.tensor.gguf), type);
  }

  std::shared_ptr<const io::StoredModel> model_;
  CheckpointSourceOptions options_;
  std::unordered_map<std::string, const io::StoredTensor*> by_name_;
  bool keeps_blocks_ = false;  // of linear layers, and then of the embedding too
  Dequantized dequantized_;
};

}  // namespace

GgufModel::GgufModel(std::shared_ptr<const io::StoredModel> model, io::ModelConfig config,
                     const CheckpointSourceOptions& options)
    : OpenedModel(model->file().name(), std::move(config)) {
  source_ = std::make_unique<GgufSource>(std::move(model), options);
}

}  // namespace twell::lm
