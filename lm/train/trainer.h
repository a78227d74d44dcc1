// Training of one model, step by step: no files of its own but the checkpoints it is asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/side_files.h"
#include "corpus/token_stream.h"
#include "decoder/model.h"
#include "tokenizer/tokenizer.h"
#include "train/activity.h"
#include "train/adamw.h"
#include "train/neuron_places.h"
#include "train/processes.h"
#include "train/recipe.h"
#include "train/train_feed_forward.h"
#include "train/windows.h"

namespace twell::lm {

struct TrainingData {
  TokenStream tokens;
  // Ties a checkpoint to its data: a run is only resumed on the same stream.
  std::uint64_t hash = 0;
};

struct StepResult {
  std::int64_t step = 0;  // 1 is the first
  double loss = 0.0;      // ce + l1
  double ce = 0.0;        // nats a token, mean over the tokens of the step
  double l1 = 0.0;        // the L1 term: coefficient included
  double lr = 0.0;
  double l1_coefficient = 0.0;
  double grad_norm = 0.0;    // before clipping
  std::int64_t revived = 0;  // dead neurons whose gate rows were drawn anew after the step
};

// Wall time of steps by what they did, in seconds; the rest is attention, norms and embedding.
// `whole` is that of whoever calls step().
struct StepTimes {
  double feed_forward = 0, head_and_loss = 0, optimizer = 0, whole = 0;
};

class Trainer {
 public:
  // `model` is fp32 and trainable (make_model, or load_model with trainable and dtype fp32). Throws
  // Error (invalid_argument) where recipe, model and data do not fit together. Each of several
  // `processes`, which must be given the same, does its share of the passes of a step: their number
  // divides recipe.accumulation. All that is public they call together, but save(): a step is the
  // same, up to the order of its sums, on any number of them, and so is what is saved. `runtime`:
  // of the model's device, if not the one that was opened; outlives the trainer.
  Trainer(std::unique_ptr<Model> model, const Recipe& recipe, TrainingData data,
          const Processes& processes = {}, DeviceRuntime* runtime = nullptr);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // One optimizer step. Throws Error and changes neither weights nor moments where loss or gradient
  // is not finite.
  StepResult step();
  // Steps done so far, in this process and before.
  std::int64_t steps_done() const { return steps_done_; }
  // Which path the feed-forward layers take from now on, whatever the recipe says.
  void use_path(bool sparse) { ffn_->sparse = sparse; }
  // Windows of a pass from now on, of a step that keeps its windows: divides their number.
  void set_micro_batch(std::int64_t windows);
  // What the optimizer keeps, for whoever trains the same weights in another way to compare.
  std::vector<OptimizedParameter>& optimized() { return optimizer_->parameters(); }
  // The times of the following steps are added to `times`; null: not taken. On a CPU.
  void time_steps(StepTimes* times);
  // Layers that multiply only what fires, in the coming step.
  std::int64_t sparse_layers() const;
  std::int64_t tokens_seen() const { return steps_done_ * recipe_.tokens_per_step(); }

  // Mean cross entropy of up to eval_windows held-out windows, evenly spread; none: no windows are
  // held out. Activity of these windows is not recorded.
  std::optional<double> validation_loss();
  // Of the steps since the last call of reset_activity().
  std::vector<LayerActivity> activity() const;
  void reset_activity() { recorder_.reset(); }

  // Of the whole run: at least one more step, at most those of the recipe. The schedules shrink in
  // proportion. Part of a checkpoint.
  void set_length(std::int64_t steps);
  const Recipe& recipe() const { return recipe_; }
  ComputeType compute() const { return recipe_.compute; }
  const io::ModelConfig& config() const { return model_->config(); }
  // In the compute type, and with the training feed-forward layers.
  Model& model() { return *model_; }

  // Throws Error where the weights of a process are not the bits of the first one's.
  void check_processes() const;
  // Writes a Hugging Face directory with the weights in the compute type (the files of `tokenizer`
  // and `sides` beside them) and, in the folder trainer/, all that step() depends on. `directory`
  // must not exist; it appears whole or not at all.
  void save(const std::filesystem::path& directory, const io::Tokenizer* tokenizer,
            const io::SideFiles& sides = {}) const;
  // Continues from what save() wrote: every further step computes the same bits as if the run had
  // never stopped (same machine and number of threads). Throws Error, and leaves the trainer as it
  // was made, where the checkpoint is of another model or data, where the recipe differs in what
  // may not change (Recipe::may_change), and where it has fewer steps than are done.
  void load(const std::filesystem::path& directory);

 private:
  double passes();
  double micro_batch();
  at::Tensor forward_blocks(const at::Tensor& tokens, std::vector<at::Tensor>* inputs);
  void backward_blocks(const at::Tensor& tokens, std::vector<at::Tensor>& inputs, at::Tensor grad);
  double loss_in_pieces(const at::Tensor& hidden, const at::Tensor& targets, double grad_scale,
                        at::Tensor* grad);
  std::int64_t revive();
  void copy_masters();
  void choose_sums();
  // Weights with a row or a column for each neuron, which places_ places; none on a CPU.
  struct NeuronWeight {
    std::int64_t layer, dimension;
  };
  std::map<std::string, NeuronWeight> neuron_weights() const;
  // Whether a checkpoint has the fp32 weights beside those of the model.
  bool keeps_masters() const { return recipe_.compute == ComputeType::bf16; }

  Recipe recipe_;
  TrainingData data_;
  Processes processes_;
  WindowSplit split_;
  ShuffledWindows windows_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<FfnTraining> ffn_;
  std::unique_ptr<NeuronPlaces> places_;  // on a GPU
  ActivityRecorder recorder_;
  std::unique_ptr<AdamW> optimizer_;
  StepTimes* times_ = nullptr;
  std::int64_t steps_done_ = 0;
};

// The recipe of the run that wrote a checkpoint, `compute` resolved. Throws Error where there is
// none.
Recipe saved_recipe(const std::filesystem::path& directory);

}  // namespace twell::lm
