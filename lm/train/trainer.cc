#include "train/trainer.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "decoder/profile.h"
#include "decoder/random.h"
#include "device/device.h"
#include "train/schedule.h"
#include "train/training_gate.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// Logits of one piece of the loss: 128 M values, 256 MB in bf16. Each piece adds to the whole
// gradient of the head, 200 MB for 49,152 entries of 2048: 2048 tokens are one piece there.
constexpr std::int64_t kLogitsPerPiece = std::int64_t{1} << 27;
// Of these, what becomes probabilities at a time: 16 MB in fp32 stay in a cache. 64 M on a GPU,
// where it has to be worth starting kernels.
constexpr std::int64_t kProbabilities = std::int64_t{1} << 22;
constexpr std::int64_t kDeviceProbabilities = std::int64_t{1} << 26;

[[noreturn]] void fail(const char* what, const std::string& message) {
  throw Error(ErrorKind::invalid_argument, what, message);
}

// Runs alike have the same bits. On a GPU the backward pass of attention adds in any order unless
// it is told not to, and cuBLAS wants to be told by its environment, before its first call.
void ask_for_the_same_bits() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

// With its compute type resolved.
Recipe checked(Recipe recipe, const Model& model, const Processes& processes) {
  recipe.validate();
  if (recipe.accumulation % processes.count() != 0) {
    fail("recipe",
         fmt::format("accumulation: every process takes its share of the passes of a step, so {} "
                     "processes need a multiple of {}, got {}",
                     processes.count(), processes.count(), recipe.accumulation));
  }
  if (!processes.alone() && !model.device().is_cpu()) {
    fail("recipe", "several processes train on CPUs only: use --device cpu, or one process");
  }
  const io::ModelConfig& config = model.config();
  if (recipe.context > config.max_position_embeddings) {
    fail("recipe", fmt::format("context: the model has {} positions, got {}",
                               config.max_position_embeddings, recipe.context));
  }
  if (model.device().is_cuda()) ask_for_the_same_bits();
  recipe.compute = resolve(recipe.compute, model.device());
  return recipe;
}

void lay_out(const Model& model) {
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    lay_out_neuron_major(model.ffn_parameters(layer).down);
  }
}

FfnShape shape_of(const Model& model, const Recipe& recipe) {
  const FfnParameters p = model.ffn_parameters(0);
  return {p.up.size(1), p.up.size(0), p.gated(),
          recipe.compute == ComputeType::bf16 ? DType::bf16 : DType::f32};
}

// windows begin at `begins`: [B, S] inputs and [B * S] targets, the ids one further on.
std::pair<at::Tensor, at::Tensor> read_windows(const TokenStream& tokens,
                                               const std::vector<std::int64_t>& begins,
                                               std::int64_t context) {
  const auto rows = static_cast<std::int64_t>(begins.size());
  const at::Tensor ids = at::empty({rows, context + 1}, at::kLong);
  auto* data = ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows; ++i) {
    tokens.read(begins[static_cast<std::size_t>(i)],
                {data + i * (context + 1), static_cast<std::size_t>(context + 1)});
  }
  return {ids.narrow(1, 0, context).contiguous(), ids.narrow(1, 1, context).reshape({-1})};
}

// Adds the cross entropy of `logits` [N, V] to `sum` (fp64, []), in fp32 over some rows at a time.
// If `gradient_scale` is not 0, puts the gradient times that in the logits' place.
void add_loss(const at::Tensor& logits, const at::Tensor& targets, double gradient_scale,
              const at::Tensor& sum) {
  const at::NoGradGuard no_grad;
  const std::int64_t some = std::max<std::int64_t>(
      1, (logits.is_cpu() ? kProbabilities : kDeviceProbabilities) / logits.size(1));
  for (std::int64_t begin = 0; begin < logits.size(0); begin += some) {
    const std::int64_t count = std::min(some, logits.size(0) - begin);
    const at::Tensor rows = logits.narrow(0, begin, count);
    const at::Tensor wanted = targets.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor p = at::log_softmax(rows.to(at::kFloat), 1);
    sum.sub_(p.gather(1, wanted).sum(at::kDouble));
    if (gradient_scale == 0.0) continue;
    p.exp_().scatter_add_(1, wanted, at::full({count, 1}, -1.0, p.options()));
    rows.copy_(p.mul_(gradient_scale));
  }
}

}  // namespace

