// twell explain: what this machine has, and which plan a layer or a model would run with.
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
  double nnz = 29;
  bool gated = true;
  bool measure = true;
};

void explain_machine(const ExplainCommand& o, const Context& context) {
  const CpuCaches caches = cpu_caches();
  std::string tiers;
  for (const CpuTier tier : kAllCpuTiers) {
    tiers += fmt::format("{}{}{}", tiers.empty() ? "" : ", ", name_of(tier),
                         cpu_tier_available(tier) ? "" : " (not here)");
  }
  o.say("Processor  {}\n", processor_name());
  o.say("Tiers      {}\n", tiers);
  o.say("Used       {} (TWELL_CPU_TIER=NAME forces another), {} threads\n", name_of(context.tier()),
        context.threads());
  o.say("Caches     L1 {}, L2 {}, L3 {}\n\n", format_bytes(static_cast<double>(caches.l1)),
        format_bytes(static_cast<double>(caches.l2)), format_bytes(static_cast<double>(caches.l3)));
}

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

// Both forms run by the same plan.
std::string plan_in_words(const FfnPlan& plan, const std::optional<GateForm>& form) {
  return (form ? "" : "screened or ") + plan.to_string();
}

void run(ExplainCommand& o) {
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
  explain_machine(o, context);

  const FfnShape size = {o.width, o.neurons, o.gated, dtype};
  o.say("A {}gated layer, D = {}, H = {}, {}, {} non-zeros expected\n\n", o.gated ? "" : "non-",
        o.width, o.neurons, name_of(dtype), o.nnz);
  const double density = o.nnz / static_cast<double>(o.neurons);
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
    shape.activity.mean_nnz = o.nnz;
    timer.emplace(shape);
  }
  const CostModel cost = expected_cost(context, model.get(), timer);
  const std::optional<GateForm> form = gate_form(context, model.get(), timer);
  headings.emplace_back("sparse plan");
  Table table(headings);
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
    cells.push_back(plan_words);
    table.row(cells);
  }
  o.say("{}", table.to_string());
  if (const double limit = tuning_of(context.tier()).screen_limit; limit > 0) {
    o.say(
        "Gate: a layer's first inputs choose its form. It is screened in int8 if the screen leaves "
        "at most {:.0f} % of the neurons to compute, else packed\n",
        100 * limit);
  }
  if (cost.measured_on.empty()) {
    o.say("Expected: {}\ntwell calibrate measures this machine\n", cost.source());
  } else {
    o.say("Expected: from {}\n", lm::calibration_file().string());
  }

  nlohmann::json scales = nlohmann::json::array();
  for (const CostScale& scale : cost.scales) {
    scales.push_back({{"tokens", scale.tokens}, {"dense", scale.dense}, {"sparse", scale.sparse}});
  }
  nlohmann::json layers = nlohmann::json::array();
  if (model) {
    o.say("\n");
    for (std::int64_t l = 0; l < model->layers(); ++l) {
      const std::string line = model->feed_forward(l).describe(1);
      o.say("layer {:>3}: {}\n", l, line);
      layers.push_back(line);
    }
  }
  nlohmann::json tiers = nlohmann::json::array();
  for (const CpuTier tier : available_cpu_tiers()) tiers.push_back(name_of(tier));
  o.write({{"tiers", tiers},
           {"calibrated", !cost.measured_on.empty()},
           {"scales", scales},
           {"plans", plans},
           {"layers", layers}});
}

}  // namespace

void add_explain(CLI::App& app) {
  auto [c, o] = add_command<ExplainCommand>(
      app, "explain", "Show this machine, and how a layer or a model runs on it",
      "twell explain --width 2048 --neurons 5632 --tokens 1,64,2048 --nnz 29", run);
  c.add_option("--model", o->model, "Explain the layers of this model")->type_name("DIR");
  add_unused_option(c, o->allow_unused);
  c.add_option("--width", o->width, "Width D of a token")->check(kPositive);
  c.add_option("--neurons", o->neurons, "Neurons H of the layer")->check(kPositive);
  c.add_option("--tokens", o->tokens, "Tokens per call, a list")->delimiter(',')->check(kPositive);
  c.add_option("--nnz", o->nnz, "Neurons expected to fire for a token, mean")->check(kZeroOrMore);
  c.add_flag("--gated,!--no-gated", o->gated, "With a gate (Llama, Qwen) or without");
  c.add_flag("--measure,!--no-measure", o->measure,
             "Also time both paths, on synthetic weights and activity");
  add_dtype_option(c, *o);
}

}  // namespace twell::cli
