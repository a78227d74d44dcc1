// AMX for processors without it. The kernels' machine code runs as it is; an instruction that the
// processor refuses (SIGILL) is decoded and executed here, as Intel's manual (Software Developer's
// Manual, volume 2) has it: faults, what a tile's unused part becomes, order and rounding of sums.
// So encodings, operands and the configuration in memory are tested too. A processor with AMX
// executes all of it itself: the trap is then never met. Test tool only.
#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "twell/device.h"
#include "twell/dtype.h"

// Sums of what is in tiles take a third of the time under the sanitizers; loads and stores are
// watched.
#define TWELL_UNWATCHED __attribute__((no_sanitize("address", "undefined")))

namespace twell {

namespace {

// Whether all of AMX's instructions are refused, or none. A processor that has tiles configures
// them for every process, and gives their registers to those that the system lets have them.
bool one_of_a_kind() {
  constexpr unsigned kTile = 1U << 24;
  constexpr long kRequest = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  return (edx & kTile) == 0 || syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

// Stands in for the library's own: AMX, by this file, and nothing else but portable.
bool cpu_tier_available(CpuTier tier) {
  static const bool amx =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16") && one_of_a_kind();
  return tier == CpuTier::portable || (tier == CpuTier::amx && amx);
}

namespace amx {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64, kColumns = 16;

struct Tiles {
  bool configured = false;
  int rows[kTiles], bytes[kTiles];  // bytes: of a row
  alignas(64) std::byte data[kTiles][kRows][kRowBytes];
};
thread_local Tiles tiles;

// What the processor answers with an exception.
void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "AMX: %s\n", what);
  std::abort();
}

enum class Prefix { none, p66, f3, f2 };  // VEX.pp

struct Instruction {
  std::uint8_t opcode;
  Prefix prefix;
  bool memory;           // else ModRM names a register
  int reg, rm, third;    // tiles: ModRM.reg, ModRM.rm, VEX.vvvv
  std::uint64_t base;    // of memory: displacement included,
  std::uint64_t stride;  // and the scaled index apart
  const std::uint8_t* next;
};

// Registers by the numbers that instructions have for them.
std::uint64_t general_register(const greg_t* registers, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(registers[kOrder[number]]);
}

template <class T>
std::uint64_t displacement(const std::uint8_t*& at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  at += sizeof value;
  return static_cast<std::uint64_t>(std::int64_t{value});
}

// One of AMX's, all of which have three bytes of VEX prefix, map 0F38, W and L 0.
std::optional<Instruction> decode(const greg_t* registers) {
  constexpr int kSib = 4, kNoBase = 5;
  const auto* at = reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]);
  if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return std::nullopt;
  const int index_high = (at[1] & 0x40) != 0 ? 0 : 8, base_high = (at[1] & 0x20) != 0 ? 0 : 8;
  Instruction out = {};
  out.prefix = static_cast<Prefix>(at[2] & 3);
  out.third = ~(at[2] >> 3) & 15;
  out.opcode = at[3];
  const int mode = at[4] >> 6;
  out.reg = (at[4] >> 3 & 7) + ((at[1] & 0x80) != 0 ? 0 : 8);
  out.rm = at[4] & 7;
  at += 5;
  out.memory = mode != 3;
  if (!out.memory) {
    out.rm += base_high;
    out.next = at;
    return out;
  }
  int base = out.rm;
  if (out.rm == kSib) {
    base = *at & 7;
    const int index = (*at >> 3 & 7) + index_high;
    if (index != kSib) out.stride = general_register(registers, index) << (*at >> 6);
    ++at;
  }
  if (mode == 0 && base == kNoBase) return std::nullopt;  // no kernel's tile lies there
  out.base = general_register(registers, base + base_high);
  if (mode == 1) out.base += displacement<std::int8_t>(at);
  if (mode == 2) out.base += displacement<std::int32_t>(at);
  out.next = at;
  return out;
}

// Palette, first row, 14 zeros, 16 × bytes of a row, 16 × rows.
void load_config(const std::uint8_t* from) {
  constexpr int kReserved = 2, kBytes = 16, kRowsOf = 48;
  require(from[0] == 1 && from[1] == 0, "palette 1 from row 0 is expected");
  for (int i = kReserved; i < kBytes; ++i) require(from[i] == 0, "reserved bytes are 0");
  for (int t = 0; t < 16; ++t) {
    const int rows = from[kRowsOf + t],
              bytes = from[kBytes + 2 * t] + 256 * from[kBytes + 2 * t + 1];
    require(t < kTiles || (rows == 0 && bytes == 0), "there are eight tiles");
    require(rows <= kRows && bytes <= kRowBytes, "a tile is larger than 16 rows of 64 bytes");
    require((rows == 0) == (bytes == 0), "a tile has rows without bytes, or bytes without rows");
    if (t < kTiles) tiles.rows[t] = rows, tiles.bytes[t] = bytes;
  }
  tiles.configured = true;
  std::memset(tiles.data, 0, sizeof tiles.data);
}

struct Tile {
  std::byte (*data)[kRowBytes];
  int rows, bytes;
};
Tile tile(int number) {
  require(tiles.configured, "no tiles are configured");
  require(number < kTiles && tiles.rows[number] > 0, "a tile is used that has no rows");
  return {tiles.data[number], tiles.rows[number], tiles.bytes[number]};
}

