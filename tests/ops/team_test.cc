// OpenMP may grant fewer threads than a context has: within a parallel region of the caller, under
// OMP_THREAD_LIMIT, with OMP_DYNAMIC. Results are those of the whole team, bit for bit, since the
// plan alone says what is added up in which order.
//
// ctest runs this and other tests of operations again under OMP_THREAD_LIMIT and OMP_DYNAMIC, where
// the whole team is as small from the start.
#include <omp.h>

#include <cstring>
#include <vector>

#include "tests/ops/ffn_fixture.h"
#include "twell/attention.h"
#include "twell/linear.h"
#include "twell/train.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

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
  explicit Inputs(std::int64_t tokens) : layer({tokens, 70, 290, true, {}, 1.0F}) {
    for (std::int64_t n = 0; n < 290; n += 5) layer.gate.set(n, 0, 0.5F);  // some are hot
  }
  Layer<T> layer;
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

template <class T>
void run_training(Context& context, const Layer<T>& layer, const FfnWeights& weights, Bytes& out) {
  const std::int64_t tokens = layer.shape.tokens, depth = layer.shape.depth;
  const std::int64_t neurons = layer.shape.neurons;
  TestMatrix<T> y(tokens, depth), dx(tokens, depth);
  TestMatrix<float> gate(neurons, depth), up(neurons, depth), down(neurons, depth);
  FfnPattern pattern;
  FfnCounts counts;
  ffn_forward(context, layer.x.view(), weights, {}, y.view(), pattern, &counts);
  const FfnBackward in = {layer.x.view(),
                          layer.x.view(),
                          layer.gate.view(),
                          layer.up.view(),
                          layer.down.view(),
                          pattern.view(),
                          {},
                          0.1F};
  ffn_backward(context, in, {dx.view(), gate.view(), up.view(), down.view()});
  for (const auto* m : {&y, &dx}) append(out, *m);
  for (const auto* m : {&gate, &up, &down}) append(out, *m);
  append(out, counts.row_nnz.data(), counts.row_nnz.size());
  append(out, counts.neuron_nnz.data(), counts.neuron_nnz.size());
}

// All that libtwell computes by several threads, packing included.
template <class T>
Bytes every_operation(CpuTier tier, const Inputs<T>& in) {
  Bytes out;
  const Layer<T>& layer = in.layer;
  const std::int64_t tokens = layer.shape.tokens, depth = layer.shape.depth;
  for (const std::optional<double> hot_share : {std::optional<double>(), std::optional(0.0)}) {
    Context context({.threads = 4, .tier = tier, .hot_share = hot_share});
    for (const FfnWeights& weights : {layer.weights(), layer.screened()}) {
      TestMatrix<T> y(tokens, depth);
      FfnCounts counts;
      ffn(context, layer.x.view(), weights, {}, y.view(), &counts);
      append(out, y);
      append(out, counts.neuron_nnz.data(), counts.neuron_nnz.size());
      run_training(context, layer, weights, out);
    }
    const PackedWeight packed = layer.packed();
    TestMatrix<T> y(tokens, layer.shape.neurons), stored(tokens, layer.shape.neurons);
    linear(context, layer.x.view(), packed, nullptr, y.view());
    linear_as_stored(context, layer.x.view(), layer.gate.view(), stored.view());
    append(out, y);
    append(out, stored);
    run_attention(context, in, out);
    TwellMatrix steps({tokens, layer.shape.neurons, 128, 8, dtype_of<T>::value});
    gemm_relu_twell(context, layer.x.view(), packed, {}, steps);
    TestMatrix<T> by_steps(tokens, depth);
    twell_gated_ffn(context, layer.x.view(), steps, layer.up.view(), layer.down.view(),
                    by_steps.view());
    append(out, by_steps);
  }
  return out;
}

// Two threads of the caller, or the one that a limit grants, each call everything.
template <class T>
void expect_from_within(CpuTier tier, const Inputs<T>& in, const Bytes& wanted) {
  Bytes got[2] = {wanted, wanted};
#pragma omp parallel num_threads(2)
  got[omp_get_thread_num()] = every_operation(tier, in);
  for (const Bytes& bytes : got) EXPECT_TRUE(bytes == wanted);
}

template <class T>
class TeamTest : public ::testing::Test {
 protected:
  // f(tier, inputs, what the whole team gives)
  template <class F>
  static void on_every_tier(F f) {
    for (const CpuTier tier : available_cpu_tiers()) {
      for (const std::int64_t tokens : {1, 7, 300}) {
        SCOPED_TRACE(std::string(name_of(tier)) + ", " + std::to_string(tokens) + " rows");
        const Inputs<T> in(tokens);
        f(tier, in, every_operation(tier, in));
      }
    }
  }
};
using Types = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(TeamTest, Types);

TYPED_TEST(TeamTest, WithinAParallelRegion) {
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    expect_from_within(tier, in, wanted);
  });
}

TYPED_TEST(TeamTest, NestedTeams) {
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(2);
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    expect_from_within(tier, in, wanted);
  });
  omp_set_max_active_levels(levels);
}

// As many threads as the machine's load leaves, another number in each call.
TYPED_TEST(TeamTest, DynamicTeams) {
  omp_set_dynamic(1);
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    EXPECT_TRUE(every_operation(tier, in) == wanted);
  });
  omp_set_dynamic(0);
}

}  // namespace
}  // namespace twell
