// llama2.c's tokenizer.bin: i32 length of the longest token; then for each token f32 score, i32
// length and its bytes. Encoding is SentencePiece's BPE: characters that are tokens, bytes where a
// character is none, and the pair whose union has the highest score merges first.
// Source: https://github.com/karpathy/llama2.c (run.c, tokenizer.py).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/bpe.h"
#include "io/file_error.h"
#include "io/tokenizer_impl.h"
#include "io/unicode.h"

namespace twell::io {
namespace {

constexpr std::int32_t kBos = 1;
constexpr std::int32_t kEos = 2;
constexpr std::int32_t kFirstByte = 3;  // ids of the 256 single bytes
constexpr std::size_t kFewestTokens = kFirstByte + 256;
// The longest of the Llama 2 vocabulary is 27. Bounds the work for a hostile file, where each token
// is cut at every place.
constexpr std::int32_t kLongestToken = 128;

struct Entry {
  float score;
  std::string_view content;
};

std::vector<Entry> read_entries(std::string_view bytes, const std::string& file) {
  std::size_t at = 0;
  const auto read = [&](auto& value, const char* what) {
    if (bytes.size() - at < sizeof value) fail_file(file, "ends within {}: truncated?", what);
    std::memcpy(&value, bytes.data() + at, sizeof value);
    at += sizeof value;
  };
  std::int32_t longest = 0;
  read(longest, "its header");
  if (longest < 1 || longest > kLongestToken) {
    fail_file(file, "claims tokens of up to {} bytes, expected 1 to {}: not a llama2.c tokenizer?",
              longest, kLongestToken);
  }
  std::vector<Entry> out;
  while (at < bytes.size()) {
    Entry entry{};
    std::int32_t length = 0;
    read(entry.score, "a score");
    read(length, "a length");
    if (length < 0 || length > longest || static_cast<std::size_t>(length) > bytes.size() - at ||
        !std::isfinite(entry.score)) {
      fail_file(file, "token {} has {} bytes and the score {}: damaged?", out.size(), length,
                entry.score);
    }
    entry.content = bytes.substr(at, static_cast<std::size_t>(length));
    at += static_cast<std::size_t>(length);
    out.push_back(entry);
  }
  if (out.size() < kFewestTokens) {
    fail_file(file, "has {} tokens, expected at least {}", out.size(), kFewestTokens);
  }
  return out;
}

// "<0x0A>" stands for that byte.
std::string bytes_of(std::string_view content) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (content.size() == 6 && content.starts_with("<0x") && content.ends_with('>')) {
    const std::size_t high = kDigits.find(content[3]);
    const std::size_t low = kDigits.find(content[4]);
    if (high != kDigits.npos && low != kDigits.npos) {
      return std::string(1, static_cast<char>(high * 16 + low));
    }
  }
  return std::string(content);
}

class Llama2cTokenizer : public Tokenizer::Impl {
 public:
  Llama2cTokenizer(const std::vector<Entry>& entries, const std::string& file)
      : merges_(entries.size()) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      add(id, std::string(entries[i].content), bytes_of(entries[i].content), entries.size(), file);
    }
    for (std::int32_t id = 0; id < kFirstByte; ++id) {
      tokens[static_cast<std::size_t>(id)].special = true;
    }
    add_merges(entries);
    bos = kBos;
    eos = kEos;
  }

  void encode(std::string_view text, bool add_special_tokens,
              std::vector<std::int32_t>& out) const override {
    if (add_special_tokens) out.push_back(kBos);
    if (text.empty()) return;
    std::vector<std::int32_t> symbols;
    symbols.reserve(text.size() + 1);
    // SentencePiece puts a space before every text.
    if (const auto space = ids.find(" "); space != ids.end()) symbols.push_back(space->second);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      next_code(text, at);
      const std::string character(text.substr(begin, at - begin));
      if (const auto found = ids.find(character); found != ids.end()) {
        symbols.push_back(found->second);
      } else {
        for (const char c : character) {
          symbols.push_back(kFirstByte + static_cast<unsigned char>(c));
        }
      }
    }
    merges_.merge(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
  }

  // The space that encode() puts before a text is taken away again.
  std::string_view piece(std::int32_t id, std::optional<std::int32_t> previous) const override {
    std::string_view bytes = Impl::piece(id, previous);
    if (previous == kBos && bytes.starts_with(' ')) bytes.remove_prefix(1);
    return bytes;
  }

 private:
  // Every way to cut a token into two others. Equal scores have equal rank: the leftmost wins.
  void add_merges(const std::vector<Entry>& entries) {
    std::vector<float> scores;
    for (const Entry& entry : entries) scores.push_back(entry.score);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string content(entries[i].content);
      const auto merged = ids.find(content)->second;
      const auto rank =
          std::lower_bound(scores.begin(), scores.end(), entries[i].score, std::greater<>()) -
          scores.begin();
      for (std::size_t cut = 1; cut < content.size(); ++cut) {
        const auto left = ids.find(content.substr(0, cut));
        const auto right = ids.find(content.substr(cut));
        if (left == ids.end() || right == ids.end()) continue;
        merges_.add(left->second, right->second, {static_cast<std::uint32_t>(rank), merged});
      }
    }
  }

  MergeTable merges_;
};

}  // namespace

std::shared_ptr<Tokenizer::Impl> read_llama2c_tokenizer(std::string_view bytes,
                                                        const std::string& file) {
  auto out = std::make_shared<Llama2cTokenizer>(read_entries(bytes, file), file);
  out->files.emplace_back("tokenizer.bin", std::string(bytes));
  return out;
}

}  // namespace twell::io
