// Plays a GPU on the CPU.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace twell::test {

// A device whose work is done when the test says so.
class SlowRuntime final : public lm::DeviceRuntime {
 public:
  struct Mark final : lm::Marker {
    explicit Mark(const bool& d) : done(d) {}
    void set() override {}
    bool reached() override { return done; }
    const bool& done;
  };
  std::string describe() const override { return "slow"; }
  void synchronize() override {
    ++waits;
    done = true;
  }
  // Plays what it recorded, as the CPU does.
  std::unique_ptr<lm::StepGraph> make_graph() override {
    return lm::runtime_of(at::kCPU).make_graph();
  }
  std::unique_ptr<lm::Marker> make_marker() override { return std::make_unique<Mark>(done); }
  bool capturing() const override { return recording; }
  at::Tensor host_buffer(std::int64_t n, at::ScalarType dtype) override {
    return at::zeros({n}, at::TensorOptions(dtype));
  }
  std::int64_t peak_bytes() override { return 0; }
  void reset_peak_bytes() override {}
  std::string uuid() const override { return {}; }
  // The sparse path takes 4 · density of the dense one's time.
  CostModel estimated_cost(const FfnShape&) const override {
    return {{}, true, {1, 2}, {0.0, 1.0}, {1.0, 1.0}, {{1e-9, 4.0}, {1e-9, 4.0}}};
  }
  lm::HotChoice choose_hot(const FfnShape& shape, std::int64_t rows,
                           const std::vector<double>& rates) const override {
    if (!hot) return {};
    asked.push_back({rows, rates});
    return hot(shape, rows, rates);
  }
  lm::TrainingChoice choose_training(const FfnShape& shape, std::int64_t rows,
                                     const std::vector<double>& rates) const override {
    return training ? training(shape, rows, rates) : lm::TrainingChoice{};
  }
  double candidates_limit(const FfnShape&, std::int64_t rows) const override {
    return rows <= std::ssize(screens) ? screens[static_cast<std::size_t>(rows - 1)] : 0.0;
  }
  std::string explain_ffn(const FfnShape&, GateForm gate, std::int64_t rows,
                          std::int64_t count) const override {
    return "M=" + std::to_string(rows) + ", " + std::to_string(count) + " hot neurons" +
           (gate == GateForm::screened ? ", screened" : "");
  }

  bool done = false, recording = false;
  int waits = 0;
  std::vector<double> screens;  // what candidates_limit() answers, from one row on; 0 beyond
  // What choose_hot() answers; none: no hot neurons. And what it was asked.
  std::function<lm::HotChoice(const FfnShape&, std::int64_t, const std::vector<double>&)> hot;
  std::function<lm::TrainingChoice(const FfnShape&, std::int64_t, const std::vector<double>&)>
      training;
  struct Question {
    std::int64_t rows;
    std::vector<double> rates;
  };
  mutable std::vector<Question> asked;
};

}  // namespace twell::test
