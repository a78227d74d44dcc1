// The int8 screen of a sparse layer's gate on a GPU (twell/cuda.h): for calls of few rows, where
// reading the gate is the time. Made once, after the layer has ordered its neurons; given up where
// it leaves too many candidates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/layer/count_in_flight.h"
#include "device/device.h"
#include "twell/cost.h"
#include "twell/findings.h"

namespace twell::lm {

class DeviceScreen {
 public:
  // Rows whose candidates are counted before the screen is taken.
  static constexpr std::int64_t kRows = 64;
  // More rows no GPU's plan screens.
  static constexpr std::int64_t kMostRows = 32;

  // `runtime`: of the layer's device; outlives this. Where its plans take no screen, one is never
  // made.
  DeviceScreen(const FfnShape& shape, DeviceRuntime& runtime);

  // Inputs [N, D] like those to come, until make(): the axis is their sum, added up on the device,
  // and the first kRows of them are kept for make(). Passed over while a graph is recorded.
  void saw(const at::Tensor& x);

  // Makes the screen, once, and has the candidates of the inputs counted that were kept. The count
  // travels to the host behind the work; until it has arrived no call has the screen. Without
  // memory there is none for good. `weight_screen` makes it with this axis, f32 [D]; `candidates`
  // runs rows [N, D], as few as calls with a screen have, and says how many it left: int64 [] on
  // the device.
  void make(
      const std::function<at::Tensor(const at::Tensor& axis)>& weight_screen,
      const std::function<at::Tensor(const at::Tensor& screen, const at::Tensor& x)>& candidates);

  // The same by findings instead of inputs: no call is counted first. None is made without its
  // candidates.
  void make(const LayerFindings& findings,
            const std::function<at::Tensor(const at::Tensor& axis)>& weight_screen);

  // What a call of so many rows leaves, int64 [] on the device (CountInFlight::send).
  void saw_candidates(const at::Tensor& candidates, std::int64_t rows);

  // Takes in what has arrived. A screen that leaves more than pays for one row is given up: its
  // memory too, unless a recording reads it, which stays right.
  void look();
  // Whether a call of so many rows is to have it, without hot neurons.
  bool serves(std::int64_t rows) const;
  // For the call that comes next: the screen where it serves that, else undefined.
  at::Tensor take(std::int64_t rows);

  std::int64_t bytes() const;    // that it holds
  std::string describe() const;  // in words; empty while there is nothing to say

 private:
  bool wanted() const { return !limits_.empty() && state_ == State::awaited; }

  enum class State : std::uint8_t { awaited, made, given_up, without_memory };
  State state_ = State::awaited;
  DeviceRuntime& runtime_;
  std::int64_t neurons_;        // H
  std::vector<double> limits_;  // shares of candidates that pay, for 1, 2, … rows
  MovingShare share_;
  CountInFlight counts_;  // for share_
  at::Tensor axis_;       // f32 [D]
  at::Tensor sample_;     // [at most kRows, D]
  at::Tensor screen_;
  bool recorded_ = false;  // with the screen
};

}  // namespace twell::lm
