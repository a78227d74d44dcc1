// The parts of a screen, for kernels.
#pragma once

#include "twell/screen.h"

namespace twell {

struct ScreenParts : ScreenView {
  const std::int8_t* panel(std::int64_t p) const {
    return static_cast<const std::int8_t*>(data) + p * code_panel_bytes(cols);
  }
  const float* scales() const { return floats(0); }
  const float* norms() const { return floats(1); }   // ‖ŵ‖
  const float* errors() const { return floats(2); }  // ‖w − ŵ‖
  const float* along() const { return floats(3); }   // w·a
  const float* axis() const { return floats(4); }    // a

 private:
  const float* floats(std::int64_t array) const {
    return reinterpret_cast<const float*>(panel(packed_panels(rows))) +
           array * packed_panels(rows) * kPanel;
  }
};

}  // namespace twell