Trainer::Trainer(std::unique_ptr<Model> model, const Recipe& recipe, TrainingData data,
                 const Processes& processes, DeviceRuntime* runtime)
    : recipe_(checked(recipe, *model, processes)),
      data_(std::move(data)),
      processes_(processes),
      split_(data_.tokens.size(), recipe.context, recipe.validation_fraction),
      windows_(split_.train_windows(), recipe.seed),
      ffn_(std::make_shared<FfnTraining>()),
      recorder_(model->layers(), model->config().intermediate_size, recipe.context) {
  const NamedTensors masters = model->parameters();
  lay_out(*model);
  if (recipe_.compute == ComputeType::bf16) {
    model_ = make_model(model->config(), at::kBFloat16, recipe.seed, model->device());
    lay_out(*model_);
  } else {
    model_ = std::move(model);
  }
  const NamedTensors parameters = model_->parameters();
  std::vector<AdamW::Entry> entries;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (masters[i].first != parameters[i].first) {
      fail("Trainer", "the model's parameters are not those of a trainable model: " +
                          masters[i].first + " and " + parameters[i].first);
    }
    entries.push_back({parameters[i].first, parameters[i].second, masters[i].second});
  }
  optimizer_ = std::make_unique<AdamW>(entries);
  copy_masters();
  ffn_->sparse = recipe_.sparse;
  DeviceRuntime& device = runtime != nullptr ? *runtime : runtime_of(model_->device());
  if (!device.is_cpu() && has_sparse_path(model_->ffn_parameters(0), model_->activation())) {
    places_ = std::make_unique<NeuronPlaces>(shape_of(*model_, recipe_), model_->layers(), device);
    ffn_->places = places_.get();
  }
  choose_sums();
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    model_->set_feed_forward(layer, make_training_feed_forward(model_->ffn_parameters(layer),
                                                               model_->activation(), ffn_));
  }
}

// Of several passes in bf16, sparse layers add their gradients to the optimizer's fp32 sums.
void Trainer::choose_sums() {
  ffn_->sums = {};
  if (recipe_.accumulation == 1 || recipe_.compute != ComputeType::bf16) return;
  ffn_->sums = [this](std::int64_t layer) {
    const FfnNames names = model_->ffn_names(layer);
    const auto sum = [this](const std::string& name) {
      return name.empty() ? at::Tensor() : optimizer_->sum_of(name);
    };
    FfnParameters out;
    out.gate = sum(names.gate);
    out.up = sum(names.up);
    out.down = sum(names.down);
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) out[i] = sum(names[i]);
    return out;
  };
}

void Trainer::set_micro_batch(std::int64_t windows) {
  const std::int64_t all = recipe_.micro_batch * recipe_.accumulation;
  if (windows < 1 || all % windows != 0 || (all / windows) % processes_.count() != 0) {
    fail("set_micro_batch", fmt::format("a step of {} windows on {} processes has no passes of {}",
                                        all, processes_.count(), windows));
  }
  recipe_.micro_batch = windows;
  recipe_.accumulation = all / windows;
  choose_sums();
}

void Trainer::copy_masters() {
  const torch::NoGradGuard no_grad;
  for (OptimizedParameter& p : optimizer_->parameters()) {
    if (p.compute.scalar_type() != at::kFloat) p.compute.copy_(p.master);
  }
}

void Trainer::time_steps(StepTimes* times) {
  times_ = times;
  ffn_->seconds = times != nullptr ? &times->feed_forward : nullptr;
}

