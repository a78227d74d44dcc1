// What the gate of one token takes beyond reading its weights: one, two and four gates in a graph,
// a gate of two and four times the neurons, and kernels that do nothing.
#include <cstdio>
#include <memory>
#include <numeric>

#include "cuda/bench/bench.h"
#include "cuda/bench/bench_kernels.h"
#include "cuda/bench/line_fit.h"
#include "cuda/bench/skewed_layer.h"

namespace twell::bench {
namespace {

constexpr int kMostGates = 4;

// One token and the same gate four times, each copy read from memory of its own.
struct Gates {
  explicit Gates(const Options& options)
      : width(options.width), neurons(options.neurons), x(nullptr), weight(nullptr) {
    const SkewedLayer layer = make_skewed_layer(1, width, neurons, options.nnz.front(), 1);
    x = std::make_unique<const DeviceMemory<std::uint16_t>>(layer.x);
    std::vector<std::uint16_t> all;
    for (int i = 0; i < kMostGates; ++i) {
      all.insert(all.end(), layer.gate.begin(), layer.gate.end());
    }
    weight = std::make_unique<const DeviceMemory<std::uint16_t>>(all);
  }
  std::int64_t width, neurons;
  std::unique_ptr<const DeviceMemory<std::uint16_t>> x, weight;
};

// The operation on some of the neurons.
class PartOfGate {
 public:
  PartOfGate(const Bench& bench, const Gates& gates, std::int64_t first, std::int64_t neurons)
      : gates_(gates),
        first_(first),
        neurons_(neurons),
        plan_(cuda::plan_gemm_relu_twell(cuda::GemmShape::stream8x16, bench.device,
                                         {1, gates.width, neurons, DType::bf16, true, true})),
        layout_{1, neurons, plan_.tile, plan_.tile, DType::bf16},
        counts_(cuda::count_words(layout_)),
        slots_(cuda::slot_words(layout_)),
        memory_(plan_.workspace_bytes) {}
  void run(cudaStream_t stream) const {
    cuda::gemm_relu_twell(
        plan_, {gates_.x->get(), DType::bf16, 1, gates_.width},
        {gates_.weight->get() + first_ * gates_.width, DType::bf16, neurons_, gates_.width}, {},
        {layout_, counts_.get(), slots_.get(), nullptr}, {memory_.get(), memory_.size()}, stream,
        {});
  }
  std::int64_t nnz() const {
    const std::vector<std::int32_t> counts = counts_.read();
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

 private:
  const Gates& gates_;
  std::int64_t first_, neurons_;
  cuda::GemmPlan plan_;
  TwellLayout layout_;
  DeviceMemory<std::int32_t> counts_;
  DeviceMemory<std::uint32_t> slots_;
  DeviceMemory<std::byte> memory_;
};

struct Case {
  GraphProbe probe;
  std::vector<std::unique_ptr<const PartOfGate>> gates;  // none where kernels do nothing
  Times times;
};

Case make_case(const Bench& bench, const Gates& gates, const GraphProbe& probe) {
  Case out{probe, {}, {}};
  for (int i = 0; i < (probe.times_neurons == 0 ? 0 : probe.kernels); ++i) {
    out.gates.push_back(std::make_unique<const PartOfGate>(bench, gates, i * gates.neurons,
                                                           probe.times_neurons * gates.neurons));
  }
  return out;
}

void run(const Case& one, cudaStream_t stream) {
  for (const auto& gate : one.gates) gate->run(stream);
  if (!one.gates.empty()) return;
  for (int i = 0; i < one.probe.kernels; ++i) launch_empty(stream);
}

// Whether every copy of the gate has the same non-zeros, and some.
bool is_right(const Case& one, std::int64_t nnz) {
  for (const auto& gate : one.gates) {
    if (gate->nnz() != one.probe.times_neurons * nnz) return false;
  }
  return nnz > 0;
}

void say_line(Bench& bench, const char* name, std::span<const Point> points, double bytes) {
  const FittedLine line = fit_line(points);
  const double rate = bytes / (line.slope * 1e-6);
  std::printf("%-28s t0 %6.2f us, each %6.2f us", name, line.at_zero, line.slope);
  if (bytes > 0) std::printf(", %5.2f TB/s", rate * 1e-12);
  std::printf("\n");
  Line out = {
      {"kind", "probe_line"}, {"variant", name}, {"t0_us", line.at_zero}, {"each_us", line.slope}};
  if (bytes > 0) out["bytes_per_s"] = rate;
  bench.report.add(out);
}

}  // namespace

void probe_graph(Bench& bench) {
  std::printf(
      "Decides what few tokens wait for: where t0 and each further kernel take longer than the\n"
      "reading itself, kernels are to be joined; where not, more loads are to be in flight.\n");
  guarded(bench, "probe-graph", [&] {
    const Gates gates(bench.options);
    cudaStream_t stream = bench.timer.stream();
    std::vector<Case> cases;
    for (const GraphProbe& probe : graph_probes()) {
      cases.push_back(make_case(bench, gates, probe));
    }
    std::vector<std::function<void()>> works;
    for (const Case& one : cases) works.emplace_back([&one, stream] { run(one, stream); });
    const std::vector<Times> times = bench.timer.measure_in_turns(bench.options.runs, works);
    const std::int64_t nnz = cases.front().gates.front()->nnz();
    const double bytes = 2.0 * static_cast<double>(gates.width * gates.neurons);
    std::vector<Point> of_gates, of_neurons, of_nothing;
    std::printf("%-28s %8s %8s %9s %9s %9s %9s\n", "one token", "kernels", "MB", "us", "min", "max",
                "TB/s");
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const GraphProbe& probe = cases[i].probe;
      const Times& t = times[i];
      const double read = bytes * probe.kernels * probe.times_neurons;
      const bool right = is_right(cases[i], nnz);
      if (!right) bench.failed += 1;
      std::printf("%-28s %8d %8.0f %9.2f %9.2f %9.2f %9.2f%s\n", probe.name.c_str(), probe.kernels,
                  read * 1e-6, t.median_us, t.min_us, t.max_us, read / t.median_us * 1e-6,
                  right ? "" : "  WRONG");
      bench.report.add({{"kind", "probe_graph"},
                        {"variant", probe.name},
                        {"kernels", probe.kernels},
                        {"bytes", read},
                        {"us", t.median_us},
                        {"min_us", t.min_us},
                        {"max_us", t.max_us},
                        {"right", right}});
      if (probe.times_neurons == 0) of_nothing.push_back({1.0 * probe.kernels, t.median_us});
      if (probe.times_neurons == 1) of_gates.push_back({1.0 * probe.kernels, t.median_us});
      if (probe.times_neurons > 0 && probe.kernels == 1) {
        of_neurons.push_back({1.0 * probe.times_neurons, t.median_us});
      }
    }
    say_line(bench, kGraphLines[0], of_gates, bytes);
    say_line(bench, kGraphLines[1], of_neurons, bytes);
    say_line(bench, kGraphLines[2], of_nothing, 0.0);
  });
}

}  // namespace twell::bench
