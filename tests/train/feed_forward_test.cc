// The training feed-forward layer against its definition in fp64, differentiated by autograd.
// Inputs are small whole numbers, so that every product and sum is exact in fp32, and results can
// be compared for equality.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "decoder/projections.h"
#include "decoder/random.h"
#include "train/train_feed_forward.h"
#include "train/training_gate.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

struct Case {
  io::HiddenAct act = io::HiddenAct::relu;
  bool gated = true;
  bool sparse = true;
  at::ScalarType dtype = at::kFloat;
  std::int64_t rows = 5, width = 4, neurons = 40;
  unsigned biases = 0;  // of what, as below
  Activation up = Activation::identity;
};
constexpr unsigned kGateBias = 1, kUpBias = 2, kDownBias = 4, kAllBiases = 7;

std::string name_of(const Case& c) {
  return std::string(io::name_of(c.act)) + (c.gated ? " gated" : "") + (c.sparse ? " sparse" : "") +
         (c.dtype == at::kFloat ? " fp32" : " bf16") + " rows " + std::to_string(c.rows) +
         " neurons " + std::to_string(c.neurons) + " biases " + std::to_string(c.biases) +
         (c.up == Activation::identity ? "" : " activation of up");
}

// Whole numbers in [-1, 1]; a third of them zero.
at::Tensor whole(at::IntArrayRef shape, std::uint64_t seed) {
  Random random(seed);
  at::Tensor out = at::empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.mutable_data_ptr<double>()[i] = static_cast<double>(random.next() % 3) - 1.0;
  }
  return out;
}

struct Inputs {
  at::Tensor x, dy;  // fp64
  FfnParameters layer;

  explicit Inputs(const Case& c) : x(whole({c.rows, c.width}, 1)), dy(whole({c.rows, c.width}, 5)) {
    const at::Tensor first = whole({c.neurons, c.width}, 2), first_bias = whole({c.neurons}, 6);
    // Every third neuron never fires.
    first.index_put_({at::arange(0, c.neurons, 3)}, at::zeros({c.width}, at::kDouble));
    first_bias.index_put_({at::arange(0, c.neurons, 3)}, at::scalar_tensor(-1.0, at::kDouble));
    const bool biased = (c.biases & (c.gated ? kGateBias : kUpBias)) != 0;
    (c.gated ? layer.gate : layer.up) = first;
    if (biased) (c.gated ? layer.gate_bias : layer.up_bias) = first_bias;
    if (c.gated) {
      layer.up = whole({c.neurons, c.width}, 3);
      if ((c.biases & kUpBias) != 0) layer.up_bias = whole({c.neurons}, 7);
    }
    layer.down = whole({c.width, c.neurons}, 4);
    if ((c.biases & kDownBias) != 0) layer.down_bias = whole({c.width}, 8);
  }
  at::Tensor& first() { return layer.gated() ? layer.gate : layer.up; }
};

// f(t) of all.
template <class F>
FfnParameters map(const FfnParameters& p, const F& f) {
  const auto some = [&](const at::Tensor& t) { return t.defined() ? f(t) : at::Tensor(); };
  FfnParameters out = {{}, some(p.gate), some(p.up), some(p.down)};
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) out[i] = some(p[i]);
  return out;
}
// f(name, tensors...) of those that the first has.
template <class F, class... More>
void for_each(const FfnParameters& p, const F& f, const More&... more) {
  const auto visit = [&](const char* name, at::Tensor FfnParameters::*member) {
    if ((p.*member).defined()) f(name, p.*member, (more.*member)...);
  };
  visit("gate", &FfnParameters::gate);
  visit("up", &FfnParameters::up);
  visit("down", &FfnParameters::down);
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    if (p[i].defined()) f(kFormVectors[i].name, p[i], more[i]...);
  }
}
FfnParameters gradients_of(const FfnParameters& p) {
  return map(p, [](const at::Tensor& t) { return t.grad(); });
}

struct Results {
  at::Tensor y, dx;
  FfnParameters gradients;
  double l1 = 0.0;
};

