// The fp64 reference of one layer is what every tier and every path of it is compared with, and
// takes longer than all of them: it is computed once.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/ref/ref.h"

namespace twell::test {

// Results of one function by its inputs, which are compared bit for bit.
template <class Value>
class Remembered {
 public:
  using Inputs = std::initializer_list<const ref::Matrix*>;

  // compute(), or what it gave for these inputs before. Valid until the next call.
  template <class F>
  const Value& of(Inputs inputs, F compute) {
    const std::uint64_t hash = hash_of(inputs);
    const auto [first, last] = entries_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (same(it->second.inputs, inputs)) return it->second.value;
    }
    if (numbers_ > kMostNumbers) {
      entries_.clear();
      numbers_ = 0;
    }
    Entry entry;
    for (const ref::Matrix* input : inputs) {
      numbers_ += input->data.size();
      entry.inputs.push_back(*input);
    }
    entry.value = compute();
    return entries_.emplace(hash, std::move(entry))->second.value;
  }

 private:
  struct Entry {
    std::vector<ref::Matrix> inputs;
    Value value;
  };
  static constexpr std::size_t kMostNumbers = 12 << 20;  // of inputs: 96 MiB

  static std::uint64_t hash_of(Inputs inputs) {
    std::uint64_t hash = 1;
    for (const ref::Matrix* input : inputs) {
      for (const double number : input->data) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &number, sizeof bits);
        hash = (hash ^ (bits >> 32) ^ bits) * 0x9e3779b97f4a7c15U;
      }
    }
    return hash;
  }
  static bool same(const std::vector<ref::Matrix>& kept, Inputs inputs) {
    const auto* each = inputs.begin();
    for (const ref::Matrix& matrix : kept) {
      const ref::Matrix& other = **each++;
      if (matrix.rows != other.rows || matrix.cols != other.cols) return false;
      const std::size_t bytes = matrix.data.size() * sizeof(double);
      if (bytes > 0 && std::memcmp(matrix.data.data(), other.data.data(), bytes) != 0) return false;
    }
    return true;
  }

  std::unordered_multimap<std::uint64_t, Entry> entries_;
  std::size_t numbers_ = 0;
};

}  // namespace twell::test
