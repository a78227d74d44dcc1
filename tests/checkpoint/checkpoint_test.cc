#include "checkpoint/checkpoint.h"

#include <sys/wait.h>

#include <csignal>
#include <limits>
#include <set>

#include "files/note.h"
#include "tests/support/files.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;

// `count` tensors of four floats, all `value`.
struct Model {
  explicit Model(float value, std::size_t count = 6) : values(4, value) {
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back(
          {{"model.layers." + std::to_string(i) + ".mlp.up_proj.weight", SafeDType::F32, {2, 2}},
           values.data()});
    }
  }
  std::vector<float> values;
  std::vector<TensorData> tensors;
};

// The value that all tensors share; a mix of two checkpoints fails.
float value_of(const fs::path& directory, std::size_t count = 6) {
  const Checkpoint checkpoint(directory);
  EXPECT_EQ(checkpoint.names().size(), count);
  std::set<float> seen;
  for (const std::string& name : checkpoint.names()) {
    float values[4];
    std::memcpy(values, checkpoint.at(name).data, sizeof values);
    seen.insert(std::begin(values), std::end(values));
  }
  EXPECT_EQ(seen.size(), 1U) << "a mix of checkpoints";
  return *seen.begin();
}

float float_at(const CheckpointTensor& tensor) {
  float out = 0;
  std::memcpy(&out, tensor.data, sizeof out);
  return out;
}

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory)) out.insert(entry.path().filename());
  return out;
}

constexpr std::uint64_t kTwoTensors = 2 * 4 * sizeof(float);

