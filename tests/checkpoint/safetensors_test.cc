#include "checkpoint/safetensors.h"

#include <numeric>

#include "tests/support/files.h"

namespace twell::io {
namespace {

std::string with_header(const std::string& header, const std::string& data = "",
                        std::int64_t claimed = -1) {
  const auto length =
      claimed < 0 ? static_cast<std::uint64_t>(header.size()) : static_cast<std::uint64_t>(claimed);
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f.safetensors");
}

void expect_refused(const std::string& file, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(file.substr(0, 200));
  expect_file_error([&] { parse(file); }, "f.safetensors: ", parts);
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const auto header = parse(with_header(
      R"({"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]},"__metadata__":{"k":"v"},)"
      R"("a":{"shape":[2,1],"data_offsets":[0,8],"dtype":"F32","extra":[1,{"x":[]}]},)"
      R"("empty":{"dtype":"I64","shape":[0,9223372036854775807],"data_offsets":[9,9]}}  )",
      std::string(9, 'x')));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(header.tensors[0].elements(), 2);
  EXPECT_EQ(header.tensors[0].begin, header.data_begin);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].bytes(), 1U);
  EXPECT_EQ(header.tensors[2].elements(), 0);
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_TRUE(parse(with_header("{}")).tensors.empty());
}

TEST(Safetensors, RefusesBrokenContainers) {
  expect_refused("", {"0 bytes"});
  expect_refused("1234567", {"7 bytes", "too few"});
  expect_refused(with_header("{}", "", 3), {"claims a header of 3 bytes", "truncated"});
  expect_refused(with_header("{}", "", 100'000'001), {"100000001", "more than 100000000"});
  expect_refused(with_header("{}", "", INT64_MAX), {"claims a header"});
  expect_refused(std::string(8, '\xff') + "{}", {"claims a header of 18446744073709551615"});
  expect_refused(with_header(""), {"does not begin with '{'"});
  expect_refused(with_header(" {}"), {"does not begin with '{'"});
  expect_refused(with_header("\xEF\xBB\xBF{}"), {"does not begin with '{'"});
  expect_refused(with_header("[]"), {"does not begin with '{'"});
  expect_refused(with_header(std::string("{}\0", 3)), {"zero byte"});
  expect_refused(with_header("{\"a\""), {"not valid JSON at byte"});
  expect_refused(with_header("{}{}"), {"not valid JSON"});
  expect_refused(with_header("{\"\xff\":1}"), {"not valid JSON"});
  expect_refused(with_header("{}", "x"), {"1 bytes of data", "cover 0", "trailing"});
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_refused(with_header("{" + a + "," + a + "}", "x"), {"duplicate key \"a\""});
  expect_refused(with_header(R"({"__metadata__":{},"__metadata__":{}})"), {"duplicate key"});
  expect_refused(with_header(R"({"__metadata__":{"k":"1","k":"2"}})"), {"duplicate key \"k\""});
  expect_refused(
      with_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
      {"duplicate key \"dtype\"", "tensor \"a\""});
}

TEST(Safetensors, RefusesWrongTensors) {
  const auto one = [](const std::string& fields, const std::string& data = std::string(8, 'x')) {
    return with_header(R"({"t":{)" + fields + "}}", data);
  };
  expect_refused(one(R"("shape":[2],"data_offsets":[0,8])"), {"\"t\"", "dtype is missing"});
  expect_refused(one(R"("dtype":"F32","data_offsets":[0,8])"), {"\"t\"", "shape is missing"});
  expect_refused(one(R"("dtype":"F32","shape":[2])"), {"\"t\"", "data_offsets"});
  expect_refused(one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"),
                 {"\"t\"", "unknown dtype \"F31\""});
  expect_refused(one(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"), {"\"t\"", "dtype"});
  expect_refused(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), {"negative", "shape"});
  expect_refused(one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), {"shape"});
  expect_refused(one(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), {"shape"});
  expect_refused(one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"),
                 {"too large"});
  expect_refused(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
                 {"overflows"});
  expect_refused(one(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])", "xxxx"),
                 {"overflows"});
  expect_refused(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
                 {"need 12 bytes", "give 8"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"),
                 {"two numbers, got 3"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), {"two numbers"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), {"negative"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), {"leave"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,16])"), {"leave the 8 bytes"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0])"),
                 {"leave"});
  expect_refused(with_header(R"({"t":3})"), {"\"t\"", "expected an object"});
  expect_refused(with_header(R"({"__metadata__":{"a":1}})"), {"__metadata__"});
  expect_refused(with_header(R"({"__metadata__":[]})"), {"__metadata__"});
}

