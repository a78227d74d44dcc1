#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/shared_data.h"

namespace twell::io {
namespace {

const std::string kFile = "dir/tokenizer.json";

// A small byte-level tokenizer: a, b, c, space, "ab", " ab", two special tokens.
const std::string kModel =
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"Ġ":3,"ab":4,"Ġab":5},)"
    R"("merges":[["a","b"],"Ġ ab"]})";
const std::string kAdded =
    R"("added_tokens":[{"id":6,"content":"<s>","special":true},{"id":7,"content":"</s>","special":true}])";
const std::string kPre = R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false})";
const std::string kDecoder = R"("decoder":{"type":"ByteLevel"})";

std::string document(std::initializer_list<std::string> parts) {
  std::string out = "{";
  for (const std::string& part : parts) out += (out.size() > 1 ? "," : "") + part;
  return out + "}";
}
const std::string kSmall = document({kModel, kAdded, kPre, kDecoder});

using Ids = std::vector<std::int32_t>;

TEST(Tokenizer, SmallOne) {
  const Tokenizer t = Tokenizer::from_json(kSmall, kFile);
  EXPECT_EQ(t.encode("ab ab cab"), (Ids{4, 5, 3, 2, 4}));
  EXPECT_EQ(t.encode("a<s>b</s>"), (Ids{0, 6, 1, 7}));
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.encode("axb\xC3\xA9"), (Ids{4}));  // bytes without a symbol are dropped
  EXPECT_EQ(t.decode(Ids{6, 5, 2, 7}), "<s> abc</s>");
  EXPECT_EQ(t.decode(Ids{6, 5, 2, 7}, true), " abc");
  EXPECT_EQ(t.decode(Ids{-1, 0, 99, INT32_MAX, INT32_MIN}), "a");
  EXPECT_EQ(t.vocab_size(), 8);
  EXPECT_EQ(t.token_to_id("Ġab"), 5);
  EXPECT_EQ(t.id_to_token(5), "Ġab");
  EXPECT_FALSE(t.token_to_id("x").has_value());
  EXPECT_FALSE(t.id_to_token(-1).has_value());
  EXPECT_TRUE(t.is_special(6));
  EXPECT_FALSE(t.is_special(5));
  EXPECT_EQ(t.bos_id(), 6);
  EXPECT_EQ(t.eos_id(), 7);
  EXPECT_NE(t.hash(), 0U);
  EXPECT_NE(t.hash(), Tokenizer::from_json(kSmall + " ", kFile).hash());
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  const Tokenizer t = Tokenizer::from_json(kSmall, kFile);
  for (const char* bad : {"\x80", "a\xC3", "a\xC0\x80", "a\xED\xA0\x80", "a\xF4\x90\x80\x80"}) {
    expect_error([&] { t.encode(bad); }, ErrorKind::invalid_argument, "Tokenizer::encode",
                 {"not UTF-8", bad[0] == 'a' ? "byte 1" : "byte 0"});
  }
}

TEST(Tokenizer, SavesAndLoads) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "a");
  spit(dir / "a/tokenizer.json", kSmall);
  spit(dir / "a/tokenizer_config.json",
       R"({"bos_token":null,"eos_token":{"content":"<s>"},"model_max_length":1e30})");
  const Tokenizer t = Tokenizer::load(dir / "a");
  EXPECT_EQ(t.eos_id(), 6);
  t.save(dir / "b/c");
  EXPECT_EQ(slurp(dir / "b/c/tokenizer.json"), kSmall);
  const Tokenizer again = Tokenizer::load(dir / "b/c");
  EXPECT_EQ(again.hash(), t.hash());
  EXPECT_EQ(again.eos_id(), 6);
  expect_file_error([&] { Tokenizer::load(dir / "b"); }, (dir / "b").string(),
                    {"neither tokenizer.json"});
  expect_file_error([&] { Tokenizer::load(dir / "none"); }, (dir / "none").string(),
                    {"No such file"});
  spit(dir / "b/tokenizer.model", "SentencePiece's");
  for (const auto& path : {dir / "b", dir / "b/tokenizer.model"}) {
    expect_error([&] { Tokenizer::load(path); }, ErrorKind::unsupported,
                 (dir / "b/tokenizer.model").string(), {"SentencePiece", "AutoTokenizer"});
  }
  spit(dir / "a/tokenizer_config.json", R"({"eos_token":"<nothing>"})");
  expect_file_error([&] { Tokenizer::load(dir / "a"); }, (dir / "a").string(),
                    {"eos_token", "<nothing>", "not in the vocabulary"});
}

