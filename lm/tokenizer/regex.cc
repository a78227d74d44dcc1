#include "tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "files/file_error.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

// The inside of a character class: White_Space, and all else. PCRE2's \s also has U+180E. Both end
// in a range, so that a hyphen behind them begins none.
constexpr std::string_view kSpace =
    R"(\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\t-\r)";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0E-\x1F\x21-\x84\x86-\x9F\xA1-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& file) : in_(pattern), file_(file) {}

  std::string run() {
    while (at_ < in_.size()) step();
    out_.append(left_open_, ')');
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail_unsupported(file_, "the pattern {} uses {}, which is not supported", in_quotes(in_), what);
  }
  bool follows(std::string_view text) const { return in_.compare(at_, text.size(), text) == 0; }

  void step() {
    const char c = in_[at_];
    if (c == '\\') {
      if (!in_class_) atom_ = out_.size();
      escape();
    } else if (in_class_) {
      if (c == '[') refuse("a class within a class");
      if (follows("&&")) refuse("an intersection of classes");
      if (c == ']') in_class_ = false;
      copy(1);
    } else if (c == '*' || c == '+' || c == '?' || c == '{') {
      repeat();
    } else if (c == '[') {
      atom_ = out_.size();
      in_class_ = true;
      copy(1);
      if (follows("^")) copy(1);
      if (follows("]")) refuse("']' at the begin of a class");
    } else if (c == '(') {
      open_group();
    } else if (c == ')') {
      atom_.reset();
      if (!groups_.empty()) {  // else PCRE2 says so
        atom_ = groups_.back().begin;
        out_.append(left_open_, ')');
        left_open_ = groups_.back().left_open;
        groups_.pop_back();
      }
      copy(1);
    } else {
      const bool within = (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;  // a character
      if (c == '|' || c == '^' || c == '$') {
        atom_.reset();
      } else if (!within) {
        atom_ = out_.size();
      }
      copy(1);
    }
  }

  void open_group() {
    atom_.reset();
    // All that follows in the group, alternatives too: x(?i)a|b is x(?i:a|b).
    if (follows("(?i)")) {
      at_ += 4;
      out_ += "(?i:";
      ++left_open_;
      return;
    }
    constexpr std::array<std::string_view, 7> kSpecial = {"(?:",  "(?=",  "(?!", "(?>",
                                                          "(?<=", "(?<!", "(?i:"};
    const auto special = std::ranges::find_if(kSpecial, [&](auto text) { return follows(text); });
    if (special == kSpecial.end() && follows("(?")) refuse("a special group");
    groups_.push_back({out_.size(), std::exchange(left_open_, 0)});
    copy(special == kSpecial.end() ? 1 : special->size());
  }

  struct Interval {
    std::string least, most;
    bool fixed = false;      // {n}
    std::size_t length = 0;  // 0: a brace that begins none
  };

  Interval interval() const {
    Interval out;
    std::size_t i = at_ + 1;
    const auto digits = [&](std::string& to) {
      while (i < in_.size() && std::isdigit(static_cast<unsigned char>(in_[i])) != 0)
        to += in_[i++];
    };
    digits(out.least);
    out.fixed = i < in_.size() && in_[i] != ',';
    if (!out.fixed && i < in_.size()) {
      ++i;
      digits(out.most);
    }
    if (i < in_.size() && in_[i] == '}' && !(out.least.empty() && out.most.empty())) {
      out.length = i + 1 - at_;
      if (out.least.size() > 5 || out.most.size() > 5) refuse("an interval of that length");
    }
    return out;
  }

  // X{n,m}+ repeats X{n,m}, X{n}? is one or none of it, X{,m} is X{0,m}: none of them in PCRE2.
  void repeat() {
    std::string operation(1, in_[at_]);
    std::size_t length = 1;
    if (in_[at_] == '{') {
      const Interval range = interval();
      if (range.length == 0) {
        atom_ = out_.size();
        out_ += "\\{";
        ++at_;
        return;
      }
      const std::string least = range.least.empty() ? "0" : range.least;
      if (!range.most.empty() && std::stoi(range.most) < std::stoi(least)) {
        refuse("an interval that ends before it begins");
      }
      operation = range.fixed ? "{" + least + "}" : "{" + least + "," + range.most + "}";
      length = range.length;
      if (in_.compare(at_ + length, 1, "?") == 0 && !range.fixed) {
        operation += '?';
        ++length;
      }
    } else if (const char next = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
               next == '?' || next == '+') {
      operation += next;
      ++length;
    }
    if (!atom_) refuse("a repetition of nothing");
    at_ += length;
    out_ += operation;
    constexpr std::string_view kRepetitions = "*+?{";
    if (at_ < in_.size() && kRepetitions.find(in_[at_]) != std::string_view::npos) {
      out_.insert(*atom_, "(?:");  // a repetition of the repetition
      out_ += ')';
    }
  }

  void copy(std::size_t count) {
    out_.append(in_, at_, count);
    at_ += count;
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || std::isalnum(byte) == 0) return copy(2);
    switch (c) {
      case 's':
      case 'S':
        at_ += 2;
        out_ += fmt::format("{1}{0}{2}", c == 's' ? kSpace : kNotSpace, in_class_ ? "" : "[",
                            in_class_ ? "" : "]");
        return;
      case 'p':
      case 'P':
        return property();
      case 'v':  // a vertical tab in Oniguruma, all vertical space in PCRE2
        at_ += 2;
        out_ += "\\x0B";
        return;
      case 'u':
        return code_point();
      case 'x':
        return hexadecimal();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'd':
      case 'D':
      case 'A':
      case 'z':
        return copy(2);
      default:
        refuse(in_quotes(in_.substr(at_, 2)));
    }
  }

  void property() {
    const std::size_t close = in_.find('}', at_);
    if (in_.compare(at_ + 2, 1, "{") != 0 || close == std::string::npos) {
      refuse("a property without braces");
    }
    out_.append(in_, at_, close - at_);
    at_ = close;
    // Oniguruma's long names of these two, which PCRE2 lacks.
    for (const std::string_view name : {"Letter", "Number"}) {
      if (out_.ends_with(name)) out_.resize(out_.size() - name.size() + 1);
    }
    copy(1);
    // Letters of ASCII by bitmap spare PCRE2 its tables: 14 % of the time to split English.
    constexpr std::string_view kLetter = R"(\p{L})";
    if (!in_class_ && out_.ends_with(kLetter)) {
      out_.insert(out_.size() - kLetter.size(), "[A-Za-z") += ']';
    }
  }

  void code_point() {
    const std::string digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
      refuse("an incomplete \\u");
    }
    at_ += 6;
    out_ += "\\x{" + digits + "}";
  }

  // \xH, \xHH, \x{H...}: whole, since what follows may repeat it.
  void hexadecimal() {
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    const bool braces = in_.compare(at_ + 2, 1, "{") == 0;
    const std::size_t begin = at_ + (braces ? 3 : 2);
    std::size_t end = std::min(in_.find_first_not_of(kDigits, begin), in_.size());
    if (!braces) end = std::min(end, begin + 2);
    const std::string digits = in_.substr(begin, end - begin);
    if (digits.empty() || digits.size() > 8 || (braces && in_.compare(end, 1, "}") != 0)) {
      refuse("an incomplete \\x");
    }
    if (!braces && std::stoul(digits, nullptr, 16) >= 0x80) refuse("a byte of UTF-8");
    out_ += "\\x{" + digits + "}";
    at_ = end + (braces ? 1 : 0);
  }

  struct Group {
    std::size_t begin;      // in out_
    std::size_t left_open;  // of the group around it
  };

  const std::string& in_;
  const std::string& file_;
  std::string out_;
  std::size_t at_ = 0;
  std::optional<std::size_t> atom_;
  std::vector<Group> groups_;
  std::size_t left_open_ = 0;  // groups that (?i) began in the present one
  bool in_class_ = false;
};

