// A layer as one value: what is written is what is read, by every tier, from memory and from files;
// and what is not a block, or not all of one, is refused.
#include "twell/layer_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "twell/layer.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::random_matrix;
using test::same;
using test::TestMatrix;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 72, kNeurons = 200, kColumns = 40;

// Codes of 8 bits with scales of rows.
struct Codes {
  Codes(std::int64_t rows, std::int64_t cols, unsigned seed)
      : rows_(rows), cols_(cols), codes(static_cast<std::size_t>(rows * cols)) {
    std::mt19937 random(seed);
    for (std::int8_t& c : codes)
      c = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    for (std::int64_t r = 0; r < rows; ++r) scales.push_back(1e-3F * static_cast<float>(r % 7 + 1));
  }
  WeightView view() const {
    return WeightView::codes(WeightType::int8, codes.data(), rows_, cols_, cols_, scales.data());
  }
  std::int64_t rows_, cols_;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
};

// A layer with everything that one can have. y is not as wide as x.
template <class T>
struct Stored {
  explicit Stored(bool gated, float bias = -2.0F) : gated_(gated) {
    const auto entries = [](std::int64_t count, float value) {
      return std::vector<float>(static_cast<std::size_t>(count), value);
    };
    gate_bias = entries(kNeurons, bias);
    up_bias = entries(kNeurons, 0.25F);
    down_bias = entries(kColumns, -0.5F);
    norm = entries(kNeurons, 1.5F);
    form.gate = {Activation::fat_relu, 0.01F};
    form.gate_bias = gate_bias;
    form.down_bias = down_bias;
    form.norm_weight = norm;
    form.norm_epsilon = 1e-3F;
    if (gated) {
      form.up = Activation::relu_squared;
      form.up_bias = up_bias;
    }
  }
  StoredWeights weights() const {
    StoredWeights out{gate.view(), {}, down.view()};
    if (gated_) out.up = up.view();
    return out;
  }
  StoredWeights coded() const {
    StoredWeights out{codes_gate.view(), {}, codes_down.view()};
    if (gated_) out.up = codes_up.view();
    return out;
  }

  bool gated_;
  TestMatrix<T> gate = random_matrix<T>(kNeurons, kWidth, 1, 0.1F, 3);
  TestMatrix<T> up = random_matrix<T>(kNeurons, kWidth, 2, 0.1F, 5);
  TestMatrix<T> down = random_matrix<T>(kColumns, kNeurons, 3, 0.1F, 1);
  Codes codes_gate{kNeurons, kWidth, 4}, codes_up{kNeurons, kWidth, 5},
      codes_down{kColumns, kNeurons, 6};
  std::vector<float> gate_bias, up_bias, down_bias, norm;
  FfnForm form;
};

template <class T>
TestMatrix<T> run(Context& context, const LayerBlock& block, const TestMatrix<T>& x) {
  TestMatrix<T> y(x.rows(), kColumns);
  ffn(context, x.view(), block.weights(), block.form(), y.view());
  return y;
}

// Memory at a multiple of 64 bytes.
struct Bytes {
  explicit Bytes(std::size_t count)
      : memory(std::make_shared<PreparedMemory>(count)), size(count) {}
  explicit Bytes(const LayerBlock& block) : Bytes(block.size()) {
    std::memset(data(), 0xa5, size);
    block.write(data());
  }
  std::byte* data() const { return static_cast<std::byte*>(memory->mutable_data()); }
  std::span<const std::byte> span() const { return {data(), size}; }
  std::shared_ptr<PreparedMemory> memory;
  std::size_t size;
};

template <class T>
class LayerBlockTest : public testing::Test {};
using Types = testing::Types<float, bf16>;
TYPED_TEST_SUITE(LayerBlockTest, Types);

