#include "cli/report.h"

#include <fmt/core.h>

#include "cli/progress.h"
#include "cli/svg.h"
#include "cli/table.h"

namespace twell::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1e293b; --paper: #ffffff; --soft: #64748b; --line: #e2e8f0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --paper: #0f172a; --soft: #94a3b8; --line: #334155; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: 1; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; }
.facts div { border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; }
.facts b { display: block; font-size: 1.5rem; } .facts span, small { color: var(--soft); }
pre { white-space: pre-wrap; border-left: 3px solid var(--line); padding-left: 1rem; }
)";

std::string fact(const std::string& value, const std::string& text) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>\n", value, text);
}

std::string loss_section(const DemoReport& r) {
  Series training{"training", {}}, held_out{"held-out text", {}};
  for (const lm::LogRecord& l : r.log) {
    const auto step = static_cast<double>(l.step);
    training.points.emplace_back(step, l.ce);
    if (l.validation_loss) held_out.points.emplace_back(step, *l.validation_loss);
  }
  std::vector<Series> lines = {training};
  if (held_out.points.size() > 1) lines.push_back(held_out);
  return "<h2>Learning</h2>\n<p>Cross entropy, in nats a token: how surprised the model is by the "
         "next token.</p>\n" +
         line_chart(lines, {"step", "cross entropy", false});
}

std::string sparsity_section(const DemoReport& r) {
  std::vector<Series> lines;
  std::vector<Bar> bars;
  for (std::size_t l = 0; l < r.train.layers.size(); ++l) {
    const std::string name = fmt::format("layer {}", l);
    lines.push_back({name, {}});
    for (const lm::LogRecord& record : r.log) {
      if (l >= record.layers.size()) continue;
      lines.back().points.emplace_back(static_cast<double>(record.step), record.layers[l].nnz_mean);
    }
    const lm::LayerActivity& last = r.train.layers[l];
    bars.push_back({name, last.nnz_mean,
                    fmt::format("{:.1f}, {:.0f} % dead", last.nnz_mean, 100 * last.dead_fraction),
                    true});
  }
  return fmt::format(
             "<h2>Becoming sparse</h2>\n<p>Of the {} neurons of a layer, so many fire for a "
             "token; all others are exactly zero. The L1 term of the loss brings the number "
             "down.</p>\n",
             r.config.intermediate_size) +
         line_chart(lines, {"step", "non-zeros a token", true}) + "<p>At the end, by layer:</p>\n" +
         bar_chart_svg(bars);
}

std::string speed_section(const DemoReport& r) {
  const auto bars = [](const lm::Speed& speed) {
    const double dense = speed.tokens_per_s(speed.dense());
    const double sparse = speed.tokens_per_s(speed.sparse());
    return bar_chart_svg({{"PyTorch, dense", dense, fmt::format("{:.0f} tokens/s", dense), false},
                          {"sparse", sparse, fmt::format("{:.0f} tokens/s", sparse), true}});
  };
  const lm::Speed& prefill = *r.speed.prefill;
  const lm::Speed& decode = *r.speed.decode;
  return fmt::format(
      "<h2>Running faster, exactly</h2>\n<p>The same weights, in the same process, on {}. "
      "Reading a prompt of {} tokens:</p>\n{}<p>Writing one token after the other:</p>\n{}"
      "<p><small>Dense is the faster of two variants (here: {} for the prompt, {} for writing). "
      "The outputs of the two paths differ by {:.1e} of the largest output; rounding to {} allows "
      "{:.1e}. Against fp32 arithmetic dense is {:.1e} off and sparse {:.1e}.</small></p>\n",
      counted(r.threads, "thread"), prefill.tokens, bars(prefill), bars(decode),
      prefill.dense().name, decode.dense().name, r.max_rel_err, r.dtype, r.bound, r.dense_error,
      r.sparse_error);
}

}  // namespace

std::string report_html(const DemoReport& r) {
  const double neurons = static_cast<double>(r.config.intermediate_size);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>twell demo</title>\n<style>";
  out += kStyle;
  out += "</style></head><body>\n<h1>A small sparse language model, from text to speed</h1>\n";
  out += "<div class=\"facts\">\n";
  out += fact(fmt::format("{:.2f} → {:.2f}", *r.train.loss_first, *r.train.loss_last),
              "cross entropy, first and last");
  out += fact(
      fmt::format("{:.1f} %", 100 * r.nnz_mean / neurons),
      fmt::format("of the neurons fire ({:.1f} of {})", r.nnz_mean, r.config.intermediate_size));
  out += fact(format_ratio(r.speed.prefill->speedup()), "faster reading a prompt");
  out += fact(format_ratio(r.speed.decode->speedup()), "faster writing");
  out += "</div>\n";
  out += fmt::format(
      "<p>Trained for {} on {}: {}, {}, {:.2f} million parameters in {} "
      "(D = {}, H = {}).</p>\n",
      format_duration(r.train.seconds), escape_html(r.text_name), counted(r.train.steps, "step"),
      counted(r.train.tokens, "token"), static_cast<double>(r.train.parameters) / 1e6,
      counted(r.config.num_hidden_layers, "layer"), r.config.hidden_size,
      r.config.intermediate_size);
  out += loss_section(r) + sparsity_section(r) + speed_section(r);
  out += "<h2>What it writes</h2>\n<pre><b>" + escape_html(r.prompt) + "</b>" +
         escape_html(r.sample) + "</pre>\n";
  out += fmt::format("<p><small>{}, {}, {} instructions. Model: {}</small></p>\n",
                     escape_html(r.processor), counted(r.threads, "thread"), r.tier,
                     escape_html(r.model));
  return out + "</body></html>\n";
}

}  // namespace twell::cli
