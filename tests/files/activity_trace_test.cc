#include "files/activity_trace.h"

#include <random>

#include "tests/support/files.h"

namespace twell::io {
namespace {

std::string number(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

// A file of one layer; with `ids` of version 2.
std::string file_of(const std::string& rows, std::uint64_t tokens, std::uint32_t neurons = 300,
                    std::uint32_t layers = 1, const std::string& ids = {}) {
  return "TWELLTRC" + number(ids.empty() ? 1 : 2, 4) + number(layers, 4) + number(64, 4) +
         number(neurons, 4) + number(1, 4) + number(128, 4) + number(tokens, 8) +
         std::string(24, '\0') + number(rows.size(), 8) + ids + rows;
}

void refused(const std::string& file, std::initializer_list<std::string> parts) {
  expect_file_error([&] { (void)ActivityTrace(std::as_bytes(std::span(file)), "f.trc").read(0); },
                    "f.trc", parts);
}

TEST(ActivityTrace, RoundTrips) {
  const TempDir dir;
  std::mt19937 random(1);
  for (const std::uint32_t neurons : {1U, 127U, 129U, 70'000U, 1U << 24}) {
    ActivityTraceWriter writer({3, 64, neurons, false, 77, 0});
    std::vector<std::vector<std::vector<std::uint32_t>>> expected(3);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      for (int token = 0; token < 40; ++token) {
        std::vector<std::uint32_t> row;
        // Some rows empty, one full or nearly so, the last neuron now and then.
        const double chance = token == 5 ? 1.0 : token % 7 == 0 ? 0.0 : 20.0 / neurons;
        const std::uint32_t step = neurons > 1'000'000 ? 4093 : 1;
        for (std::uint32_t n = 0; n < neurons; n += step) {
          if (std::generate_canonical<double, 32>(random) < chance * step) row.push_back(n);
        }
        if (token % 9 == 1 && (row.empty() || row.back() != neurons - 1))
          row.push_back(neurons - 1);
        writer.append(layer, row);
        expected[layer].push_back(row);
      }
    }
    std::vector<std::uint32_t> ids;  // in every other file
    for (std::uint32_t token = 0; neurons % 2 == 0 && token < 40; ++token) {
      ids.push_back(token == 3 ? 0xffffffffU : token * 77);
    }
    writer.set_token_ids(ids);
    writer.save(dir / "t");
    EXPECT_EQ(std::filesystem::file_size(dir / "t"), writer.bytes());
    const ActivityTrace trace(dir / "t");
    EXPECT_EQ(trace.header().layers, 3U);
    EXPECT_EQ(trace.header().width, 64U);
    EXPECT_EQ(trace.header().neurons, neurons);
    EXPECT_EQ(trace.header().window, 77U);
    EXPECT_EQ(trace.header().tokens, 40U);
    EXPECT_FALSE(trace.header().gated);
    EXPECT_EQ(trace.token_ids(), ids);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      for (const std::uint64_t most : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1000}}) {
        const ActivityRows rows = trace.read(layer, most);
        ASSERT_EQ(rows.rows(), std::min<std::uint64_t>(most, 40));
        for (std::size_t i = 0; i < rows.rows(); ++i) {
          const auto row = rows.row(i);
          EXPECT_EQ(std::vector(row.begin(), row.end()), expected[layer][i]);
        }
      }
      EXPECT_EQ(writer.read(layer).starts, trace.read(layer).starts);
      EXPECT_EQ(writer.read(layer).neurons, trace.read(layer).neurons);
    }
    expect_error([&] { (void)trace.read(3); }, ErrorKind::invalid_argument, "ActivityTrace::read",
                 {"3 layers", "layer 3"});
  }
}

TEST(ActivityTrace, ThirtyOfFiveThousandTakeFortyFiveBytes) {
  std::mt19937 random(2);
  ActivityTraceWriter writer({1, 2048, 5632, true, 2048, 0});
  for (int token = 0; token < 200; ++token) {
    std::vector<std::uint32_t> all(5632), row;
    for (std::uint32_t n = 0; n < 5632; ++n) all[n] = n;
    std::sample(all.begin(), all.end(), std::back_inserter(row), 30, random);
    writer.append(0, row);
  }
  // A gap of 188 on average: half of them take two bytes.
  EXPECT_NEAR(static_cast<double>(writer.bytes() - 72) / 200, 46, 2);
}

