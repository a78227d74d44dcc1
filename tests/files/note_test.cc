#include "files/note.h"

#include "tests/support/files.h"

namespace twell::io {
namespace {

TEST(Note, IsToldOnceAndOnOneLine) {
  std::vector<std::string> told;
  set_note_sink([&](const std::string& line) { told.push_back(line); });
  for (int i = 0; i < 3; ++i) note("a file\nof two lines: has no locks");
  note("another");
  EXPECT_EQ(told, (std::vector<std::string>{"a file of two lines: has no locks", "another"}));
  set_note_sink({});
  note("to nobody");
  EXPECT_EQ(told.size(), 2U);
}

}  // namespace
}  // namespace twell::io
