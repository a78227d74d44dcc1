// The training feed-forward layer against its definition in fp64. Inputs are small whole numbers,
// so that every product and sum is exact in fp32, and results can be compared for equality.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

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
  std::int64_t rows = 5, width = 4, hidden = 40;
};

std::string name_of(const Case& c) {
  return std::string(io::name_of(c.act)) + (c.gated ? " gated" : "") + (c.sparse ? " sparse" : "") +
         (c.dtype == at::kFloat ? " fp32" : " bf16") + " rows " + std::to_string(c.rows) +
         " hidden " + std::to_string(c.hidden);
}

// Whole numbers in [-1, 1]; a third of them zero.
at::Tensor whole(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Random random(seed);
  at::Tensor out = at::empty({rows, cols}, at::kDouble);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.mutable_data_ptr<double>()[i] = static_cast<double>(random.next() % 3) - 1.0;
  }
  return out;
}

struct Inputs {
  at::Tensor x, gate, up, down, dy;  // fp64

  explicit Inputs(const Case& c)
      : x(whole(c.rows, c.width, 1)),
        gate(whole(c.hidden, c.width, 2)),
        up(whole(c.hidden, c.width, 3)),
        down(whole(c.width, c.hidden, 4)),
        dy(whole(c.rows, c.width, 5)) {
    // Every third neuron never fires.
    gate.index_put_({at::arange(0, c.hidden, 3)}, at::zeros({c.width}, at::kDouble));
    if (!c.gated) up = gate;
  }
};

struct Results {
  at::Tensor y, dx, dgate, dup, ddown;
  double l1 = 0.0;
};

Results definition(const Case& c, const Inputs& in, const ActivationChoice& choice, double l1) {
  const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(true); };
  const at::Tensor x = leaf(in.x), gate = leaf(in.gate), up = leaf(in.up), down = leaf(in.down);
  const at::Tensor h = c.gated ? activate(at::linear(x, gate), choice) * at::linear(x, up)
                               : activate(at::linear(x, up), choice);
  const at::Tensor y = at::linear(h, down);
  const at::Tensor penalty = h.abs().sum();
  ((y * in.dy).sum() + l1 * penalty).backward();
  return {y.detach(), x.grad(),    c.gated ? gate.grad() : at::Tensor(),
          up.grad(),  down.grad(), penalty.item<double>()};
}

class TrainFfn : public ::testing::Test {
 protected:
  Results run(const Case& c, const Inputs& in, const ActivationChoice& choice, double l1) {
    const auto leaf = [&](const at::Tensor& t) { return t.to(c.dtype).requires_grad_(true); };
    at::Tensor x = leaf(in.x);
    FfnParameters p;
    if (c.gated) p.gate = leaf(in.gate);
    p.up = leaf(in.up);
    p.down = leaf(in.down);
    recorder_ = std::make_unique<ActivityRecorder>(1, c.hidden, c.rows);
    training_->recorder = recorder_.get();
    training_->l1_grad = l1;
    training_->sparse = c.sparse;
    const auto layer = make_training_feed_forward(p, choice, training_);
    const at::Tensor y = layer->forward(x, 0, nullptr);
    y.backward(in.dy.to(c.dtype));
    training_->record_pending();
    return {y.detach(),  x.grad(),      c.gated ? p.gate.grad() : at::Tensor(),
            p.up.grad(), p.down.grad(), recorder_->take_l1()};
  }

  std::shared_ptr<FfnTraining> training_ = std::make_shared<FfnTraining>();
  std::unique_ptr<ActivityRecorder> recorder_;
};

ActivationChoice choice_of(const Case& c) {
  return {c.act, c.act == io::HiddenAct::fat_relu ? 1.0F : 0.0F};
}

bool same(const at::Tensor& got, const at::Tensor& exact) {
  return got.scalar_type() != at::kDouble && at::equal(got, exact.to(got.scalar_type()));
}