pcre2_code* compile(const std::string& pattern, const std::string& file) {
  constexpr std::size_t kLongest = 10'000;
  if (pattern.size() > kLongest) {
    fail_file(file, "a pattern of {} bytes is too long", pattern.size());
  }
  const std::string translated = Translator(pattern, file).run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  // MULTILINE: ^ and $ hold at every line in Oniguruma's default syntax.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 200> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail_file(file, "the pattern {} is wrong: {}", in_quotes(pattern),
              reinterpret_cast<const char*>(message.data()));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it fails, the interpreter works
  return code;
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& file)
    : file_(file), code_(compile(pattern, file), [](void* code) {
        pcre2_code_free(static_cast<pcre2_code*>(code));
      }) {}

std::vector<Span> Regex::find_all(std::string_view text) const {
  auto* code = static_cast<pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::vector<Span> out;
  std::size_t at = 0;
  while (at <= text.size()) {
    int count =
        pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      count = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          data.get(), nullptr);
    }
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) fail_file(file_, "a pattern takes too many steps on this text");
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
    const Span match{found[0], found[1]};
    // An empty match right behind the previous one does not count.
    const bool repeated = match.begin == match.end && !out.empty() && out.back().end == match.end;
    if (!repeated) out.push_back(match);
    at = match.end;
    if (match.begin == match.end) {
      if (at >= text.size()) break;
      next_code(text, at);
    }
  }
  return out;
}

}  // namespace twell::io
