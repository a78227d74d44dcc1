#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

std::size_t begin_of_space_before(std::string_view text, std::size_t at) {
  while (at > 0) {
    if (code_class(previous_code(text, at)) != CodeClass::space) break;
    do {
      --at;
    } while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  }
  return at;
}

std::size_t end_of_space_behind(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (code_class(next_code(text, next)) != CodeClass::space) break;
    at = next;
  }
  return at;
}

bool is_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word(previous_code(text, begin))) return false;
  return end == text.size() || !is_word(next_code(text, end));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  if (token.content.empty()) return;
  auto& list = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  list.push_back(token);
  std::stable_sort(list.begin(), list.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  empty_ = false;
}

const AddedToken* AddedTokenFinder::match_at(std::string_view text, std::size_t at) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.compare(at, token.content.size(), token.content) == 0) return &token;
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view text, const Sink& sink) const {
  std::size_t done = 0;  // everything before has been handed on
  for (std::size_t at = 0; at < text.size() && !empty_;) {
    const AddedToken* token = match_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->content.size();
    at = end;  // also where the match does not count
    if (token->single_word && !is_alone(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(begin_of_space_before(text, begin), done);
    if (token->rstrip) end = end_of_space_behind(text, end);
    if (done < begin) sink(text.substr(done, begin - done), -1);
    sink({}, token->id);
    done = end;
  }
  if (done < text.size()) sink(text.substr(done), -1);
}

}  // namespace twell::io
