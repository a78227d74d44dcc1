// A weight in our buffer, and how it is multiplied: packed, or, if so much fires that reading all
// of it is faster, by the host's own kernels.
#pragma once

#include <ggml.h>

#include <atomic>
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
  explicit Weight(const ggml_tensor& tensor) : tensor_(tensor) {}

  const ggml_tensor& tensor() const { return tensor_; }
  // Bytes of the tensor as in a GGUF file, from `offset` on. get() gives the same bytes.
  void set(const void* data, std::size_t offset, std::size_t size);
  void get(void* data, std::size_t offset, std::size_t size) const;

  // One of the two is there. A matrix for each expert, or one.
  struct Form {
    std::shared_ptr<const std::vector<GgmlDown>> packed;
    std::shared_ptr<const HostWeight> host;
  };
  Form form() const;

  // Adds a call of which `share` of the inputs fired in `rows` rows, and says whether the layer
  // fires too much to stay packed.
  bool count(std::int64_t rows, double share);
  // Hands it over to the host's kernels, for good.
  void unpack();

  // Since it was loaded, in calls, in rows and as a share of the inputs.
  struct Counts {
    std::int64_t calls = 0, rows = 0;
    double fired = 0;  // summed over rows
  };
  Counts counts() const;

 private:
  void load(const std::byte* blocks);
  std::vector<std::byte> blocks() const;

  ggml_tensor tensor_;
  mutable std::mutex mutex_;
  Form form_;
  std::vector<std::byte> partial_;  // what came in pieces
  std::size_t there_ = 0;           // bytes of it
  Counts counts_;
  double recent_ = 0;  // share that fired, the last rows most
};

}  // namespace twell::ggml