TEST(Tokenizer, RefusesDamagedFiles) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text.substr(0, 300));
    expect_file_error([&] { Tokenizer::from_json(text, kFile); }, kFile, parts);
  };
  const auto model = [](const std::string& inside) {
    return document({"\"model\":{" + inside + "}", kPre, kDecoder});
  };
  refused("", {"not valid JSON"});
  refused(kSmall.substr(0, 100), {"not valid JSON at byte"});
  refused("{}", {"model is missing"});
  refused(document({"\"model\":[]"}), {"model is an array"});
  refused(model(R"("vocab":{},"merges":[])"), {"vocabulary is empty"});
  refused(model(R"("merges":[])"), {"model.vocab is missing"});
  refused(model(R"("vocab":{"a":0})"), {"model.merges is missing"});
  refused(model(R"("vocab":{"a":0,"a":1},"merges":[])"), {"duplicate key \"a\""});
  refused(model(R"("vocab":{"a":0,"b":0},"merges":[])"), {"the id 0", "\"a\"", "\"b\""});
  refused(model(R"("vocab":{"a":-1},"merges":[])"), {"\"a\"", "whole number"});
  refused(model(R"("vocab":{"a":"0"},"merges":[])"), {"\"a\"", "whole number"});
  refused(model(R"("vocab":{"a":2000000000},"merges":[])"), {"2000000000", "1 tokens"});
  refused(model(R"("vocab":{"a":18446744073709551615},"merges":[])"), {"whole number"});
  refused(model(R"("vocab":{"a":0},"merges":["a"])"), {"merge 0", "\"a\""});
  refused(model(R"("vocab":{"a":0},"merges":["a b c"])"), {"merge 0"});
  refused(model(R"("vocab":{"a":0},"merges":[["a"]])"), {"merge 0"});
  refused(model(R"("vocab":{"a":0},"merges":[["a","a"]])"), {"merge 0", "\"aa\"", "not in the"});
  refused(model(R"("vocab":{"a":0},"merges":[["a","b"]])"), {"merge 0", "\"b\""});
  refused(model(R"("vocab":{"a":0},"merges":[],"unk_token":"?")"), {"unk_token", "\"?\""});
  const auto with = [](const std::string& part) {
    return document({kModel, kPre, kDecoder, part});
  };
  refused(with(R"("added_tokens":[{"id":3,"content":"a"}])"), {"\"a\"", "id 3", "0 in the"});
  refused(with(R"("added_tokens":[{"id":3,"content":"new"}])"), {"\"new\"", "id 3", "is 6"});
  refused(with(R"("added_tokens":[{"id":7,"content":"new"}])"), {"\"new\"", "id 7", "is 6"});
  refused(with(R"("added_tokens":[{"id":6,"content":"x"},{"id":6,"content":"x"}])"),
          {"two added tokens", "\"x\""});
  refused(with(R"("added_tokens":[{"id":6,"content":"x"},{"id":6,"content":"x","special":true}])"),
          {"two added tokens", "\"x\""});
  refused(with(R"("added_tokens":[{"id":-3,"content":"new"}])"), {"added_tokens[0].id"});
  refused(with(R"("added_tokens":[{"id":9}])"), {"added_tokens[0].content is missing"});
  refused(with(R"("added_tokens":[{"id":9000000,"content":"x"}])"), {"9000000"});
  refused(with(R"("post_processor":{"type":"TemplateProcessing","single":[],"special_tokens":{}})"),
          {"no place for the text"});
  refused(
      with(
          R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}})"),
      {"post_processor.special_tokens.<s> is missing"});
  refused(
      with(
          R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[77]}}})"),
      {"id 77"});
  refused(
      document(
          {kModel, kDecoder,
           R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated"})"}),
      {"pattern", "wrong"});
}

