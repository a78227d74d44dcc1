// The reader: what it takes out of a file, and that every damaged one is one line.
#include "gguf/gguf_file.h"

#include <limits>

#include "gguf/gguf_writer.h"
#include "tests/gguf/raw_gguf.h"
#include "tests/support/files.h"

namespace twell::io {
namespace {

const std::string kFile = "dir/model.gguf";

GgufHeader parse(const std::string& bytes) {
  return parse_gguf(std::as_bytes(std::span(bytes)), kFile);
}

RawGguf small() {
  RawGguf out;
  out.put("general.architecture", "llama");
  out.put("eps", 1e-5F);
  out.value("flag", kRawBool, std::string(1, '\1'));
  out.value("wide", kRawU64, raw(std::uint64_t{1} << 40));
  out.put("names", std::vector<std::string>{"a", "", "bc"});
  out.put("types", std::vector<std::int32_t>{1, -3});
  out.tensor("first.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  out.tensor("second.bias", {2}, {7, 8});
  return out;
}

TEST(GgufFile, ValuesAndTensorsAreThoseOfTheFile) {
  const std::string bytes = small().file();
  const GgufHeader header = parse(bytes);
  const GgufMetadata& values = header.metadata;
  EXPECT_EQ(values.string("general.architecture"), "llama");
  EXPECT_EQ(values.number("eps", 0, 1), 1e-5);  // not 9.99999974737875e-06
  EXPECT_TRUE(values.boolean("flag"));
  EXPECT_EQ(values.integer("wide", 0, INT64_MAX), std::int64_t{1} << 40);
  EXPECT_EQ(values.strings("names"), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(values.integers("types"), (std::vector<std::int64_t>{1, -3}));
  EXPECT_TRUE(values.floats("none").empty());
  EXPECT_EQ(values.integer("none", 1, 2, 5), 5);
  ASSERT_EQ(header.tensors.size(), 2U);
  const GgufTensor& first = header.tensors[0];
  EXPECT_EQ(first.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(first.rows(), 2);
  EXPECT_EQ(first.row_bytes(), 12U);
  float last = 0;
  std::memcpy(&last, bytes.data() + first.end - sizeof last, sizeof last);
  EXPECT_EQ(last, 6);
  EXPECT_EQ(header.tensors[1].begin % kGgufAlignment, 0U);
}

TEST(GgufFile, OfTheWrongTypeOrRangeIsOneLine) {
  const std::string bytes = small().file();
  const GgufMetadata values = parse(bytes).metadata;
  expect_file_error([&] { values.integer("eps", 0, 9); }, kFile, {"eps", "whole number"});
  expect_file_error([&] { values.integer("wide", 0, 9); }, kFile, {"wide", "0 to 9"});
  expect_file_error([&] { values.integer("absent", 0, 9); }, kFile, {"absent is missing"});
  expect_file_error([&] { values.number("wide", 0, 9); }, kFile, {"wide", "a number"});
  expect_file_error([&] { values.number("eps", 1, 9); }, kFile, {"eps", "1 to 9"});
  expect_file_error([&] { values.boolean("names"); }, kFile, {"names is an array", "true"});
  expect_file_error([&] { values.string("flag"); }, kFile, {"flag", "a string"});
  expect_file_error([&] { values.strings("types"); }, kFile, {"types", "strings"});
  expect_file_error([&] { values.integers("names"); }, kFile, {"names", "whole numbers"});
  expect_file_error([&] { values.integers("eps"); }, kFile, {"eps", "whole numbers"});
  expect_file_error([&] { values.floats("types"); }, kFile, {"types", "numbers"});
}

TEST(GgufFile, CutAnywhereItIsOneLine) {
  const std::string whole = small().file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_file_error([&] { parse(whole.substr(0, size)); }, kFile,
                      {size < 4 ? "no GGUF file" : "truncated"});
  }
  parse(whole);
}

struct Damage {
  const char* what;
  std::function<void(RawGguf&)> change;
  std::vector<std::string> parts;
  bool unsupported = false;
};

TEST(GgufFile, DamagedItIsOneLine) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const auto describe = [](const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                           std::uint64_t offset) {
    return [=](RawGguf& f) { f.describe("t", sizes, type, offset); };
  };
  const Damage table[] = {
      {"magic", [](RawGguf& f) { f.magic = "GGML"; }, {"does not begin with \"GGUF\""}},
      {"version 1", [](RawGguf& f) { f.version = 1; }, {"version 1"}, true},
      {"version 4", [](RawGguf& f) { f.version = 4; }, {"version 4", "2 and 3"}, true},
      {"big-endian", [](RawGguf& f) { f.version = 3U << 24; }, {"big-endian"}, true},
      {"values", [](RawGguf& f) { f.more_values = 1ULL << 60; }, {""}},
      {"tensors", [](RawGguf& f) { f.more_tensors = kHuge - 5; }, {""}},
      {"key", [](RawGguf& f) { f.values[0] = raw(kHuge); }, {"a key", "18446744073709551615"}},
      {"empty key", [](RawGguf& f) { f.values[0] = raw(std::uint64_t{0}); }, {"a key", "0 bytes"}},
      {"type", [](RawGguf& f) { f.value("x", 13, ""); }, {"\"x\"", "unknown type 13"}},
      {"twice", [](RawGguf& f) { f.put("eps", 1.0F); }, {"duplicate key \"eps\""}},
      {"string",
       [](RawGguf& f) { f.value("x", kRawString, raw(kHuge)); },
       {"the value of \"x\" needs", "truncated"}},
      {"lines in a key",
       [](RawGguf& f) { f.value("a\nb" + std::string(500, 'c'), kRawString, raw(kHuge)); },
       {"\"a\\x0abccc", "truncated"}},
      {"array",
       [](RawGguf& f) { f.value("x", kRawArray, raw(kRawU32) + raw(kHuge)); },
       {"the value of \"x\" needs", "truncated"}},
      {"product",
       [](RawGguf& f) { f.value("x", kRawArray, raw(kRawU64) + raw(std::uint64_t{1} << 61)); },
       {"the value of \"x\" needs", "truncated"}},
      {"strings",
       [](RawGguf& f) { f.value("x", kRawArray, raw(kRawString) + raw(std::uint64_t{1} << 40)); },
       {""}},
      {"nested",
       [](RawGguf& f) { f.value("x", kRawArray, raw(kRawArray) + raw(std::uint64_t{1})); },
       {"\"x\"", "array of arrays"},
       true},
      {"alignment",
       [](RawGguf& f) { f.put("general.alignment", 48U); },
       {"general.alignment is 48", "power of two"}},
      {"alignment 0", [](RawGguf& f) { f.put("general.alignment", 0U); }, {"general.alignment"}},
      {"no dimensions", describe({}, 0, 0), {"\"t\"", "0 dimensions"}},
      {"dimensions", describe({1, 1, 1, 1, 1}, 0, 0), {"\"t\"", "5 dimensions"}},
      {"dimension 0", describe({1, 0}, 0, 0), {"\"t\"", "a dimension of 0"}},
      {"dimension", describe({kHuge}, 0, 0), {"\"t\"", "a dimension of 18446744073709551615"}},
      {"product of dimensions",
       describe({1ULL << 40, 1ULL << 40, 1ULL << 40}, 0, 0),
       {"\"t\"", "overflows"}},
      {"end", describe({32}, 0, kHuge - 31), {"\"t\"", "overflows"}},
      {"type of tensor", describe({256}, 20, 0), {"\"t\"", "IQ4_NL (20)", "Q4_K"}, true},
      {"unknown type", describe({256}, 99, 0), {"\"t\"", "unknown (99)"}, true},
      {"part of a block", describe({48}, 8, 0), {"\"t\"", "rows of 48", "32", "Q8_0"}},
      {"part of a row", describe({100, 3}, 12, 0), {"\"t\"", "rows of 100", "256"}},
      {"unaligned", describe({1}, 0, 4), {"\"t\"", "byte 4", "alignment 32"}},
      {"behind the end", describe({1}, 0, 1ULL << 40), {"\"t\"", "truncated"}},
      {"overlap", describe({1}, 0, 0), {"\"first.weight\"", "\"t\"", "overlap"}},
      {"same name",
       [](RawGguf& f) { f.tensor("second.bias", {1}, {0}); },
       {"two tensors \"second.bias\""}},
      {"long name",
       [](RawGguf& f) { f.tensor(std::string(65, 'n'), {1}, {0}); },
       {"the name of a tensor", "65"}},
      {"LFS",
       [](RawGguf& f) { f.magic = "version https://git-lfs.github.com/spec/v1\n"; },
       {"git lfs pull"}},
  };
  for (const Damage& damage : table) {
    SCOPED_TRACE(damage.what);
    RawGguf file = small();
    damage.change(file);
    expect_error([&] { parse(file.file()); },
                 damage.unsupported ? ErrorKind::unsupported : ErrorKind::environment, kFile,
                 damage.parts);
  }
}

TEST(GgufFile, OtherAlignmentsAreFollowed) {
  for (const std::uint32_t alignment : {4U, 64U, 4096U}) {
    RawGguf file;
    file.put("general.alignment", alignment);
    file.describe("t", {2}, 0, 0);
    file.data = raw(1.5F) + raw(2.5F);
    const std::string bytes = file.file(alignment);
    const GgufHeader header = parse(bytes);
    float number = 0;
    std::memcpy(&number, bytes.data() + header.tensors[0].begin, sizeof number);
    EXPECT_EQ(number, 1.5F) << alignment;
  }
}

TEST(GgufFile, IsKnownByItsBeginOrItsName) {
  const TempDir dir;
  spit(dir / "a", small().file());
  spit(dir / "b.gguf", "nothing");
  spit(dir / "c.txt", "nothing");
  EXPECT_TRUE(is_gguf(dir / "a"));
  EXPECT_TRUE(is_gguf(dir / "b.gguf"));
  EXPECT_TRUE(is_gguf(dir / "absent.gguf"));
  EXPECT_FALSE(is_gguf(dir / "c.txt"));
  EXPECT_FALSE(is_gguf(dir / "absent"));
  EXPECT_FALSE(is_gguf(dir.path()));
}

TEST(GgufWriter, IsReadAsItWasWritten) {
  const TempDir dir;
  GgufWriter out;
  out.put("number", 7U);
  out.put("real", 0.25F);
  out.put("yes", true);
  out.put("text", "a text");
  out.put("texts", std::vector<std::string>{"x", ""});
  out.put("whole", std::vector<std::int32_t>{-1, 2});
  out.put("reals", std::vector<float>{1.5F});
  out.announce({{"a", BlockType::f32, {2, 3}}, {"b", BlockType::q8_0, {1, 32}}});
  out.save(dir / "f.gguf", [](const GgufWriter::Tensor& tensor, AtomicFile& file) {
    file.write(std::string(tensor.name == "a" ? 24 : 34, tensor.name[0]));
  });
  const GgufFile file(dir / "f.gguf");
  const GgufMetadata& values = file.metadata();
  EXPECT_EQ(values.integer("number", 0, 9), 7);
  EXPECT_EQ(values.number("real", 0, 1), 0.25);
  EXPECT_TRUE(values.boolean("yes"));
  EXPECT_EQ(values.string("text"), "a text");
  EXPECT_EQ(values.strings("texts"), (std::vector<std::string_view>{"x", ""}));
  EXPECT_EQ(values.integers("whole"), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_EQ(values.floats("reals"), std::vector<float>{1.5F});
  ASSERT_NE(file.find("b"), nullptr);
  EXPECT_EQ(file.find("b")->shape, (std::vector<std::int64_t>{1, 32}));
  EXPECT_EQ(std::to_integer<char>(file.data(*file.find("b"))[33]), 'b');
  EXPECT_EQ(file.find("c"), nullptr);
}

}  // namespace
}  // namespace twell::io