// Where little fires, the gate goes through a screen; nothing that can be seen changes.
TEST_F(TrainFfn, ScreenedGateEqualsItsDefinition) {
  if (tuning_of(default_cpu_tier()).screen_limit == 0.0) {
    GTEST_SKIP() << name_of(default_cpu_tier()) << " has no screens";
  }
  for (const bool gated : {true, false}) {
    const Case c{io::HiddenAct::relu, gated, true, at::kFloat, 64, 32, 96};
    Inputs in(c);
    in.x.select(1, 0).fill_(1.0);
    at::Tensor& first = gated ? in.gate : in.up;
    first.select(1, 0).fill_(-9.0);  // the rest is a sum of 31 products: a deviation of 3.7
    training_->forms.clear();
    training_->decides = false;
    const Results packed = run(c, in, choice_of(c), 1.0);
    EXPECT_FALSE(training_->screened(0));
    training_->decides = true;
    const Results screened = run(c, in, choice_of(c), 1.0);
    EXPECT_TRUE(training_->screened(0));
    const Results exact = definition(c, in, choice_of(c), 1.0);
    EXPECT_GT(exact.l1, 0.0);
    for (const Results* got : {&packed, &screened}) {
      EXPECT_TRUE(same(got->y, exact.y));
      EXPECT_TRUE(same(got->dx, exact.dx));
      EXPECT_TRUE(same(got->dup, exact.dup));
      EXPECT_TRUE(same(got->ddown, exact.ddown));
      EXPECT_EQ(got->l1, exact.l1);
    }
    // Where much fires, it is not.
    training_->step += TrainingGate::kDecideEvery;
    first.select(1, 0).fill_(9.0);
    run(c, in, choice_of(c), 1.0);
    EXPECT_FALSE(training_->screened(0));
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
            const Results exact = definition(c, in, choice_of(c), 1.0);
            const Results got = run(c, in, choice_of(c), 1.0);
            // bf16: |dh| <= 4 + 1, |u| and |r| <= 4, r² <= 16, so dg <= 5 * 4 * 8 and h <= 64 are
            // whole numbers up to 256, which bf16 holds; sums are exact in fp32 and rounded once.
            EXPECT_TRUE(same(got.y, exact.y));
            EXPECT_TRUE(same(got.dup, exact.dup));
            EXPECT_TRUE(same(got.ddown, exact.ddown));
            if (gated) {
              EXPECT_TRUE(same(got.dgate, exact.dgate));
            }
            EXPECT_EQ(got.l1, exact.l1);
            if (dtype == at::kFloat || !gated) {
              EXPECT_TRUE(same(got.dx, exact.dx));
            } else {
              // The sum of two products, each rounded to bf16 (2^-9 of its size) once. Sizes: at
              // most 40 neurons * 160 and 40 * 80.
              const double bound = std::ldexp(40.0 * 160 + 2 * 40.0 * 240, -9);
              EXPECT_LE((got.dx.to(at::kDouble) - exact.dx).abs().max().item<double>(), bound);
            }
          }
        }
      }
    }
  }
}

TEST_F(TrainFfn, AddsToSumsWhatElseWouldBeGradients) {
  for (const bool gated : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const Case c{.gated = gated, .dtype = dtype, .rows = 37};
      SCOPED_TRACE(name_of(c));
      const Inputs in(c);
      const Results exact = definition(c, in, choice_of(c), 1.0);
      const auto begun = [](const at::Tensor& like) { return at::full(like.sizes(), 2.0); };
      const FfnGradientSums sums{begun(in.up), gated ? begun(in.up) : at::Tensor(),
                                 begun(in.down.t()).t()};
      training_->sums = [&](std::int64_t layer) {
        EXPECT_EQ(layer, 0);
        return sums;
      };
      const Results got = run(c, in, choice_of(c), 1.0);
      EXPECT_TRUE(same(got.y, exact.y));
      EXPECT_FALSE(got.dgate.defined() || got.dup.defined() || got.ddown.defined());
      EXPECT_TRUE(same(sums.first - 2.0, gated ? exact.dgate : exact.dup));
      if (gated) {
        EXPECT_TRUE(same(sums.up - 2.0, exact.dup));
      }
      EXPECT_TRUE(same(sums.down - 2.0, exact.ddown));
    }
  }
}

TEST_F(TrainFfn, L1TermChangesTheGradientByItsDefinitionAlone) {
  const Case c{.rows = 9};
  const Inputs in(c);
  const Results with = run(c, in, choice_of(c), 4.0), without = run(c, in, choice_of(c), 0.0);
  Inputs no_dy(c);
  no_dy.dy.zero_();
  const Results penalty = definition(c, no_dy, choice_of(c), 4.0);
  EXPECT_TRUE(same(with.dup - without.dup, penalty.dup));
  EXPECT_TRUE(same(with.dgate - without.dgate, penalty.dgate));
  EXPECT_TRUE(same(with.dx - without.dx, penalty.dx));
  EXPECT_TRUE(at::equal(with.ddown, without.ddown));
  EXPECT_GT(penalty.dgate.abs().sum().item<double>(), 0.0);
}

