// What a measurement needs to be understood, and memory.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace twell::measure {

// Name of the processor, threads, tier and caches.
nlohmann::json machine_json(int threads);

// Memory of this process at its most, in bytes; 0 where the system does not say.
double peak_resident_bytes();
// Starts its measurement again, from what is in use now.
void reset_peak_resident_bytes();

// The number, or null.
inline nlohmann::json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace twell::measure
