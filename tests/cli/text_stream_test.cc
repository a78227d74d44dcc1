// Texts that end an answer.
#include "cli/text_stream.h"

#include <gtest/gtest.h>

namespace twell::cli {
namespace {

// In pieces of `size` bytes; -> what was given out, with "|" where a stop was found.
std::string streamed(const std::vector<std::string>& stops, const std::string& text,
                     std::size_t size) {
  StopStrings stream(stops);
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += size) out += stream.push(text.substr(at, size));
  out += stream.finish();
  return out + (stream.found() ? "|" : "");
}

TEST(StopStrings, EndATextWhereverItIsCut) {
  for (std::size_t size = 1; size < 20; ++size) {
    EXPECT_EQ(streamed({}, "a text", size), "a text");
    EXPECT_EQ(streamed({"\n\n"}, "one\ntwo\n\nthree", size), "one\ntwo|");
    EXPECT_EQ(streamed({"User:"}, "Us Use UserUser: x", size), "Us Use User|");
    EXPECT_EQ(streamed({"User:"}, "the User", size), "the User");
    EXPECT_EQ(streamed({"aab"}, "aaaab", size), "aa|");
    EXPECT_EQ(streamed({"x", "."}, "One. Two x", size), "One|");
    EXPECT_EQ(streamed({"é"}, "caf\u00e8 caf\u00e9", size), "caf\u00e8 caf|");
  }
}

TEST(StopStrings, KeepBackNoMoreThanCouldBeTheBeginningOfOne) {
  StopStrings stream({"stop"});
  EXPECT_EQ(stream.push("do not s"), "do not ");
  EXPECT_EQ(stream.push("ay st"), "say ");
  EXPECT_EQ(stream.push("op here"), "");
  EXPECT_TRUE(stream.found());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace twell::cli