StepResult Trainer::step() {
  StepResult result;
  result.step = steps_done_ + 1;
  result.lr = learning_rate(recipe_, steps_done_);
  result.l1_coefficient = l1_coefficient(recipe_, steps_done_);
  const std::int64_t position = windows_.position();
  ffn_->l1_grad = result.l1_coefficient / static_cast<double>(model_->layers()) /
                  static_cast<double>(recipe_.tokens_per_step());
  ffn_->step = steps_done_;
  ffn_->decides = steps_done_ % TrainingGate::kDecideEvery == 0;
  recorder_.take_l1();
  try {
    const double ce = passes();
    double sums[] = {ce, recorder_.take_l1()};
    processes_.sum(sums);
    result.ce = sums[0];
    result.l1 = sums[1] * ffn_->l1_grad;
    result.loss = result.ce + result.l1;
    const Stopwatch watch(times_ != nullptr ? &times_->optimizer : nullptr);
    optimizer_->sum_gradients(processes_);
    result.grad_norm = processes_.of_first(optimizer_->grad_norm());
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
      throw Error(
          ErrorKind::environment, "training",
          fmt::format("step {}: the {} is not finite (cross entropy {}, L1 term {}, gradient "
                      "norm {}); the weights are those of step {}. Lower the learning rate "
                      "({:.3g} here) or the L1 coefficient, or look for broken weights",
                      result.step, std::isfinite(result.loss) ? "gradient" : "loss", result.ce,
                      result.l1, result.grad_norm, steps_done_, result.lr));
    }
  } catch (...) {
    ffn_->pending.clear();
    optimizer_->clear_gradients();
    windows_.seek(position);
    throw;
  }
  const double scale =
      recipe_.clip > 0.0 ? std::min(1.0, recipe_.clip / (result.grad_norm + 1e-6)) : 1.0;
  {
    const Stopwatch watch(times_ != nullptr ? &times_->optimizer : nullptr);
    optimizer_->update(recipe_, result.lr, scale, steps_done_ + 1);
  }
  recorder_.share_last_fired(processes_);
  if (ffn_->decides) {
    for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
      ffn_->screened(layer) = processes_.of_first(ffn_->screened(layer));
    }
    if (places_) {
      places_->decide(recipe_.micro_batch * recipe_.context,
                      [this](std::int64_t layer, const at::Tensor& permutation) {
                        for (const auto& [name, weight] : neuron_weights()) {
                          if (weight.layer != layer) continue;
                          optimizer_->parameter(name).reorder(weight.dimension, permutation);
                        }
                      });
    }
  }
  if (recipe_.reinit_every > 0 && (steps_done_ + 1) % recipe_.reinit_every == 0) {
    result.revived = revive();
  }
  ++steps_done_;
  return result;
}

// This process' share of a step.
double Trainer::passes() {
  const std::int64_t begin = windows_.position();
  const std::int64_t share = recipe_.accumulation / processes_.count();
  windows_.seek(begin + processes_.rank() * share * recipe_.micro_batch);
  double ce = 0.0;
  for (std::int64_t i = 0; i < share; ++i) {
    ce += micro_batch();
    const Stopwatch watch(times_ != nullptr ? &times_->optimizer : nullptr);
    if (recipe_.accumulation > 1) optimizer_->accumulate();
  }
  windows_.seek(begin + recipe_.accumulation * recipe_.micro_batch);
  return ce;
}

double Trainer::micro_batch() {
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i < recipe_.micro_batch; ++i) {
    begins.push_back(split_.train_begin(windows_.next()));
  }
  const auto [tokens, targets] = read_windows(data_.tokens, begins, recipe_.context);
  std::vector<at::Tensor> inputs;
  const at::Tensor x = forward_blocks(tokens, recipe_.recompute ? &inputs : nullptr);
  at::Tensor last = x;  // [B, S, D], leaf of the part that follows under recomputation
  if (recipe_.recompute) last = x.detach().requires_grad_(true);
  const at::Tensor hidden = model_->final_norm(last).flatten(0, 1);  // [B * S, D]
  at::Tensor grad;
  const double ce =
      loss_in_pieces(hidden, targets, 1.0 / static_cast<double>(recipe_.tokens_per_step()), &grad);
  // Nothing is gained from the gradient of a broken loss; step() reports it.
  if (std::isfinite(ce)) {
    hidden.backward(grad);
    if (recipe_.recompute) backward_blocks(tokens, inputs, last.grad());
  }
  ffn_->record_pending();
  return ce;
}

