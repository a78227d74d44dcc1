#include "tokenizer/bpe.h"

#include <algorithm>
#include <queue>

namespace twell::io {
namespace {

constexpr std::size_t kSmallestTable = 64;

}  // namespace

MergeTable::MergeTable(std::size_t expected) {
  std::size_t capacity = kSmallestTable;
  while (capacity < expected * 2) capacity *= 2;
  slots_.resize(capacity);
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  // Fibonacci hashing: the upper bits of the product are well mixed.
  std::uint64_t hash = key * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 32;
  std::size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].key != key && slots_[slot].key != kEmpty) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void MergeTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) slots_[slot_of(slot.key)] = slot;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  const std::uint64_t key = key_of(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.key == kEmpty) ++used_;
  slot = {key, merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(key_of(left, right))].merge;
}

void MergeTable::merge(std::vector<std::int32_t>& ids) const {
  if (ids.size() < 2) return;
  // A doubly linked list within arrays; a dead symbol has the id -1.
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<std::int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {ids[static_cast<std::size_t>(i)], i - 1,
                                            i + 1 < count ? i + 1 : -1};
  }
  const auto symbol = [&](std::int32_t at) -> Symbol& {
    return symbols[static_cast<std::size_t>(at)];
  };
  std::vector<Candidate> storage;
  storage.reserve(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{},
                                                                               std::move(storage));
  const auto consider = [&](std::int32_t at) {
    const Symbol& left = symbol(at);
    if (left.next < 0) return;
    const std::int32_t right = symbol(left.next).id;
    const Merge merge = find(left.id, right);
    if (merge.id >= 0) queue.push({merge.rank, at, left.id, right, merge.id});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    // Outdated where one of the two has been merged since.
    if (left.id != best.left || left.next < 0 || symbol(left.next).id != best.right) continue;
    Symbol& right = symbol(left.next);
    left.id = best.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    if (left.previous >= 0) consider(left.previous);
    consider(best.at);
  }
  ids.clear();
  for (std::int32_t at = 0; at >= 0; at = symbol(at).next) ids.push_back(symbol(at).id);
}

bool WordCache::find(std::string_view word, std::vector<std::int32_t>& out) const {
  const Part& part = parts_[Hash{}(word) % kParts];
  const std::lock_guard lock(part.mutex);
  const auto found = part.words.find(word);
  if (found == part.words.end()) return false;
  out.insert(out.end(), found->second.begin(), found->second.end());
  return true;
}

void WordCache::insert(std::string_view word, const std::int32_t* ids, std::size_t count) {
  Part& part = parts_[Hash{}(word) % kParts];
  const std::lock_guard lock(part.mutex);
  if (part.words.size() >= kWordsPerPart) part.words.clear();
  part.words.emplace(std::string(word), std::vector<std::int32_t>(ids, ids + count));
}

}  // namespace twell::io