TYPED_TEST(LayerBlockTest, WhatIsReadIsWhatWasWritten) {
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const auto x = random_matrix<TypeParam>(64, kWidth, 9);
    for (const bool gated : {true, false}) {
      for (const bool coded : {true, false}) {
        for (const bool silent : {true, false}) {
          for (const bool spread : {true, false}) {
            const Stored<TypeParam> stored(gated, silent ? -100.0F : 0.0F);
            const BlockOptions options{.dtype = dtype_of<TypeParam>::value, .spread = spread};
            const StoredWeights weights = coded ? stored.coded() : stored.weights();
            const LayerFindings findings =
                Layer(context, weights, stored.form, {.block = options}).examine(context, x.view());
            const LayerBlock block(context, weights, stored.form, &findings, options);
            const Bytes bytes(block);
            EXPECT_EQ(bytes.size % 64, 0U);
            const LayerBlock read = LayerBlock::view(bytes.span());
            EXPECT_TRUE(same(run(context, read, x), run(context, block, x)))
                << name_of(tier) << gated << coded << silent << spread;
            EXPECT_EQ(read.shape(), block.shape());
            EXPECT_EQ(read.gate_form(), block.gate_form());
            EXPECT_EQ(read.columns(), kColumns);
            EXPECT_EQ(read.external_bytes(), 0);
            ASSERT_NE(read.findings(), nullptr);
            EXPECT_EQ(read.findings()->inputs, 64);
            EXPECT_EQ(read.findings()->mean, findings.mean);
            EXPECT_EQ(read.findings()->fired, findings.fired);
            EXPECT_EQ(read.findings()->candidates, findings.candidates);
            // And again: nothing moves.
            const Bytes again(read);
            ASSERT_EQ(again.size, bytes.size);
            EXPECT_EQ(std::memcmp(again.data(), bytes.data(), bytes.size), 0);
            // Every tier runs it.
            for (const CpuTier other : available_cpu_tiers()) {
              Context there({.threads = 1, .tier = other});
              EXPECT_TRUE(same(run(there, read, x), run(there, block, x)));
            }
          }
        }
      }
    }
  }
}

// A block keeps what it has copied; the caller's memory is then free for other things.
TEST(LayerBlocks, OwnWhatTheyHaveCopied) {
  Context context({.threads = 1, .tier = {}});
  const auto x = random_matrix<float>(5, kWidth, 9);
  auto stored = std::make_unique<Stored<float>>(true, 0.0F);
  const LayerBlock block(context, stored->weights(), stored->form, nullptr, {.spread = true});
  EXPECT_EQ(block.external_bytes(), 0);
  EXPECT_EQ(block.findings(), nullptr);
  const auto y = run(context, block, x);
  LayerBlock copy = block;
  stored.reset();
  EXPECT_TRUE(same(run(context, copy, x), y));

  LayerBlock moved = std::move(copy);
  EXPECT_TRUE(same(run(context, copy, x), y))
      << "a move is a copy";  // NOLINT(bugprone-use-after-move)

  const Stored<float> other(true, 0.0F);
  const LayerBlock in_place(context, other.weights(), other.form, nullptr, {.spread = false});
  EXPECT_EQ(in_place.external_bytes(), kNeurons * kWidth * std::int64_t{sizeof(float)});
  EXPECT_EQ(in_place.weights().up->data, other.up.view().data);

  // Bytes that are read in place live as long as the last copy.
  std::weak_ptr<PreparedMemory> alive;
  {
    const Bytes bytes(block);
    alive = bytes.memory;
    copy = LayerBlock::view(bytes.span(), bytes.memory);
  }
  EXPECT_FALSE(alive.expired());
  EXPECT_TRUE(same(run(context, copy, x), y));
  copy = block;
  EXPECT_TRUE(alive.expired());
}

class LayerBlockFiles : public testing::Test {
 protected:
  LayerBlockFiles() { fs::create_directory(directory_); }
  ~LayerBlockFiles() override { fs::remove_all(directory_); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }
  fs::path directory_ =
      fs::temp_directory_path() / ("twell_layer_block_" + std::to_string(::getpid()));
  Context context_{{.threads = 2, .tier = {}}};
  Stored<bf16> stored_{true, 0.0F};
  LayerBlock block_{context_, stored_.weights(), stored_.form};
};

