// Sparse or dense, for the layers of FfnPath::automatic: what each is expected to cost at the
// density that earlier calls had.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "choice/cost_model.h"
#include "choice/device.h"
#include "choice/moving_share.h"

namespace twell::lm {

class PathChooser {
 public:
  // `runtime`: of the layer's device; outlives this.
  PathChooser(CostModel cost, const FfnShape& shape, DeviceRuntime& runtime);

  // Whether a call of so many rows is expected to be faster dense; false while nothing was seen.
  // `hot`: HotNeurons::time of the call.
  bool dense(std::int64_t rows, double hot = 1.0);
  // Whether the next call is one to be counted. A count costs a few per cent of a small call: the
  // first two, the first one after a recording, whose replays are not seen, and then one of 16.
  bool samples();
  // Non-zeros of the gate in a call of `rows` rows: int64 [] on the device (MovingShare::saw).
  void saw(const at::Tensor& nnz, std::int64_t rows) { density_.saw(nnz, rows); }
  // From now on goes by what `replacement` makes of the density so far; unchanged where none is
  // known.
  void replace_cost(const std::function<CostModel(double density)>& replacement);
  const CostModel& cost() const { return cost_; }
  // Moving average of what had arrived by the last of these calls; none before the first.
  std::optional<double> density() const { return density_.value(); }

 private:
  CostModel cost_;
  FfnShape shape_;
  DeviceRuntime& runtime_;
  MovingShare density_;
  std::int64_t calls_ = 0;
  bool recorded_ = false;
};

}  // namespace twell::lm
