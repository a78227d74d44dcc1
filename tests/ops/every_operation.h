// All that libtwell computes by several threads, as bytes: what does not depend on whose threads
// they are.
#pragma once

#include <vector>

#include "tests/ops/ffn_fixture.h"
#include "twell/attention.h"
#include "twell/coded_matrix.h"
#include "twell/linear.h"
#include "twell/train.h"
#include "twell/transpose.h"

namespace twell::test {

using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes& to, const T* data, std::size_t count) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  to.insert(to.end(), first, first + count * sizeof(T));
}
template <class T>
void append(Bytes& to, const TestMatrix<T>& m) {
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    append(to, &m.at(r, 0), static_cast<std::size_t>(m.cols()));
  }
}

template <class T>
struct Inputs {
  explicit Inputs(std::int64_t tokens)
      : layer({tokens, 70, 290, true, {}, 1.0F}),
        codes({tokens, 96, 290}),
        int4({tokens, 96, 290}) {
    for (std::int64_t n = 0; n < 290; n += 5) layer.gate.set(n, 0, 0.5F);  // some are hot
  }
  Layer<T> layer;
  Layer<T, std::int8_t> codes;
  Layer<T, Int4> int4;
  TestMatrix<T> keys = random_matrix<T>(1100, 70, 5, 1.0F);
  TestMatrix<T> values = random_matrix<T>(1100, 70, 6, 1.0F);
};

template <class T>
void run_attention(Context& context, const Inputs<T>& in, Bytes& out) {
  TestMatrix<T> y(2, 70);
  const DecodeQuery query = {
      in.layer.up.view().slice(0, 2), in.keys.view(), in.values.view(), 0, 0, y.view()};
  decode_attention(context, {2, 1}, std::span(&query, 1));
  append(out, y);
}

// Of a layer with all that a form has.
template <class T>
void run_training(Context& context, const Layer<T>& layer, const FfnWeights& weights, Bytes& out) {
  const std::int64_t tokens = layer.shape.tokens, depth = layer.shape.depth;
  const std::int64_t neurons = layer.shape.neurons;
  const auto vector = [](std::int64_t size) {
    return std::vector<float>(std::size_t(size), 0.25F);
  };
  const std::vector<float> of_neurons = vector(neurons), of_columns = vector(depth);
  FfnForm form;
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    form[i] = kFormVectors[i].of_columns ? of_columns : of_neurons;
  }
  form.norm_epsilon = 1e-6F;
  TestMatrix<T> y(tokens, depth), dx(tokens, depth);
  TestMatrix<float> gate(neurons, depth), up(neurons, depth), down(neurons, depth);
  FormVectors<std::vector<float>> vectors;
  FfnGradients gradients = {dx.view(), gate.view(), up.view(), down.view()};
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    vectors[i] = kFormVectors[i].of_columns ? of_columns : of_neurons;
    gradients.vectors[i] = vectors[i];
  }
  FfnPattern pattern;
  FfnCounts counts;
  ffn_forward(context, layer.x.view(), weights, form, y.view(), pattern, &counts);
  const FfnBackward in = {layer.x.view(),
                          layer.x.view(),
                          layer.gate.view(),
                          layer.up.view(),
                          layer.down.view(),
                          pattern.view(),
                          form,
                          0.1F};
  ffn_backward(context, in, gradients);
  for (const auto* m : {&y, &dx}) append(out, *m);
  for (const auto* m : {&gate, &up, &down}) append(out, *m);
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    append(out, vectors[i].data(), vectors[i].size());
  }
  append(out, counts.row_nnz.data(), counts.row_nnz.size());
  append(out, counts.neuron_nnz.data(), counts.neuron_nnz.size());
  append(out, &counts.candidates, 1);
}

// Layers and a linear one of codes, and inputs of 8 bits.
template <class T, class W>
void run_codes(Context& context, const Layer<T, W>& layer, Bytes& out) {
  const Case& c = layer.shape;
  const OwnedWeights weights = layer.weights();
  TestMatrix<T> y(c.tokens, c.depth), rounded(c.tokens, c.depth), all(c.tokens, c.neurons);
  ffn(context, layer.x.view(), weights, {}, y.view());
  round_inputs(context, layer.x.view(), rounded.view());
  linear(context, rounded.view(), weights.gate, nullptr, all.view());
  append(out, y);
  append(out, rounded);
  append(out, all);
}

// What is made of weights before calls.
template <class T>
void run_preparation(const Context& context, const Inputs<T>& in, Bytes& out) {
  const auto take = [&](const PackedWeight& packed) {
    const WeightView& w = packed.view();
    append(out, static_cast<const std::byte*>(w.data), packed_bytes(w.type, w.rows, w.cols));
    if (!has_scales(w.type)) return;
    const std::int64_t row_bytes = bytes_of(w.type, w.cols);
    PreparedMemory codes(std::size_t(coded_extent(w.rows, row_bytes, ScaledBy::row) * row_bytes));
    unpack_codes(w, codes.mutable_data(), &context);
    append(out, static_cast<const std::byte*>(codes.data()), codes.bytes());
  };
  const TestMatrix<T>& gate = in.layer.gate;
  const PackedWeight packed(gate.view(), &context);
  take(packed);
  take(PackedWeight(in.codes.gate_view(), &context));
  take(PackedWeight(in.int4.gate_view(), &context));
  TestMatrix<T> unpacked(gate.rows(), gate.cols()), turned(gate.cols(), gate.rows());
  unpack_weight(packed.view(), unpacked.view(), &context);
  transpose(gate.view(), turned.view().data, gate.rows(), &context);
  append(out, unpacked);
  append(out, turned);
  const std::vector<float> axis(std::size_t(gate.cols()), 0.5F);
  const Screen screen(gate.view(), axis.data(), &context);
  append(out, static_cast<const std::byte*>(screen.view().data),
         screen_bytes(gate.rows(), gate.cols()));
}

template <class T>
Bytes every_operation(ContextOptions options, const Inputs<T>& in) {
  Bytes out;
  const Layer<T>& layer = in.layer;
  const std::int64_t tokens = layer.shape.tokens, depth = layer.shape.depth;
  for (const std::optional<double> hot_share : {std::optional<double>(), std::optional(0.0)}) {
    options.hot_share = hot_share;
    Context context(options);
    for (const OwnedWeights& weights : {layer.weights(), layer.screened()}) {
      TestMatrix<T> y(tokens, depth);
      FfnCounts counts;
      ffn(context, layer.x.view(), weights, {}, y.view(), &counts);
      append(out, y);
      append(out, counts.neuron_nnz.data(), counts.neuron_nnz.size());
      run_training(context, layer, weights, out);
    }
    const PackedWeight packed = layer.packed();
    TestMatrix<T> y(tokens, layer.shape.neurons), stored(tokens, layer.shape.neurons);
    linear(context, layer.x.view(), packed.view(), nullptr, y.view());
    linear_as_stored(context, layer.x.view(), layer.gate.view(), stored.view());
    append(out, y);
    append(out, stored);
    run_attention(context, in, out);
    TwellMatrix steps({tokens, layer.shape.neurons, 128, 8, dtype_of<T>::value});
    gemm_relu_twell(context, layer.x.view(), packed.view(), {}, steps);
    TestMatrix<T> by_steps(tokens, depth);
    twell_gated_ffn(context, layer.x.view(), steps, layer.up.view(), layer.down.view(),
                    by_steps.view());
    append(out, by_steps);
    run_codes(context, in.codes, out);
    run_codes(context, in.int4, out);
  }
  run_preparation(Context(options), in, out);
  return out;
}

}  // namespace twell::test
