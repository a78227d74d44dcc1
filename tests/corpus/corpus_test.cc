// Texts, their token cache, and the tokenizer learnt from them.
#include "corpus/corpus.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/bpe_trainer.h"
#include "corpus/text_files.h"
#include "files/atomic_file.h"
#include "files/note.h"
#include "tests/support/message_of.h"
#include "tests/support/scratch.h"
#include "tokenizer/tokenizer.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::Scratch;

io::Tokenizer learnt(const std::string& text, std::int64_t vocab) {
  const std::vector<std::string_view> texts = {text};
  BpeOptions options;
  options.vocab_size = vocab;
  return io::Tokenizer::from_json(train_bpe(texts, options), "test");
}

std::string every_byte_pair_text() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the cat sat on the mat, naïve — 1234 'll it's\n\n\t ";
  return text;
}

TEST(BpeTrainer, ItsTokenizerGivesTheTextBack) {
  const std::string text = every_byte_pair_text() + "\xf0\x9f\x98\x80 \xe4\xb8\xad";
  const io::Tokenizer tokenizer = learnt(text, 400);
  const auto ids = tokenizer.encode(text, false);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_LT(ids.size() * 3, text.size());
  EXPECT_LE(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  // Bytes the text does not have are in the alphabet all the same.
  const std::string other = "\x01\x7f zZ@ \xc3\xbf";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(other, false)), other);
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  // " low" 5 times, " lower" 2, " newest" 6, " widest" 3: the pairs e-s and s-t occur 9 times, and
  // so does es-t; t has the larger id, so e-s is first.
  std::string text;
  for (int i = 0; i < 5; ++i) text += " low";
  for (int i = 0; i < 2; ++i) text += " lower";
  for (int i = 0; i < 6; ++i) text += " newest";
  for (int i = 0; i < 3; ++i) text += " widest";
  const std::vector<std::string_view> texts = {text};
  BpeOptions options;
  options.vocab_size = 260;
  const auto json = nlohmann::json::parse(train_bpe(texts, options));
  const std::vector<std::string> merges = json["model"]["merges"];
  ASSERT_EQ(merges.size(), 3U);
  EXPECT_EQ(merges[0], "e s");
  EXPECT_EQ(merges[1], "es t");
  EXPECT_EQ(merges[2], "l o");
}

TEST(BpeTrainer, StopsWhereTheTextHasNoMorePairs) {
  const io::Tokenizer tokenizer = learnt("abab abab", 4096);
  EXPECT_LT(tokenizer.vocab_size(), 300);
}

TEST(BpeTrainer, RefusesUnusableInput) {
  const std::vector<std::string_view> none = {"", ""};
  EXPECT_TRUE(contains(message_of([&] { train_bpe(none, {}); }), "empty"));
  const std::vector<std::string_view> broken = {"good \xff bad"};
  EXPECT_TRUE(contains(message_of([&] { train_bpe(broken, {}); }), "byte 5"));
  BpeOptions small;
  small.vocab_size = 256;
  const std::vector<std::string_view> text = {"text"};
  EXPECT_TRUE(contains(message_of([&] { train_bpe(text, small); }), "at least 257"));
}

class CorpusTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) {
    const fs::path path = scratch_.path() / name;
    std::ofstream(path) << text;
    return path;
  }
  std::vector<std::int64_t> ids(const Corpus& corpus) const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(corpus.tokens.size()));
    corpus.tokens.read(0, out);
    return out;
  }

  Scratch scratch_;
  io::Tokenizer tokenizer_ = learnt(every_byte_pair_text(), 300);
  fs::path cache_ = scratch_.path() / "cache";
};

