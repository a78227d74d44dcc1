// Trainer::save and Trainer::load.
//
//   config.json, model.safetensors, tokenizer.json   as everywhere, with what lay beside those that
//                                                    the run began with
//   trainer/state.json          step, position in the data, recipe, what identifies the run, which
//                               layers' gates go through a screen, and on a GPU the layers' forms
//   trainer/optimizer.safetensors
//       m.NAME, v.NAME          fp32 moments
//       master.NAME             fp32 weights, where the model's are bf16
//       last_fired              i64 [layers, hidden units], step of each neuron's last activation
//       neuron_order            i64 [layers, hidden units], on a GPU: the neuron at each place
//
// All but neuron_order has the model's own order of neurons.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "decoder/weights.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/run_directory.h"
#include "train/trainer.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// 4: the recipe has no teacher, no annealing and no thresholds. One of version 3 that did without
// them is resumed.
constexpr int kVersion = 4, kOldestVersion = 3;
constexpr std::uint64_t kMaxStateBytes = 1 << 20;
constexpr const char* kNeuronOrder = "neuron_order";

fs::path state_file(const fs::path& directory) { return directory / "trainer" / "state.json"; }
fs::path optimizer_file(const fs::path& directory) {
  return directory / "trainer" / "optimizer.safetensors";
}

// A checked tensor of a checkpoint, not copied yet.
struct Source {
  io::CheckpointTensor from;
  at::Tensor to;
};

Source find_fp32(const io::Checkpoint& file, const std::string& name, const at::Tensor& to) {
  const io::CheckpointTensor from = file.expect(name, to.sizes().vec());
  if (from.info->dtype != io::SafeDType::F32) {
    io::fail_file(file.path().string(), "{}: expected F32, got {}", name,
                  io::name_of(from.info->dtype));
  }
  return {from, to};
}

struct State {
  std::int64_t step = 0, position = 0;
  std::uint64_t data_hash = 0;
  Recipe recipe;
  std::vector<std::int64_t> screened;
  std::vector<TrainingChoice> choices;  // of a run on a GPU
};

io::CheckpointTensor find_i64(const io::Checkpoint& file, const std::string& name,
                              const std::vector<std::int64_t>& shape) {
  const io::CheckpointTensor found = file.expect(name, shape);
  if (found.info->dtype != io::SafeDType::I64) {
    io::fail_file(file.path().string(), "{}: expected I64", name);
  }
  return found;
}

State parse_state(const fs::path& path) {
  const std::string name = path.string();
  const json in = json::parse(io::read_file(path, kMaxStateBytes), nullptr, false);
  State out;
  try {
    const int version = in.at("version").get<int>();
    if (version < kOldestVersion || version > kVersion) {
      io::fail_file(name,
                    "is of version {}, expected {} or {}: it cannot be resumed; --model starts a "
                    "new run from its weights",
                    in.at("version").dump(), kOldestVersion, kVersion);
    }
    out.step = in.at("step").get<std::int64_t>();
    out.position = in.at("position").get<std::int64_t>();
    out.data_hash = in.at("data_hash").get<std::uint64_t>();
    out.recipe = Recipe::from_json(in.at("recipe").dump(), name);
    out.screened = in.at("screened_layers").get<std::vector<std::int64_t>>();
    for (const json& form : in.value("forms", json::array())) {
      out.choices.push_back({form.at("sparse").get<bool>(), form.at("hot").get<std::int64_t>()});
    }
  } catch (const json::exception& error) {
    io::fail_file(name, "is not the state of a trainer: {}", io::library_reason(error.what()));
  }
  if (out.step < 1 || out.position < 1) {
    io::fail_file(name, "step and position: expected positive numbers");
  }
  return out;
}

}  // namespace

