// twell/c.h on twell::Layer: no exception leaves it.
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "core/check.h"
#include "twell/c.h"
#include "twell/layer.h"

struct twell_context {
  twell::Context context;
};
struct twell_layer {
  twell::Layer layer;
};

namespace twell {
namespace {

constexpr std::size_t kErrorBytes = 1024;
// A text of one line, cut where it is longer: to keep it must not fail.
char* last_error() {
  thread_local char message[kErrorBytes] = "";
  return message;
}
void keep_error(const char* message) { std::snprintf(last_error(), kErrorBytes, "%s", message); }

// f(), or `failed` with the reason kept.
template <class F, class R>
R guarded(R failed, const F& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    keep_error("twell: out of memory");
  } catch (const std::exception& error) {
    keep_error(error.what());
  } catch (const abi::__forced_unwind&) {  // the thread is being cancelled
    throw;
  } catch (...) {
    keep_error("twell: an executor threw what is no std::exception");
  }
  return failed;
}

template <class T>
T& required(T* object, const char* operation, const char* argument) {
  require(object != nullptr, operation, argument, "is NULL");
  return *object;
}

// Of a C enumeration, which may be any number.
template <class E>
E one_of(std::initializer_list<E> known, std::int32_t value, const char* operation,
         const char* argument) {
  const auto* const at = std::find_if(known.begin(), known.end(),
                                      [&](E e) { return static_cast<std::int32_t>(e) == value; });
  require(at != known.end(), operation, argument, "expected one of the constants, got ", value);
  return *at;
}

WeightView view_of(const twell_weight& w, const char* operation, const char* argument,
                   ScaledBy by) {
  const auto type = one_of({WeightType::bf16, WeightType::f32, WeightType::int8, WeightType::int4},
                           w.type, operation, argument);
  return WeightView::codes(type, w.data, w.rows, w.cols, w.stride == 0 ? w.cols : w.stride,
                           w.scales, by);
}

DType dtype_of(std::int32_t type, const char* operation) {
  return one_of({DType::bf16, DType::f32}, type, operation, "type");
}

std::span<const float> entries(const float* vector, std::int64_t count) {
  if (vector == nullptr) return {};
  return {vector, static_cast<std::size_t>(count)};
}

// A description by a caller whose header may be older or newer than this library.
twell_layer_description known_part(const twell_layer_description& given, const char* operation) {
  constexpr std::size_t kFirst = offsetof(twell_layer_description, sparse_only) + sizeof(int);
  require(given.size >= kFirst, operation, "description", "expected a size of at least ", kFirst,
          " bytes, got ", given.size, "; start from TWELL_LAYER_INIT");
  require(given.size <= sizeof given, operation, "description",
          "it is of a later version than this library, ", TWELL_VERSION);
  twell_layer_description out = TWELL_LAYER_INIT;
  std::memcpy(&out, &given, given.size);
  return out;
}

Layer make_layer(const Context& context, const twell_layer_description& given) {
  constexpr const char* kOperation = "twell_layer_new";
  const twell_layer_description d = known_part(given, kOperation);
  const ScaledBy down_by = d.neuron_major != 0 ? ScaledBy::column : ScaledBy::row;
  StoredWeights weights{view_of(d.gate, kOperation, "gate", ScaledBy::row),
                        {},
                        view_of(d.down, kOperation, "down", down_by),
                        d.neuron_major != 0};
  if (d.up.data != nullptr) weights.up = view_of(d.up, kOperation, "up", ScaledBy::row);
  const auto activation = [&](std::int32_t value, const char* argument) {
    return one_of(
        {Activation::relu, Activation::relu_squared, Activation::fat_relu, Activation::identity},
        value, kOperation, argument);
  };
  FfnForm form(activation(d.activation, "activation"), d.threshold);
  form.up = activation(d.up_activation, "up_activation");
  const std::int64_t neurons = d.gate.rows;
  form.gate_bias = entries(d.gate_bias, neurons);
  form.up_bias = entries(d.up_bias, neurons);
  form.down_bias = entries(d.down_bias, d.neuron_major != 0 ? d.down.cols : d.down.rows);
  form.norm_weight = entries(d.norm_weight, neurons);
  if (d.norm_epsilon != 0.0F) form.norm_epsilon = d.norm_epsilon;
  LayerOptions options;
  options.block.dtype = dtype_of(d.type, kOperation);
  if (d.sparse_only != 0) options.path = LayerPath::sparse;
  return {context, weights, form, std::move(options)};
}

}  // namespace
}  // namespace twell

