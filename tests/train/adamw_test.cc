#include "train/adamw.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "twell/status.h"

namespace twell::lm {
namespace {

constexpr int kSteps = 25;

Recipe recipe() {
  Recipe r;
  r.beta1 = 0.9;
  r.beta2 = 0.95;
  r.eps = 1e-8;
  r.weight_decay = 0.1;
  return r;
}

double rate(int step) { return 1e-2 / (1 + step); }

at::Tensor gradient(int step, at::ScalarType dtype) {
  return at::sin(at::arange(0, 3 * 70, at::kDouble).reshape({3, 70}) * (step + 1) + step)
      .mul(std::exp(-0.1 * step))
      .to(at::kFloat)
      .to(dtype);
}

at::Tensor start() {
  return at::cos(at::arange(0, 3 * 70, at::kDouble).reshape({3, 70})).to(at::kFloat);
}

// PyTorch's optimizer, which is made of single operations, in `dtype` on the same gradients.
at::Tensor torch_result(at::ScalarType dtype, double weight_decay) {
  at::Tensor w = start().to(dtype).requires_grad_(true);
  torch::optim::AdamW optimizer(
      std::vector<at::Tensor>{w},
      torch::optim::AdamWOptions(1.0).betas({0.9, 0.95}).eps(1e-8).weight_decay(weight_decay));
  for (int step = 0; step < kSteps; ++step) {
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(rate(step));
    w.mutable_grad() = gradient(step, at::kFloat).to(dtype);
    optimizer.step();
  }
  return w.detach();
}

double max_error(const at::Tensor& a, const at::Tensor& exact) {
  return (a.to(at::kDouble) - exact).abs().max().item<double>();
}

// The fused update and the optimizer's, operation by operation in fp32, both round some ten times
// in each step; ours may differ from the fp64 result by as much as theirs, give or take the order
// of the operations (factor 2) and the last rounding of w (half an ulp of the largest weight).
void expect_as_exact_as_torch(const at::Tensor& ours, double weight_decay) {
  const at::Tensor exact = torch_result(at::kDouble, weight_decay);
  const double theirs = max_error(torch_result(at::kFloat, weight_decay), exact);
  EXPECT_LE(max_error(ours, exact), 2 * theirs + std::ldexp(1.0, -24));
  EXPECT_GT(max_error(start(), exact), 1e-2);
}

TEST(AdamWTest, IsPyTorchsInFp32) {
  for (const bool decayed : {true, false}) {
    at::Tensor w = start().requires_grad_(true);
    AdamW optimizer({{decayed ? "matrix.weight" : "model.embed_tokens.weight", w, w}});
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor grad = gradient(step, at::kFloat);
      if (step % 2 == 1) grad = grad.t().contiguous().t();  // autograd may leave it so
      w.mutable_grad() = grad;
      optimizer.update(recipe(), rate(step), 1.0, step + 1);
      EXPECT_FALSE(w.grad().defined());
    }
    expect_as_exact_as_torch(w.detach(), decayed ? 0.1 : 0.0);
  }
}

TEST(AdamWTest, ScalesTheGradient) {
  at::Tensor a = start().requires_grad_(true), b = start().requires_grad_(true);
  AdamW first({{"w", a, a}}), second({{"w", b, b}});
  for (int step = 0; step < 5; ++step) {
    a.mutable_grad() = gradient(step, at::kFloat);
    b.mutable_grad() = gradient(step, at::kFloat) * 4;  // exact
    first.update(recipe(), 1e-2, 1.0, step + 1);
    second.update(recipe(), 1e-2, 0.25, step + 1);
  }
  EXPECT_TRUE(at::equal(a, b));
}

TEST(AdamWTest, KeepsFp32MastersOfBf16Weights) {
  const at::Tensor master = start();
  at::Tensor w = master.to(at::kBFloat16).requires_grad_(true);
  at::Tensor same = start().requires_grad_(true);
  AdamW optimizer({{"w", w, master}}), reference({{"w", same, same}});
  for (int step = 0; step < kSteps; ++step) {
    w.mutable_grad() = gradient(step, at::kBFloat16);
    same.mutable_grad() = gradient(step, at::kBFloat16).to(at::kFloat);
    optimizer.update(recipe(), 1e-5, 1.0, step + 1);  // too little to change a bf16 at once
    reference.update(recipe(), 1e-5, 1.0, step + 1);
  }
  EXPECT_TRUE(at::equal(master, same));
  EXPECT_TRUE(at::equal(w.detach(), master.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(master, start()));
}

TEST(AdamWTest, AddsMicroBatchesInFp32) {
  const at::Tensor master = start();
  at::Tensor w = master.to(at::kBFloat16).requires_grad_(true);
  AdamW optimizer({{"w", w, master}});
  // 1 + 2^-10 is no bf16: a bf16 sum would lose the second gradient.
  w.mutable_grad() = at::ones({3, 70}, at::kBFloat16);
  optimizer.accumulate();
  EXPECT_FALSE(w.grad().defined());
  w.mutable_grad() = at::full({3, 70}, std::ldexp(1.0, -10), at::kBFloat16);
  optimizer.accumulate();
  const double expected = (1 + std::ldexp(1.0, -10)) * std::sqrt(210.0);
  EXPECT_NEAR(optimizer.grad_norm(), expected, expected * 1e-6);
  optimizer.clear_gradients();
  EXPECT_EQ(optimizer.grad_norm(), 0.0);
}

TEST(AdamWTest, NormIsOfAllParametersTogether) {
  at::Tensor a = at::zeros({2}).requires_grad_(true), b = at::zeros({1}).requires_grad_(true);
  AdamW optimizer({{"a", a, a}, {"b", b, b}});
  EXPECT_EQ(optimizer.grad_norm(), 0.0);
  a.mutable_grad() = at::tensor({2.0F, 4.0F});
  b.mutable_grad() = at::tensor({4.0F});
  // sqrt(20) is rounded to fp32 before it is squared again.
  EXPECT_NEAR(optimizer.grad_norm(), 6.0, 6.0 * std::ldexp(1.0, -23));
}

TEST(AdamWTest, DecaysMatricesOnly) {
  const at::Tensor matrix = at::zeros({2, 2}), vector = at::zeros({2});
  EXPECT_TRUE(is_decayed("model.layers.0.mlp.up_proj.weight", matrix));
  EXPECT_TRUE(is_decayed("lm_head.weight", matrix));
  EXPECT_FALSE(is_decayed("model.embed_tokens.weight", matrix));
  EXPECT_FALSE(is_decayed("model.decoder.embed_positions.weight", matrix));
  EXPECT_FALSE(is_decayed("model.norm.weight", vector));
}

TEST(AdamWTest, RefusesMastersThatAreNone) {
  const at::Tensor w = start();
  EXPECT_THROW(AdamW({{"w", w, start()}}), Error);  // fp32 parameter that is not its own master
  EXPECT_THROW(AdamW({{"w", w.to(at::kBFloat16), w.to(at::kBFloat16)}}), Error);
  EXPECT_THROW(AdamW({{"w", w.to(at::kHalf), w}}), Error);
}

TEST(AdamWTest, LeavesParametersWithoutAGradientAsTheyAre) {
  at::Tensor idle = start().requires_grad_(true), busy = start().requires_grad_(true);
  AdamW optimizer({{"idle", idle, idle}, {"busy", busy, busy}});
  for (at::Tensor* w : {&idle, &busy}) w->mutable_grad() = gradient(0, at::kFloat);
  optimizer.update(recipe(), 1e-2, 1.0, 1);
  EXPECT_TRUE(at::equal(idle, busy));
  const OptimizedParameter& kept = optimizer.parameters().front();
  const at::Tensor w = idle.detach().clone(), m = kept.m.clone(), v = kept.v.clone();
  busy.mutable_grad() = gradient(1, at::kFloat);
  optimizer.update(recipe(), 1e-2, 1.0, 2);
  EXPECT_TRUE(at::equal(idle, w) && at::equal(kept.m, m) && at::equal(kept.v, v));
  EXPECT_FALSE(at::equal(busy, w));
}

}  // namespace
}  // namespace twell::lm