TEST(Tokenizer, UnsupportedKindsAreNamed) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error([&] { Tokenizer::from_json(text, kFile); }, ErrorKind::unsupported, kFile, parts);
  };
  const auto model = [](const std::string& more) {
    return document({R"("model":{"vocab":{"a":0},"merges":[],)" + more + "}", kPre, kDecoder});
  };
  refused(model(R"("type":"Unigram")"), {"Unigram", "from Python"});
  refused(model(R"("type":"WordPiece")"), {"WordPiece", "from Python"});
  refused(model(R"("byte_fallback":true)"), {"byte_fallback", "ByteLevel"});
  refused(model(R"("dropout":0.1)"), {"dropout"});
  refused(model(R"("end_of_word_suffix":"</w>")"), {"end_of_word_suffix"});
  const auto normalizer = [](const std::string& value) {
    return document({kModel, kPre, kDecoder, "\"normalizer\":" + value});
  };
  refused(normalizer(R"({"type":"Lowercase"})"), {"Lowercase"});
  refused(normalizer(R"({"type":"Sequence","normalizers":[{"type":"NFD"}]})"), {"NFD"});
  refused(normalizer(R"({"type":"Replace","pattern":{"String":""},"content":"x"})"), {"empty"});
  const auto decoder = [](const std::string& value) {
    return document({kModel, kPre, "\"decoder\":" + value});
  };
  refused(decoder(R"({"type":"WordPiece"})"), {"WordPiece"});
  refused(document({kModel, kPre}), {"without a decoder"});
  refused(decoder(R"({"type":"Strip","content":" ","start":0,"stop":1})"), {"decoder.stop"});
  const auto decoders = [&](const std::string& steps) {
    return decoder(R"({"type":"Sequence","decoders":[)" + steps + "]}");
  };
  refused(decoders(R"({"type":"Fuse"},{"type":"ByteFallback"})"), {"behind Fuse"});
  refused(decoders(R"({"type":"Fuse"},{"type":"ByteLevel"})"), {"ByteLevel among others"});
  const auto many = [](const std::string& step) {
    std::string out = step;
    for (int i = 0; i < 64; ++i) out += "," + step;
    return out;
  };
  refused(decoders(many(R"({"type":"Fuse"})")), {"more than 64 decoders"});
  const auto pre = [](const std::string& value) {
    return document({kModel, kDecoder, "\"pre_tokenizer\":" + value});
  };
  refused(pre(R"({"type":"Whitespace"})"), {"Whitespace"});
  const std::string first = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})";
  refused(pre(first + R"(,"normalizer":{"type":"NFC"})"), {"first", "normalizer"});
  refused(pre(R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},)" + first + "]}"),
          {"first", "behind another"});
  refused(pre(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"last"})"), {"\"last\""});
  refused(pre(R"({"type":"Sequence","pretokenizers":[)" + many(R"({"type":"Digits"})") + "]}"),
          {"more than 64 pre-tokenizers"});
  const std::string byte_level = R"({"type":"ByteLevel"})";
  refused(pre(R"({"type":"Sequence","pretokenizers":[)" + byte_level + R"(,{"type":"Digits"}]})"),
          {"behind ByteLevel"});
  refused(pre(R"({"type":"Sequence","pretokenizers":[)" + byte_level + "," + byte_level + "]}"),
          {"behind ByteLevel"});
  for (const char* pattern : {R"(\\w+)", R"(\\bx)", R"(\\h)", "[a[b]]", "[a&&b]", "(?m:x)",
                              "(?<n>x)", R"(\\pL)", "(?P<n>x)", R"(\\1)", R"(\\K)"}) {
    refused(pre(R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated",)"
                R"("pattern":{"Regex":")" +
                std::string(pattern) + "\"}}," + byte_level + "]}"),
            {"the pattern"});
  }
}

// As SentencePiece has them: "\u2581" for a space, bytes for what else is missing.
std::string of_characters(const std::string& merges, const std::string& more_vocab) {
  std::string vocab = R"("<unk>":0,"▁":1,"a":2,"b":3)" + more_vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab += fmt::format(",\"<0x{:02X}>\":{}", byte, 100 + byte);
  return document(
      {R"("model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{)" + vocab +
           R"(},"merges":[)" + merges + "]}",
       R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
       R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]})",
       R"("decoder":{"type":"Sequence","decoders":[)"
       R"({"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},)"
       R"({"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})"});
}

