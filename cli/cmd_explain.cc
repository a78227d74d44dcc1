// twell explain: which plan a layer or a model would run with on this machine, and why.
#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/table.h"
#include "device/calibration.h"
#include "measure/layer_timer.h"
#include "twell/tuning.h"

namespace twell::cli {
namespace {

struct ExplainCommand : ModelOptions {
  std::int64_t width = 2048;
  std::int64_t neurons = 5632;
  std::vector<std::int64_t> tokens = {1, 64, 2048};
  std::optional<double> nnz;
  bool gated = true;
  bool measure = true;
};

// What --path auto goes by: in the model's first layer, in a layer like those that are timed, or
// before any layer was there.
CostModel expected_cost(const Context& context, lm::Model* model,
                        const std::optional<lm::LayerTimer>& timer) {
  const CostModel* of_model = model != nullptr ? model->feed_forward(0).cost() : nullptr;
  if (of_model != nullptr) return *of_model;
  if (timer) return timer->automatic_cost();
  return lm::load_cost_model(context.tier(), context.threads());
}

// The form that the engine keeps the gate in: that of the model's first sparse layer, or of the
// layer that was timed. None where no layer has met inputs: only those tell how many neurons a
// screen leaves, which is more than fire.
std::optional<GateForm> gate_form(const Context& context, lm::Model* model,
                                  const std::optional<lm::LayerTimer>& timer) {
  for (std::int64_t l = 0; model != nullptr && l < model->layers(); ++l) {
    if (const auto form = model->feed_forward(l).gate_form()) return form;
  }
  if (timer) return timer->gate_form();
  if (tuning_of(context.tier()).screen_limit == 0) return GateForm::packed;
  return std::nullopt;
}

// Neurons that fire for a token, and where that is known from.
struct ExpectedNnz {
  double mean = 29;
  std::string source = "; --nnz gives another number";
};

ExpectedNnz expected_nnz(const ExplainCommand& o, lm::Model* model) {
  if (o.nnz) return {*o.nnz, ""};
  double sum = 0;
  std::int64_t layers = 0, inputs = 0;
  for (std::int64_t l = 0; model != nullptr && l < model->layers(); ++l) {
    const LayerFindings* const seen = model->feed_forward(l).findings();
    if (seen == nullptr) continue;
    sum += seen->density() * static_cast<double>(o.neurons);
    inputs = seen->inputs;
    ++layers;
  }
  if (layers == 0) return {};
  return {sum / static_cast<double>(layers),
          fmt::format(", the mean of its layers over {}", counted(inputs, "token"))};
}

// Both gate forms run by the same plan.
std::string plan_in_words(const FfnPlan& plan, const std::optional<GateForm>& form) {
  return (form ? "" : "screened or ") + plan.to_string();
}

std::vector<std::string> plan_cells(const FfnPlan& plan, std::int64_t tokens,
                                    const std::optional<GateForm>& form) {
  const std::string hot = plan.hot_share > 1.0 ? "none"
                                               : fmt::format("{:g} % of rows + {}",
                                                             100 * plan.hot_share, plan.hot_rows);
  std::string gathered = "row by row";
  if (plan.row_parts > 1) gathered = fmt::format("each row in {} parts", plan.row_parts);
  if (plan.gather_columns > 0) gathered = fmt::format("{} columns a time", plan.gather_columns);
  return {fmt::format("{}", tokens),
          form ? name_of(*form) : "either",
          fmt::format("{}", plan.row_block),
          fmt::format("{}", plan.tile),
          fmt::format("{}", plan.row_groups),
          hot,
          gathered};
}

void explain_plans(const ExplainCommand& o, const Table& plans, CpuTier tier) {
  o.say("\nThe sparse path\n{}", plans.to_string(o.colour()));
  std::string words =
      "Tile: the columns of the gate's output that a thread computes at a time. Hot: neurons that "
      "this many rows of a block fire are multiplied densely; the others are gathered.";
  if (const double limit = tuning_of(tier).screen_limit; limit > 0) {
    words += fmt::format(
        " Gate: a layer's first inputs choose the gate form. It is screened if the screen leaves "
        "at most {:.0f} % of the neurons as candidates, and packed otherwise.",
        100 * limit);
  }
  o.say_lines("{}", words);
}

// "sparse: packed gate, ...; the screen left 3.1 %" in its parts.
std::vector<std::string> parts_of(std::string_view description) {
  std::vector<std::string> parts;
  while (!description.empty()) {
    const auto end = std::min(description.find("; "), description.size());
    parts.emplace_back(description.substr(0, end));
    description.remove_prefix(std::min(end + 2, description.size()));
  }
  return parts;
}

// What all layers have in common, once, and then what they differ in.
void explain_layers(const ExplainCommand& o, const std::vector<std::string>& layers) {
  std::vector<std::vector<std::string>> parts;
  for (const std::string& layer : layers) parts.push_back(parts_of(layer));
  const auto common = [&](const std::string& part) {
    return std::ranges::all_of(
        parts, [&](const auto& of) { return std::ranges::find(of, part) != of.end(); });
  };
  o.say("\n{}, at one token\n", counted(std::ssize(layers), "layer"));
  for (const std::string& part : parts.front()) {
    if (common(part)) o.say("  {}\n", wrapped(part, 4, 2));
  }
  for (std::size_t l = 0; l < parts.size(); ++l) {
    std::string own;
    for (const std::string& part : parts[l]) {
      if (!common(part)) own += (own.empty() ? "" : "; ") + part;
    }
    if (!own.empty()) o.say("  {}\n", wrapped(fmt::format("layer {:>3}: {}", l, own), 4, 2));
  }
}

std::vector<std::string> descriptions_of(lm::Model& model) {
  std::vector<std::string> layers;
  for (std::int64_t l = 0; l < model.layers(); ++l) {
    layers.push_back(model.feed_forward(l).describe(1));
  }
  return layers;
}

void run(ExplainCommand& o) {
  if (o.dtype == "f16") io::fail_unsupported("--dtype f16", "is for GPUs; use bf16 or f32");
  std::unique_ptr<lm::Model> model;
  DType dtype = o.dtype == "f32" ? DType::f32 : DType::bf16;
  if (!o.model.empty()) {
    model = o.open();
    o.width = model->config().hidden_size;
    o.neurons = model->config().intermediate_size;
    o.gated = model->config().gated;
    dtype = model->dtype() == at::kFloat ? DType::f32 : DType::bf16;
  }
  const Context context({.threads = o.threads, .tier = std::nullopt});
  o.say_lines("{}, {} instructions, {}; twell info says more", processor_name(),
              name_of(context.tier()), counted(context.threads(), "thread"));
  if (model != nullptr && model->has_ggml_weights()) {  // multiplied without plans and costs
    const std::vector<std::string> layers = descriptions_of(*model);
    explain_layers(o, layers);
    o.write({{"layers", layers}});
    return;
  }

  const FfnShape size = {o.width, o.neurons, o.gated, dtype};
  const auto [nnz, source] = expected_nnz(o, model.get());
  o.say_lines("A {}gated layer, D = {}, H = {}, {}, {:.4g} non-zeros expected{}\n",
              o.gated ? "" : "non-", o.width, o.neurons, name_of(dtype), nnz, source);
  const double density = nnz / static_cast<double>(o.neurons);
  std::optional<lm::LayerTimer> timer;
  std::vector<std::string> headings = {"tokens", "--path auto takes", "dense expected",
                                       "sparse expected"};
  if (o.measure) {
    headings.insert(headings.end(), {"dense measured", "sparse measured"});
    lm::SyntheticShape shape;
    shape.width = o.width;
    shape.neurons = o.neurons;
    shape.gated = o.gated;
    shape.dtype = dtype == DType::f32 ? at::kFloat : at::kBFloat16;
    shape.activity.mean_nnz = nnz;
    timer.emplace(shape);
  }
  const CostModel cost = expected_cost(context, model.get(), timer);
  const std::optional<GateForm> form = gate_form(context, model.get(), timer);
  Table table(headings);
  Table plan_table(
      {"tokens", "gate", "rows a block", "tile", "row groups", "hot from", "gathered"});
  nlohmann::json plans = nlohmann::json::array();
  for (const std::int64_t m : o.tokens) {
    const FfnPlan plan = plan_ffn(context, m, size, form.value_or(GateForm::packed));
    const std::string plan_words = plan_in_words(plan, form);
    const bool dense = cost.prefers_dense(m, density, size);
    const double dense_us = cost.dense_us(m, size);
    const double sparse_us = cost.sparse_us(m, density, size);
    std::vector<std::string> cells = {fmt::format("{}", m), dense ? "dense" : "sparse",
                                      format_us(dense_us), format_us(sparse_us)};
    plans.push_back({{"tokens", m},
                     {"auto", dense ? "dense" : "sparse"},
                     {"dense_expected_us", dense_us},
                     {"sparse_expected_us", sparse_us},
                     {"plan", plan_words},
                     {"row_block", plan.row_block},
                     {"tile", plan.tile},
                     {"gate", form ? nlohmann::json(name_of(*form)) : nlohmann::json(nullptr)},
                     {"hot_share", plan.hot_share}});
    if (timer) {
      const lm::LayerTimes times = timer->measure(m, 3, 0.05);
      cells.insert(cells.end(), {format_us(times.dense_us), format_us(times.sparse_us)});
      plans.back()["dense_measured_us"] = times.dense_us;
      plans.back()["sparse_measured_us"] = times.sparse_us;
    }
    table.row(cells);
    plan_table.row(plan_cells(plan, m, form));
  }
  o.say("{}", table.to_string(o.colour()));
  if (cost.measured_on.empty()) {
    o.say_lines("Expected: {}. twell calibrate measures this machine.", cost.source());
  } else {
    o.say("Expected: from {}\n", lm::calibration_file().string());
  }
  explain_plans(o, plan_table, context.tier());

  nlohmann::json scales = nlohmann::json::array();
  for (const CostScale& scale : cost.scales) {
    scales.push_back({{"tokens", scale.tokens}, {"dense", scale.dense}, {"sparse", scale.sparse}});
  }
  std::vector<std::string> layers;
  if (model != nullptr) layers = descriptions_of(*model);
  if (!layers.empty()) explain_layers(o, layers);
  nlohmann::json tiers = nlohmann::json::array();
  for (const CpuTier tier : available_cpu_tiers()) tiers.push_back(name_of(tier));
  o.write({{"tiers", tiers},
           {"calibrated", !cost.measured_on.empty()},
           {"nnz", nnz},
           {"scales", scales},
           {"plans", plans},
           {"layers", layers}});
}

}  // namespace

void add_explain(CLI::App& app) {
  auto [c, o] = add_command<ExplainCommand>(
      app, "explain", "Show how a layer or a model would run on this machine, and why",
      "twell explain --width 2048 --neurons 5632 --tokens 1,64,2048 --nnz 29", run);
  CLI::Option* model =
      c.add_option("--model", o->model, "Explain the layers of this model")->type_name("MODEL");
  add_unused_option(c, o->allow_unused);
  c.add_option("--width", o->width, "Width D of a token")->check(kPositive)->excludes(model);
  c.add_option("--neurons", o->neurons, "Neurons H of the layer")
      ->check(kPositive)
      ->excludes(model);
  c.add_option("--tokens", o->tokens, "Tokens per call, a list")->delimiter(',')->check(kPositive);
  c.add_option("--nnz", o->nnz,
               "Neurons expected to fire for a token, mean (default: as many as fired in the "
               "model's layers when they were prepared, else 29)")
      ->check(kZeroOrMore);
  c.add_flag("--gated,!--no-gated", o->gated, "With a gate (Llama, Qwen) or without")
      ->excludes(model);
  c.add_flag("--measure,!--no-measure", o->measure,
             "Also time both paths, on synthetic weights and activity");
  add_dtype_option(c, *o);
}

}  // namespace twell::cli