TEST(Checkpoint, OneFileOrShards) {
  const TempDir dir;
  save_checkpoint(dir / "one", Model(1).tensors);
  EXPECT_EQ(files_in(dir / "one"), (std::set<std::string>{"model.safetensors"}));
  EXPECT_EQ(value_of(dir / "one"), 1);
  EXPECT_EQ(value_of(dir / "one" / "model.safetensors"), 1);
  save_checkpoint(dir / "many", Model(2).tensors, kTwoTensors);
  EXPECT_EQ(
      files_in(dir / "many"),
      (std::set<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                             "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(value_of(dir / "many"), 2);
  const Checkpoint many(dir / "many");
  EXPECT_EQ(many.metadata().at("format"), "pt");
  // A tensor larger than a shard gets one of its own.
  save_checkpoint(dir / "tiny", Model(3).tensors, 1);
  EXPECT_EQ(value_of(dir / "tiny"), 3);
  EXPECT_EQ(files_in(dir / "tiny").size(), 7U);
}

TEST(Checkpoint, LaterSavesReplaceEarlierOnes) {
  const TempDir dir;
  float value = 0;
  for (const std::uint64_t shard :
       {1ULL << 30, 32ULL, 32ULL, 32ULL, 48ULL, 1ULL << 30, 1ULL << 30}) {
    ++value;
    save_checkpoint(dir.path(), Model(value).tensors, shard);
    EXPECT_EQ(value_of(dir.path()), value);
    const std::size_t shards = shard > 1000 ? 1 : 96 / shard + 1;
    EXPECT_EQ(files_in(dir.path()).size(), shards) << shard;
  }
}

// Wherever a save ends, the directory loads as the old or the new checkpoint, never as a mix.
TEST(Checkpoint, KilledWhileSavingLeavesAWholeCheckpoint) {
  for (const std::uint64_t before : {1ULL << 30, 32ULL}) {
    for (const std::uint64_t after : {1ULL << 30, 32ULL}) {
      int old = 0;
      for (int milliseconds = 0; milliseconds < 12; ++milliseconds) {
        const TempDir dir;
        save_checkpoint(dir.path(), Model(1).tensors, before);
        const pid_t child = ::fork();
        if (child == 0) {
          for (;;) save_checkpoint(dir.path(), Model(2).tensors, after);
        }
        ::usleep(static_cast<useconds_t>(milliseconds) * 300);
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        const float value = value_of(dir.path());
        EXPECT_TRUE(value == 1 || value == 2);
        old += value == 1 ? 1 : 0;
        // And the next save works and cleans up.
        save_checkpoint(dir.path(), Model(3).tensors, after);
        EXPECT_EQ(value_of(dir.path()), 3);
      }
      EXPECT_GT(old, 0);  // some were killed before they were done
    }
  }
}

TEST(Checkpoint, MissingTensorsAndShapes) {
  const TempDir dir;
  save_checkpoint(dir.path(), Model(1).tensors);
  const Checkpoint checkpoint(dir.path());
  const std::string where = dir.path().string();
  expect_file_error([&] { checkpoint.at("model.layers.7.mlp.up_proj.weight"); }, where,
                    {"\"model.layers.7.mlp.up_proj.weight\" is missing", "6 tensors", "nearest",
                     "\"model.layers.0.mlp.up_proj.weight\""});
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(checkpoint.expect(name, {2, 2}).info->name, name);
  expect_file_error(
      [&] {
        checkpoint.expect(name, {2, 3});
      },
      (dir / "model.safetensors").string(), {name, "[2, 2]", "expected [2, 3]"});
  EXPECT_TRUE(checkpoint.contains(name));
  EXPECT_FALSE(checkpoint.contains("x"));
  save_checkpoint(dir / "empty", {});
  expect_file_error([&] { Checkpoint(dir / "empty").at("x"); }, (dir / "empty").string(),
                    {"missing", "there are none"});
}

TEST(Checkpoint, AModelSavedWithoutItsHeadHasItsOwnNames) {
  const TempDir dir;
  const float one[] = {1}, two[] = {2};
  save_checkpoint(dir.path(), {{{"decoder.a", SafeDType::F32, {1}}, one},
                               {{"model.b", SafeDType::F32, {1}}, two},
                               {{"b", SafeDType::F32, {1}}, one}});
  const Checkpoint checkpoint(dir.path());
  EXPECT_TRUE(checkpoint.contains("model.decoder.a"));
  EXPECT_EQ(checkpoint.at("model.decoder.a").info->name, "decoder.a");
  EXPECT_EQ(float_at(checkpoint.at("model.b")), 2);  // the whole name first
  EXPECT_FALSE(checkpoint.contains("model.c"));
  EXPECT_FALSE(checkpoint.contains("model."));
  expect_file_error([&] { checkpoint.at("model.decoder.c"); }, dir.path().string(),
                    {"model.decoder.c", "missing"});
}

TEST(Checkpoint, NoCheckpointAtAll) {
  const TempDir dir;
  expect_file_error([&] { Checkpoint(dir.path()); }, dir.path().string(), {"has neither"});
  expect_file_error([&] { Checkpoint(dir / "nothing"); }, (dir / "nothing").string(),
                    {"No such file"});
}

TEST(Checkpoint, RefusesIndexesThatLie) {
  const TempDir dir;
  save_checkpoint(dir.path(), Model(1, 2).tensors, 16);
  const fs::path index = dir / "model.safetensors.index.json";
  const std::string right = slurp(index);
  const auto refused = [&](const std::string& text, std::initializer_list<std::string> parts) {
    spit(index, text);
    expect_file_error([&] { Checkpoint(dir.path()); }, dir.path().string(), parts);
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = right;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::string first = "model-00001-of-00002.safetensors";
  spit(dir.path().parent_path() / "outside.safetensors", slurp(dir / first));
  for (const char* escape : {"../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors",
                             "..", "\\u0000.safetensors", "model.bin"}) {
    refused(replaced(first, escape), {"expected a .safetensors file within this directory"});
  }
  fs::remove(dir.path().parent_path() / "outside.safetensors");
  refused(replaced(first, "gone.safetensors"), {"gone.safetensors", "No such file"});
  refused(replaced(first, "model-00002-of-00002.safetensors"),
          {"model.layers.0", "is not in the file"});
  refused(replaced("model.layers.0", "model.layers.9"), {"model.layers.9", "is not in the file"});
  refused(R"({"weight_map":{}})", {"weight_map is empty"});
  refused(R"({"weight_map":{"a":1}})", {"expected a file"});
  refused(R"({"weight_map":[]})", {"weight_map is an array"});
  refused(R"({})", {"weight_map is missing"});
  refused("{", {"not valid JSON"});
  refused(replaced("\"weight_map\"", "\"metadata\""), {"duplicate key \"metadata\""});
}

std::vector<std::string> notes_of(const std::function<void()>& action) {
  std::vector<std::string> out;
  set_note_sink([&](const std::string& line) { out.push_back(line); });
  action();
  set_note_sink({});
  return out;
}

// Shards of other people hold stale copies and tensors that are no part of the model.
TEST(Checkpoint, TheIndexDecides) {
  const TempDir dir;
  save_checkpoint(dir.path(), Model(1, 2).tensors, 16);
  const std::string second = "model-00002-of-00002.safetensors";
  const std::string mine = "model.layers.0.mlp.up_proj.weight";
  Model stale(2, 3);  // the first tensor, stale; the second; a third, of which the index is silent
  save_safetensors(dir / second, stale.tensors);
  const auto notes = notes_of([&] {
    const Checkpoint checkpoint(dir.path());
    EXPECT_EQ(checkpoint.names().size(), 2U);
    EXPECT_EQ(float_at(checkpoint.at(mine)), 1);
    EXPECT_EQ(float_at(checkpoint.at("model.layers.1.mlp.up_proj.weight")), 2);
    // As transformers would find it, where the model has such a tensor.
    EXPECT_TRUE(checkpoint.contains("model.layers.2.mlp.up_proj.weight"));
    EXPECT_EQ(float_at(checkpoint.at("model.layers.2.mlp.up_proj.weight")), 2);
  });
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_NE(notes[0].find(second + " holds another \"" + mine), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("does not list 1 of"), std::string::npos) << notes[1];
  EXPECT_NE(notes[1].find("\"model.layers.2"), std::string::npos) << notes[1];
}

TEST(Checkpoint, AnEqualCopyIsNoNews) {
  const TempDir dir;
  save_checkpoint(dir.path(), Model(1, 2).tensors, 16);
  save_safetensors(dir / "model-00002-of-00002.safetensors", Model(1, 2).tensors);
  EXPECT_TRUE(notes_of([&] { Checkpoint(dir.path()); }).empty());
}

TEST(Checkpoint, ShardsMayLieInFoldersAndBehindLinks) {
  const TempDir dir;
  save_checkpoint(dir / "model", Model(1, 2).tensors, 16);
  // As the cache of the hub has them: snapshots are links to blobs.
  const std::string first = "model-00001-of-00002.safetensors";
  fs::rename(dir / "model" / first, dir / "5f3a");
  fs::create_symlink("../5f3a", dir / "model" / first);
  EXPECT_EQ(value_of(dir / "model", 2), 1);
  fs::create_directory(dir / "model" / "shards");
  fs::rename(dir / "5f3a", dir / "model" / "shards" / first);
  fs::remove(dir / "model" / first);
  const fs::path index = dir / "model" / "model.safetensors.index.json";
  std::string text = slurp(index);
  text.replace(text.find(first), first.size(), "shards/" + first);
  spit(index, text);
  EXPECT_EQ(value_of(dir / "model", 2), 1);
  EXPECT_EQ(files_of_checkpoint(dir / "model"),
            (std::vector<std::string>{"model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json", "shards/" + first}));
  // The one file wins over an index, which may be of an older checkpoint.
  save_safetensors(dir / "model" / "model.safetensors", Model(7, 2).tensors);
  EXPECT_EQ(value_of(dir / "model", 2), 7);
  EXPECT_EQ(files_of_checkpoint(dir / "model"), (std::vector<std::string>{"model.safetensors"}));
  EXPECT_EQ(value_of(index, 2), 1);  // unless it is asked for
}

TEST(Checkpoint, OtherFormatsAreNamed) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin",
                           "consolidated.00.pth", "tf_model.h5"}) {
    const TempDir dir;
    spit(dir / "LICENSE", "free");
    spit(dir / name, "weights");
    expect_file_error([&] { Checkpoint(dir.path()); }, dir.path().string(),
                      {name, "safetensors", "save_pretrained"});
  }
  const TempDir dir;
  spit(dir / "model-q4.gguf", "weights");
  expect_file_error([&] { Checkpoint(dir.path()); }, dir.path().string(),
                    {"twell convert model-q4.gguf"});
}

