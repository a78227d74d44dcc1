// What blocks that run at the same time see of each other's stores.
//
// The truth is what all blocks agree on: atomics act on it, and load_other_block reads it. A
// block's plain loads read its view: the truth as it was when the kernel started, or at the block's
// last fence that followed an atomic or load_other_block; and the block's own stores. (A fence that
// comes before the atomic that finds a flag set promises nothing.) A store joins the truth by a
// fence of its thread, or of one that knows of it by a barrier, else when the kernel ends. So both
// are as late as CUDA allows, with two exceptions: a fence makes the view new for its whole block,
// and a block's threads see each other's stores before a barrier too.
//
// Kernels load and store as plain C++. While a block runs, its view lies in device memory itself;
// what differs from the view after a thread's turn, that thread stored. A store of the value that
// is there already is therefore not seen. So that only memory that was written need be compared,
// whole pages are protected, and the first store to one is caught as a signal.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/tests/emulation/fibers.h"

namespace twell::emulation {

// Bytes that were stored and are not known to other blocks: their places in a view.
using Stores = std::vector<std::size_t>;

struct View {
  std::unique_ptr<std::byte[]> bytes;  // set in the chunks that were touched
  std::unique_ptr<bool[]> own;         // stored by the block, not yet in the truth
  bool observed = false;               // something of other blocks, since the last refresh()
};

class WeakMemory {
 public:
  explicit WeakMemory(const DeviceMemory& memory);
  ~WeakMemory();  // the kernel's end: all stores join the truth, which stays in device memory
  WeakMemory(const WeakMemory&) = delete;
  WeakMemory& operator=(const WeakMemory&) = delete;

  void start(View& view);  // of a block
  void end(View& view);
  void install(const View& view);  // the block runs next
  // What the running block stored since its last turn or call of this.
  void collect(View& view, Stores& to);
  void publish(View& view, Stores& stores);
  void refresh(View& view);

  // An atomic of the running block, whose stores are collected: where the truth is, null where this
  // is not device memory; and after it was changed.
  void* truth_of(View& view, const void* at, std::size_t bytes);
  void changed(View& view, void* at, std::size_t bytes);
  // The truth and the running block's own stores; false where this is not device memory.
  bool read(View& view, void* to, const void* from, std::size_t bytes);

 private:
  // A page, or a part of one at an allocation's start or end.
  struct Chunk {
    std::byte* at;
    std::size_t bytes;
    std::size_t place;     // in the truth and in views
    bool guarded;          // a whole page: protected unless open
    bool open = false;     // written since the last collect()
    bool touched = false;  // written in this launch: views may differ from each other
  };

  Chunk* find(const void* at);  // null where this is not device memory
  void protect_all(int access);
  void open(Chunk& chunk);
  void touch(Chunk& chunk);
  void collect(Chunk& chunk, View& view, Stores& to);

  std::vector<Chunk> chunks_;  // by address
  std::vector<Chunk*> loose_, open_, touched_;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> truth_;
  std::unique_ptr<std::byte[]> initial_;  // of the chunks that were touched, before
  std::vector<View*> views_;              // of the blocks that run
  std::vector<std::pair<std::size_t, std::byte>> unpublished_;  // of those that ended
};

}  // namespace twell::emulation
