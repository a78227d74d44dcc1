// A weight in our buffer, and how it is multiplied: packed, or, where it cannot be, by the host's
// own kernels.
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
  // Whether inputs are looked at: down's, before which something is zero.
  bool is_down() const { return is_down_; }
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
  // two is null. Both are where it has no numbers yet. A down before which much fires is packed in
  // the other order.
  Form form_for(std::int64_t tokens, double share);
  void add_time(double seconds);

  // Since it was loaded.
  struct Counts {
    std::int64_t calls = 0, tokens = 0;
    double fired = 0;  // shares of inputs, summed over tokens
    double seconds = 0;
    bool sparse = false;  // reads what fired alone
  };
  Counts counts() const;

 private:
  void load(const std::byte* blocks);
  Packed pack(const std::byte* blocks) const;
  void turn();
  std::vector<std::byte> blocks() const;

  ggml_tensor tensor_;
  bool is_down_;
  GgmlOrder order_;
  mutable std::mutex mutex_;
  Form form_;                       // one of the two
  bool stays_ = false;              // in this order
  std::vector<std::byte> partial_;  // what came in pieces
  std::size_t there_ = 0;           // bytes of it
  Counts counts_;
  double recent_ = 0;  // share that fired, the last tokens most
};

}  // namespace twell::ggml
