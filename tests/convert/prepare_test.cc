// What `twell prepare` writes beside a checkpoint, and what loading makes of it.
#include "convert/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "decoder/prepared_file.h"
#include "files/note.h"
#include "tests/decoder/tiny_model.h"
#include "tests/support/message_of.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

using test::message_of;
using test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PreparedModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!screen_pays(default_cpu_tier(), 0.0)) {
      GTEST_SKIP() << name_of(default_cpu_tier()) << " screens no gate";
    }
    io::set_note_sink([this](const std::string& line) { notes_.push_back(line); });
    save(11);
    for (std::int64_t i = 0; i < 200; ++i) tokens_.push_back(i * 7 % config_.vocab_size);
  }
  void TearDown() override { io::set_note_sink({}); }
  void save(std::uint64_t seed) const {
    const auto model = make_model(config_, at::kBFloat16, seed);
    test::save_model(directory_.path(), config_, model->parameters());
  }
  std::unique_ptr<Model> load() const {
    return load_model(directory_.string(), {.path = FfnPath::sparse});
  }
  std::filesystem::path file() const { return directory_.path() / kPreparedFile; }

  io::ModelConfig config_ = test::tiny_config();
  ScratchDirectory directory_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::string> notes_;
};

TEST_F(PreparedModel, LayersDecideByWhatWasFound) {
  const Prepared prepared = prepare_model(directory_.string(), tokens_);
  EXPECT_EQ(prepared.file, file().string());
  ASSERT_EQ(std::ssize(prepared.layers), config_.num_hidden_layers);
  const auto model = load();
  EXPECT_THAT(notes_, IsEmpty());
  for (std::int64_t l = 0; l < model->layers(); ++l) {
    const LayerFindings& found = prepared.layers[static_cast<std::size_t>(l)];
    const LayerFindings* const loaded = model->feed_forward(l).findings();
    ASSERT_NE(loaded, nullptr);
    EXPECT_EQ(loaded->inputs, 200);
    EXPECT_EQ(loaded->fired, found.fired);
    EXPECT_EQ(loaded->candidates, found.candidates);
    for (std::size_t i = 0; i < found.mean.size(); ++i) {
      EXPECT_NEAR(loaded->mean[i], found.mean[i], 6e-4 * std::abs(found.mean[i]));
    }
    EXPECT_EQ(model->feed_forward(l).gate_form(), prepared.forms[static_cast<std::size_t>(l)]);
  }
}

TEST_F(PreparedModel, AFileOfOtherWeightsIsToldAndIgnored) {
  prepare_model(directory_.string(), tokens_);
  save(12);
  ASSERT_TRUE(std::filesystem::exists(file()));
  const auto model = load();
  EXPECT_THAT(notes_, ElementsAre(testing::AllOf(HasSubstr("is of other weights"),
                                                 HasSubstr("ignored; twell prepare"))));
  EXPECT_EQ(model->feed_forward(0).findings()->inputs, 64) << "seeded tokens in its place";
}

TEST_F(PreparedModel, ADamagedFileIsToldAndIgnored) {
  prepare_model(directory_.string(), tokens_);
  std::ifstream in(file());
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::pair<std::string, const char*> damaged[] = {
      {"", "not valid JSON"},
      {good.substr(0, good.size() / 2), "not valid JSON"},
      {"[]", "expected an object"},
      {with("\"twell_prepared\": 1", "\"twell_prepared\": 2"), "version 2"},
      {with("\"inputs\": 200", "\"inputs\": 1"), "fired: expected numbers from 0 to 1"},
      {with("\"fired\":[", "\"fired\":[0,"), "expected 176 numbers, got 177"},
      {with("\"mean\":[", "\"mean\":[\"a\","), "mean: expected numbers"},
      {with("\"candidates\":", "\"candidates\":1"), "candidates"},
  };
  for (const auto& [text, why] : damaged) {
    std::ofstream(file()) << text;
    notes_.clear();
    EXPECT_NE(load(), nullptr);
    ASSERT_EQ(notes_.size(), 1U) << why;
    EXPECT_THAT(notes_.front(), testing::AllOf(HasSubstr(why), HasSubstr("ignored")));
  }
}

// The same bytes have the same digest in tests/python/test_prepared.py.
TEST(Digest, IsThatOfThePythonSide) {
  const ScratchDirectory directory;
  std::vector<std::uint16_t> small(6), large(40 * 30);
  for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<std::uint16_t>(i);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint16_t>(i * 7 % 251);
  io::save_checkpoint(directory.path(), std::vector<io::TensorData>{
                                            {"a", io::SafeDType::BF16, {2, 3}, small.data()},
                                            {"b", io::SafeDType::BF16, {40, 30}, large.data()}});
  const io::Checkpoint checkpoint(directory.path());
  const std::string names[] = {"b", "a"};
  EXPECT_EQ(digest_of(checkpoint, names), "e6b8ef2d73282fe8");
}

TEST_F(PreparedModel, FewTokensAreAnError) {
  tokens_.resize(31);
  EXPECT_THAT(message_of([&] { prepare_model(directory_.string(), tokens_); }),
              HasSubstr("32 tokens or more, got 31"));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

}  // namespace
}  // namespace twell::lm
