// Peak rates by the figures of a GPU's data sheet.
#include "twell/cuda.h"

namespace twell::cuda {
namespace {

// Multiply-adds of 16-bit floats with f32 sums that one SM's tensor cores do in a clock.
double tensor_fma(const Device& device) {
  if (device.major >= 12) return 256;
  if (device.major >= 10) return 4096;
  if (device.major == 9) return 2048;
  return device.minor == 0 ? 1024 : 256;
}

// CUDA cores: 128 FMA a clock and SM, of which a gather's unpacking of 16-bit values leaves two
// fifths: five instructions for the two products of a column and neuron.
constexpr double kCores = 128;  // instructions of a thread a clock and SM
constexpr double kGatherFma = kCores * 2 / 5;
constexpr double kL2Bytes = 32;  // a clock and SM, half of what an SM's port can take

}  // namespace

DeviceRates rates_of(const Device& device) {
  // A data sheet of 2020's smallest, where the driver does not tell.
  const double clock = device.clock_khz > 0 ? device.clock_khz * 1e3 : 1.4e9;
  DeviceRates rates;
  rates.tensor_flops = 2 * tensor_fma(device) * clock * device.sm_count;
  rates.gather_flops = 2 * kGatherFma * clock * device.sm_count;
  rates.instructions = kCores * clock * device.sm_count;
  rates.l2_bytes = kL2Bytes * clock * device.sm_count;
  // Two transfers a clock.
  rates.memory_bytes = device.memory_clock_khz > 0
                           ? 2e3 * device.memory_clock_khz * device.memory_bus_bits / 8
                           : 0.75e12;
  return rates;
}

}  // namespace twell::cuda
