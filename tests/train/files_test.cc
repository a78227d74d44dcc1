// What training keeps on disk, apart from the trainer's state: token cache, log, run directory,
// learnt tokenizer.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "io/atomic_file.h"
#include "io/tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/train/scratch.h"
#include "train/bpe_trainer.h"
#include "train/corpus.h"
#include "train/run_directory.h"
#include "train/train_log.h"
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

LogRecord record_of(std::int64_t step) {
  LogRecord record;
  record.step = step;
  record.layers.emplace_back().first_nnz = {1.0, 2.0};
  return record;
}

std::vector<std::int64_t> logged_steps(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::int64_t> out;
  std::string line;
  while (std::getline(in, line)) out.push_back(nlohmann::json::parse(line)["step"]);
  return out;
}

TEST(TrainLogTest, EveryLineIsThereWhenWriteReturns) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "log.jsonl";
  TrainLog log(path, 0);
  log.write(record_of(10));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10}));
  log.write(record_of(20));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10, 20}));
}

TEST(TrainLogTest, DropsWhatAResumedRunWritesAgain) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "log.jsonl";
  {
    TrainLog log(path, 0);
    for (const std::int64_t step : {10, 20, 30}) log.write(record_of(step));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 40, \"lo";  // killed while writing
  TrainLog log(path, 20);
  log.write(record_of(30));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10, 20, 30}));
}

TEST(RunDirectoryTest, LatestPointsToAWholeCheckpoint) {
  const Scratch scratch;
  RunDirectory run(scratch.path() / "run");
  EXPECT_FALSE(latest_checkpoint(run.path()));
  const auto save = [](const fs::path& path) {
    AtomicDirectory directory(path);
    io::write_file_atomically(directory.temporary() / "config.json", "{}");
    directory.commit();
  };
  run.add(5, 1, save);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000005");
  EXPECT_THROW(run.add(10, 1,
                       [](const fs::path& path) {
                         AtomicDirectory directory(path);
                         io::write_file_atomically(directory.temporary() / "config.json", "{");
                         throw Error(ErrorKind::environment, "disk", "full");
                       }),
               Error);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000005");
  EXPECT_TRUE(fs::exists(*latest_checkpoint(run.path()) / "config.json"));
  run.add(10, 2, save);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000010");
  EXPECT_TRUE(fs::exists(run.path() / "step-00000005"));
  run.add(15, 1, save);
  EXPECT_FALSE(fs::exists(run.path() / "step-00000005"));
  EXPECT_FALSE(fs::exists(run.path() / "step-00000010"));
  EXPECT_EQ(fs::read_symlink(run.path() / "latest"), "step-00000015");
  EXPECT_EQ(resolve_model_directory(run.path()), run.path() / "step-00000015");
  EXPECT_EQ(resolve_model_directory(run.path() / "latest"), run.path() / "latest");
}

TEST(RunDirectoryTest, RemovesWhatAKilledProcessLeft) {
  const Scratch scratch;
  fs::create_directories(scratch.path() / ".step-00000007.twell-tmp" / "trainer");
  const RunDirectory run(scratch.path());
  EXPECT_FALSE(fs::exists(scratch.path() / ".step-00000007.twell-tmp"));
  EXPECT_FALSE(latest_checkpoint(run.path()));
}

// Tools that copy drop links, or follow them.
TEST(RunDirectoryTest, FindsCheckpointsWithoutTheirLink) {
  const Scratch scratch;
  for (const char* name :
       {"step-00000002", "step-00000010", "step-100000000", "latest", "step-9x"}) {
    fs::create_directories(scratch.path() / name);
    if (name != std::string("step-100000000")) {
      io::write_file_atomically(scratch.path() / name / "config.json", "{}");
    }
  }
  EXPECT_EQ(resolve_model_directory(scratch.path()), scratch.path() / "step-00000010");
  EXPECT_TRUE(contains(message_of([&] { RunDirectory run(scratch.path()); }), "is no link"));
  fs::remove_all(scratch.path() / "latest");
  EXPECT_TRUE(contains(message_of([&] { RunDirectory run(scratch.path()); }), "is no checkpoint"));
  fs::remove_all(scratch.path() / "step-100000000");
  const RunDirectory run(scratch.path());
  EXPECT_EQ(latest_checkpoint(run.path()), scratch.path() / "step-00000010");
}

TEST(RunDirectoryTest, HasOneOwner) {
  const Scratch scratch;
  {
    const RunDirectory run(scratch.path());
    const std::string message = message_of([&] { RunDirectory other(scratch.path()); });
    EXPECT_TRUE(contains(message, fmt::format("process {} on ", getpid()))) << message;
    EXPECT_TRUE(contains(message, "trains here")) << message;
  }
  const RunDirectory again(scratch.path());
  // Of a run that failed at once nothing stays; of others, what was there.
  { const RunDirectory failed(scratch.path() / "new"); }
  EXPECT_FALSE(fs::exists(scratch.path() / "new"));
  EXPECT_TRUE(fs::exists(scratch.path()));
}

// Between locking and writing the name, the file is empty.
TEST(RunDirectoryTest, WaitsForTheNameOfItsOwner) {
  const Scratch scratch;
  const std::string file = (scratch.path() / ".lock").string();
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    constexpr std::string_view kName = "process 1 on host";
    EXPECT_EQ(::write(lock, kName.data(), kName.size()), 17);
  });
  const std::string message = message_of([&] { RunDirectory other(scratch.path()); });
  owner.join();
  ::close(lock);
  EXPECT_TRUE(contains(message, "process 1 on host trains here")) << message;
}

TEST(RunDirectoryTest, DoesNotOverwriteADirectory) {
  const Scratch scratch;
  fs::create_directories(scratch.path() / "model");
  EXPECT_TRUE(
      contains(message_of([&] { AtomicDirectory directory(scratch.path() / "model"); }), "exists"));
}

}  // namespace
}  // namespace twell::lm