TEST(Tokenizer, OfCharacters) {
  const Tokenizer t = Tokenizer::from_json(of_characters(R"("▁ a")", R"(,"▁a":4)"), kFile);
  EXPECT_EQ(t.encode("a ab\n"), (Ids{4, 4, 3, 110}));
  EXPECT_EQ(t.encode("é"), (Ids{1, 295, 269}));
  EXPECT_EQ(t.decode(Ids{4, 4, 3, 110}), "a ab\n");
  EXPECT_EQ(t.decode(Ids{1, 4}), " a");
  EXPECT_EQ(t.decode_behind(Ids{3}, Ids{4, 2}), " aa");
  EXPECT_EQ(t.decode_behind({}, Ids{4, 2}), "aa");
  // Half of a character, which the other half makes another text.
  EXPECT_EQ(t.decode_behind(Ids{2, 295}, Ids{269, 2}),
            "\xEF\xBF\xBD"
            "a");
}

TEST(StreamDecoder, HoldsBackBytes) {
  const Tokenizer t = Tokenizer::from_json(of_characters("", ""), kFile);
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.push(1), "");  // the space in front
  EXPECT_EQ(decoder.push(1), " ");
  EXPECT_EQ(decoder.push(295), "");
  EXPECT_EQ(decoder.push(269), "");  // a whole character, unless a byte that is none follows
  EXPECT_EQ(decoder.push(2), "éa");
  EXPECT_EQ(decoder.push(295), "");
  EXPECT_EQ(decoder.push(3),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(decoder.push(110), "");
  EXPECT_EQ(decoder.finish(), "\n");
  EXPECT_EQ(decoder.push(1), "");  // a new text
}

// n log n: of eight times as much text eight times 20/17. Twice that leaves room for the machine's
// other work, and n² would take 64 times as long.
TEST(Tokenizer, OneWordOfAMegabyteTakesLittleMoreThanItsShare) {
  const Tokenizer t =
      Tokenizer::from_json(of_characters(R"("a b","ab ab","b a","aa aa","a a","abab abab")",
                                         R"(,"ab":4,"abab":5,"ba":6,"aa":7,"aaaa":8,"abababab":9)"),
                           kFile);
  std::string text;
  for (std::uint32_t state = 1; text.size() < (1U << 20); state = state * 1664525 + 1013904223) {
    text += (state >> 31) != 0 ? 'a' : 'b';
  }
  const auto seconds = [&](std::size_t size) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      t.encode(std::string_view(text).substr(0, size));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    return best;
  };
  const double part = seconds(text.size() / 8);
  const double whole = seconds(text.size());
  EXPECT_LT(whole, 2 * 8 * 20.0 / 17.0 * part);
}

TEST(Tokenizer, APatternThatExplodesIsAnError) {
  const std::string pre =
      R"x("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated",)x"
      R"x("pattern":{"Regex":"(a|a)+(c|d)"}},)x"
      R"x({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})x";
  const Tokenizer t = Tokenizer::from_json(document({kModel, kDecoder, pre}), kFile);
  EXPECT_EQ(t.encode("aac").size(), 3U);
  expect_file_error([&] { t.encode(std::string(5000, 'a')); }, kFile, {"too many steps"});
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  TWELL_DATA_OR_SKIP(path, "tokenizers/gpt2");
  const Tokenizer t = Tokenizer::load(path);
  const std::string text = "\xF0\x9F\x98\x80 é 中";
  const Ids ids = t.encode(text);
  StreamDecoder decoder(t);
  std::string out;
  bool held = false;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    held = held || piece.empty();
    out += piece;
  }
  EXPECT_TRUE(held);  // the emoji takes several tokens
  EXPECT_EQ(out + decoder.finish(), text);
  // An end within a character.
  StreamDecoder cut(t);
  EXPECT_EQ(cut.push(ids[0]), "");
  EXPECT_EQ(cut.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, ManyThreadsGetTheSame) {
  TWELL_DATA_OR_SKIP(path, "tokenizers/smollm2");
  TWELL_DATA_OR_SKIP(text_path, "corpora/tinyshakespeare.txt");
  const Tokenizer t = Tokenizer::load(path);
  const std::string text = slurp(text_path).substr(0, 300'000);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (auto& out : got) threads.emplace_back([&] { out = t.encode(text); });
  for (auto& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, got[0]);
  EXPECT_EQ(t.decode(got[0]), text);
  EXPECT_EQ(t.eos_id(), t.token_to_id("<|endoftext|>"));
}

}  // namespace
}  // namespace twell::io
