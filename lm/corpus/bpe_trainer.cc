#include "corpus/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "files/file_error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace twell::lm {
namespace {

using Id = std::uint32_t;
using Pair = std::pair<Id, Id>;

struct PairHash {
  std::size_t operator()(const Pair& p) const {
    return (static_cast<std::uint64_t>(p.first) << 32U | p.second) * 0x9e3779b97f4a7c15ULL >> 7U;
  }
};

struct Word {
  std::vector<Id> symbols;
  std::int64_t count = 0;
};

struct Candidate {
  Pair pair;
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // where the pair may occur

  bool operator<(const Candidate& other) const {  // less urgent
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

using Where = std::unordered_map<Pair, std::vector<std::uint32_t>, PairHash>;  // words of pairs

class BpeTraining {
 public:
  BpeTraining(const std::unordered_map<std::string, std::int64_t>& counts,
              const BpeOptions& options)
      : options_(options) {
    for (const std::string& special : options.special_tokens) add_token(special);
    const auto& symbols = io::byte_symbols();
    std::array<unsigned, 256> order{};
    std::iota(order.begin(), order.end(), 0U);
    // By code point, which is the order of UTF-8.
    std::ranges::sort(order, {}, [&](unsigned byte) { return std::string_view(symbols[byte]); });
    std::array<Id, 256> id_of_byte{};
    for (const unsigned byte : order) id_of_byte[byte] = add_token(symbols[byte]);
    for (const auto& [text, count] : counts) {
      Word word;
      word.count = count;
      for (const char c : text) word.symbols.push_back(id_of_byte[static_cast<unsigned char>(c)]);
      words_.push_back(std::move(word));
    }
    count_all_pairs();
  }

  void run() {
    while (static_cast<std::int64_t>(tokens_.size()) < options_.vocab_size && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = pair_counts_[top.pair];
      if (top.count != count) {  // merges since have taken some of its occurrences
        top.count = count;
        queue_.push(std::move(top));
        continue;
      }
      if (count < std::max<std::int64_t>(1, options_.min_frequency)) break;
      merge(top);
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  // In the order they were made; of a pair that was merged twice, the later time.
  std::vector<Pair> merges() const {
    std::vector<Pair> out;
    std::unordered_set<Pair, PairHash> seen;
    for (auto it = merges_.rbegin(); it != merges_.rend(); ++it) {
      if (seen.insert(*it).second) out.push_back(*it);
    }
    std::ranges::reverse(out);
    return out;
  }

 private:
  Id add_token(const std::string& text) {
    const auto [it, added] = id_of_.try_emplace(text, static_cast<Id>(tokens_.size()));
    if (added) tokens_.push_back(text);
    return it->second;
  }

  void count_all_pairs() {
    Where where;
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const std::vector<Id>& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        note(where, {symbols[i], symbols[i + 1]}, words_[w].count, w);
      }
    }
    enqueue(std::move(where));
  }

  void note(Where& where, const Pair& pair, std::int64_t count, std::uint32_t word) {
    pair_counts_[pair] += count;
    auto& list = where[pair];
    if (list.empty() || list.back() != word) list.push_back(word);
  }

  void enqueue(Where&& where) {
    for (auto& [pair, words] : where) {
      const std::int64_t count = pair_counts_[pair];
      if (count > 0) queue_.push({pair, count, std::move(words)});
    }
  }

  void merge(const Candidate& top) {
    const auto [a, b] = top.pair;
    const Id merged = add_token(tokens_[a] + tokens_[b]);
    merges_.push_back(top.pair);
    Where where;
    for (const std::uint32_t w : top.words) {
      std::vector<Id>& symbols = words_[w].symbols;
      const std::int64_t count = words_[w].count;
      std::size_t to = 0;
      for (std::size_t from = 0; from < symbols.size(); ++to) {
        if (from + 1 < symbols.size() && symbols[from] == a && symbols[from + 1] == b) {
          if (to > 0) {
            pair_counts_[{symbols[to - 1], a}] -= count;
            note(where, {symbols[to - 1], merged}, count, w);
          }
          if (from + 2 < symbols.size()) {
            pair_counts_[{b, symbols[from + 2]}] -= count;
            note(where, {merged, symbols[from + 2]}, count, w);
          }
          symbols[to] = merged;
          from += 2;
        } else {
          symbols[to] = symbols[from++];
        }
      }
      symbols.resize(to);
    }
    enqueue(std::move(where));
  }

  const BpeOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, Id> id_of_;
  std::vector<Word> words_;
  std::vector<Pair> merges_;
  std::unordered_map<Pair, std::int64_t, PairHash> pair_counts_;
  std::priority_queue<Candidate> queue_;
};

std::string tokenizer_json(const BpeTraining& bpe, const BpeOptions& options) {
  using json = nlohmann::ordered_json;
  json added = json::array();
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    added.push_back({{"id", i},
                     {"content", options.special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  json vocab = json::object();
  // operator[] would search the whole object before each insertion.
  auto& entries = vocab.get_ref<json::object_t&>();
  for (std::size_t i = 0; i < bpe.tokens().size(); ++i) entries.emplace_back(bpe.tokens()[i], i);
  json merges = json::array();
  for (const auto& [a, b] : bpe.merges()) merges.push_back(bpe.tokens()[a] + " " + bpe.tokens()[b]);
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  json out = {{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
              {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
              {"post_processor", nullptr}, {"decoder", byte_level}};
  out["model"] = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", false},
                  {"vocab", vocab},
                  {"merges", merges}};
  return out.dump(2) + "\n";
}

}  // namespace

std::string train_bpe(std::span<const std::string_view> texts, const BpeOptions& options) {
  const auto least = static_cast<std::int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least) {
    io::fail_argument("train_bpe",
                      "vocab_size: expected at least {} (256 bytes and {} special tokens), "
                      "got {}",
                      least, options.special_tokens.size(), options.vocab_size);
  }
  std::unordered_map<std::string, std::int64_t> counts;
  const auto splitter = io::gpt2_pre_tokenizer();
  for (const std::string_view text : texts) {
    if (const auto bad = io::find_invalid_utf8(text); bad != std::string_view::npos) {
      io::fail_argument("train_bpe", "byte {} of the text is no UTF-8: convert the text first",
                        bad);
    }
    if (text.empty()) continue;
    splitter->split(text, [&counts](std::string_view word) { ++counts[std::string(word)]; });
  }
  if (counts.empty()) io::fail_argument("train_bpe", "the text is empty");
  BpeTraining bpe(counts, options);
  bpe.run();
  return tokenizer_json(bpe, options);
}

}  // namespace twell::lm