TEST_F(CorpusTest, EndsEveryDocumentAndIsCached) {
  const auto a = write("a.txt", "the cat"), b = write("b.txt", "a mat");
  int calls = 0;
  const auto count = [&](std::uint64_t, std::uint64_t) { ++calls; };
  const Corpus first = load_corpus({a, b}, tokenizer_, cache_, count);
  EXPECT_EQ(calls, 2);
  std::vector<std::int64_t> expected;
  for (const char* text : {"the cat", "a mat"}) {
    for (const auto id : tokenizer_.encode(text, false)) expected.push_back(id);
    expected.push_back(0);
  }
  EXPECT_EQ(ids(first), expected);
  const Corpus again = load_corpus({a, b}, tokenizer_, cache_, count);
  EXPECT_EQ(calls, 2) << "the cached ids were not used";
  EXPECT_EQ(ids(again), expected);
  EXPECT_EQ(again.hash, first.hash);

  write("b.txt", "a hat");
  const Corpus changed = load_corpus({a, b}, tokenizer_, cache_, count);
  EXPECT_EQ(calls, 4);
  EXPECT_NE(changed.hash, first.hash);
  const Corpus other = load_corpus({a, b}, learnt("another text", 300), cache_, count);
  EXPECT_EQ(calls, 6) << "ids of another tokenizer were used";
  EXPECT_NE(other.hash, changed.hash);
}

TEST_F(CorpusTest, MakesADamagedCacheAgain) {
  const auto a = write("a.txt", "the cat sat");
  const auto expected = ids(load_corpus({a}, tokenizer_, cache_));
  for (const auto& entry : fs::directory_iterator(cache_)) fs::resize_file(entry.path(), 70);
  EXPECT_EQ(ids(load_corpus({a}, tokenizer_, cache_)), expected);
}

TEST_F(CorpusTest, TakesTokenShardsOfTheSameTokenizerOnly) {
  const auto a = write("a.txt", "the cat sat");
  const auto expected = ids(load_corpus({a}, tokenizer_, cache_));
  const fs::path shard = fs::directory_iterator(cache_)->path();
  EXPECT_EQ(ids(load_corpus({shard}, tokenizer_, scratch_.path() / "unused")), expected);
  EXPECT_FALSE(fs::exists(scratch_.path() / "unused"));
  const io::Tokenizer other = learnt("another text", 300);
  EXPECT_THROW(load_corpus({shard}, other, cache_), Error);
  EXPECT_TRUE(contains(message_of([&] { sample_texts({shard}, 100); }), shard.string()));
}

TEST_F(CorpusTest, NamesTheFileAtFault) {
  const auto empty = write("empty.txt", ""), broken = write("broken.txt", "abc \xff");
  EXPECT_TRUE(contains(message_of([&] { load_corpus({empty}, tokenizer_, cache_); }), "empty.txt"));
  EXPECT_TRUE(
      contains(message_of([&] { load_corpus({broken}, tokenizer_, cache_); }), "broken.txt"));
  EXPECT_TRUE(contains(message_of([&] { find_texts({scratch_.path() / "absent"}); }), "absent"));
  fs::create_directory(scratch_.path() / "bare");
  EXPECT_TRUE(contains(message_of([&] { find_texts({scratch_.path() / "bare"}); }), "no text"));
  EXPECT_THROW(find_texts({}), Error);
}

TEST_F(CorpusTest, FindsTextsInFolders) {
  const auto b = write("b.txt", "b"), a = write("a.md", "a");
  write("c.bin", "c");
  write("d.txt", "");
  EXPECT_EQ(find_texts({scratch_.path()}), (std::vector<fs::path>{a, b}));
  EXPECT_EQ(find_texts({b, a}), (std::vector<fs::path>{b, a}));
}

