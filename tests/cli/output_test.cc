// What commands print and write: tables, progress, JSON, charts.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "cli/json_out.h"
#include "cli/progress.h"
#include "cli/svg.h"
#include "cli/table.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

// A directory that goes away with the test.
class CliOutput : public ::testing::Test {
 protected:
  CliOutput() {
    directory_ = fs::temp_directory_path() /
                 ("twell_cli_" + std::to_string(::getpid()) + "_" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  ~CliOutput() override { fs::remove_all(directory_); }

  static std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // What `use` prints through a stream of its own.
  template <class F>
  std::string printed(F use) {
    const fs::path file = directory_ / "printed";
    std::FILE* out = std::fopen(file.c_str(), "wb");
    use(out);
    std::fclose(out);
    return slurp(file);
  }

  fs::path directory_;
};

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table table({"name", "us"});
  table.row({"a", "1.5"});
  table.row({"longer", "120"});
  EXPECT_EQ(table.to_string(),
            "name     us\n"
            "-----------\n"
            "a       1.5\n"
            "longer  120\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({"x", "y"});
  table.row({"é", "b"});
  table.row({"ab", "c"});
  EXPECT_NE(table.to_string().find("é   b\n"), std::string::npos);
}

TEST(Table, GoesOnBelowWhereALineIsFull) {
  Table table({"layer", std::string(60, 'a'), std::string(33, 'b'), "c"});
  table.row({"0", "1", "2", "3"});
  EXPECT_EQ(table.to_string(), "layer  " + std::string(60, 'a') + "\n" + std::string(67, '-') +
                                   "\n    0  " + std::string(59, ' ') + "1\n\nlayer  " +
                                   std::string(33, 'b') + "  c\n" + std::string(43, '-') +
                                   "\n    0  " + std::string(32, ' ') + "2  3\n");
}

TEST(Table, HasBoldHeadingsInColourAlone) {
  Table table({"a"});
  table.row({"1"});
  EXPECT_EQ(table.to_string(true), "\x1b[1ma\x1b[0m\n-\n1\n");
}

TEST(Wrapped, BreaksBetweenWordsAndIndentsWhatFollows) {
  const std::string word(48, 'x');
  EXPECT_EQ(wrapped("one two"), "one two");
  EXPECT_EQ(wrapped("one two", 1, 93), "one two");
  EXPECT_EQ(wrapped("one two", 1, 94), "one\n two");
  EXPECT_EQ(wrapped(word + " é" + word + " y", 2), word + " é" + word + " y");
  EXPECT_EQ(wrapped(word + " é" + word + " yz 1", 2), word + " é" + word + "\n  yz 1");
  EXPECT_EQ(wrapped(std::string(120, 'x')), std::string(120, 'x'));
}

TEST(Help, GoesOnBelowItsDescriptions) {
  const std::string word(40, 'x');
  EXPECT_EQ(help_in_columns("Usage: a [b]\n\n  --one N     " + word + " " + word + " y\n  --two\n"),
            "Usage: a [b]\n\n  --one N     " + word + " " + word + " y\n  --two\n");
  EXPECT_EQ(help_in_columns("  --one N     " + word + " " + word + " 12345\n"),
            "  --one N     " + word + " " + word + "\n              12345\n");
}

TEST(Table, FormatsUnits) {
  EXPECT_EQ(format_us(12.34), "12.3 us");
  EXPECT_EQ(format_us(3210), "3.21 ms");
  EXPECT_EQ(format_us(2.5e6), "2.50 s");
  EXPECT_EQ(format_us(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(format_bytes(1.02e9), "1.02 GB");
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_binary(48 << 10), "48 KiB");
  EXPECT_EQ(format_binary(3 << 19), "1.5 MiB");
  EXPECT_EQ(format_binary(640), "640 B");
  EXPECT_EQ(counted(1, "layer") + counted(0, "layer"), "1 layer0 layers");
  EXPECT_EQ(format_duration(185), "3 min 05 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
}

TEST_F(CliOutput, ProgressOnNoTerminalPrintsPlainLines) {
  const std::string text = printed([](std::FILE* out) {
    Progress progress("work", 4,
                      {.out = out, .line_seconds = 0.01, .most_seconds = 0.01, .terminal = 0});
    for (int i = 1; i <= 4; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      progress.update(i, "note");
    }
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_NE(text.find("work: 2/4 (50%), 0.0 s, note\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST_F(CliOutput, ProgressStaysQuietBetweenLines) {
  const std::string text = printed([](std::FILE* out) {
    Progress progress("work", 1000, {.out = out, .line_seconds = 60, .terminal = 0});
    for (int i = 0; i < 1000; ++i) progress.update(i);
    progress.finish();  // took less than a second
  });
  EXPECT_EQ(text, "");
}

TEST_F(CliOutput, ProgressLinesBecomeRare) {
  const std::string text = printed([](std::FILE* out) {
    Progress progress("work", 0,
                      {.out = out, .line_seconds = 0.01, .most_seconds = 100, .terminal = 0});
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      progress.update(i);
    }
  });
  // After 10, 20, 40, 80 ms and so on: of 0.2 s and what a busy machine adds at most the tenth.
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 3) << text;
  EXPECT_LE(lines, 10) << text;
}

// In one long call, of which nobody tells anything.
TEST_F(CliOutput, ProgressShowsThatWorkGoesOn) {
  const std::string text = printed([](std::FILE* out) {
    Progress progress("work", 0, {.out = out, .line_seconds = 0.01, .terminal = 0});
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  });
  EXPECT_NE(text.find("work: working, 1."), std::string::npos) << text;
}

TEST_F(CliOutput, ProgressBarRedrawsOneLineAndFits) {
  const std::string text = printed([](std::FILE* out) {
    Progress progress("work", 10, {.out = out, .bar_seconds = 0, .terminal = 1, .width = 40});
    progress.update(5, std::string(200, 'x'));
    progress.finish();
  });
  const auto first = text.find("\r\x1b[K");
  ASSERT_NE(first, std::string::npos);
  const auto second = text.find("\r\x1b[K", first + 4);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(second - first - 4, 39U);  // one less than the terminal: no wrapping
  EXPECT_NE(text.find("############............]"), std::string::npos);
  EXPECT_NE(text.find("work: done in"), std::string::npos);
}

TEST_F(CliOutput, JsonReplacesAtomicallyAndSurvivesNaN) {
  const fs::path file = directory_ / "out.json";
  std::ofstream(file) << "older";
  write_json(file.string(), {{"nan", std::numeric_limits<double>::quiet_NaN()}, {"cut", "\xC3"}});
  const auto value = nlohmann::json::parse(slurp(file));
  EXPECT_TRUE(value["nan"].is_null());
  EXPECT_EQ(value["cut"], "\xEF\xBF\xBD");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(directory_)) ++files;
  EXPECT_EQ(files, 1);
}

TEST_F(CliOutput, JsonTargetIsCheckedBeforeTheWork) {
  const auto check = [](const fs::path& path) {
    check_output_file("--json", path.string(), OutputKind::results);
  };
  EXPECT_THROW(check(directory_ / "no/such/out.json"), Error);
  EXPECT_THROW(check(directory_), Error);
  EXPECT_NO_THROW(check(directory_ / "out.json"));
  EXPECT_TRUE(fs::is_empty(directory_));
  std::ofstream(directory_ / "mine.json") << "{\"text\": \"of somebody\"}";
  EXPECT_THROW(check(directory_ / "mine.json"), Error);
  std::ofstream(directory_ / "ours.json") << "{\"twell\": \"0.1.0\"}";
  EXPECT_NO_THROW(check(directory_ / "ours.json"));
}

TEST(Svg, ChartsKeepTheirPointsInsideAndNamesSafe) {
  const std::string svg =
      line_chart({{"a<b", {{0, 1}, {10, 100}}}, {"c", {{0, 5}, {10, 0}}}}, {"x", "y", true});
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NE(svg.find("points=\"64.0,216.0 624.0,16.0 \""), std::string::npos) << svg;
  EXPECT_EQ(line_chart({{"empty", {}}}, {"x", "y", false}), "<p>(no data)</p>");
  const std::string flat = line_chart({{"flat", {{1, 2}, {2, 2}}}}, {"x", "y", false});
  EXPECT_EQ(flat.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace twell::cli
