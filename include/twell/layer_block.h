// A feed-forward layer prepared for CPUs, as one value: sizes, types, form, gate (packed, or as
// stored with a screen), up, down and vectors. It is immutable. Copies share its memory, and any
// number of threads may run one at the same time (twell/layer.h).
//
// write() and save() lay all of it out in one piece of memory, and view() and open() read that
// without a copy: processes that open one file share its pages. The bytes are the same on every
// tier, and any tier runs them; only the fastest gate form differs. They are little-endian and
// begin with a header of a fixed size. Later versions of this library read them, or refuse them by
// their version number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twell/context.h"
#include "twell/ffn.h"
#include "twell/findings.h"

#pragma GCC visibility push(default)
namespace twell {

// The weights of a layer as a checkpoint has them: rows of bf16, f32 or codes (twell/weight.h).
struct StoredWeights {
  WeightView gate;               // Wg [H, D]; Wu of a layer without a gate
  std::optional<WeightView> up;  // Wu [H, D]; none in a layer without a gate
  WeightView down;               // Wd [columns, H], or [H, columns] where it is neuron-major
  bool neuron_major = false;
};

struct BlockOptions {
  // Dtype of x and y. None: that of the weights, or bf16 for codes, which go with both.
  std::optional<DType> dtype = {};
  // Whether the rows of up and down are copied an odd number of cache lines apart (spread_stride).
  // None: if the tier gathers pieces of rows (TierTuning::gather_columns).
  std::optional<bool> spread = {};
};

class LayerBlock {
 public:
  // The layer with the gate form that `findings` call for on the context's tier; packed without
  // them. Vectors are copied, down if it is not neuron-major, and up and down if their rows are
  // spread. The caller owns everything else and must keep it alive and unchanged
  // (external_bytes()). Throws Error naming the argument.
  LayerBlock(const Context& context, const StoredWeights& weights, const FfnForm& form,
             const LayerFindings* findings = nullptr, const BlockOptions& options = {});

  // A move is a copy, so that views always have their memory.
  LayerBlock(const LayerBlock&) = default;
  LayerBlock& operator=(const LayerBlock&) = default;

  const FfnShape& shape() const { return shape_; }
  std::int64_t columns() const { return weights_.down.cols; }  // of y
  GateForm gate_form() const { return weights_.form(); }
  // As ffn() takes them: up and down [H, ...], neuron-major. They live as long as a copy of this.
  const FfnWeights& weights() const { return weights_; }
  const FfnForm& form() const { return form_; }
  // The findings that it was prepared by; null if there were none.
  const LayerFindings* findings() const { return findings_.get(); }
  std::int64_t own_bytes() const { return own_bytes_; }  // of memory that copies of this share
  // Of weights that stay the caller's: up, and the gate if it has a screen. 0 if it was read by
  // view() or open().
  std::int64_t external_bytes() const { return external_bytes_; }

  // The number of bytes that write() writes, a multiple of 64.
  std::size_t size() const;
  // Writes size() bytes to `out`, which is a multiple of 64.
  void write(void* out) const;
  // Reads what write() wrote, in place. The bytes must not change while copies of the block live;
  // `owner`, if not null, keeps them alive. Throws Error{invalid_argument} if they are other bytes
  // or not all of them. The numbers within weights are not checked.
  static LayerBlock view(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = {});

  // The same as a file. save() replaces `path`, which keeps its mode, when all is written, or
  // leaves it as it was. If it is killed, it leaves a file `.….twell-tmp` beside it. open() maps
  // the file, which may be replaced but must not become shorter. Errors name the path.
  void save(const std::string& path) const;
  static LayerBlock open(const std::string& path);

 private:
  friend class BlockBuilder;  // src/layer/block_builder.h
  LayerBlock() = default;

  FfnShape shape_;
  FfnWeights weights_;
  FfnForm form_;
  std::shared_ptr<const LayerFindings> findings_;
  std::vector<std::shared_ptr<const void>> owners_;
  std::int64_t own_bytes_ = 0;
  std::int64_t external_bytes_ = 0;
};

}  // namespace twell
#pragma GCC visibility pop
