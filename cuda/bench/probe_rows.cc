// How fast rows of 4 KB in random order come to an SM: by a ring of bulk copies, and by the loads
// of today's gather; alone, and while the gate's GEMM runs on the other SMs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>

#include "cuda/bench/bench.h"
#include "cuda/bench/bulk_rows.h"
#include "cuda/bench/skewed_layer.h"

namespace twell::bench {
namespace {

std::vector<std::uint32_t> random_words(std::size_t count) {
  std::vector<std::uint32_t> out(count);
  std::uint32_t state = 12345;
  for (std::uint32_t& word : out) word = state = state * 1664525U + 1013904223U;
  return out;
}

struct RowMemory {
  explicit RowMemory(int megabytes)
      : rows(static_cast<std::uint32_t>(static_cast<std::size_t>(megabytes) * 1'000'000 /
                                        kReadRowBytes)) {
    const std::vector<std::uint32_t> words = random_words(rows * kWords);
    data = std::make_unique<const DeviceMemory<std::uint32_t>>(words);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto first = words.begin() + static_cast<std::ptrdiff_t>(row * kWords);
      sums.push_back(std::accumulate(first, first + kWords, 0U));
    }
  }
  static constexpr std::size_t kWords = kReadRowBytes / sizeof(std::uint32_t);
  std::uint32_t rows;
  std::unique_ptr<const DeviceMemory<std::uint32_t>> data;
  std::vector<unsigned> sums;  // of the words of each row
};

// One way to read rows, and what it must have read.
class RowReader {
 public:
  RowReader(const Bench& bench, const RowMemory& memory, const RowsProbe& one)
      : memory_(memory),
        sms_(one.sms == 0 ? bench.device.sm_count : one.sms),
        all_sms_(one.sms == 0),
        slots_(one.ring / kBulkWarps),
        shared_bytes_(bulk_rows_shared_bytes(slots_, bench.device.shared_bytes)),
        sums_(static_cast<std::size_t>(sms_) * kBulkWarps) {}

  int sms() const { return sms_; }
  int warps() const { return sms_ * warps_of_sm(); }
  double bytes(int sm_rows) const {
    return static_cast<double>(sms_) * sm_rows * static_cast<double>(kReadRowBytes);
  }
  // `sm_rows` is a multiple of 32: every warp of an SM reads as many.
  void launch(int sm_rows, cudaStream_t stream) const {
    const int rows_per_warp = sm_rows / warps_of_sm();
    if (slots_ > 0) {
      launch_bulk_rows({reinterpret_cast<const std::byte*>(memory_.data->get()), memory_.rows,
                        rows_per_warp, slots_, sums_.get()},
                       sms_, shared_bytes_, stream);
      return;
    }
    const ReadRowsArgs args{reinterpret_cast<const std::uint16_t*>(memory_.data->get()),
                            memory_.rows, rows_per_warp, sums_.get()};
    if (all_sms_) {
      launch_read_rows(args, 2 * sms_, stream);
    } else {
      launch_read_rows_by_sm(args, sms_, stream);
    }
  }
  // Whether a launch adds up what it is to read.
  bool right(int sm_rows, cudaStream_t stream) const {
    sums_.fill(0);
    launch(sm_rows, stream);
    TWELL_CUDA_CHECK(cudaStreamSynchronize(stream));
    return sums_are_right(sm_rows);
  }
  // Of the last launch. Loads add to one sum, so that it is known after the first alone.
  bool sums_are_right(int sm_rows) const {
    std::vector<unsigned> expected(static_cast<std::size_t>(warps()));
    for (std::size_t warp = 0; warp < expected.size(); ++warp) {
      for (int i = 0; i < sm_rows / warps_of_sm(); ++i) {
        expected[warp] += memory_.sums[random_row(static_cast<std::uint32_t>(warp),
                                                  static_cast<std::uint32_t>(i), memory_.rows)];
      }
    }
    const std::vector<unsigned> got = sums_.read();
    if (slots_ > 0) return got == expected;
    return got.front() == std::accumulate(expected.begin(), expected.end(), 0U);
  }
  bool leaves_sums_of_the_last() const { return slots_ > 0; }

 private:
  int warps_of_sm() const { return slots_ > 0 ? kBulkWarps : 2 * kReadWarps; }