Results definition(const Inputs& in, const ActivationChoice& choice, double l1) {
  const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(true); };
  const at::Tensor x = leaf(in.x);
  const FfnParameters p = map(in.layer, leaf);
  const at::Tensor u = at::linear(x, p.up, p.up_bias);
  const at::Tensor h = p.gated() ? activate(at::linear(x, p.gate, p.gate_bias), choice) *
                                       (choice.up == Activation::relu ? u.relu() : u)
                                 : activate(u, choice);
  at::Tensor into_down = h;
  if (choice.norm_eps) {
    into_down = h * at::rsqrt(h.square().mean(-1, true) + *choice.norm_eps);
    if (p.norm_weight.defined()) into_down = into_down * p.norm_weight;
  }
  const at::Tensor y = at::linear(into_down, p.down, p.down_bias);
  const at::Tensor penalty = h.abs().sum();
  ((y * in.dy).sum() + l1 * penalty).backward();
  return {y.detach(), x.grad(), gradients_of(p), penalty.item<double>()};
}

class TrainFfn : public ::testing::Test {
 protected:
  Results run(const Case& c, const Inputs& in, const ActivationChoice& choice, double l1) {
    const auto leaf = [&](const at::Tensor& t) { return t.to(c.dtype).requires_grad_(true); };
    at::Tensor x = leaf(in.x);
    const FfnParameters p = map(in.layer, leaf);
    recorder_ = std::make_unique<ActivityRecorder>(1, c.neurons, c.rows);
    training_->recorder = recorder_.get();
    training_->l1_grad = l1;
    training_->sparse = c.sparse;
    const auto layer = make_training_feed_forward(p, choice, training_);
    const at::Tensor y = layer->forward(x, 0, nullptr);
    EXPECT_EQ(layer->path(),
              c.sparse && io::yields_zeros(c.act) ? FfnPath::sparse : FfnPath::dense);
    y.backward(in.dy.to(c.dtype));
    training_->record_pending();
    return {y.detach(), x.grad(), gradients_of(p), recorder_->take_l1()};
  }

  std::shared_ptr<FfnTraining> training_ = std::make_shared<FfnTraining>();
  std::unique_ptr<ActivityRecorder> recorder_;
};

ActivationChoice choice_of(const Case& c) {
  return {c.act, c.act == io::HiddenAct::fat_relu ? 1.0F : 0.0F, c.up};
}

bool same(const at::Tensor& got, const at::Tensor& exact) {
  return got.defined() && got.scalar_type() != at::kDouble &&
         at::equal(got, exact.to(got.scalar_type()));
}
void expect_same(const FfnParameters& got, const FfnParameters& exact) {
  for_each(
      exact,
      [](const char* name, const at::Tensor& e, const at::Tensor& g) {
        EXPECT_TRUE(same(g, e)) << name;
      },
      got);
}

// Where little fires, the gate goes through a screen; nothing that can be seen changes.
TEST_F(TrainFfn, ScreenedGateEqualsItsDefinition) {
  if (tuning_of(default_cpu_tier()).screen_limit == 0.0) {
    GTEST_SKIP() << name_of(default_cpu_tier()) << " has no screens";
  }
  for (const bool gated : {true, false}) {
    for (const unsigned biases : {0U, kAllBiases}) {
      const Case c{io::HiddenAct::relu, gated, true, at::kFloat, 64, 32, 96, biases};
      SCOPED_TRACE(name_of(c));
      Inputs in(c);
      // What decides how much fires: the bias of the first projection, or one of its columns.
      in.x.select(1, 0).fill_(1.0);
      const at::Tensor level =
          biases == 0 ? in.first().select(1, 0) : Projections(in.layer).gate_bias;
      level.fill_(-9.0);  // the rest is a sum of 31 products: a deviation of 3.7
      training_->forms.clear();
      training_->decides = false;
      const Results packed = run(c, in, choice_of(c), 1.0);
      EXPECT_FALSE(training_->screened(0));
      training_->decides = true;
      const Results screened = run(c, in, choice_of(c), 1.0);
      EXPECT_TRUE(training_->screened(0));
      const Results exact = definition(in, choice_of(c), 1.0);
      EXPECT_GT(exact.l1, 0.0);
      for (const Results* got : {&packed, &screened}) {
        EXPECT_TRUE(same(got->y, exact.y));
        EXPECT_TRUE(same(got->dx, exact.dx));
        expect_same(got->gradients, exact.gradients);
        EXPECT_EQ(got->l1, exact.l1);
      }
      // Where much fires, it is not.
      training_->step += TrainingGate::kDecideEvery;
      level.fill_(9.0);
      run(c, in, choice_of(c), 1.0);
      EXPECT_FALSE(training_->screened(0));
    }
  }
}

