// What a training run is told, apart from the shape of its model. The defaults are those of the
// paper (arXiv 2603.23198, recipe section); its batch of 1 M tokens is micro_batch * accumulation *
// context.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twell::lm {

// Type of weights and activations in forward and backward. Master weights, both moments and the
// gradient sum over micro-batches are fp32 in any case.
enum class ComputeType : std::uint8_t {
  automatic,  // bf16 on a GPU, and where the processor multiplies it (AVX-512-BF16, AMX); else fp32
  bf16,
  fp32,
};
const char* name_of(ComputeType type);                     // "auto", "bf16", "fp32"
ComputeType parse_compute_type(std::string_view text);     // throws Error naming the three
ComputeType resolve(ComputeType type, at::Device device);  // never automatic

// What the L1 coefficient is in a step, by its number, which is 1 at first.
struct L1Stage {
  std::int64_t step = 0;
  double coefficient = 0.0;
  bool operator==(const L1Stage&) const = default;
};
// "0:0,200:1e-05": none, 1e-5 in step 200.
std::string written(const std::vector<L1Stage>& stages);
// Throws Error saying how they are written. Whether they ascend, Recipe::validate() says.
std::vector<L1Stage> parse_l1_stages(std::string_view text);

struct Recipe {
  // --- start. A resumed run has weights and tokenizer in its checkpoint ---
  std::string model;                  // directory of the first weights; empty: random ones
  std::int64_t bpe_vocab = 4096;      // entries of a tokenizer that is learnt
  double validation_fraction = 0.01;  // of the windows: held out

  // --- length and batch ---
  std::int64_t steps = 10000;     // optimizer steps
  std::int64_t context = 2048;    // tokens of a window
  std::int64_t micro_batch = 8;   // windows of one forward and backward pass
  std::int64_t accumulation = 1;  // passes of one optimizer step

  // --- AdamW: decoupled decay of matrices; norms, biases and the embedding are not decayed.
  // The embedding is a table whose rare rows would shrink between their few updates; an untied
  // output matrix is decayed as any other. ---
  double peak_lr = 1e-3;
  double min_lr_ratio = 0.1;        // of peak_lr, reached at the last step; not stated in the paper
  std::int64_t warmup_steps = 600;  // linear from 0
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // L2 norm of the whole gradient; 0: none

  // --- sparsity: loss = cross entropy + l1 * mean over layers of mean over tokens of the sum over
  // hidden units of |h|, h the input of the down projection ---
  double l1 = 2e-5;
  std::int64_t l1_start = 0;   // steps before it with coefficient 0
  std::int64_t l1_warmup = 0;  // steps of linear growth after l1_start
  // In place of these three: the coefficient is linear in the step from one stage to the next, and
  // that of the first and last stage outside of them. Two stages of one step are a jump.
  std::vector<L1Stage> l1_stages;
  // Every so many steps the gate rows of neurons dead for dead_window steps are drawn anew. 0:
  // never.
  std::int64_t reinit_every = 0;
  double reinit_std = 0.02;
  std::int64_t dead_window = 50;  // steps without a single activation after which a neuron is dead

  // --- execution ---
  ComputeType compute = ComputeType::automatic;
  bool recompute = false;  // keep block inputs only; blocks run twice
  bool sparse = true;      // feed-forward layers by what fires; else PyTorch's dense ones
  std::uint64_t seed = 1;  // of initialisation, order of windows and re-initialisation
  // Upper bound of the run in seconds, 0: none. After a fifth of it, and with every log line from
  // then on, the run's length is set to what fits, at most `steps`, so that the schedules still
  // come to their end.
  double time_budget_s = 0.0;
  std::int64_t shortened_to = 0;  // steps that fit into the budget; 0: all. Not set by hand

  // --- what is looked at ---
  std::int64_t log_every = 10;     // steps of one log line
  std::int64_t eval_every = 0;     // steps between validations; 0: only after the last step
  std::int64_t eval_windows = 32;  // windows of one validation (as many as there are, if fewer)
  std::int64_t save_every = 0;     // steps between checkpoints; 0: only after the last step
  std::int64_t keep_checkpoints = 1;

  bool operator==(const Recipe&) const = default;

  // The least and the largest value of a field that is a number.
  static std::pair<double, double> range_of(std::string_view field);
  // Whether a resumed run may change the field of this name: `steps` and the time budget, how a
  // step is executed (the last bits may then be others), and all that is looked at.
  static bool may_change(std::string_view field);
  // Throws Error, naming `file`, the field and both values, where one that may not change is not
  // that of `saved`.
  void check_resumed(const Recipe& saved, const std::string& file) const;

  std::int64_t length() const { return shortened_to > 0 ? shortened_to : steps; }
  // A part of the schedules, in proportion to what is left of them.
  std::int64_t scaled(std::int64_t part) const;
  // To `total` steps: those of a shortened run keep their schedules' proportions.
  void extend(std::int64_t total);
  std::int64_t tokens_per_step() const { return micro_batch * accumulation * context; }
  // Throws Error (invalid_argument) naming the field, its range and its value.
  void validate() const;
  std::string to_json() const;
  // Unknown or missing keys, wrong types and ranges throw Error naming `file`; so does a run that
  // used what only Python has now. Where an older one did not, its keys are passed over.
  static Recipe from_json(std::string_view text, const std::string& file);
};

}  // namespace twell::lm
