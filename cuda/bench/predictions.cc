#include "cuda/bench/predictions.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cuda/bench/variants.h"
#include "synth/popularity.h"
#include "twell/cuda_train.h"

namespace twell::bench {
namespace {

std::string text_of(const char* format, double value) {
  char out[64];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

// The shares of the peak rates that an H100 reached; of a copy by a kernel, what other programs
// reached there.
std::string ceiling(const CeilingCase& one, const cuda::DeviceRates& rates) {
  switch (one.what) {
    case CeilingCase::What::copy:
      return text_of("%.2f TB/s", 0.9 * rates.memory_bytes * 1e-12);
    case CeilingCase::What::memcpy:
      return text_of("%.2f TB/s", 0.73 * rates.memory_bytes * 1e-12);
    case CeilingCase::What::gemm:
      return text_of("%.0f TFLOP/s", 0.7 * rates.tensor_flops * 1e-12);
    case CeilingCase::What::l2_rows:
      return text_of("%.2f TB/s", 0.9 * rates.l2_bytes * 1e-12);
    case CeilingCase::What::launch_gap:
      return "1.0 µs";
  }
  return "";
}

// Shares of tokens that fire each neuron of a layer, the highest first.
std::vector<double> rates_of_neurons(const Options& options, double nnz) {
  lm::ActivityShape shape;
  shape.mean_nnz = nnz;
  std::vector<double> rates = lm::neuron_popularity(options.neurons, shape, 1);
  for (double& rate : rates) rate = std::min(rate, 1.0);
  std::sort(rates.rbegin(), rates.rend());
  return rates;
}

// Of all neurons, where those from `first` on fire.
double density_of(const std::vector<double>& rates, std::int64_t first) {
  return std::accumulate(rates.begin() + first, rates.end(), 0.0) /
         static_cast<double>(rates.size());
}

void add_training(std::vector<Prediction>& out, const Options& options,
                  const cuda::Device& device) {
  for (const std::int64_t tokens : options.train_tokens) {
    const double flops = 18.0 * static_cast<double>(tokens * options.width * options.neurons);
    out.push_back({train_dense_name(tokens),
                   text_of("%.1f µs", 1e6 * flops / (0.7 * cuda::rates_of(device).tensor_flops))});
  }
  for (const TrainCase& one : train_cases(options)) {
    const std::vector<double> rates = rates_of_neurons(options, one.nnz);
    cuda::Problem problem{one.tokens, options.width, options.neurons, DType::bf16, true, true};
    problem.hot = cuda::choose_hot_in_training(device, problem, rates);
    const double all = density_of(rates, 0);
    const cuda::TrainCost cost =
        cuda::estimate_train(device, problem, all, std::min(all, density_of(rates, problem.hot)));
    out.push_back({one.name(), text_of("%.1f µs", 1e6 * cost.sparse()) +
                                   text_of(" (%.2f × eager)", cost.dense / cost.sparse()) +
                                   text_of(", %.0f hot", static_cast<double>(problem.hot))});
  }
}

}  // namespace

cuda::Device h100() {
  cuda::Device device;
  device.name = "H100";
  device.major = 9;
  device.sm_count = 132;
  device.shared_bytes = std::size_t{227} << 10;
  device.l2_bytes = std::size_t{50} << 20;
  device.memory_bytes = std::size_t{80} << 30;
  device.clock_khz = 1980000;
  device.memory_clock_khz = 2619000;
  device.memory_bus_bits = 5120;
  return device;
}

std::vector<Prediction> predictions(const Options& options) {
  const cuda::Device device = h100();
  std::vector<Prediction> out;
  for (const CeilingCase& one : ceiling_cases(options)) {
    out.push_back({one.name, ceiling(one, cuda::rates_of(device))});
  }
  for (const LayerCase& one : layer_cases(options)) {
    const std::vector<double> rates = rates_of_neurons(options, one.nnz);
    cuda::Problem problem{one.tokens, options.width, options.neurons, DType::bf16, true, true};
    problem.joined = true;  // as DeviceLayer has them
    problem.hot = cuda::choose_hot(device, problem, rates);
    problem.screened = one.screened;
    const auto density = [&](std::int64_t first) { return density_of(rates, first); };
    problem.candidates = std::min(1.0, kCandidatesPerFiring * density(0));
    const cuda::FfnPlan plan = cuda::plan_ffn(device, problem);
    const std::int64_t hot = plan.hot;
    const cuda::FfnCost cost =
        cuda::estimate_ffn(device, problem, density(0), std::min(density(0), density(hot)));
    out.push_back(
        {one.name("ffn"), text_of("%.1f µs", 1e6 * cost.sparse()) +
                              text_of(" (%.2f ×)", cost.dense / cost.sparse()) +
                              (one.screened ? std::string(", ") + cuda::name_of(plan.gemm.shape)
                                            : text_of(", %.0f hot", static_cast<double>(hot)))});
    if (one.screened) {
      out.push_back({one.name("gate"), text_of("%.1f µs", 1e6 * cost.gate)});
      continue;
    }
    out.push_back({one.name("dense"), text_of("%.1f µs", 1e6 * cost.dense)});
    // As measure_parts() has them: the gate as an operation of its own, and the rest.
    problem.hot = 0;
    const double gate = cuda::estimate_ffn(device, problem, density(0), density(0)).gate;
    out.push_back({one.name("gate"), text_of("%.1f µs", 1e6 * gate)});
    out.push_back({one.name("gather"), text_of("%.1f µs", 1e6 * (cost.sparse() - gate))});
  }
  add_training(out, options, device);
  return out;
}

std::string table_of(const std::vector<Prediction>& predictions) {
  std::string out = "| variant | predicted | measured |\n| --- | --- | --- |\n";
  for (const Prediction& one : predictions) {
    out += "| " + one.variant + " | " + one.text + " | |\n";
  }
  return out;
}

}  // namespace twell::bench