// Checks a case whose numbers bf16 holds: the largest of |v| and |u| is r = 4, with biases 5, and
// |dh| <= 4 + 1, so |dv| <= 5 r · 2r, |du| <= 5 r² and |h| <= r³ are whole numbers up to 256. Sums
// are exact in fp32 and rounded once.
void expect_equal(const Case& c, const Results& got, const Results& exact) {
  EXPECT_TRUE(same(got.y, exact.y));
  expect_same(got.gradients, exact.gradients);
  EXPECT_EQ(got.l1, exact.l1);
  if (c.dtype == at::kFloat || !c.gated) {
    EXPECT_TRUE(same(got.dx, exact.dx));
  } else {
    // The sum of two products: each is rounded to bf16 (2^-9 of its size) once, and so is the sum.
    // Sizes: at most 40 neurons times |dv| and |du|.
    const double r = c.biases == 0 ? 4 : 5;
    const double bound = std::ldexp(2 * 40.0 * (5 * r * 2 * r + 5 * r * r), -9);
    EXPECT_LE((got.dx.to(at::kDouble) - exact.dx).abs().max().item<double>(), bound);
  }
}

TEST_F(TrainFfn, EqualsItsDefinition) {
  for (const auto act :
       {io::HiddenAct::relu, io::HiddenAct::relu_squared, io::HiddenAct::fat_relu}) {
    for (const bool gated : {true, false}) {
      for (const bool sparse : {true, false}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          for (const std::int64_t rows : {1, 2, 37}) {
            const Case c{act, gated, sparse, dtype, rows};
            SCOPED_TRACE(name_of(c));
            const Inputs in(c);
            expect_equal(c, run(c, in, choice_of(c), 1.0), definition(in, choice_of(c), 1.0));
          }
        }
      }
    }
  }
}

TEST_F(TrainFfn, EqualsItsDefinitionWithBiases) {
  for (const auto act :
       {io::HiddenAct::relu, io::HiddenAct::relu_squared, io::HiddenAct::fat_relu}) {
    for (const bool gated : {true, false}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        for (unsigned biases = 1; biases <= kAllBiases; ++biases) {
          if (!gated && (biases & kGateBias) != 0) continue;
          for (const std::int64_t rows : {1, 37}) {
            const Case c{act, gated, true, dtype, rows, 4, 40, biases};
            SCOPED_TRACE(name_of(c));
            const Inputs in(c);
            const Results exact = definition(in, choice_of(c), 1.0);
            const Results got = run(c, in, choice_of(c), 1.0);
            expect_equal(c, got, exact);
            for_each(got.gradients, [](const char* name, const at::Tensor& gradient) {
              EXPECT_GT(gradient.abs().sum().item<double>(), 0.0) << name;
            });
          }
        }
      }
    }
  }
}

TEST_F(TrainFfn, AddsToSumsWhatElseWouldBeGradients) {
  for (const bool gated : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const unsigned biases : {0U, kUpBias | kDownBias, kAllBiases}) {
        const Case c{.gated = gated, .dtype = dtype, .rows = 37, .biases = biases};
        SCOPED_TRACE(name_of(c));
        const Inputs in(c);
        const Results exact = definition(in, choice_of(c), 1.0);
        const auto begun = [](const at::Tensor& like) { return at::full(like.sizes(), 2.0); };
        FfnParameters sums = map(in.layer, begun);
        sums.down = begun(in.layer.down.t()).t();
        training_->sums = [&](std::int64_t layer) {
          EXPECT_EQ(layer, 0);
          return sums;
        };
        const Results got = run(c, in, choice_of(c), 1.0);
        EXPECT_TRUE(same(got.y, exact.y));
        for_each(got.gradients, [](const char* name, const at::Tensor&) { ADD_FAILURE() << name; });
        expect_same(map(sums, [](const at::Tensor& t) { return t - 2.0; }), exact.gradients);
      }
    }
  }
}