void Trainer::save(const fs::path& directory, const io::Tokenizer* tokenizer,
                   const io::SideFiles& sides) const {
  io::AtomicDirectory target(directory);
  const fs::path& out = target.temporary();

  io::ModelConfig config = model_->config();
  config.dtype = recipe_.compute == ComputeType::bf16 ? "bfloat16" : "float32";
  io::save_config(out, config);
  if (tokenizer != nullptr) tokenizer->save(out);
  sides.save(out);

  std::vector<io::TensorData> weights, moments;
  std::vector<at::Tensor> kept;  // copies, where tensors are not on the CPU
  const auto placed = neuron_weights();
  for (const OptimizedParameter& p : optimizer_->parameters()) {
    const auto data = [&](const std::string& name, const at::Tensor& tensor) {
      const auto found = placed.find(p.name);
      const at::Tensor host = tensor.detach().cpu();
      kept.push_back(
          found == placed.end()
              ? host.contiguous()
              : host.index_select(found->second.dimension, places_->to_model(found->second.layer)));
      return tensor_data(name, kept.back());
    };
    weights.push_back(data(p.name, p.compute));
    moments.push_back(data("m." + p.name, p.m));
    moments.push_back(data("v." + p.name, p.v));
    if (keeps_masters()) moments.push_back(data("master." + p.name, p.master));
  }
  const auto by_neuron = [&](const char* name, const std::int64_t* values) {
    io::TensorData out_tensor;
    out_tensor.name = name;
    out_tensor.dtype = io::SafeDType::I64;
    out_tensor.shape = {model_->layers(), config.intermediate_size};
    out_tensor.data = values;
    moments.push_back(out_tensor);
  };
  by_neuron("last_fired", recorder_.last_fired().data());
  if (places_) {
    kept.push_back(places_->orders());
    by_neuron(kNeuronOrder, kept.back().const_data_ptr<std::int64_t>());
  }

  io::save_checkpoint(out, weights);
  fs::create_directory(out / "trainer");
  io::save_safetensors(optimizer_file(out), moments);
  json state;
  state["version"] = kVersion;
  state["step"] = steps_done_;
  state["position"] = windows_.position();
  state["data_hash"] = data_.hash;
  state["screened_layers"] = json::array();
  for (const auto& [layer, screened] : ffn_->forms) {
    if (screened) state["screened_layers"].push_back(layer);
  }
  if (places_) {
    state["forms"] = json::array();
    for (const TrainingChoice& choice : places_->choices()) {
      state["forms"].push_back({{"sparse", choice.sparse}, {"hot", choice.hot}});
    }
  }
  state["recipe"] = json::parse(recipe_.to_json());
  io::write_file_atomically(state_file(out), state.dump(2) + "\n");
  target.commit();
}

void Trainer::load(const fs::path& directory) {
  // Everything is checked before anything is changed.
  const State state = parse_state(state_file(directory));
  const std::string name = state_file(directory).string();
  recipe_.check_resumed(state.recipe, name);
  if (recipe_.length() < state.step) {
    io::fail_file(name, "steps: the run has done {}, {} are asked for", state.step,
                  recipe_.length());
  }
  if (data_.hash != state.data_hash) {
    io::fail_file(name,
                  "the text is not the one that this run was trained on: resume with the same "
                  "files, in the same order");
  }
  io::ModelConfig config = io::load_config(directory);
  config.dtype = model_->config().dtype;
  if (!(config == model_->config())) {
    io::fail_file((directory / "config.json").string(),
                  "is another model than the one of this run: resume with the same shape and "
                  "activation, or start a new run from this checkpoint");
  }

  const io::Checkpoint weights(directory);
  const io::Checkpoint moments(optimizer_file(directory));
  std::vector<Source> sources;
  for (OptimizedParameter& p : optimizer_->parameters()) {
    sources.push_back(keeps_masters() ? find_fp32(moments, "master." + p.name, p.master)
                                      : find_fp32(weights, p.name, p.master));
    sources.push_back(find_fp32(moments, "m." + p.name, p.m));
    sources.push_back(find_fp32(moments, "v." + p.name, p.v));
  }
  const std::vector<std::int64_t> neurons = {model_->layers(), model_->config().intermediate_size};
  const auto fired = find_i64(moments, "last_fired", neurons);
  // A run on a CPU has neither, and a CPU passes both over.
  std::optional<NeuronPlaces> restored;
  if (places_) {
    std::vector<std::int64_t> orders;
    if (!state.choices.empty()) {
      const auto found = find_i64(moments, kNeuronOrder, neurons);
      orders.resize(static_cast<std::size_t>(neurons[0] * neurons[1]));
      std::memcpy(orders.data(), found.data, found.info->bytes());
    }
    restored = places_->restored(orders, state.choices);
    if (!restored) {
      io::fail_file(moments.path().string(),
                    "{}: expected every neuron of a layer once, and forms of {} layers",
                    kNeuronOrder, neurons[0]);
    }
  }

  for (const Source& source : sources) {
    const at::NoGradGuard no_grad;
    const at::Tensor staged = at::empty(source.to.sizes(), at::TensorOptions(at::kFloat));
    std::memcpy(staged.mutable_data_ptr(), source.from.data, source.from.info->bytes());
    source.to.detach().copy_(staged);
  }
  std::memcpy(recorder_.last_fired().data(), fired.data, fired.info->bytes());
  if (restored) *places_ = std::move(*restored);
  for (const auto& [name, weight] : neuron_weights()) {
    optimizer_->parameter(name).reorder(weight.dimension, places_->from_model(weight.layer));
  }
  copy_masters();
  recorder_.reset();
  optimizer_->clear_gradients();
  windows_.seek(state.position);
  steps_done_ = state.step;
  ffn_->forms.clear();
  for (const std::int64_t layer : state.screened) ffn_->forms[layer] = true;
}

Recipe saved_recipe(const fs::path& directory) { return parse_state(state_file(directory)).recipe; }

}  // namespace twell::lm