TEST(Checkpoint, RefusesValuesThatAreNoNumbers) {
  const TempDir dir;
  std::vector<float> values(10'000, 1.0F);
  values[7'777] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint16_t> half(100, 0x7F7F);  // the largest bfloat16
  std::vector<std::uint16_t> bad = half;
  bad[99] = 0x7F80;
  const std::vector<double> wide = {1.0, -std::numeric_limits<double>::infinity()};
  save_checkpoint(dir.path(), {{{"f32", SafeDType::F32, {100, 100}}, values.data()},
                               {{"good", SafeDType::BF16, {100}}, half.data()},
                               {{"bf16", SafeDType::BF16, {100}}, bad.data()},
                               {{"f16", SafeDType::F16, {100}}, half.data()},
                               {{"i16", SafeDType::I16, {100}}, bad.data()},
                               {{"f64", SafeDType::F64, {2}}, wide.data()}});
  const Checkpoint checkpoint(dir.path());
  const auto check = [&](const std::string& name) {
    const CheckpointTensor tensor = checkpoint.at(name);
    expect_finite(tensor, 0, tensor.info->elements());
  };
  check("good");
  check("i16");
  expect_finite(checkpoint.at("f32"), 0, 7'777);
  expect_finite(checkpoint.at("f32"), 7'778, 10'000);
  const std::string where = (dir / "model.safetensors").string();
  const auto refused = [&](const std::string& name, const std::string& element) {
    expect_file_error([&] { check(name); }, where, {name, "NaN or infinity", "element " + element});
  };
  refused("f32", "7777");
  refused("bf16", "99");
  refused("f16", "0");  // 0x7F7F has all exponent bits of a float16
  refused("f64", "1");
}

}  // namespace
}  // namespace twell::io