TEST(Safetensors, RefusesOverlapsGapsAndTruncation) {
  const auto two = [](const std::string& first, const std::string& second, std::size_t data) {
    return with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
                           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                       std::string(data, 'x'));
  };
  EXPECT_EQ(parse(two("[4,8]", "[0,4]", 8)).tensors.front().name, "b");
  expect_refused(two("[0,4]", "[2,6]", 8), {"\"b\"", "overlap"});
  expect_refused(two("[0,4]", "[0,4]", 8), {"overlap"});
  expect_refused(two("[0,4]", "[5,9]", 9), {"\"b\"", "gap"});
  expect_refused(two("[1,5]", "[5,9]", 9), {"\"a\"", "gap"});
  expect_refused(two("[0,4]", "[4,8]", 7), {"\"b\"", "leave the 7 bytes"});
  expect_refused(two("[0,4]", "[4,8]", 9), {"9 bytes of data", "cover 8"});
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TempDir dir;
  const std::vector<float> values = {1, 2, 3};
  save_safetensors(dir / "f", {{{"x", SafeDType::F32, {3}}, values.data()}});
  const std::string whole = slurp(dir / "f");
  EXPECT_EQ(parse(whole).tensors.size(), 1U);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(parse(whole.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(parse(whole + "x"), Error);
}

TEST(Safetensors, NamesInMessagesCannotBreakTheLine) {
  expect_refused(with_header(R"({"a\nb\u001b[31m":{"dtype":"U8"}})"), {"a\\x0ab\\x1b[31m"});
  expect_refused(with_header("{\"" + std::string(5000, 'n') + "\":{\"dtype\":\"U8\"}}"),
                 {"nnn..."});
}

TEST(SafetensorsWriter, AnyOrderAndEveryByte) {
  const TempDir dir;
  SafetensorsWriter writer(
      dir / "f",
      {{"b", SafeDType::U8, {3}}, {"a", SafeDType::F64, {1}}, {"z", SafeDType::F32, {0, 5}}},
      {{"format", "pt"}});
  const std::string bytes = "abc";
  writer.write("b", std::as_bytes(std::span(bytes)));
  const double value = 2.5;
  writer.write("a", std::as_bytes(std::span(&value, 1)));
  writer.commit();
  const SafetensorsFile file(dir / "f");
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::memcmp(file.data(*file.find("b")), "abc", 3), 0);
  EXPECT_EQ(std::memcmp(file.data(*file.find("a")), &value, 8), 0);
  EXPECT_EQ(file.find("a")->begin % 8, 0U);
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST(SafetensorsWriter, RefusesMistakesOfItsCaller) {
  const TempDir dir;
  const auto kind = ErrorKind::invalid_argument;
  const auto writer = [&](std::vector<TensorSpec> tensors) {
    return SafetensorsWriter(dir / "f", std::move(tensors));
  };
  expect_error(
      [&] {
        writer({{"a", SafeDType::U8, {1}}, {"a", SafeDType::U8, {1}}});
      },
      kind, "SafetensorsWriter", {"\"a\"", "twice"});
  expect_error(
      [&] {
        writer({{"__metadata__", SafeDType::U8, {1}}});
      },
      kind, "SafetensorsWriter", {"reserved"});
  expect_error([&] { writer({{"a", SafeDType::U8, {-1}}}); }, kind, "TensorSpec", {"[-1]"});
  expect_error(
      [&] {
        writer({{"a", SafeDType::F64, {1LL << 40, 1LL << 40}}});
      },
      kind, "TensorSpec", {"impossible shape"});
  expect_error(
      [&] {
        writer({{"\xff", SafeDType::U8, {1}}});
      },
      kind, "SafetensorsWriter", {"UTF-8"});
  auto open = writer({{"a", SafeDType::U8, {2}}});
  const std::string bytes = "abc";
  expect_error([&] { open.write("a", std::as_bytes(std::span(bytes))); }, kind,
               "SafetensorsWriter::write", {"2 bytes", "got 3"});
  expect_error([&] { open.write("b", {}); }, kind, "SafetensorsWriter::write", {"\"b\""});
  expect_error([&] { open.commit(); }, kind, "SafetensorsWriter::commit", {"\"a\"", "never"});
  EXPECT_FALSE(std::filesystem::exists(dir / "f"));
}

TEST(SafeDTypes, NamesAndSizes) {
  for (int i = 0; i <= static_cast<int>(SafeDType::U64); ++i) {
    const auto dtype = static_cast<SafeDType>(i);
    EXPECT_EQ(safe_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(size_of(SafeDType::BF16), 2U);
  EXPECT_EQ(size_of(SafeDType::F64), 8U);
  EXPECT_EQ(size_of(SafeDType::BOOL), 1U);
  EXPECT_THROW(safe_dtype("f32"), Error);
}

}  // namespace
}  // namespace twell::io
