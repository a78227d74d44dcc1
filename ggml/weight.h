// A weight in our buffer, and how it is multiplied: packed, or, where it is a down before which so
// much fires that one row is faster if all of it is read, by the host's own kernels.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ggml/host.h"
#include "twell/ggml.h"

namespace twell::ggml {

class Weight {
 public:
  // Of a tensor of a format that libtwell has. It has no numbers before set() gave it all of them.
  explicit Weight(const ggml_tensor& tensor);

  const ggml_tensor& tensor() const { return tensor_; }
  GgmlOrder order() const { return order_; }
  // Bytes of the tensor as in a GGUF file, from `offset` on. get() gives the same bytes.
  void set(const void* data, std::size_t offset, std::size_t size);
  void get(void* data, std::size_t offset, std::size_t size) const;

  // A matrix for each expert, or one.
  using Packed = std::shared_ptr<const std::vector<GgmlMatrix>>;
  struct Form {
    Packed packed;
    std::shared_ptr<const HostWeight> host;
  };
  // How to multiply the rows of `tokens` tokens, of whose inputs `share` are not zero: one of the
  // two is null. Both are where it has no numbers yet. `share` says nothing of an up or a gate.
  Form form_for(std::int64_t tokens, double share);
  void add_time(double seconds);

  // Since it was loaded.
  struct Counts {
    std::int64_t calls = 0, tokens = 0;
    double fired = 0;  // shares of inputs, summed over tokens
    double seconds = 0;
    bool packed = false;
  };
  Counts counts() const;

 private:
  void load(const std::byte* blocks);
  void take_to_host();
  std::vector<std::byte> blocks() const;

  ggml_tensor tensor_;
  GgmlOrder order_;
  mutable std::mutex mutex_;
  Form form_;  // one of the two
  bool stays_packed_ = false;
  std::vector<std::byte> partial_;  // what came in pieces
  std::size_t there_ = 0;           // bytes of it
  Counts counts_;
  double recent_ = 0;  // share that fired, the last tokens most
};

}  // namespace twell::ggml
