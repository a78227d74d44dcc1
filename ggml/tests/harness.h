// A host as llama.cpp is one: loads the backends, takes weights into the buffer type of the device
// while a GGUF file that lists them is open, and runs graphs by the scheduler.
#pragma once

#include <ggml-cpp.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace twell::ggml::test {

// The device of the library under test; the host's CPU is loaded too. TWELL_TEST_CPU names its
// folder, TWELL_TEST_BACKEND the library.
ggml_backend_dev_t device();

// A GGUF file that lists tensors, open from here on, as llama.cpp has it while it loads.
class OpenGguf {
 public:
  OpenGguf(const std::string& architecture, const std::vector<const ggml_tensor*>& tensors);
  OpenGguf(const OpenGguf&) = delete;
  OpenGguf& operator=(const OpenGguf&) = delete;
  ~OpenGguf() { std::remove(path_.c_str()); }

 private:
  std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
};

// Whether the device takes a weight, asked in the way that llama.cpp does.
bool takes(ggml_tensor* weight, bool by_experts = false);
// The same of another device and one of its types of buffer.
bool takes(ggml_backend_dev_t asked, ggml_backend_buffer_type_t type, ggml_tensor* weight,
           bool by_experts);

// Tensors of one type of buffer.
class Tensors {
 public:
  Tensors() : context_(ggml_init({64 * ggml_tensor_overhead(), nullptr, true})) {}
  ggml_tensor* add(const std::string& name, ggml_type type, const std::vector<std::int64_t>& ne);
  void allocate(ggml_backend_buffer_type_t type, ggml_backend_buffer_usage usage);

 private:
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
};

// Blocks of `rows` rows of `cols` normal numbers, quantised by ggml.
std::vector<std::uint8_t> random_blocks(ggml_type type, std::int64_t rows, std::int64_t cols,
                                        unsigned seed);
// Rows of which about `share` of the numbers are positive, and the others zero.
std::vector<float> random_inputs(std::int64_t rows, std::int64_t cols, double share, unsigned seed);

// The backend and the CPU's under one scheduler.
class Host {
 public:
  explicit Host(int threads = 2);

  // Builds a graph in a context of its own, sets its inputs and computes it. `build` returns the
  // result.
  using Build = std::function<ggml_tensor*(ggml_context*)>;
  using Fill = std::function<void()>;
  std::vector<float> run(const Build& build, const Fill& fill);
  // Of the last graph: how long it took to compute, and its parts.
  double seconds() const { return seconds_; }
  int splits() const { return ggml_backend_sched_get_n_splits(sched_.get()); }

 private:
  ggml_backend_ptr ours_, cpu_;
  ggml_backend_sched_ptr sched_;
  double seconds_ = 0;
};

// One row of h times one row of a weight, by to_float() and in double, and how much a product that
// rounds h to 8 bits, as ggml does, may differ from it.
struct Expected {
  double value, error;
};
Expected dot(ggml_type type, const std::uint8_t* blocks, const float* h, std::int64_t count);

}  // namespace twell::ggml::test