  const RowMemory& memory_;
  int sms_;
  bool all_sms_;
  int slots_;
  std::size_t shared_bytes_;
  DeviceMemory<unsigned> sums_;
};

// Why a case cannot run here, or nothing.
std::string lacks(const Bench& bench, const RowsProbe& one) {
  if (one.sms >= bench.device.sm_count) return "fewer SMs here";
  if (one.ring == 0) return "";
  if (!has_bulk_copies()) return "cp.async.bulk needs compute capability 9.0 and code made for it";
  if (bulk_rows_shared_bytes(one.ring / kBulkWarps, bench.device.shared_bytes) >
      bench.device.shared_bytes) {
    return "more shared memory than there is";
  }
  return "";
}

// Those that can run, each with its reader; the others are said.
struct Runnable {
  RowsProbe probe;
  std::unique_ptr<const RowReader> reader;
};
std::vector<Runnable> runnable(Bench& bench, const RowMemory& memory,
                               const std::vector<RowsProbe>& group) {
  std::vector<Runnable> out;
  for (const RowsProbe& one : group) {
    if (const std::string reason = lacks(bench, one); !reason.empty()) {
      std::printf("%-34s skipped: %s\n", one.name.c_str(), reason.c_str());
      bench.report.add({{"kind", "probe_rows"}, {"variant", one.name}, {"skipped", reason}});
      continue;
    }
    out.push_back({one, std::make_unique<const RowReader>(bench, memory, one)});
  }
  return out;
}

using BestRates = std::map<int, double>;  // bytes a second on all SMs, by megabytes

void measure_alone(Bench& bench, const RowMemory& memory, const std::vector<RowsProbe>& group,
                   BestRates& best) {
  const std::vector<Runnable> cases = runnable(bench, memory, group);
  if (cases.empty()) return;
  cudaStream_t stream = bench.timer.stream();
  const int sm_rows = bench.options.sm_rows;
  std::vector<std::function<void()>> works;
  std::vector<bool> right;
  for (const Runnable& one : cases) {
    right.push_back(one.reader->right(sm_rows, stream));
    works.emplace_back([&one, sm_rows, stream] { one.reader->launch(sm_rows, stream); });
  }
  const std::vector<Times> times =
      bench.timer.measure_in_turns(bench.options.runs, works, Cache::warm);
  std::printf("%-34s %5s %9s %9s %9s %9s %9s\n", "rows alone", "SMs", "us", "min", "max", "TB/s",
              "GB/s of SM");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RowReader& reader = *cases[i].reader;
    const RowsProbe& probe = cases[i].probe;
    const bool holds =
        right[i] && (!reader.leaves_sums_of_the_last() || reader.sums_are_right(sm_rows));
    if (!holds) bench.failed += 1;
    const double rate = reader.bytes(sm_rows) / (times[i].median_us * 1e-6);
    if (probe.sms == 0 && holds) best[probe.megabytes] = std::max(best[probe.megabytes], rate);
    std::printf("%-34s %5d %9.1f %9.1f %9.1f %9.2f %9.1f%s\n", probe.name.c_str(), reader.sms(),
                times[i].median_us, times[i].min_us, times[i].max_us, rate * 1e-12,
                rate * 1e-9 / reader.sms(), holds ? "" : "  WRONG");
    bench.report.add({{"kind", "probe_rows"},
                      {"variant", probe.name},
                      {"sms", reader.sms()},
                      {"ring", probe.ring},
                      {"us", times[i].median_us},
                      {"min_us", times[i].min_us},
                      {"max_us", times[i].max_us},
                      {"bytes_per_s", rate},
                      {"right", holds}});
  }
  std::fflush(stdout);
}

// Two works that start together on streams of their own. No graph: each has its own end, and the
// host has enqueued both before either may start.
class Together {
 public:
  explicit Together(cudaStream_t first) : first_(first) {
    TWELL_CUDA_CHECK(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&begin_, &first_end_, &second_end_}) {
      TWELL_CUDA_CHECK(cudaEventCreate(event));
    }
  }
  ~Together() {
    for (cudaEvent_t event : {begin_, first_end_, second_end_}) (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(second_);
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  cudaStream_t second() const { return second_; }
  struct Ends {
    double first_us = 0.0, second_us = 0.0;
  };
  // `before` runs on second() until all is enqueued; then the second, which so has its SMs, and the
  // first. Either may be null.
  using Work = std::function<void()>;
  Ends run(const Work& before, const Work& first, const Work& second) const {
    before();
    TWELL_CUDA_CHECK(cudaEventRecord(begin_, second_));
    TWELL_CUDA_CHECK(cudaStreamWaitEvent(first_, begin_, 0));
    if (second) second();
    TWELL_CUDA_CHECK(cudaEventRecord(second_end_, second_));
    if (first) first();
    TWELL_CUDA_CHECK(cudaEventRecord(first_end_, first_));
    TWELL_CUDA_CHECK(cudaEventSynchronize(first_end_));
    TWELL_CUDA_CHECK(cudaEventSynchronize(second_end_));
    return {since_begin(first_end_), since_begin(second_end_)};
  }

 private:
  double since_begin(cudaEvent_t end) const {
    float milliseconds = 0.0F;
    TWELL_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end));
    return 1e3 * static_cast<double>(milliseconds);
  }

  cudaStream_t first_;
  cudaStream_t second_ = nullptr;
  cudaEvent_t begin_ = nullptr, first_end_ = nullptr, second_end_ = nullptr;
};