extern "C" {

const char* twell_version(void) { return TWELL_VERSION; }

const char* twell_last_error(void) { return twell::last_error(); }

twell_context* twell_context_new(int threads, const twell_executor* executor) {
  return twell::guarded(static_cast<twell_context*>(nullptr), [&] {
    twell::ContextOptions options;
    options.threads = threads;
    if (executor != nullptr) {
      twell::required(executor->run, "twell_context_new", "executor->run");
      options.executor = twell::Executor{executor->run, executor->self};
    }
    return new twell_context{twell::Context(options)};
  });
}
void twell_context_free(twell_context* context) { delete context; }

twell_layer* twell_layer_new(twell_context* context, const twell_layer_description* description,
                             const void* sample, int64_t sample_rows) {
  constexpr const char* kOperation = "twell_layer_new";
  return twell::guarded(static_cast<twell_layer*>(nullptr), [&] {
    twell::Context& own = twell::required(context, kOperation, "context").context;
    twell::Layer layer =
        twell::make_layer(own, twell::required(description, kOperation, "description"));
    if (sample != nullptr) {
      const twell::FfnShape& shape = layer.shape();
      layer.prepare(own, {sample, shape.dtype, sample_rows, shape.width});
    }
    return new twell_layer{std::move(layer)};
  });
}

twell_layer* twell_layer_open(twell_context* context, const char* path, int sparse_only) {
  constexpr const char* kOperation = "twell_layer_open";
  return twell::guarded(static_cast<twell_layer*>(nullptr), [&] {
    const twell::Context& own = twell::required(context, kOperation, "context").context;
    twell::LayerOptions options;
    if (sparse_only != 0) options.path = twell::LayerPath::sparse;
    return new twell_layer{
        twell::Layer(own, twell::LayerBlock::open(&twell::required(path, kOperation, "path")),
                     std::move(options))};
  });
}

int twell_layer_save(const twell_layer* layer, const char* path) {
  constexpr const char* kOperation = "twell_layer_save";
  return twell::guarded(-1, [&] {
    const auto block = twell::required(layer, kOperation, "layer").layer.block();
    twell::require(block.has_value(), kOperation, "layer",
                   "expected one that was given a sample, or ran");
    block->save(&twell::required(path, kOperation, "path"));
    return 0;
  });
}
void twell_layer_free(twell_layer* layer) { delete layer; }

int twell_layer_run(twell_layer* layer, twell_context* context, int64_t rows, const void* x,
                    int64_t x_stride, void* y, int64_t y_stride, int64_t* fired) {
  constexpr const char* kOperation = "twell_layer_run";
  return twell::guarded(-1, [&] {
    twell::Layer& own = twell::required(layer, kOperation, "layer").layer;
    twell::Context& runs_on = twell::required(context, kOperation, "context").context;
    const twell::FfnShape& shape = own.shape();
    const std::int64_t columns = own.down().cols;
    const twell::ConstMatrixView in(x, shape.dtype, rows, shape.width,
                                    x_stride == 0 ? shape.width : x_stride);
    const twell::MatrixView out(y, shape.dtype, rows, columns, y_stride == 0 ? columns : y_stride);
    twell::FfnCounts counts;
    own.run(runs_on, in, out, fired != nullptr ? &counts : nullptr);
    if (fired != nullptr) *fired = counts.nnz();
    return 0;
  });
}

void twell_layer_sizes(const twell_layer* layer, int64_t* width, int64_t* neurons,
                       int64_t* columns) {
  if (layer == nullptr) return;
  if (width != nullptr) *width = layer->layer.shape().width;
  if (neurons != nullptr) *neurons = layer->layer.shape().neurons;
  if (columns != nullptr) *columns = layer->layer.down().cols;
}

int64_t twell_layer_plan(const twell_layer* layer, const twell_context* context, int64_t rows,
                         char* text, size_t size) {
  constexpr const char* kOperation = "twell_layer_plan";
  return twell::guarded(std::int64_t{-1}, [&] {
    const std::string plan =
        twell::required(layer, kOperation, "layer")
            .layer.describe(twell::required(context, kOperation, "context").context, rows);
    if (size > 0) {
      const std::size_t count = std::min(plan.size(), size - 1);
      char* const to = &twell::required(text, kOperation, "text");
      std::copy_n(plan.data(), count, to);
      to[count] = '\0';
    }
    return static_cast<std::int64_t>(plan.size());
  });
}

}  // extern "C"
