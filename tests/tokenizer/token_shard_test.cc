#include "tokenizer/token_shard.h"

#include "tests/support/files.h"

namespace twell::io {
namespace {

std::string shard(std::uint32_t version, std::uint32_t bytes_per_id, std::uint64_t count,
                  std::uint32_t vocab, const std::string& ids) {
  std::string out = "TWELLTOK";
  const auto put = [&](auto value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(version);
  put(bytes_per_id);
  put(count);
  put(std::uint64_t{42});
  put(vocab);
  out.resize(64);
  return out + ids;
}

void refused(const std::string& file, std::initializer_list<std::string> parts) {
  expect_file_error([&] { parse_token_shard(std::as_bytes(std::span(file)), "f.tok"); }, "f.tok",
                    parts);
}

TEST(TokenShard, RoundTripsInBothWidths) {
  const TempDir dir;
  for (const std::uint32_t vocab : {2U, 65'536U, 65'537U, 2'000'000'000U}) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 700'000; ++i) {
      ids.push_back(static_cast<std::int32_t>((std::uint64_t{2654435761U} * i) % vocab));
    }
    ids.push_back(static_cast<std::int32_t>(vocab - 1));
    TokenShardWriter writer(dir / "f", vocab, 7);
    const std::span<const std::int32_t> all = ids;
    writer.append(all.first(3));
    writer.append({});
    writer.append(all.subspan(3));
    EXPECT_EQ(writer.size(), ids.size());
    writer.commit();
    const std::size_t width = vocab <= 65'536 ? 2 : 4;
    EXPECT_EQ(std::filesystem::file_size(dir / "f"), 64 + ids.size() * width);
    const TokenShard shard(dir / "f");
    EXPECT_EQ(shard.size(), ids.size());
    EXPECT_EQ(shard.vocab_size(), vocab);
    EXPECT_EQ(shard.tokenizer_hash(), 7U);
    std::vector<std::int32_t> got(ids.size());
    shard.read(0, got);
    EXPECT_EQ(got, ids);
    std::vector<std::int64_t> tail(5);
    shard.read(ids.size() - 5, tail);
    EXPECT_EQ(tail.back(), vocab - 1);
    shard.read(ids.size(), std::span<std::int64_t>());
    shard.expect_tokenizer(7);
    expect_error([&] { shard.expect_tokenizer(8); }, ErrorKind::invalid_argument,
                 (dir / "f").string(), {"another tokenizer"});
    expect_error([&] { shard.read(ids.size() - 4, tail); }, ErrorKind::invalid_argument,
                 "TokenShard::read", {"5"});
    expect_error([&] { shard.read(~std::uint64_t{0}, tail); }, ErrorKind::invalid_argument,
                 "TokenShard::read", {});
  }
}

TEST(TokenShard, WriterRefusesIdsOutsideTheVocabulary) {
  const TempDir dir;
  TokenShardWriter writer(dir / "f", 10, 7);
  for (const std::int32_t id : {-1, 10}) {
    expect_error([&] { writer.append(std::span(&id, 1)); }, ErrorKind::invalid_argument,
                 "TokenShardWriter::append", {std::to_string(id)});
  }
  EXPECT_THROW(TokenShardWriter(dir / "f", 0, 7), Error);
  EXPECT_THROW(TokenShardWriter(dir / "f", 1U << 31, 7), Error);
}

TEST(TokenShard, RefusesDamagedFiles) {
  const std::string ids("\1\0\2\0", 4);
  const std::string good = shard(1, 2, 2, 10, ids);
  EXPECT_EQ(parse_token_shard(std::as_bytes(std::span(good)), "f").count, 2U);
  refused("", {"0 bytes"});
  refused(shard(1, 2, 2, 10, ids).substr(0, 63), {"63 bytes"});
  refused("X" + shard(1, 2, 2, 10, ids).substr(1), {"not a token shard", "twell tokenize"});
  refused(shard(2, 2, 2, 10, ids), {"version 2"});
  refused(shard(1, 3, 2, 10, ids), {"3 bytes per id"});
  refused(shard(1, 0, 2, 10, ids), {"0 bytes per id"});
  refused(shard(1, 2, 3, 10, ids), {"claims 3 ids", "4 bytes", "truncated"});
  refused(shard(1, 2, 1, 10, ids), {"claims 1 ids"});
  refused(shard(1, 2, 2, 10, ids + "x"), {"5 bytes"});
  refused(shard(1, 2, 0x8000000000000002, 10, ids), {"claims 9223372036854775810 ids"});
  refused(shard(1, 2, 2, 0, ids), {"vocabulary of 0"});
  refused(shard(1, 2, 2, 65'537, ids), {"vocabulary of 65537"});
  refused(shard(1, 4, 1, 0x80000000U, ids), {"vocabulary of 2147483648"});
  std::string reserved = shard(1, 2, 2, 10, ids);
  reserved[63] = 1;
  refused(reserved, {"reserved"});
}

TEST(TokenShard, AnIdBeyondTheVocabularyIsFoundWhenRead) {
  const TempDir dir;
  spit(dir / "f", shard(1, 2, 2, 2, std::string("\1\0\2\0", 4)));
  const TokenShard shard(dir / "f");
  std::vector<std::int64_t> one(1);
  shard.read(0, one);
  expect_file_error([&] { shard.read(1, one); }, (dir / "f").string(),
                    {"id 2", "vocabulary has 2"});
}

}  // namespace
}  // namespace twell::io
