// What ldtilecfg reads. Palette 1: eight tiles of up to 16 rows of 64 bytes.
#pragma once

#include <cstdint>

namespace twell::amx {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

}  // namespace twell::amx
