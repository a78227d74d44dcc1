// One sparse feed-forward layer from C++, end to end: weights as a checkpoint has them, a layer
// that prepares itself, and the call that it is made of, with the gate in either form.
#include <twell/ffn.h>
#include <twell/layer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t kTokens = 64, kWidth = 512, kHidden = 2048;  // M, D, H

struct Matrix {
  std::int64_t rows, cols;
  std::vector<twell::bf16> values;

  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), values(r * c) {}
  float at(std::int64_t r, std::int64_t c) const {
    return static_cast<float>(values[r * cols + c]);
  }
  twell::ConstMatrixView view() const { return {values.data(), twell::DType::bf16, rows, cols}; }
  twell::MatrixView view() { return {values.data(), twell::DType::bf16, rows, cols}; }
};

Matrix random_matrix(std::int64_t rows, std::int64_t cols, std::mt19937& random) {
  Matrix out(rows, cols);
  std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(kWidth)));
  for (twell::bf16& v : out.values) v = twell::bf16(normal(random));
  return out;
}

// The largest error of `y` against the definition in doubles, in units of the sum of the magnitudes
// that the element was added from.
double largest_error(const Matrix& x, const Matrix& gate, const Matrix& up, const Matrix& down,
                     const Matrix& y) {
  double worst = 0;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    std::vector<double> sum(kWidth, 0.0), magnitude(kWidth, 0.0);
    for (std::int64_t n = 0; n < kHidden; ++n) {
      double g = 0, u = 0;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        g += static_cast<double>(x.at(row, i)) * gate.at(n, i);
        u += static_cast<double>(x.at(row, i)) * up.at(n, i);
      }
      if (g <= 0) continue;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const double term = g * u * down.at(n, i);
        sum[i] += term;
        magnitude[i] += std::abs(term);
      }
    }
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const double error = std::abs(sum[i] - y.at(row, i));
      if (error > 0) worst = std::max(worst, error / magnitude[i]);
    }
  }
  return worst;
}

// [executor]
void run_on_threads(void* /*self*/, int tasks, void (*task)(void*, int), void* data) {
  std::vector<std::thread> threads;  // an engine has them in a pool
  for (int i = 1; i < tasks; ++i) threads.emplace_back(task, data, i);
  task(data, 0);
  for (std::thread& thread : threads) thread.join();
}
// [executor]

}  // namespace

int main() {
  std::mt19937 random(1);
  Matrix x = random_matrix(kTokens, kWidth, random);
  Matrix gate = random_matrix(kHidden, kWidth, random);        // Wg [H, D]
  const Matrix up = random_matrix(kHidden, kWidth, random);    // Wu [H, D]
  const Matrix down = random_matrix(kHidden, kWidth, random);  // Wd [H, D]: a row per neuron
  Matrix y(kTokens, kWidth);
  // A trained gate is silent for most tokens: so one input is always 1, and all neurons dislike it.
  for (std::int64_t m = 0; m < kTokens; ++m) x.values[m * kWidth] = twell::bf16(1.0F);
  for (std::int64_t n = 0; n < kHidden; ++n) gate.values[n * kWidth] = twell::bf16(-0.11F);

  // [prepared]
  twell::Context context;  // threads, instruction set, scratch memory
  const twell::StoredWeights stored{gate.view(), up.view(), down.view(), /*neuron_major=*/true};
  twell::Layer layer(context, stored, {twell::Activation::relu});
  layer.prepare(context, x.view());  // chooses by typical inputs, at least 32
  layer.run(context, x.view(), y.view());
  // [prepared]
  {
    // [block]
    layer.block()->save("ffn_layer.block");
    twell::Layer opened(context, twell::LayerBlock::open("ffn_layer.block"));
    opened.run(context, x.view(), y.view());
    // [block]
    std::remove("ffn_layer.block");
  }
  const double layer_error = largest_error(x, gate, up, down, y);
  std::printf("layer:         %s; largest error %.5f\n", layer.describe(context, kTokens).c_str(),
              layer_error);

  // [layer]
  const twell::PackedWeight packed_gate(gate.view());
  const twell::FfnWeights weights{packed_gate.view(), up.view(), down.view()};
  twell::FfnCounts counts;
  twell::ffn(context, x.view(), weights, {twell::Activation::relu}, y.view(), &counts);
  // [layer]
  const double packed_error = largest_error(x, gate, up, down, y);
  std::printf("packed gate:   %.2f %% of the gate fired; largest error %.5f\n",
              100.0 * static_cast<double>(counts.nnz()) / (kTokens * kHidden), packed_error);

  std::vector<float> mean_x(kWidth, 0.0F);
  for (std::int64_t m = 0; m < kTokens; ++m) {
    for (std::int64_t i = 0; i < kWidth; ++i) mean_x[i] += x.at(m, i) / kTokens;
  }
  // [screen]
  const twell::Screen screen(gate.view(), mean_x.data());
  twell::ffn(context, x.view(), {gate.view(), up.view(), down.view(), screen.view()},
             {twell::Activation::relu}, y.view(), &counts);
  // [screen]
  const double screened_error = largest_error(x, gate, up, down, y);
  std::printf("screened gate: %.2f %% of it was computed; largest error %.5f\n",
              100.0 * static_cast<double>(counts.candidates) / (kTokens * kHidden), screened_error);

  // [own]
  twell::Context own({.threads = 4, .tier = {}, .executor = twell::Executor{run_on_threads}});
  twell::ffn(own, x.view(), weights, {twell::Activation::relu}, y.view());
  // [own]
  const double own_error = largest_error(x, gate, up, down, y);
  std::printf("own threads:   largest error %.5f\n", own_error);

  // g, h of neurons that many tokens fire, and y are rounded to bf16 once each, by 2⁻⁸ of their
  // value at most; sums in f32 add less than 2⁻¹⁴.
  const double worst = std::max({layer_error, packed_error, screened_error, own_error});
  return worst < 3 * 0x1p-8 + 0x1p-14 ? 0 : 1;
}