TEST_F(TrainFfn, L1TermChangesTheGradientByItsDefinitionAlone) {
  const Case c{.rows = 9};
  const Inputs in(c);
  const Results with = run(c, in, choice_of(c), 4.0), without = run(c, in, choice_of(c), 0.0);
  Inputs no_dy(c);
  no_dy.dy.zero_();
  const Results penalty = definition(no_dy, choice_of(c), 4.0);
  EXPECT_TRUE(same(with.gradients.up - without.gradients.up, penalty.gradients.up));
  EXPECT_TRUE(same(with.gradients.gate - without.gradients.gate, penalty.gradients.gate));
  EXPECT_TRUE(same(with.dx - without.dx, penalty.dx));
  EXPECT_TRUE(at::equal(with.gradients.down, without.gradients.down));
  EXPECT_GT(penalty.gradients.gate.abs().sum().item<double>(), 0.0);
}

TEST_F(TrainFfn, CountsWhatFires) {
  for (const bool sparse : {true, false}) {
    const Case c{.sparse = sparse, .rows = 6};
    const Inputs in(c);
    run(c, in, choice_of(c), 0.0);
    const at::Tensor fired = at::linear(in.x, in.layer.gate).gt(0);
    const auto summary = recorder_->summary(0, 1).front();
    EXPECT_DOUBLE_EQ(summary.nnz_mean, fired.sum().item<double>() / 6);
    EXPECT_EQ(summary.nnz_max, fired.sum(1).max().item<std::int64_t>());
    const double silent = fired.any(0).logical_not().sum().item<double>() / 40;
    EXPECT_DOUBLE_EQ(summary.dead_fraction, silent);
    EXPECT_DOUBLE_EQ(summary.active_fraction, 1 - silent);
    ASSERT_EQ(summary.first_nnz.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_DOUBLE_EQ(summary.first_nnz[i],
                       fired[static_cast<std::int64_t>(i)].sum().item<double>());
    }
  }
}

TEST_F(TrainFfn, WorksWhereNothingFires) {
  const Case c{.rows = 3};
  Inputs in(c);
  in.layer.gate.zero_();
  const Results got = run(c, in, choice_of(c), 1.0);
  EXPECT_EQ(got.y.abs().sum().item<float>(), 0.0F);
  EXPECT_EQ(got.y.sizes(), (at::IntArrayRef{3, 4}));
  EXPECT_EQ(got.dx.abs().sum().item<float>(), 0.0F);
  for_each(got.gradients, [](const char* name, const at::Tensor& gradient) {
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0.0F) << name;
  });
  EXPECT_EQ(got.gradients.gate.sizes(), in.layer.gate.sizes());
  EXPECT_EQ(got.gradients.down.sizes(), in.layer.down.sizes());
}

TEST_F(TrainFfn, PassesNaNOn) {
  const Case c{.rows = 3};
  Inputs in(c);
  in.x[1][0] = std::nan("");
  const Results got = run(c, in, choice_of(c), 0.0);
  EXPECT_TRUE(got.y[1].isnan().all().item<bool>());
  EXPECT_FALSE(got.y[0].isnan().any().item<bool>());
}

// Activations without zeros take PyTorch's operations; the L1 term is the same.
TEST_F(TrainFfn, DenseActivationsHaveTheSameL1Term) {
  for (const auto act : {io::HiddenAct::silu, io::HiddenAct::gelu}) {
    for (const unsigned biases : {0U, kAllBiases}) {
      const Case c{.act = act, .rows = 7, .biases = biases};
      SCOPED_TRACE(name_of(c));
      const Inputs in(c);
      const Results exact = definition(in, choice_of(c), 0.5);
      const Results got = run(c, in, choice_of(c), 0.5);
      // fp32 of values below 2^10 after sums of 40 terms: 40 * 2^10 * 2^-24 and the activation's
      // own error of some ulps, taken as 8.
      const double bound = std::ldexp(48.0, -14);
      const auto expect_near = [&](const char* name, const at::Tensor& b, const at::Tensor& a) {
        EXPECT_LE((a.to(at::kDouble) - b).abs().max().item<double>(), bound) << name;
      };
      expect_near("y", exact.y, got.y);
      expect_near("dx", exact.dx, got.dx);
      for_each(exact.gradients, expect_near, got.gradients);
      EXPECT_NEAR(got.l1, exact.l1, bound * 7);
    }
  }
}

