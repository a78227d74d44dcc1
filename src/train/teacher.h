// A teacher: a model whose outputs are what another one is trained to give, in place of the text's
// own next tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "decoder/model.h"
#include "train/recipe.h"

namespace twell::lm {

class Teacher {
 public:
  // Throws Error (invalid_argument) naming both values where the vocabularies differ, or, with
  // recipe.hidden_weight, the layers or the width, or where the teacher has too few positions.
  Teacher(std::unique_ptr<Model> model, const Model& student, const Recipe& recipe);

  // Computes what it makes of tokens [B, S], for the calls below.
  void read(const at::Tensor& tokens);

  // x [..., D], in `state` 0 ... layers() - 2 what that block puts out, in layers() - 1 the last
  // one's after the final norm; [B, S, D] or [B * S, D]. Returns x, with a backward that adds the
  // gradient of
  //   recipe.hidden_weight * mean over tokens of the step and layers of |x - t|² / |t|²
  // t the teacher's. As a share of |t|²: a few tokens have states a thousand times as long as the
  // others'. Without a gradient it does nothing.
  at::Tensor pull(std::int64_t state, const at::Tensor& x);
  // The tokens' part of that mean (without hidden_weight) since the last call.
  double take_hidden_error();

  // Of rows [begin, begin + count) of B * S: [count, V].
  at::Tensor logits(std::int64_t begin, std::int64_t count);

 private:
  std::unique_ptr<Model> model_;
  double hidden_weight_, share_;    // share_: of one token in one layer in the mean
  std::vector<at::Tensor> states_;  // with hidden_weight_
  at::Tensor last_;                 // [B * S, D], after the final norm
  at::Tensor error_;                // fp64 [], on the device
};

// Adds to `sum` (fp64, []) the Kullback-Leibler divergence T² Σ q (log q - log p) of the rows: p
// and q are softmax(logits / T) and softmax(wanted / T), fp32 [N, V]. Returns its gradient by the
// logits, T (p - q), in memory of its own.
at::Tensor divergence(const at::Tensor& logits, const at::Tensor& wanted, double temperature,
                      const at::Tensor& sum);

}  // namespace twell::lm
