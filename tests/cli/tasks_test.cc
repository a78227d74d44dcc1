// Data files of the tasks, well-formed and not.
#include "cli/tasks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "twell/status.h"

namespace twell::cli {
namespace {

class Tasks : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() /
             ("twell_tasks_" + std::to_string(::getpid()) + ".jsonl"))
                .string();
    std::ofstream(path_) << text;
    return path_;
  }
  ~Tasks() override {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path_;
};

TEST_F(Tasks, ArcAsksAQuestion) {
  const auto items =
      read_task("arc", file(R"({"question": "Why?", "choices": ["a", "b", "c"], "gold": 2})"
                            "\n"));
  ASSERT_EQ(items.size(), 1U);
  ASSERT_EQ(items[0].choices.size(), 3U);
  EXPECT_EQ(items[0].choices[1].context, "Question: Why?\nAnswer:");
  EXPECT_EQ(items[0].choices[1].continuation, " b");
  EXPECT_EQ(items[0].gold, 2U);
}

TEST_F(Tasks, WinograndeSharesTheContinuation) {
  const auto items = read_task(
      "winogrande",
      file(R"({"context_options": ["A so A", "A so B"], "continuation": "won.", "gold": 1})"));
  ASSERT_EQ(items[0].choices.size(), 2U);
  EXPECT_EQ(items[0].choices[0].context, "A so A");
  EXPECT_EQ(items[0].choices[1].context, "A so B");
  EXPECT_EQ(items[0].choices[1].continuation, " won.");
}

TEST_F(Tasks, CommonsenseQaFindsTheKey) {
  const auto items =
      read_task("commonsenseqa",
                file(R"({"answerKey": "B", "question": {"stem": "Where?", "choices": [)"
                     R"({"label": "A", "text": "bank"}, {"label": "B", "text": "mall"}]}})"));
  EXPECT_EQ(items[0].gold, 1U);
  EXPECT_EQ(items[0].choices[1].continuation, " mall");
}

TEST_F(Tasks, HellaswagReadsSixLines) {
  const auto items = read_task("hellaswag", file("ctx\n3\na\nb\nc\nd\nctx2\n0\ne\nf\ng\nh\n"));
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].gold, 3U);
  EXPECT_EQ(items[1].choices[0].continuation, " e");
}

TEST_F(Tasks, BadLinesAreNamed) {
  const auto message = [&](const char* task, const char* text) -> std::string {
    try {
      read_task(task, file(text));
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(message("arc", "{\"question\": 1}\n").find(".jsonl:1"), std::string::npos);
  EXPECT_NE(message("arc", "not json").find(".jsonl:1"), std::string::npos);
  EXPECT_NE(
      message("arc", R"({"question": "q", "choices": ["a"], "gold": 1})").find("choice 1 of 1"),
      std::string::npos);
  EXPECT_NE(message("hellaswag", "ctx\n3\na\n").find(".jsonl:4"), std::string::npos);
  EXPECT_NE(message("hellaswag", "ctx\nx\na\nb\nc\nd\n").find(".jsonl:2"), std::string::npos);
  EXPECT_NE(message("piqa", "\n").find("holds no items"), std::string::npos);
}

}  // namespace
}  // namespace twell::cli