TEST(HasSparsePath, OnAGpuWithoutBiasesAlone) {
  const ActivationChoice relu{io::HiddenAct::relu, 0.0F};
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {  // or any other
    FfnParameters p;
    p.up = at::empty({4, 2}, device);
    p.down = at::empty({2, 4}, device);
    EXPECT_TRUE(has_sparse_path(p, relu));
    EXPECT_FALSE(has_sparse_path(p, {io::HiddenAct::silu, 0.0F}));
    p.down_bias = at::empty({2}, device);
    EXPECT_EQ(has_sparse_path(p, relu), device.is_cpu());
  }
}

TEST_F(TrainFfn, ActivationOfUpEqualsItsDefinition) {
  for (const bool sparse : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const unsigned biases : {0U, kAllBiases}) {
        for (const std::int64_t rows : {1, 37}) {
          Case c{.sparse = sparse, .dtype = dtype, .rows = rows, .biases = biases};
          c.up = Activation::relu;
          SCOPED_TRACE(name_of(c));
          const Inputs in(c);
          expect_equal(c, run(c, in, choice_of(c), 1.0), definition(in, choice_of(c), 1.0));
        }
      }
    }
  }
}

// The norm's root and quotient are not exact. Sums of at most 40 terms follow one another four
// times, each within 40 * 2^-24 of its terms' sizes, and those sum to at most 40 times the largest
// result: 6,400 * 2^-24. What is not passed on is off by its whole size.
TEST_F(TrainFfn, NormEqualsItsDefinition) {
  for (const bool gated : {true, false}) {
    for (const bool sparse : {true, false}) {
      for (const unsigned biases : {0U, gated ? kAllBiases : kUpBias | kDownBias}) {
        for (const bool weight : {true, false}) {
          const Case c{.gated = gated, .sparse = sparse, .rows = 37, .biases = biases};
          SCOPED_TRACE(name_of(c) + (weight ? " weight" : ""));
          Inputs in(c);
          if (weight) in.layer.norm_weight = at::linspace(0.5, 1.5, c.neurons, at::kDouble);
          ActivationChoice choice = choice_of(c);
          choice.norm_eps = 0.5;
          const Results exact = definition(in, choice, 1.0), got = run(c, in, choice, 1.0);
          const auto near = [](const char* name, const at::Tensor& e, const at::Tensor& g) {
            ASSERT_TRUE(g.defined()) << name;
            const double largest = e.abs().max().item<double>();
            EXPECT_GT(largest, 0.0) << name;
            EXPECT_LE((g.to(at::kDouble) - e).abs().max().item<double>(), 0x1p-11 * largest)
                << name;
          };
          near("y", exact.y, got.y);
          near("dx", exact.dx, got.dx);
          for_each(exact.gradients, near, got.gradients);
          EXPECT_EQ(got.l1, exact.l1);
        }
      }
    }
  }
}

TEST_F(TrainFfn, RefusesToHandOutHiddenStates) {
  struct Observer : FfnObserver {
    bool wants_hidden() const override { return true; }
    void observe(const FfnActivity&) override {}
  } observer;
  FfnParameters p;
  p.up = at::ones({4, 2});
  p.down = at::ones({2, 4});
  const auto layer = make_training_feed_forward(p, {io::HiddenAct::relu, 0.0F}, training_);
  EXPECT_THROW(layer->forward(at::ones({1, 2}), 0, &observer), Error);
}

TEST(ActivityRecorderTest, NeuronsDieAfterTheWindow) {
  ActivityRecorder recorder(1, 3, 4);
  FfnCounts counts;
  counts.row_nnz = {1};
  for (std::int64_t step = 0; step < 10; ++step) {
    counts.neuron_nnz = {1, step == 4 ? 1 : 0, 0};  // always, once, never
    recorder.record(0, step, counts);
  }
  using Neurons = std::vector<std::int64_t>;
  EXPECT_EQ(recorder.dead(0, 9, 6), (Neurons{2}));  // steps 4 to 9
  EXPECT_EQ(recorder.dead(0, 9, 5), (Neurons{1, 2}));
  EXPECT_EQ(recorder.dead(0, 9, 100), (Neurons{2}));
}

}  // namespace
}  // namespace twell::lm