TEST_F(TrainFfn, CountsWhatFires) {
  for (const bool sparse : {true, false}) {
    const Case c{.sparse = sparse, .rows = 6};
    const Inputs in(c);
    run(c, in, choice_of(c), 0.0);
    const at::Tensor fired = at::linear(in.x, in.gate).gt(0);
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
  in.gate.zero_();
  const Results got = run(c, in, choice_of(c), 1.0);
  EXPECT_EQ(got.y.abs().sum().item<float>(), 0.0F);
  EXPECT_EQ(got.y.sizes(), (at::IntArrayRef{3, 4}));
  for (const at::Tensor& grad : {got.dx, got.dgate, got.dup, got.ddown}) {
    EXPECT_EQ(grad.abs().sum().item<float>(), 0.0F);
  }
  EXPECT_EQ(got.dgate.sizes(), in.gate.sizes());
  EXPECT_EQ(got.ddown.sizes(), in.down.sizes());
}

TEST_F(TrainFfn, PassesNaNOn) {
  const Case c{.rows = 3};
  Inputs in(c);
  in.x[1][0] = std::nan("");
  const Results got = run(c, in, choice_of(c), 0.0);
  EXPECT_TRUE(got.y[1].isnan().all().item<bool>());
  EXPECT_FALSE(got.y[0].isnan().any().item<bool>());
}

// Activations without zeros and layers with biases take PyTorch's operations; the L1 term is the
// same.
TEST_F(TrainFfn, DenseActivationsHaveTheSameL1Term) {
  for (const auto act : {io::HiddenAct::silu, io::HiddenAct::gelu}) {
    const Case c{.act = act, .rows = 7};
    const Inputs in(c);
    const Results exact = definition(c, in, choice_of(c), 0.5);
    const Results got = run(c, in, choice_of(c), 0.5);
    // fp32 of values below 2^10 after sums of 40 terms: 40 * 2^10 * 2^-24 and the activation's own
    // error of some ulps, taken as 8.
    const double bound = std::ldexp(48.0, -14);
    for (const auto& [a, b] : {std::pair{got.y, exact.y},
                               {got.dx, exact.dx},
                               {got.dgate, exact.dgate},
                               {got.dup, exact.dup},
                               {got.ddown, exact.ddown}}) {
      EXPECT_LE((a.to(at::kDouble) - b).abs().max().item<double>(), bound) << io::name_of(act);
    }
    EXPECT_NEAR(got.l1, exact.l1, bound * 7);
  }
}

TEST_F(TrainFfn, KeepsBiases) {
  const Case c{.rows = 5};
  const Inputs in(c);
  FfnParameters p;
  p.gate = in.gate.to(at::kFloat);
  p.up = in.up.to(at::kFloat);
  p.down = in.down.to(at::kFloat);
  p.gate_bias = at::ones({40});
  p.down_bias = at::full({4}, 3.0);
  const auto layer = make_training_feed_forward(p, choice_of(c), training_);
  const at::Tensor x = in.x.to(at::kFloat);
  const at::Tensor h = at::relu(at::linear(x, p.gate, p.gate_bias)) * at::linear(x, p.up);
  EXPECT_TRUE(at::equal(layer->forward(x, 0, nullptr), at::linear(h, p.down, p.down_bias)));
}

TEST_F(TrainFfn, KeepsAnActivationOfUpAndANorm) {
  const Case c{.rows = 5};
  const Inputs in(c);
  const FfnParameters p{
      in.gate.to(at::kFloat),    in.up.to(at::kFloat), in.down.to(at::kFloat), {}, {}, {},
      at::linspace(0.5, 1.5, 40)};
  const at::Tensor x = in.x.to(at::kFloat);
  ActivationChoice choice{io::HiddenAct::relu, 0.0F, Activation::relu};
  at::Tensor h = at::relu(at::linear(x, p.gate)) * at::relu(at::linear(x, p.up));
  auto layer = make_training_feed_forward(p, choice, training_);
  EXPECT_TRUE(at::equal(layer->forward(x, 0, nullptr), at::linear(h, p.down)));
  choice.norm_eps = 1e-5;
  layer = make_training_feed_forward(p, choice, training_);
  h = h / (h.square().mean(-1, true) + 1e-5).sqrt() * p.norm_weight;
  const at::Tensor exact = at::linear(h, p.down);
  // Sums of 40 terms twice, a root and a quotient.
  const double bound = 100 * 0x1.0p-24 * at::linear(h.abs(), p.down.abs()).max().item<double>();
  EXPECT_LE((layer->forward(x, 0, nullptr) - exact).abs().max().item<double>(), bound);
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