at::Tensor Trainer::forward_blocks(const at::Tensor& tokens, std::vector<at::Tensor>* inputs) {
  const bool keep_graph = inputs == nullptr;
  const at::AutoGradMode mode(keep_graph && at::GradMode::is_enabled());
  ffn_->recorder = keep_graph && at::GradMode::is_enabled() ? &recorder_ : nullptr;
  at::Tensor x = model_->embed(tokens);
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    if (inputs != nullptr) inputs->push_back(x);
    x = model_->block(layer, x);
  }
  return x;
}

void Trainer::backward_blocks(const at::Tensor& tokens, std::vector<at::Tensor>& inputs,
                              at::Tensor grad) {
  ffn_->recorder = &recorder_;
  for (std::int64_t layer = model_->layers() - 1; layer >= 0; --layer) {
    auto& input = inputs[static_cast<std::size_t>(layer)];
    const at::Tensor x = input.detach().requires_grad_(true);
    input.reset();
    model_->block(layer, x).backward(grad);
    grad = x.grad();
  }
  model_->embed(tokens).backward(grad);
}

// Logits, loss and the head's gradient piece by piece, so that [B * S, V] is held once at most, in
// the compute type. Returns the sum of the tokens' cross entropies times `grad_scale`; *grad, if
// wanted, is the gradient of `hidden`.
double Trainer::loss_in_pieces(const at::Tensor& hidden, const at::Tensor& targets,
                               double grad_scale, at::Tensor* grad) {
  const Stopwatch watch(times_ != nullptr ? &times_->head_and_loss : nullptr);
  const std::int64_t rows = hidden.size(0);
  const std::int64_t piece =
      std::max<std::int64_t>(64, kLogitsPerPiece / std::max<std::int64_t>(1, config().vocab_size));
  if (grad != nullptr) *grad = at::empty_like(hidden, at::MemoryFormat::Contiguous).detach();
  const at::Tensor wanted = targets.to(hidden.device());
  // On the device, and read once: every reading would wait for it.
  const at::Tensor sum = at::zeros({}, hidden.options().dtype(at::kDouble).requires_grad(false));
  for (std::int64_t begin = 0; begin < rows; begin += piece) {
    const std::int64_t count = std::min(piece, rows - begin);
    const at::Tensor part = hidden.detach().narrow(0, begin, count).requires_grad_(grad != nullptr);
    const at::Tensor logits = model_->head(part);
    // In place: backward of a linear layer does not read what it returned.
    const at::Tensor values = logits.detach();
    add_loss(values, wanted.narrow(0, begin, count), grad != nullptr ? grad_scale : 0.0, sum);
    if (grad == nullptr) continue;
    logits.backward(values);
    const torch::NoGradGuard no_grad;
    grad->narrow(0, begin, count).copy_(part.grad());
  }
  return sum.item<double>() * grad_scale;
}

std::optional<double> Trainer::validation_loss() {
  const std::int64_t windows = std::min(recipe_.eval_windows, split_.validation_windows());
  if (windows == 0) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const double scale = 1.0 / static_cast<double>(windows * recipe_.context);
  double sum = 0.0;
  for (std::int64_t begin = processes_.rank() * recipe_.micro_batch; begin < windows;
       begin += processes_.count() * recipe_.micro_batch) {
    std::vector<std::int64_t> begins;
    for (std::int64_t i = begin; i < std::min(windows, begin + recipe_.micro_batch); ++i) {
      begins.push_back(split_.validation_begin(i * split_.validation_windows() / windows));
    }
    const auto [tokens, targets] = read_windows(data_.tokens, begins, recipe_.context);
    const at::Tensor hidden = model_->final_norm(forward_blocks(tokens, nullptr)).flatten(0, 1);
    sum += loss_in_pieces(hidden, targets, scale, nullptr);
  }
  processes_.sum({&sum, 1});
  return sum;
}