void load(const Instruction& in) {
  const Tile to = tile(in.reg);
  std::memset(to.data, 0, kRows * kRowBytes);
  for (int r = 0; r < to.rows; ++r) {
    const std::uint64_t row = in.base + static_cast<std::uint64_t>(r) * in.stride;
    std::memcpy(to.data[r], reinterpret_cast<const void*>(row), static_cast<std::size_t>(to.bytes));
  }
}

void store(const Instruction& in) {
  const Tile from = tile(in.reg);
  for (int r = 0; r < from.rows; ++r) {
    const std::uint64_t row = in.base + static_cast<std::uint64_t>(r) * in.stride;
    std::memcpy(reinterpret_cast<void*>(row), from.data[r], static_cast<std::size_t>(from.bytes));
  }
}

// tdp…: sum(row of C, row of A, B, columns) for each row of C.
template <class C, class Sum>
void multiply(const Instruction& in, Sum sum) {
  const Tile c = tile(in.reg), a = tile(in.rm), b = tile(in.third);
  require(in.reg != in.rm && in.reg != in.third && in.rm != in.third, "a tile is there twice");
  require(c.rows == a.rows && c.bytes == b.bytes && a.bytes / 4 == b.rows && c.bytes % 4 == 0 &&
              a.bytes % 4 == 0,
          "shapes of tiles do not match");
  for (int r = 0; r < c.rows; ++r) {
    alignas(64) C row[kColumns];
    std::memcpy(row, c.data[r], sizeof row);
    sum(row, a.data[r], b);
    std::memcpy(c.data[r], row, sizeof row);  // beyond its columns it is 0, and stays so
  }
}

// Inputs of even and of odd number are summed from 0, each in order, and then added. Subnormal
// numbers are 0.
TWELL_UNWATCHED void multiply_bf16(const Instruction& in) {
  constexpr unsigned kZeroSubnormals = 0x8040;  // results and inputs
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kZeroSubnormals);
  alignas(64) static thread_local float wide[kRows][2][kColumns];  // of B
  const Tile b = tile(in.third);
  for (int k = 0; k < b.rows; ++k) {
    bf16 pairs[kColumns][2];
    std::memcpy(pairs, b.data[k], sizeof pairs);
    for (int n = 0; n < kColumns; ++n) {
      for (int i = 0; i < 2; ++i) wide[k][i][n] = static_cast<float>(pairs[n][i]);
    }
  }
  multiply<float>(in, [](float* c, const std::byte* a_row, const Tile& b) TWELL_UNWATCHED {
    alignas(64) float sums[2][kColumns] = {};
    bf16 a[2 * kRows];
    std::memcpy(a, a_row, sizeof a);
    for (int k = 0; k < b.rows; ++k) {
      for (int i = 0; i < 2; ++i) {
        const auto x = static_cast<float>(a[2 * k + i]);
        for (int n = 0; n < kColumns; ++n) sums[i][n] += x * wide[k][i][n];
      }
    }
    for (int n = 0; n < kColumns; ++n) c[n] += sums[0][n] + sums[1][n];
  });
  _mm_setcsr(before);
}

// Bytes of A have no sign, those of B have one. Sums wrap around.
void multiply_bytes(const Instruction& in) {
  multiply<std::uint32_t>(
      in, [](std::uint32_t* c, const std::byte* a_row, const Tile& b) TWELL_UNWATCHED {
        std::uint8_t a[kRowBytes];
        std::memcpy(a, a_row, sizeof a);
        for (int k = 0; k < b.rows; ++k) {
          std::int8_t fours[kColumns][4];
          std::memcpy(fours, b.data[k], sizeof fours);
          for (int n = 0; n < kColumns; ++n) {
            for (int i = 0; i < 4; ++i)
              c[n] += static_cast<std::uint32_t>(a[4 * k + i] * fours[n][i]);
          }
        }
      });
}

// False where the instruction is none that the kernels use.
bool execute(const Instruction& in) {
  constexpr std::uint8_t kConfigure = 0x49, kLoad = 0x4B, kBf16 = 0x5C, kBytes = 0x5E;
  const auto is = [&](std::uint8_t opcode, Prefix prefix, bool memory) {
    return in.opcode == opcode && in.prefix == prefix && in.memory == memory;
  };
  if (is(kConfigure, Prefix::none, true)) {
    load_config(reinterpret_cast<const std::uint8_t*>(in.base + in.stride));
  } else if (is(kConfigure, Prefix::none, false)) {
    tiles.configured = false;
  } else if (is(kConfigure, Prefix::f2, false)) {
    const Tile zero = tile(in.reg);
    std::memset(zero.data, 0, kRows * kRowBytes);
  } else if (is(kLoad, Prefix::f2, true)) {
    load(in);
  } else if (is(kLoad, Prefix::f3, true)) {
    store(in);
  } else if (is(kBf16, Prefix::f3, false)) {
    multiply_bf16(in);
  } else if (is(kBytes, Prefix::p66, false)) {
    multiply_bytes(in);
  } else {
    return false;
  }
  return true;
}

// All AMX instructions from the refused one on, up to another one: a signal takes a microsecond.
void on_illegal_instruction(int number, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const greg_t refused = registers[REG_RIP];
  for (auto in = decode(registers); in && execute(*in); in = decode(registers)) {
    registers[REG_RIP] = static_cast<greg_t>(reinterpret_cast<std::intptr_t>(in->next));
  }
  if (registers[REG_RIP] == refused) signal(number, SIG_DFL);  // not ours: it ends the program
}

[[maybe_unused]] const bool kInstalled = [] {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}();

}  // namespace
}  // namespace amx
}  // namespace twell
