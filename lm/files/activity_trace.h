// Which neurons of a model fired for which tokens of a text, in a file.
//
// All little-endian. 64 bytes of header:
//   0  char[8] "TWELLTRC"
//   8  u32     version, 1 or 2
//  12  u32     layers
//  16  u32     D, width of the model
//  20  u32     H, neurons of a feed-forward layer
//  24  u32     1 where the layers have a gate, else 0
//  28  u32     tokens of a sequence: the text was run in windows of that many
//  32  u64     tokens
//  40  zeros
// then u64 × layers, the bytes of each layer's rows; in version 2 u32 × tokens, the ids of the
// tokens in the model's vocabulary; then the rows, layer by layer. A row is one token: the number
// of its active neurons, then their ids, ascending, each as the difference to the one before minus
// 1 (the first: the id itself). All are varints: seven bits a byte, the lowest first, the top bit
// set where another byte follows. At 30 non-zeros of 5632 that is 45 bytes a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/mapped_file.h"

namespace twell::io {

inline constexpr std::string_view kActivityTraceMagic = "TWELLTRC";

struct ActivityTraceHeader {
  std::uint32_t layers = 0;   // 1 … 65,536
  std::uint32_t width = 0;    // D, 1 … 2^24
  std::uint32_t neurons = 0;  // H, 1 … 2^24
  bool gated = true;
  std::uint32_t window = 0;
  std::uint64_t tokens = 0;
};

// The active neurons of consecutive tokens of one layer.
struct ActivityRows {
  std::vector<std::uint64_t> starts = {0};  // [rows + 1] into neurons
  std::vector<std::uint32_t> neurons;

  std::size_t rows() const { return starts.size() - 1; }
  std::span<const std::uint32_t> row(std::size_t i) const {
    return std::span(neurons).subspan(starts[i], starts[i + 1] - starts[i]);
  }
};

class ActivityTrace {
 public:
  // Checks the header against the file's length; rows are checked when they are read. Throws Error
  // (environment) naming the file.
  explicit ActivityTrace(const std::filesystem::path& path);
  // Of bytes that stay where they are; `name` is for messages.
  ActivityTrace(std::span<const std::byte> file, std::string name);

  const ActivityTraceHeader& header() const { return header_; }
  // [tokens], or empty: version 1 has none.
  std::vector<std::uint32_t> token_ids() const;
  // The first `most` tokens of a layer (all, where there are fewer). Memory grows with what the
  // file really holds: a neuron takes at least a byte of it.
  ActivityRows read(std::uint32_t layer, std::uint64_t most = ~std::uint64_t{0}) const;

 private:
  void parse();

  std::vector<MappedFile> mapped_;  // one or, for bytes in memory, none
  std::span<const std::byte> bytes_;
  std::string name_;
  ActivityTraceHeader header_;
  std::uint64_t id_bytes_ = 0;          // of the token ids, behind the table of layers
  std::vector<std::uint64_t> offsets_;  // [layers + 1] of the rows in the file
};

class ActivityTraceWriter {
 public:
  // `header.tokens` is counted, not taken.
  explicit ActivityTraceWriter(const ActivityTraceHeader& header);
  // The next token of a layer. Throws Error (invalid_argument) where the ids do not ascend or are
  // not below H.
  void append(std::uint32_t layer, std::span<const std::uint32_t> neurons);
  // Of all tokens. Without them the file is of version 1.
  void set_token_ids(std::vector<std::uint32_t> ids) { token_ids_ = std::move(ids); }
  ActivityRows read(std::uint32_t layer) const;  // what was appended
  std::uint64_t bytes() const;                   // of the file
  // Writes the file atomically. Throws Error (invalid_argument) where layers have different numbers
  // of tokens, or there are ids of another number of them.
  void save(const std::filesystem::path& path);

 private:
  ActivityTraceHeader header_;
  std::vector<std::vector<std::byte>> layers_;
  std::vector<std::uint64_t> tokens_;  // of each layer
  std::vector<std::uint32_t> token_ids_;
};

}  // namespace twell::io