// The gate of all tokens, chosen for each number of SMs once.
class Gate {
 public:
  explicit Gate(Bench& bench)
      : bench_(bench),
        tokens_(*std::max_element(bench.options.tokens.begin(), bench.options.tokens.end())) {
    const Options& options = bench.options;
    const SkewedLayer layer =
        make_skewed_layer(tokens_, options.width, options.neurons, options.nnz.front(), 1);
    x_ = std::make_unique<const DeviceMemory<std::uint16_t>>(layer.x);
    gate_ = std::make_unique<const DeviceMemory<std::uint16_t>>(layer.gate);
    dense_ = std::make_unique<const DeviceMemory<std::uint16_t>>(
        static_cast<std::size_t>(tokens_ * options.neurons));
  }
  double flops() const {
    return 2.0 * static_cast<double>(tokens_ * bench_.options.width * bench_.options.neurons);
  }
  // 0 for all.
  void run(int sms) {
    auto found = gemms_.find(sms);
    if (found == gemms_.end()) {
      const GemmProblem problem{static_cast<int>(tokens_), static_cast<int>(bench_.options.neurons),
                                static_cast<int>(bench_.options.width)};
      found = gemms_
                  .emplace(sms, std::make_unique<const BlasGemm>(bench_.blas, bench_.timer, problem,
                                                                 operands(),
                                                                 GemmExtras{Epilogue::none, sms}))
                  .first;
    }
    found->second->run(operands());
  }

 private:
  GemmOperands operands() const { return {x_->get(), gate_->get(), dense_->get()}; }

  Bench& bench_;
  std::int64_t tokens_;
  std::unique_ptr<const DeviceMemory<std::uint16_t>> x_, gate_, dense_;
  std::map<int, std::unique_ptr<const BlasGemm>> gemms_;
};

// A multiple of 32 rows that takes about `us`, if `rows` take `took`.
int rows_for(double us, int rows, double took) {
  const double wanted = std::clamp(rows * us / took / 32.0, 1.0, 4096.0);
  return 32 * static_cast<int>(std::lround(wanted));
}