TEST_F(LayerBlockFiles, AreMappedAndReplacedAsAWhole) {
  const auto x = random_matrix<bf16>(7, kWidth, 9);
  const auto y = run(context_, block_, x);
  const std::string path = directory_ / "layer.twell";
  block_.save(path);
  const LayerBlock read = LayerBlock::open(path);
  EXPECT_TRUE(same(run(context_, read, x), y));
  EXPECT_EQ(fs::file_size(path), block_.size());
  // Another takes its name, by way of a link; who has mapped the first keeps it.
  const Stored<bf16> silent(true, -100.0F);
  const std::string link = directory_ / "link.twell";
  fs::create_symlink("layer.twell", link);
  LayerBlock(context_, silent.weights(), silent.form).save(link);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(same(run(context_, read, x), y));
  EXPECT_FALSE(same(run(context_, LayerBlock::open(path), x), y));
  EXPECT_EQ(files(), 2U) << "nothing is left behind";
  // By layers of two threads at the same time, of one block.
  std::vector<std::thread> threads;
  std::vector<int> right(3);
  for (int& out : right) {
    threads.emplace_back([&] {
      Context own({.threads = 2, .tier = {}});
      Layer layer(own, read, {.path = LayerPath::sparse});
      int count = 0;
      for (int call = 0; call < 20; ++call) {
        TestMatrix<bf16> z(7, kColumns);
        layer.run(own, x.view(), z.view());
        count += same(z, y) ? 1 : 0;
      }
      out = count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(right, testing::Each(20));
}

TEST_F(LayerBlockFiles, ErrorsNameThePath) {
  const std::string missing = directory_ / "missing.twell";
  EXPECT_THAT(message_of([&] { LayerBlock::open(missing); }),
              HasSubstr("missing.twell: cannot be opened: No such file"));
  EXPECT_THAT(message_of([&] { LayerBlock::open(directory_); }), HasSubstr("not a regular file"));
  const std::string nowhere = directory_ / "none" / "layer.twell";
  EXPECT_THAT(message_of([&] { block_.save(nowhere); }), HasSubstr("cannot write beside it"));
  // A directory of that name cannot be replaced, and nothing is left of the attempt.
  EXPECT_THAT(message_of([&] { block_.save(directory_); }), HasSubstr("not a regular file"));
  EXPECT_EQ(files(), 0U);
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { LayerBlock::open(pipe); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { block_.save(pipe); }), HasSubstr("not a regular file"));
  fs::remove(pipe);
  fs::create_symlink("nothing", pipe);
  EXPECT_THAT(message_of([&] { block_.save(pipe); }), HasSubstr("leads nowhere"));
  fs::remove(pipe);
  EXPECT_THAT(message_of([&] { LayerBlock::open("a\nb"); }), HasSubstr("a?b: cannot be opened"));
  const std::string name = directory_ / std::string(255, 'n');
  block_.save(name);
  fs::permissions(name, fs::perms::owner_read | fs::perms::owner_write);
  block_.save(name);
  EXPECT_EQ(fs::status(name).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::remove(name);
  const std::string empty = directory_ / "empty.twell";
  std::ofstream(empty).close();
  EXPECT_THAT(message_of([&] { LayerBlock::open(empty); }), HasSubstr("empty.twell: is empty"));
  const std::string other = directory_ / "other.twell";
  std::ofstream(other) << std::string(1000, 'x');
  EXPECT_THAT(message_of([&] { LayerBlock::open(other); }), HasSubstr("begin with 'twellblk'"));
  const std::string cut = directory_ / "cut.twell";
  block_.save(cut);
  fs::resize_file(cut, block_.size() - 64);
  EXPECT_THAT(message_of([&] { LayerBlock::open(cut); }), HasSubstr("cut off"));
}

// Damage to any byte of the header is seen.
TEST(LayerBlocks, RefuseADamagedHeader) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored(true, 0.0F);
  const Bytes bytes(LayerBlock(context, stored.weights(), stored.form));
  constexpr std::size_t kHeader = 432;
  for (std::size_t at = 0; at < kHeader; ++at) {
    for (const int bit : {0, 7}) {
      const auto flip = static_cast<std::byte>(1 << bit);
      bytes.data()[at] ^= flip;
      EXPECT_THROW(LayerBlock::view(bytes.span()), Error) << at;
      bytes.data()[at] ^= flip;
    }
  }
  for (const std::size_t count : {std::size_t{0}, kHeader - 1, kHeader, bytes.size - 1}) {
    EXPECT_THROW(LayerBlock::view(bytes.span().first(count)), Error) << count;
  }
  EXPECT_NO_THROW(LayerBlock::view(bytes.span()));
}

// A header may be made by somebody who knows the digest: whatever it says, reading it and running
// what it describes stays within the bytes.
TEST(LayerBlocks, StayWithinTheirBytesWhateverTheHeaderSays) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored(true, 0.0F);
  const LayerBlock block(context, stored.weights(), stored.form);
  const Bytes good(block);
  constexpr std::size_t kHeader = 432, kDigest = 24;
  const auto sign = [](std::byte* header) {
    std::memset(header + kDigest, 0, 8);
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (std::size_t i = 0; i < kHeader; ++i) {
      hash = (hash ^ std::to_integer<std::uint64_t>(header[i])) * 0x100000001b3U;
    }
    std::memcpy(header + kDigest, &hash, 8);
  };
  std::mt19937_64 random(1);
  int read = 0, refused = 0;
  for (int attempt = 0; attempt < 6000; ++attempt) {
    const Bytes bytes(good.size);
    std::memcpy(bytes.data(), good.data(), good.size);
    // A field of 8, 4 or 1 bytes becomes another number, large or near.
    const std::size_t width = std::size_t{1} << (random() % 4);
    const std::size_t at = 16 + random() % ((kHeader - 16) / width) * width;
    if (at + width > kHeader) continue;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, width);
    switch (random() % 4) {
      case 0:
        value += random() % 129 - 64;
        break;
      case 1:
        value = random();
        break;
      case 2:
        value = std::uint64_t{1} << (random() % 64);
        break;
      default:
        value *= 2;
    }
    std::memcpy(bytes.data() + at, &value, width);
    sign(bytes.data());
    try {
      const LayerBlock other = LayerBlock::view(bytes.span());
      ++read;
      const TestMatrix<float> x(3, other.shape().width);
      TestMatrix<float> y(3, other.columns());
      if (other.shape().dtype == DType::f32) {
        ffn(context, x.view(), other.weights(), other.form(), y.view());
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1500);
}

TEST(LayerBlocks, SayWhatIsWrongWithArguments) {
  Context context({.threads = 1, .tier = {}});
  const Stored<float> stored(true);
  StoredWeights w = stored.weights();
  w.neuron_major = true;
  EXPECT_THAT(message_of([&] { LayerBlock(context, w, stored.form); }),
              HasSubstr("LayerBlock: down: expected f32 [200, 200], got f32 [40, 200]"));
  FfnForm form = stored.form;
  form.gate_bias = form.gate_bias.first(3);
  EXPECT_THAT(message_of([&] { LayerBlock(context, stored.weights(), form); }),
              HasSubstr("form.gate_bias: expected 200 entries, got 3"));
  const LayerFindings none;
  EXPECT_THAT(message_of([&] { LayerBlock(context, stored.weights(), stored.form, &none); }),
              HasSubstr("findings"));
  const LayerBlock block(context, stored.weights(), stored.form);
  const Bytes bytes(block.size() + 64);
  EXPECT_THAT(message_of([&] { block.write(bytes.data() + 4); }), HasSubstr("multiple of 64"));
  block.write(bytes.data());
  std::memmove(bytes.data() + 4, bytes.data(), block.size());
  EXPECT_THAT(message_of([&] {
                LayerBlock::view({bytes.data() + 4, block.size()});
              }),
              HasSubstr("multiple of 8"));
  std::memmove(bytes.data() + 8, bytes.data() + 4, block.size());
  EXPECT_EQ(LayerBlock::view({bytes.data() + 8, block.size()}).size(), block.size());
}

}  // namespace
}  // namespace twell
