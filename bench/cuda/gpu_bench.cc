// twell_gpu_bench: the CUDA operations beside cuBLAS on one layer, with output compared.
//
//   twell_gpu_bench [--json FILE] [--tokens 1,16,...] [--nnz 29,...] [--runs N] [--sweep]
//                   [--hidden D] [--ffn H]
//
// Prints a table and writes JSON. Nothing but the CUDA runtime and cuBLAS is needed.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cuda/dense_ffn.h"
#include "bench/cuda/skewed_layer.h"
#include "bench/cuda/timer.h"
#include "twell/cuda.h"

namespace twell::bench {
namespace {

struct Options {
  std::string json;
  std::vector<std::int64_t> tokens = {1, 4, 16, 64, 256, 1024, 4096, 16384};
  std::vector<double> nnz = {29, 113, 563};
  std::int64_t depth = 2048;
  std::int64_t hidden = 5632;
  int runs = 15;
  bool sweep = false;
};

template <class T>
class Device {
 public:
  explicit Device(std::size_t size) : size_(size) {
    void* data = nullptr;
    TWELL_CUDA_CHECK(cudaMalloc(&data, std::max<std::size_t>(size_ * sizeof(T), 256)));
    data_ = static_cast<T*>(data);
    // NaN, so that what is not written shows.
    TWELL_CUDA_CHECK(cudaMemset(data_, 0xff, size_ * sizeof(T)));
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    TWELL_CUDA_CHECK(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { (void)cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  std::vector<T> read() const {
    std::vector<T> host(size_);
    TWELL_CUDA_CHECK(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// One JSON object a line, written as it is measured.
class Report {
 public:
  void add(const std::string& kind, const std::string& fields) {
    std::ostringstream line;
    line << "{\"kind\": \"" << kind << "\", " << fields << "}";
    lines_.push_back(line.str());
  }
  void write(const std::string& path, const std::string& header) const {
    if (path.empty()) return;
    std::ofstream out(path);
    out << "{" << header << ", \"results\": [\n";
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      out << "  " << lines_[i] << (i + 1 < lines_.size() ? ",\n" : "\n");
    }
    out << "]}\n";
    if (!out.flush()) throw Error(ErrorKind::environment, path, "could not be written");
  }

 private:
  std::vector<std::string> lines_;
};

template <class T>
std::string field(const char* name, const T& value) {
  std::ostringstream out;
  out << "\"" << name << "\": " << value;
  return out.str();
}
std::string text_field(const char* name, const std::string& value) {
  std::ostringstream out;
  out << '"' << name << "\": \"" << value << '"';
  return out.str();
}
std::string join(const std::vector<std::string>& fields) {
  std::string out;
  for (const std::string& f : fields) out += (out.empty() ? "" : ", ") + f;
  return out;
}

// What this GPU does at best, measured: bytes a second of a copy, bf16 operations a second of
// cuBLAS.
struct Ceilings {
  double bytes = 0.0;
  double flops = 0.0;
};

Ceilings measure_ceilings(Timer& timer, const DenseFfn& dense, int runs) {
  Ceilings out;
  {
    const std::size_t bytes = std::size_t{1} << 30;
    const Device<std::byte> from(bytes);
    const Device<std::byte> to(bytes);
    const Times t = timer.measure(runs, [&] {
      TWELL_CUDA_CHECK(
          cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, timer.stream()));
    });
    out.bytes = 2.0 * static_cast<double>(bytes) / (t.median_us * 1e-6);
  }
  const int n = 8192;
  // Random values: zeros would draw less power and run faster.
  const SkewedLayer random = make_skewed_layer(n, n, 8, 1, 11);
  const Device<std::uint16_t> a(random.x);
  const Device<std::uint16_t> c(static_cast<std::size_t>(n) * n);
  const Times t = timer.measure(runs, [&] { dense.gemm(a.get(), a.get(), c.get(), n, n, n); });
  out.flops = 2.0 * std::pow(static_cast<double>(n), 3) / (t.median_us * 1e-6);
  return out;
}

double widen(std::uint16_t bits) { return static_cast<float>(bf16::from_bits(bits)); }

// ‖a - b‖ / ‖b‖; NaN where either has one.
double relative_error(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = widen(a[i]) - widen(b[i]);
    difference += d * d;
    norm += widen(b[i]) * widen(b[i]);
  }
  return std::sqrt(difference / norm);
}

// bf16 rounds gate, up, hidden and y of the dense layer, four times 2⁻⁹ at most on the mean; the
// sparse one rounds gate and y. Ten times that is a wrong result.
constexpr double kWrong = 0.04;

class Bench {
 public:
  Bench(const Options& options, const cuda::Device& device)
      : options_(options), device_(device), timer_(device.l2_bytes), dense_(timer_.stream()) {}

  int run() {
    ceilings_ = measure_ceilings(timer_, dense_, options_.runs);
    std::printf(
        "%s, compute capability %d.%d, %d SMs: copy %.2f TB/s, cuBLAS 8192 cubed %.0f TFLOP/s\n",
        device_.name.c_str(), device_.major, device_.minor, device_.sm_count,
        ceilings_.bytes * 1e-12, ceilings_.flops * 1e-12);
    std::printf("%7s %7s %10s %10s %8s %10s %10s %10s %10s %6s %9s\n", "tokens", "nnz", "dense us",
                "sparse us", "speedup", "gate us", "gate TF/s", "gather us", "gather TB/s", "floor",
                "rel err");
    const std::int64_t most = *std::max_element(options_.tokens.begin(), options_.tokens.end());
    for (double nnz : options_.nnz) {
      const SkewedLayer layer = make_skewed_layer(most, options_.depth, options_.hidden, nnz, 1);
      Data data(layer);
      for (std::int64_t tokens : options_.tokens) measure(data, tokens);
      if (options_.sweep && nnz == options_.nnz.front()) {
        sweep_shapes(data);
        sweep_splits(data);
      }
    }
    report_.write(options_.json,
                  join({text_field("gpu", device_.name),
                        field("compute_capability", device_.major * 10 + device_.minor),
                        field("sms", device_.sm_count), field("copy_bytes_per_s", ceilings_.bytes),
                        field("cublas_flops", ceilings_.flops), field("depth", options_.depth),
                        field("hidden", options_.hidden), field("runs", options_.runs)}));
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  struct Data {
    explicit Data(const SkewedLayer& layer)
        : depth(layer.depth),
          hidden(layer.hidden),
          x(layer.x),
          gate_up(joined(layer)),
          down(layer.down),
          y(layer.x.size()),
          dense_y(layer.x.size()),
          dense_gate_up(static_cast<std::size_t>(layer.tokens * 2 * layer.hidden)),
          dense_hidden(static_cast<std::size_t>(layer.tokens * layer.hidden)) {}
    static std::vector<std::uint16_t> joined(const SkewedLayer& layer) {
      std::vector<std::uint16_t> out = layer.gate;
      out.insert(out.end(), layer.up.begin(), layer.up.end());
      return out;
    }
    ConstMatrixView tokens_view(std::int64_t tokens) const {
      return {x.get(), DType::bf16, tokens, depth};
    }
    cuda::DeviceFfnWeights weights() const {
      return {{gate_up.get(), DType::bf16, hidden, depth},
              {gate_up.get() + hidden * depth, DType::bf16, hidden, depth},
              {down.get(), DType::bf16, hidden, depth}};
    }
    std::int64_t depth, hidden;
    Device<std::uint16_t> x, gate_up, down, y, dense_y, dense_gate_up, dense_hidden;
  };

  cuda::Problem problem(const Data& data, std::int64_t tokens) const {
    return {tokens, data.depth, data.hidden, DType::bf16, true, true};
  }

  void measure(const Data& data, std::int64_t tokens) {
    const cuda::FfnPlan plan = cuda::plan_ffn(device_, problem(data, tokens));
    const Device<std::byte> memory(plan.workspace_bytes);
    const Device<std::int32_t> row_nnz(static_cast<std::size_t>(tokens));
    const cuda::Workspace workspace{memory.get(), memory.size()};
    const MatrixView y(data.y.get(), DType::bf16, tokens, data.depth);
    const auto sparse = [&](const cuda::DeviceStats& stats) {
      cuda::ffn(plan, data.tokens_view(tokens), data.weights(), {}, y, workspace, timer_.stream(),
                stats);
    };
    const auto dense = [&] {
      dense_.run(data.x.get(), {data.gate_up.get(), data.down.get()},
                 {data.dense_gate_up.get(), data.dense_hidden.get()}, data.dense_y.get(),
                 static_cast<int>(tokens), static_cast<int>(data.depth),
                 static_cast<int>(data.hidden));
    };
    sparse({row_nnz.get(), nullptr});
    dense();
    TWELL_CUDA_CHECK(cudaStreamSynchronize(timer_.stream()));
    const double error = compare(data, tokens);
    double nnz = 0.0;
    for (std::int32_t n : row_nnz.read()) nnz += n;
    nnz /= static_cast<double>(tokens);

    const Times sparse_time = timer_.measure(options_.runs, [&] { sparse({}); });
    const Times dense_time = timer_.measure(options_.runs, dense);
    const auto [gate_time, gather_time] = measure_parts(data, tokens, plan);

    const double gate_flops = 2.0 * static_cast<double>(tokens * data.depth * data.hidden);
    const double row_bytes = static_cast<double>(data.depth) * 2;
    const double gather_bytes =
        static_cast<double>(tokens) * (2.0 * nnz * row_bytes + 2.0 * row_bytes);
    // The gate GEMM alone, or reading its weights and those of every neuron once.
    const double weight_bytes = row_bytes * (static_cast<double>(data.hidden) +
                                             2.0 * std::min(nnz * static_cast<double>(tokens),
                                                            static_cast<double>(data.hidden)));
    const double floor_us =
        1e6 * std::max(gate_flops / ceilings_.flops, weight_bytes / (ceilings_.bytes));
    std::printf("%7lld %7.1f %10.1f %10.1f %8.2f %10.1f %10.0f %10.1f %10.2f %6.2f %9.1e%s\n",
                static_cast<long long>(tokens), nnz, dense_time.median_us, sparse_time.median_us,
                dense_time.median_us / sparse_time.median_us, gate_time.median_us,
                gate_flops / gate_time.median_us * 1e-6, gather_time.median_us,
                gather_bytes / gather_time.median_us * 1e-6, floor_us / sparse_time.median_us,
                error, error < kWrong ? "" : "  WRONG");
    std::fflush(stdout);
    report_.add(
        "ffn",
        join({field("tokens", tokens), field("nnz_mean", nnz),
              field("dense_us", dense_time.median_us), field("dense_min_us", dense_time.min_us),
              text_field("dense_impl", "cublas bf16, gate and up joined"),
              field("sparse_us", sparse_time.median_us), field("sparse_min_us", sparse_time.min_us),
              field("sparse_max_us", sparse_time.max_us),
              text_field("sparse_impl", plan.to_string()),
              field("speedup", dense_time.median_us / sparse_time.median_us),
              field("gate_us", gate_time.median_us), field("gather_us", gather_time.median_us),
              field("gate_flops", gate_flops / gate_time.median_us * 1e6),
              field("gather_bytes_per_s", gather_bytes / gather_time.median_us * 1e6),
              field("floor_us", floor_us), field("rel_err", std::isfinite(error) ? error : -1.0)}));
  }

  // The two kernels apart, on the first block of rows.
  std::pair<Times, Times> measure_parts(const Data& data, std::int64_t tokens,
                                        const cuda::FfnPlan& plan) {
    const TwellLayout layout{tokens, data.hidden, plan.gemm.tile, plan.gemm.tile, DType::bf16};
    const Device<std::int32_t> counts(cuda::count_words(layout));
    const Device<std::uint32_t> slots(cuda::slot_words(layout));
    const cuda::DeviceTwellView packed{layout, counts.get(), slots.get(), nullptr};
    const Device<std::byte> memory(plan.gather.workspace_bytes(tokens, data.depth));
    const MatrixView y(data.y.get(), DType::bf16, tokens, data.depth);
    const Times gate = timer_.measure(options_.runs, [&] {
      cuda::gemm_relu_twell(plan.gemm, data.tokens_view(tokens), data.weights().gate, {}, packed,
                            timer_.stream());
    });
    const Times gather = timer_.measure(options_.runs, [&] {
      cuda::twell_gated_ffn(plan.gather, data.tokens_view(tokens), packed, data.weights().up,
                            data.weights().down, y, {memory.get(), memory.size()}, timer_.stream());
    });
    return {gate, gather};
  }

  double compare(const Data& data, std::int64_t tokens) {
    std::vector<std::uint16_t> sparse = data.y.read();
    std::vector<std::uint16_t> dense = data.dense_y.read();
    sparse.resize(static_cast<std::size_t>(tokens * data.depth));
    dense.resize(sparse.size());
    const double error = relative_error(sparse, dense);
    if (!(error < kWrong)) wrong_ += 1;
    return error;
  }

  // Every shape of the gate GEMM at some sizes: what the plan's estimates are to be corrected by.
  void sweep_shapes(const Data& data) {
    std::printf("\ngate GEMM by shape, us (TFLOP/s)\n");
    for (std::int64_t tokens : options_.tokens) {
      std::printf("%7lld", static_cast<long long>(tokens));
      for (int s = 0; s <= static_cast<int>(cuda::GemmShape::tile128x256); ++s) {
        cuda::FfnPlan plan;
        const auto shape = static_cast<cuda::GemmShape>(s);
        try {
          plan.gemm = cuda::plan_gemm_relu_twell(shape, problem(data, tokens));
        } catch (const Error&) {
          continue;  // more rows than this shape takes
        }
        if (plan.gemm.shared_bytes > device_.shared_bytes) continue;
        plan.gather = cuda::plan_gather(device_, problem(data, tokens));
        const double us = measure_parts(data, tokens, plan).first.median_us;
        const double flops =
            2.0 * static_cast<double>(tokens * data.depth * data.hidden) / (us * 1e-6);
        std::printf("  %s %.1f (%.0f)", cuda::name_of(shape), us, flops * 1e-12);
        report_.add("gate_shape",
                    join({field("tokens", tokens), text_field("shape", cuda::name_of(shape)),
                          field("us", us), field("flops", flops)}));
      }
      std::printf("\n");
    }
  }

  void sweep_splits(const Data& data) {
    std::printf("\ngather by blocks a row, us\n");
    for (std::int64_t tokens : options_.tokens) {
      if (tokens > 64) continue;
      std::printf("%7lld", static_cast<long long>(tokens));
      for (int splits : {1, 2, 4, 8, 16, 32}) {
        cuda::FfnPlan plan = cuda::plan_ffn(device_, problem(data, tokens));
        plan.gather.splits = splits;
        const double us = measure_parts(data, tokens, plan).second.median_us;
        std::printf("  %d: %.1f", splits, us);
        report_.add("gather_splits",
                    join({field("tokens", tokens), field("splits", splits), field("us", us)}));
      }
      std::printf("\n");
    }
  }

  Options options_;
  cuda::Device device_;
  Timer timer_;
  DenseFfn dense_;
  Ceilings ceilings_;
  Report report_;
  int wrong_ = 0;
};

template <class T>
std::vector<T> list_of(const std::string& text) {
  std::vector<T> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    out.push_back(static_cast<T>(std::stod(item)));
    if (!(out.back() > 0))
      throw Error(ErrorKind::invalid_argument, "list", "expected numbers above 0, got " + text);
  }
  if (out.empty()) throw Error(ErrorKind::invalid_argument, "list", "expected numbers, got none");
  return out;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--sweep") {
      options.sweep = true;
      continue;
    }
    if (i + 1 >= argc) throw Error(ErrorKind::invalid_argument, name, "expected a value");
    const std::string value = argv[++i];
    if (name == "--json") {
      options.json = value;
    } else if (name == "--tokens") {
      options.tokens = list_of<std::int64_t>(value);
    } else if (name == "--nnz") {
      options.nnz = list_of<double>(value);
    } else if (name == "--runs") {
      options.runs = static_cast<int>(list_of<std::int64_t>(value).front());
    } else if (name == "--hidden") {
      options.depth = list_of<std::int64_t>(value).front();
    } else if (name == "--ffn") {
      options.hidden = list_of<std::int64_t>(value).front();
    } else {
      throw Error(ErrorKind::invalid_argument, name,
                  "expected --json, --tokens, --nnz, --runs, --hidden, --ffn or --sweep");
    }
  }
  if (options.depth % 8 != 0 || options.hidden % 8 != 0) {
    throw Error(ErrorKind::invalid_argument, "--hidden and --ffn", "expected multiples of 8");
  }
  return options;
}

}  // namespace
}  // namespace twell::bench

int main(int argc, char** argv) {
  try {
    const twell::bench::Options options = twell::bench::parse(argc, argv);
    if (twell::cuda::device_count() == 0) {
      std::fprintf(stderr, "twell_gpu_bench: no NVIDIA GPU on this machine\n");
      return 77;  // skipped
    }
    return twell::bench::Bench(options, twell::cuda::current_device()).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "twell_gpu_bench: %s\n", error.what());
    return 2;
  }
}