std::vector<LayerActivity> Trainer::activity() const {
  return recorder_.summary(steps_done_ - 1, recipe_.dead_window, processes_);
}

void Trainer::check_processes() const {
  if (processes_.alone()) return;
  for (const OptimizedParameter& p : optimizer_->parameters()) {
    // Of the values' bits: it does not depend on the order.
    const auto own = p.master.view(at::kInt).sum().item<std::int64_t>();
    std::int64_t differs = own != processes_.of_first(own) ? processes_.rank() : 0;
    processes_.maximum({&differs, 1});
    if (differs == 0) continue;
    throw Error(ErrorKind::environment, "training",
                fmt::format("step {}: {} is not the same on processes 0 and {}; they must run on "
                            "processors of one kind, and the same build",
                            steps_done_, p.name, differs));
  }
}

void Trainer::set_length(std::int64_t steps) {
  recipe_.shortened_to = steps < recipe_.steps ? std::max(steps, steps_done_ + 1) : 0;
}

std::map<std::string, Trainer::NeuronWeight> Trainer::neuron_weights() const {
  std::map<std::string, NeuronWeight> out;
  if (!places_) return out;
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    const FfnNames names = model_->ffn_names(layer);
    const auto of_neurons = [&](const std::string& name, std::int64_t dimension) {
      if (!name.empty()) out[name] = {layer, dimension};
    };
    of_neurons(names.gate, 0);
    of_neurons(names.up, 0);
    of_neurons(names.down, 1);
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      if (!kFormVectors[i].of_columns) of_neurons(names[i], 0);
    }
  }
  return out;
}

std::int64_t Trainer::sparse_layers() const {
  std::int64_t sparse = 0;
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    const bool possible = has_sparse_path(model_->ffn_parameters(layer), model_->activation());
    sparse += static_cast<std::int64_t>(possible && ffn_->takes_sparse(layer));
  }
  return sparse;
}

// A neuron without activations has no gradient and would stay dead: fresh gate rows (those of up
// where there is no gate), biases and moments zero.
std::int64_t Trainer::revive() {
  const torch::NoGradGuard no_grad;
  std::int64_t revived = 0;
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    auto dead = recorder_.dead(layer, steps_done_, recipe_.dead_window);
    if (places_) dead = places_->of(layer, dead);
    if (dead.empty() || steps_done_ + 1 < recipe_.dead_window) continue;
    const FfnNames names = model_->ffn_names(layer);
    OptimizedParameter& p = optimizer_->parameter(names.gate.empty() ? names.up : names.gate);
    Random random(recipe_.seed ^ (static_cast<std::uint64_t>(steps_done_ + 1) << 20U) ^
                  static_cast<std::uint64_t>(layer));
    const at::Tensor fresh = at::empty({static_cast<std::int64_t>(dead.size()), p.master.size(1)},
                                       at::TensorOptions(at::kFloat));
    auto* data = fresh.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < fresh.numel(); ++i) {
      data[i] = static_cast<float>(recipe_.reinit_std * random.normal());
    }
    const at::Tensor rows = at::tensor(dead, at::kLong).to(p.master.device());
    p.master.index_copy_(0, rows, fresh.to(p.master.device()));
    p.m.index_fill_(0, rows, 0.0);
    p.v.index_fill_(0, rows, 0.0);
    const std::string& bias = names.gate.empty() ? names.up_bias : names.gate_bias;
    if (!bias.empty()) {
      OptimizedParameter& b = optimizer_->parameter(bias);
      for (const at::Tensor& t : {b.master, b.m, b.v}) t.index_fill_(0, rows, 0.0);
    }
    revived += static_cast<std::int64_t>(dead.size());
  }
  if (revived > 0) copy_masters();
  return revived;
}

}  // namespace twell::lm
