// Weight gradients of hot neurons: GEMMs of their coefficients with all rows of x and dy.
#include "ops/backward/packed_chosen.h"
#include "ops/backward/weight_gradients.h"
#include "ops/scratch.h"

namespace twell {

void multiply_weight_gradients(Context& context, const BackwardCall& call) {
  const WeightGradients gradients = gradients_of(call);
  const HotSet& hot = call.hot;
  const auto all = [&](const ConstMatrixView& m) {
    return PackedChosen(PackedChosen::As::inputs, {{call.plan.tier, m.dtype, m}, nullptr, m.rows});
  };
  PackedChosen inputs[] = {all(call.in.x), all(call.in.dy)};
  place_all(context, inputs);
  for (int t = 0; t < call.plan.threads; ++t) {
    context.scratch(t, kAccumulators, packed_accumulator_bytes());
  }
  parallel(context, [&](Team& team) {
    auto* c = static_cast<float*>(context.scratch(team.thread(), kAccumulators, 0));
    pack_all(team, inputs);
    for (int g = 0; g < gradients.count; ++g) {
      const WeightGradient& gradient = gradients.all[g];
      const PackedTerm term = {call.columns[gradient.kind].args(hot.size()),
                               inputs[gradient.kind == kH ? 1 : 0].view()};
      multiply_all(team, call.kernels.x, {&term, 1}, c,
                   [&](std::int64_t i, std::int64_t column, std::int64_t width, const float* sums) {
                     store(call.kernels, gradient.out, hot.list()[i], column, width, sums,
                           call.out.accumulate);
                   });
    }
  });
}

}  // namespace twell
