// Learns a byte-level BPE tokenizer from text, for runs whose model brings none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twell::lm {

struct BpeOptions {
  std::int64_t vocab_size = 4096;  // special tokens, 256 byte symbols, then merges
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // ids 0, 1, ...
  std::int64_t min_frequency = 2;                               // of a pair that is merged
};

// The contents of a tokenizer.json with GPT-2's pre-tokenizer. Same merges and ids as BpeTrainer of
// the package `tokenizers` with the whole byte alphabet as initial alphabet: most frequent pair
// first, of equals the one with the smaller ids. Fewer entries than vocab_size where the text does
// not have enough pairs. Throws Error (invalid_argument): no text, bytes that are no UTF-8,
// vocab_size too small for the byte symbols.
std::string train_bpe(std::span<const std::string_view> texts, const BpeOptions& options);

}  // namespace twell::lm
