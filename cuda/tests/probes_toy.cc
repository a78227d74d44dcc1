// What the probes of twell_gpu_bench lack on the emulated GPU: a timer, and a GPU of a model's
// size. twell_gpu_probes_toy is the benchmark's own program otherwise, with the probes alone.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cuda/bench/bench.h"
#include "cuda/tests/emulation/fibers.h"

namespace twell::bench {
namespace {

// Enough SMs to leave 16 of them to rows, not so many that it takes long.
[[maybe_unused]] const bool told =
    (emulation::set_model("emulated: its times mean nothing", 18), true);

// Tests ask for rows that change after they were added up on the host, to see that it is found.
void spoil_rows() {
  const char* fault = std::getenv("TWELL_TOY_FAULT");
  if (fault == nullptr || std::string_view(fault) != "sum") return;
  constexpr std::size_t kLeast = 10'000'000;  // what else is as large is a workspace
  for (const auto& [first, allocation] : emulation::device_memory()) {
    if (allocation.bytes < kLeast) continue;
    for (std::size_t at = 0; at < allocation.bytes; at += 4096) first[at] ^= std::byte{1};
  }
}

}  // namespace

Times times_of(std::vector<double> us) { return {us.front(), us.front(), us.front()}; }

Timer::Timer(const cuda::Device&) : flush_blocks_(0), flush_(1), sum_(1) {
  std::printf("Toy sizes on an emulated GPU: what is computed counts, no time means anything.\n");
}
Timer::~Timer() = default;

// Each work once. Works differ in time, or lines through them would have no slope.
std::vector<Times> Timer::measure_in_turns(int, const std::vector<std::function<void()>>& works,
                                           Cache) {
  std::vector<Times> out;
  for (const auto& work : works) {
    if (out.empty()) spoil_rows();
    work();
    out.push_back(times_of({1e3 * static_cast<double>(out.size() + 1)}));
  }
  return out;
}

void measure_ceilings(Bench&) { throw Error(ErrorKind::unsupported, "toy", "has probes alone"); }
void check_exact(Bench&) {}
void measure_layers(Bench&) {}
void measure_training(Bench&) {}
void sweep(Bench&) {}

}  // namespace twell::bench
