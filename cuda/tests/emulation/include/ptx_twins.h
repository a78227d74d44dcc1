// The host twins of cuda/kernels/ptx: same names, same meaning.
#pragma once

#include <cstddef>
#include <cstdint>

// Where a wrapper is called from, for emulation::accesses(). (A return address would not do: the
// compiler may copy a call, for lanes that go different ways before it.)
#define TWELL_CALLED_FROM const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace twell::cuda::ptx {

std::byte* dynamic_shared();
// Shared addresses are offsets into the block's memory.
std::uint32_t shared_address(const void* pointer);

void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes, TWELL_CALLED_FROM);
void cp_async_commit();
void cp_async_wait_pending(int pending);
template <int kPending>
void cp_async_wait() {
  cp_async_wait_pending(kPending);
}

// These fail on addresses that the GPU would refuse.
uint4 load_shared_row(const void* from, TWELL_CALLED_FROM);
float4 load_shared_row_f4(const float* from, TWELL_CALLED_FROM);
uint4 load_stream(const void* from, TWELL_CALLED_FROM);
// Of memory that other blocks write: what they made known, and what this block stored.
float load_other_block(const float* from, TWELL_CALLED_FROM);
float4 load_other_block_f4(const float* from, TWELL_CALLED_FROM);
void prefetch_l2(const void* from);
void store_16(void* to, uint4 v, TWELL_CALLED_FROM);
void store_f4(float* to, float4 v, TWELL_CALLED_FROM);
void store_shared_16(std::uint32_t to, uint4 v);

void init_barrier(std::uint32_t barrier, std::uint32_t arrivals);
void publish_barriers();
void expect_bytes(std::uint32_t barrier, std::uint32_t bytes);
void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier);
void wait_barrier(std::uint32_t barrier, std::uint32_t parity);

// Kernels run one after the other here.
inline void launch_dependents() {}
inline void wait_for_previous() {}

void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address);
void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t address);
void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void mma_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

std::uint32_t round_bf16x2(float low, float high);
std::uint32_t round_f16x2(float low, float high);
std::uint32_t relu_bf16x2(std::uint32_t word);
std::uint32_t relu_f16x2(std::uint32_t word);
float widen_f16(std::uint16_t bits);

}  // namespace twell::cuda::ptx

#undef TWELL_CALLED_FROM
