// What a measurement needs to be understood, and memory.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

namespace twell::lm {

// Name of the processor, threads, tier and caches.
nlohmann::json machine_json(int threads);

// Memory of this process at its most, in bytes; 0 where the system does not say.
double peak_resident_bytes();
// Starts its measurement again, from what is in use now. False where the system has no such thing.
bool reset_peak_resident_bytes();

// Bytes of this process before some work, and at most during it.
struct PeakMemory {
  double before = 0, peak = 0;
  double added() const { return peak - before; }
};
// Gives freed memory back to the system, runs `work`, and says what it took. None where the system
// does not count it.
std::optional<PeakMemory> peak_memory_of(const std::function<void()>& work);

// The number, or null.
inline nlohmann::json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace twell::lm