// So many rows that both end at about the same time: so each meets the other all the while.
void measure_beside(Bench& bench, Gate& gate, const Runnable& one, const BestRates& best) {
  const RowReader& reader = *one.reader;
  const RowsProbe& probe = one.probe;
  const int gate_sms = bench.device.sm_count - reader.sms();
  const Together together(bench.timer.stream());
  int rows = bench.options.sm_rows;
  const auto read = [&] { reader.launch(rows, together.second()); };
  // Leaves the rows in L2, as far as they fit, and the host its time.
  const auto before = [&] { reader.launch(bench.options.sm_rows, together.second()); };
  const auto on_all = [&] { gate.run(0); };
  const auto on_others = [&] { gate.run(gate_sms); };
  bool right = reader.right(rows, together.second());
  on_all();  // chooses
  on_others();
  (void)together.run(before, on_others, read);
  rows = rows_for(together.run(before, on_others, nullptr).first_us, rows,
                  together.run(before, nullptr, read).second_us);
  for (int step = 0; step < 2; ++step) {
    const Together::Ends ends = together.run(before, on_others, read);
    rows = rows_for(ends.first_us, rows, ends.second_us);
  }
  std::vector<double> gate_all, gate_alone, rows_alone, gate_beside, rows_beside, both;
  for (int round = 0; round < bench.options.runs; ++round) {
    const std::function<void()> modes[] = {
        [&] { gate_all.push_back(together.run(before, on_all, nullptr).first_us); },
        [&] { gate_alone.push_back(together.run(before, on_others, nullptr).first_us); },
        [&] { rows_alone.push_back(together.run(before, nullptr, read).second_us); },
        [&] {
          const Together::Ends ends = together.run(before, on_others, read);
          gate_beside.push_back(ends.first_us);
          rows_beside.push_back(ends.second_us);
          both.push_back(std::max(ends.first_us, ends.second_us));
          right = right && (!reader.leaves_sums_of_the_last() || reader.sums_are_right(rows));
        }};
    for (std::size_t i = 0; i < std::size(modes); ++i) {
      modes[round % 2 == 0 ? i : std::size(modes) - 1 - i]();
    }
  }
  if (!right) bench.failed += 1;
  const Times all = times_of(gate_all), alone = times_of(gate_alone),
              beside = times_of(gate_beside);
  const Times apart = times_of(rows_alone), read_time = times_of(rows_beside);
  const Times whole = times_of(both);
  const double rate = reader.bytes(rows) / (read_time.median_us * 1e-6);
  // Against the GEMM on all SMs and then the rows by all of them, as fast as any way above.
  const auto found = best.find(probe.megabytes);
  const double one_by_one =
      found == best.end() ? 0.0 : all.median_us + 1e6 * reader.bytes(rows) / found->second;
  char gain[16] = "-";  // where no way by itself was right
  if (one_by_one > 0) std::snprintf(gain, sizeof gain, "%.2f", one_by_one / whole.median_us);
  std::printf("%-34s %5d %9.1f %9.1f %9.1f %9.1f %9.1f %9.2f %9.1f %9s%s\n", probe.name.c_str(),
              reader.sms(), all.median_us, alone.median_us, beside.median_us, apart.median_us,
              read_time.median_us, rate * 1e-12, whole.median_us, gain, right ? "" : "  WRONG");
  std::fflush(stdout);
  const auto times = [](Line& line, const std::string& name, const Times& t) {
    line[name + "us"] = t.median_us;
    line[name + "min_us"] = t.min_us;
    line[name + "max_us"] = t.max_us;
  };
  Line line = {{"kind", "probe_beside"},
               {"variant", probe.name},
               {"sms", reader.sms()},
               {"ring", probe.ring},
               {"rows_of_sm", rows}};
  times(line, "", whole);
  times(line, "gate_all_sms_", all);
  times(line, "gate_alone_", alone);
  times(line, "gate_", beside);
  times(line, "rows_alone_", apart);
  times(line, "rows_", read_time);
  line["bytes_per_s"] = rate;
  line["flops_per_s"] = gate.flops() / (beside.median_us * 1e-6);
  if (one_by_one > 0) line["one_by_one_us"] = one_by_one;
  line["right"] = right;
  bench.report.add(line);
}

}  // namespace

void probe_rows(Bench& bench) {
  std::printf(
      "Decides whether the gather brings rows of Wu and Wd through a ring of bulk copies, and how\n"
      "long a ring, in place of loads into registers; and whether it may have some SMs while the\n"
      "GEMM of the next rows has the others.\n"
      "(Beside the gate, in us: the gate on all SMs, on those that rows leave, there beside rows;\n"
      "rows alone and beside the gate; until both have ended. gain: over that, of the gate and\n"
      "then the rows, each on all SMs.)\n");
  BestRates best;
  std::unique_ptr<const RowMemory> memory;
  int megabytes = 0;
  std::unique_ptr<Gate> gate;
  for (const std::vector<RowsProbe>& group : rows_probes()) {
    guarded(bench, group.front().name, [&] {
      if (group.front().megabytes != megabytes) {
        memory = nullptr;
        megabytes = group.front().megabytes;
        memory = std::make_unique<const RowMemory>(megabytes);
      }
      if (!group.front().beside) {
        measure_alone(bench, *memory, group, best);
        return;
      }
      if (!gate) gate = std::make_unique<Gate>(bench);
      const std::vector<Runnable> cases = runnable(bench, *memory, group);
      if (cases.empty()) return;
      std::printf("%-34s %5s %9s %9s %9s %9s %9s %9s %9s %9s\n", "rows beside the gate", "SMs",
                  "gate all", "others", "beside", "rows", "beside", "TB/s", "both", "gain");
      for (const Runnable& one : cases) {
        guarded(bench, one.probe.name, [&] { measure_beside(bench, *gate, one, best); });
      }
    });
  }
}

}  // namespace twell::bench