// What twell writes into a folder of texts is no text, wherever it lies there.
TEST_F(CorpusTest, PassesOverWhatTrainingMakes) {
  const auto text = write("a.txt", "the cat"), readme = write("docs.md", "a mat");
  const fs::path root = scratch_.path();
  const auto make = [&](const std::string& file) {
    fs::create_directories((root / file).parent_path());
    write(file, "none of the texts");
  };
  for (const char* file :
       {"run/step-00000002/README.md", "run/step-00000002/config.json", "run/cache/x.txt",
        "copy/step-00000002/config.json", "copy/notes.txt", "begun/cache/y.txt", "model/merges.txt",
        "model/config.json", "model/model.safetensors", ".half.twell-tmp/README.md"}) {
    make(file);
  }
  write("begun/.lock", "process 1 on host");
  write("run/.lock", "process 2 on host");
  load_corpus({text}, tokenizer_, root / "elsewhere");
  std::vector<std::string> notes;
  io::set_note_sink([&](const std::string& line) { notes.push_back(line); });
  EXPECT_EQ(find_texts({root}), (std::vector<fs::path>{text, readme}));
  io::set_note_sink({});
  EXPECT_EQ(notes.size(), 6U);
  for (const char* what : {"run is passed over: it is a run", "model is passed over: it is a model",
                           ".tokens is passed over: it is a cache of token ids"}) {
    EXPECT_TRUE(std::ranges::any_of(notes, [&](const auto& line) { return line.ends_with(what); }))
        << what;
  }
  // What is given is read: a folder that a run made, or one that holds both.
  EXPECT_EQ(find_texts({root / "model"}), std::vector<fs::path>{root / "model/merges.txt"});
  EXPECT_EQ(find_texts({root / "copy"}), std::vector<fs::path>{root / "copy/notes.txt"});
}

TEST_F(CorpusTest, FindsTextsButNotTheirShard) {
  const auto text = write("a.txt", "the cat"), shard = scratch_.path() / "all.tokens",
             other = scratch_.path() / "other.tokens";
  write_shard(shard, {text}, tokenizer_);
  write_shard(other, {text}, tokenizer_);
  io::set_note_sink({});
  EXPECT_EQ(find_texts({scratch_.path()}), (std::vector<fs::path>{text, shard, other}));
  EXPECT_EQ(find_texts({scratch_.path()}, {.leave_out = shard}),
            (std::vector<fs::path>{text, other}));
  EXPECT_EQ(find_texts({scratch_.path()}, {.shards = false}), (std::vector<fs::path>{text}));
}

TEST_F(CorpusTest, NamesOfAnyBytesAndLinks) {
  const auto text = write("\xff\xfe.txt", "the cat");
  fs::create_directory(scratch_.path() / "far");
  const auto far = write("far/b.txt", "a mat");
  fs::create_directory_symlink("far", scratch_.path() / "link");
  fs::create_symlink("far/b.txt", scratch_.path() / "near.txt");
  fs::create_symlink("nowhere", scratch_.path() / "dangling.txt");
  std::vector<std::string> notes;
  io::set_note_sink([&](const std::string& line) { notes.push_back(line); });
  EXPECT_EQ(find_texts({scratch_.path()}),
            (std::vector<fs::path>{far, scratch_.path() / "near.txt", text}));
  io::set_note_sink({});
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].ends_with("link is passed over: it is a link to a directory")) << notes[0];
  EXPECT_EQ(load_corpus({text}, tokenizer_, cache_).tokens.size(), 3);
}

TEST_F(CorpusTest, ATextThatChangesMeanwhileIsNotKept) {
  const auto text = write("a.txt", "the cat");
  const fs::path out = scratch_.path() / "out.tokens";
  const std::uint64_t right = hash_bytes("the cat", tokenizer_.hash());
  EXPECT_GT(write_shard(out, {text}, tokenizer_, {}, right), 0U);
  write("a.txt", "the dog");
  const std::string message = message_of(
      [&] { write_shard(scratch_.path() / "new.tokens", {text}, tokenizer_, {}, right); });
  EXPECT_TRUE(contains(message, "changed while")) << message;
  EXPECT_FALSE(fs::exists(scratch_.path() / "new.tokens"));
}

TEST_F(CorpusTest, SamplesEvenly) {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "line\n";
  const auto a = write("a.txt", lines), b = write("b.txt", lines);
  const auto texts = sample_texts({a, b}, 1000);
  ASSERT_EQ(texts.size(), 2U);
  for (const std::string& text : texts) {
    EXPECT_EQ(text.size(), 500U);
    EXPECT_TRUE(text.ends_with("line\n"));
  }
  EXPECT_EQ(sample_texts({a}, 1 << 20).front(), lines);
}

}  // namespace
}  // namespace twell::lm
