// The processes that train one model together (data parallel): each takes its share of the passes
// of every step, and the gradients are added before the update.
//
// The engine is MPI, where the build found one (TWELL_MPI). PyTorch's own, c10d, cannot be used
// from C++: its packages have the classes of Gloo, but not the headers that those are declared
// with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace twell::lm {

class Processes {
 public:
  Processes() = default;  // this one alone
  // Those that `mpirun` started together with this one. Throws Error (unsupported) where a launcher
  // started several that cannot reach each other: in a build without MPI, or torchrun's.
  static Processes started();

  std::int64_t rank() const { return rank_; }
  std::int64_t count() const { return count_; }
  bool alone() const { return count_ == 1; }
  bool first() const { return rank_ == 0; }

  // All processes call these in the same order, with spans of the same length. Element by element;
  // the result has the same bits everywhere.
  void sum(std::span<float> values) const;
  void sum(std::span<double> values) const;
  void sum(std::span<std::int64_t> values) const;
  void maximum(std::span<std::int64_t> values) const;
  // The value of the first process.
  template <class T>
  T of_first(T value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    broadcast({reinterpret_cast<std::byte*>(&value), sizeof(T)});
    return value;
  }
  void wait_for_all() const;

  // To be called where an error ends this process: its exit then ends the others. The first returns
  // at once. The others wait for two seconds, so that an error which all meet is told once, by the
  // first, whose exit ends them.
  void failed() const;

 private:
  Processes(std::int64_t rank, std::int64_t count) : rank_(rank), count_(count) {}
  void broadcast(std::span<std::byte> bytes) const;

  std::int64_t rank_ = 0, count_ = 1;
};

}  // namespace twell::lm
