// Sums over the chunks of queued rows: by a block, or by a warp.
//
// As many teams as the GPU holds take chunks of rows off the queue until it is empty, so that a row
// that has everything keeps no others waiting. The sums of a row's chunks are added in order, by
// the team that finishes last or by the one that has them all: the bits are the same.
#pragma once

#include "cuda/kernels/common/gather.cuh"
#include "cuda/kernels/common/row_queue.cuh"

namespace twell::cuda {

// A block that works on one item at a time.
class BlockTeam {
 public:
  __device__ __forceinline__ BlockTeam(ActiveList& list, const RowQueue& queue, int group)
      : list_(list), queue_(queue), group_(group) {
    if (threadIdx.x == 0) next_ = take_item(queue_, group_);
  }
  __device__ __forceinline__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ RowItem next() {
    // Of two places: some threads may still read the item before.
    if (threadIdx.x == 0) list_.items[turn_] = next_;
    __syncthreads();
    const RowItem item = list_.items[turn_];
    turn_ ^= 1;
    // The next item's latency passes behind the work on this one.
    if (threadIdx.x == 0 && item.row >= 0) next_ = take_item(queue_, group_);
    return item;
  }
  // Whether all `chunks` of a row are finished, of which this one has just been.
  __device__ __forceinline__ bool last(std::uint32_t* finished, int chunks) {
    return last_of_row(list_, finished, chunks);
  }

 private:
  ActiveList& list_;
  const RowQueue& queue_;
  int group_;
  RowItem next_ = {-1, -1};
  int turn_ = 0;
};

// A warp that does.
class WarpTeam {
 public:
  __device__ __forceinline__ WarpTeam(const RowQueue& queue, int group)
      : queue_(queue), group_(group), lane_(static_cast<int>(threadIdx.x) % 32) {
    if (lane_ == 0) next_ = take_item(queue_, group_);
  }
  __device__ __forceinline__ int index() const {
    return static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  }
  __device__ __forceinline__ RowItem next() {
    const RowItem item = {__shfl_sync(0xffffffffU, next_.row, 0),
                          __shfl_sync(0xffffffffU, next_.chunk, 0)};
    if (lane_ == 0 && item.row >= 0) next_ = take_item(queue_, group_);
    return item;
  }
  __device__ __forceinline__ bool last(std::uint32_t* finished, int chunks) {
    __threadfence();
    __syncwarp();
    std::uint32_t ticket = 0;
    if (lane_ == 0) ticket = atomicAdd(finished, 1U);
    ticket = __shfl_sync(0xffffffffU, ticket, 0);
    const bool last = ticket == static_cast<std::uint32_t>(chunks) - 1;
    if (last) __threadfence();
    return last;
  }

 private:
  const RowQueue& queue_;
  int group_;
  int lane_;
  RowItem next_ = {-1, -1};
};

// Where a row's sums are while they are not with a team: [(partials + teams) × groups × floats].
struct PartialSums {
  float* data;
  std::int64_t floats;  // of one
  int group, groups;
};

// A chunk of a row, as the functions of sum_rows() get it.
struct Chunk {
  int row;
  int begin, count;  // of the row's list
  int shared;        // the number of its sums, if teams share the row; else −1
};

// Calls, for each row of the queue: window(chunk), which adds a chunk to `sums`; before(row), which
// adds what the row starts from; finish(row, first, chunks), when `sums` is complete. A shared row
// has its sums at numbers [first, first + chunks); first is −1 where one team had them all.
template <class Team, class Sums, class Count, class Window, class Before, class Finish>
__device__ __forceinline__ void sum_rows(Team& team, Sums& sums, const RowQueue& queue,
                                         const PartialSums& partial, Count count_of, Window window,
                                         Before before, Finish finish) {
  // What follows a chunk's loops is computed after them: they need the registers.
  const auto place_of = [&](std::int64_t number) {
    return partial.data + (number * partial.groups + partial.group) * partial.floats;
  };
  for (RowItem item = team.next(); item.row >= 0; item = team.next()) {
    const int nnz = count_of(item.row);
    const int chunk = chunk_of(queue, nnz);
    const bool shared = item.chunk >= 0;
    int begin = shared ? item.chunk * chunk : 0;
    const int end = shared ? min(begin + chunk, nnz) : nnz;
    do {
      sums.clear();
      window(Chunk{item.row, begin, min(chunk, end - begin),
                   shared ? queue.first_partial[item.row] + item.chunk : -1});
      // Of a row whose chunks this team takes in turn.
      const std::int64_t own = std::int64_t{queue.partials} + team.index();
      if (shared) {
        sums.store_partial(place_of(queue.first_partial[item.row] + item.chunk));
      } else {
        if (begin == 0) {
          before(item.row);
        } else {
          sums.add_partial(place_of(own));
        }
        if (begin + chunk < end) sums.store_partial(place_of(own));
      }
      begin += chunk;
    } while (begin < end);
    const int chunks = shared ? (nnz + chunk - 1) / chunk : 1;
    const int first = shared ? queue.first_partial[item.row] : -1;
    if (shared) {
      std::uint32_t* finished =
          queue.finished + std::int64_t{item.row} * partial.groups + partial.group;
      if (!team.last(finished, chunks)) continue;
      sums.clear();
      before(item.row);
      for (int c = 0; c < chunks; ++c) sums.add_partial(place_of(first + c));
    }
    finish(item.row, first, chunks);
  }
}

}  // namespace twell::cuda