TEST(ActivityTrace, MistakesOfTheWriter) {
  ActivityTraceWriter writer({2, 64, 10, true, 8, 0});
  const auto append = [&](std::uint32_t layer, std::vector<std::uint32_t> row) {
    return [&writer, layer, row] { writer.append(layer, row); };
  };
  for (const auto& wrong : {append(0, {3, 3}), append(0, {4, 2}), append(0, {10}), append(2, {})}) {
    expect_error(wrong, ErrorKind::invalid_argument, "ActivityTraceWriter::append", {});
  }
  writer.append(0, std::vector<std::uint32_t>{1});
  const TempDir dir;
  expect_error([&] { writer.save(dir / "t"); }, ErrorKind::invalid_argument,
               "ActivityTraceWriter::save", {"layer 1 has 0 tokens"});
  writer.append(1, std::vector<std::uint32_t>{});
  writer.set_token_ids({5, 6});
  expect_error([&] { writer.save(dir / "t"); }, ErrorKind::invalid_argument,
               "ActivityTraceWriter::save", {"ids of 2 tokens", "there are 1"});
  EXPECT_FALSE(std::filesystem::exists(dir / "t"));
  expect_error([&] { (void)writer.read(2); }, ErrorKind::invalid_argument,
               "ActivityTraceWriter::read", {"layer 2"});
}

TEST(ActivityTrace, DamageIsNoticed) {
  using namespace std::string_literals;
  const std::string good = file_of("\x02\x05\x00\x00"s, 2);
  EXPECT_EQ(ActivityTrace(std::as_bytes(std::span(good)), "f").read(0).neurons,
            (std::vector<std::uint32_t>{5, 6}));
  const std::string ids = "\x07\x00\x00\x00\x08\x00\x00\x01"s;
  const std::string with_ids = file_of("\x02\x05\x00\x00"s, 2, 300, 1, ids);
  const ActivityTrace second(std::as_bytes(std::span(with_ids)), "f");
  EXPECT_EQ(second.read(0).neurons, (std::vector<std::uint32_t>{5, 6}));
  EXPECT_EQ(second.token_ids(), (std::vector<std::uint32_t>{7, 0x1000008}));
  for (const std::string& file : {good, with_ids}) {
    for (std::size_t size = 0; size < file.size(); ++size) refused(file.substr(0, size), {});
    refused(file + "x", {"behind its last layer"});
  }
  refused(file_of("\x00"s, 2, 300, 1, "\x07"s), {"ids of 2 tokens"});
  refused(file_of("\x00"s, std::uint64_t{1} << 63, 300, 1, ids), {"truncated"});
  refused(file_of("\x02\x05\x00"s, 3), {"token 1"});  // there is one
  refused(file_of("\x02\x05\x00\x00\x00"s, 2), {"behind its last token"});
  refused(file_of("\x01\xac\x02"s, 1), {"below 300"});                      // 300
  refused(file_of("\x02\xab\x02\x00"s, 1), {"below 300"});                  // 299, 300
  refused(file_of("\xad\x02" + std::string(301, '\0'), 1), {"below 300"});  // 301 of 300
  refused(file_of("\x7f\x00"s, 1), {"below 300"});                          // 127 in one byte
  refused(file_of("\x01\xff\xff\xff\xff\x01"s, 1), {"below 300"});          // more than 28 bits
  refused(file_of("\x00"s, 1, 0), {"H = 0"});
  refused(file_of("\x00"s, 1, 300, 0), {"0 layers"});
  refused(file_of("\x00"s, 1, 300, 65'536), {"table of 65536 layers"});
  refused(file_of("\x00"s, std::uint64_t{1} << 63), {"truncated"});
  std::string other = good;
  other[0] = 'X';
  refused(other, {"twell stats --trace"});
  other = good;
  other[8] = 3;
  refused(other, {"version 3"});
  other = good;
  other[63] = 1;
  refused(other, {"reserved"});
}

}  // namespace
}  // namespace twell::io
