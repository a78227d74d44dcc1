#include "checkpoint/side_files.h"

#include "checkpoint/checkpoint.h"
#include "tests/support/files.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

Names names_of(const SideFiles& sides) {
  Names out;
  for (const auto& [name, contents] : sides.files()) out.push_back(name);
  return out;
}

// A model's directory as the hub has them.
class SideFilesTest : public ::testing::Test {
 protected:
  SideFilesTest() {
    const float value = 1;
    save_checkpoint(dir_ / "model", {{{"a", SafeDType::F32, {1}}, &value}});
    for (const char* name :
         {"config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja",
          "special_tokens_map.json", "vocab.json", "LICENSE", "README.md", "modeling.py",
          "pytorch_model.bin", "pytorch_model.bin.index.json", "model.fp16.safetensors",
          ".gitattributes"}) {
      spit(dir_ / "model" / name, name);
    }
    for (const char* folder : {"additional_chat_templates", "original", "trainer"}) {
      fs::create_directory(dir_ / "model" / folder);
    }
    spit(dir_ / "model" / "additional_chat_templates" / "tools.jinja", "tools");
    spit(dir_ / "blob", "terms");
    fs::create_symlink("../blob", dir_ / "model" / "USE_POLICY.md");
  }

  TempDir dir_;
};

TEST_F(SideFilesTest, AreCarriedOrSaid) {
  const SideFiles sides = SideFiles::read(dir_ / "model");
  EXPECT_EQ(names_of(sides),
            (Names{"LICENSE", "README.md", "USE_POLICY.md", "additional_chat_templates/tools.jinja",
                   "chat_template.jinja", "generation_config.json", "special_tokens_map.json",
                   "tokenizer_config.json", "vocab.json"}));
  EXPECT_EQ(sides.left_out(), (Names{"model.fp16.safetensors", "modeling.py", "original/",
                                     "pytorch_model.bin", "pytorch_model.bin.index.json"}));
  fs::create_directory(dir_ / "copy");
  spit(dir_ / "copy" / "tokenizer_config.json", "of the tokenizer that was read");
  sides.save(dir_ / "copy");
  EXPECT_EQ(slurp(dir_ / "copy" / "tokenizer_config.json"), "of the tokenizer that was read");
  EXPECT_EQ(slurp(dir_ / "copy" / "USE_POLICY.md"), "terms");
  EXPECT_EQ(slurp(dir_ / "copy" / "additional_chat_templates" / "tools.jinja"), "tools");
  EXPECT_EQ(names_of(SideFiles::read(dir_ / "copy")), names_of(sides));
}

TEST_F(SideFilesTest, GoWithTheirTokenizer) {
  SideFiles sides = SideFiles::read(dir_ / "model");
  sides.replace_tokenizer(SideFiles());
  EXPECT_EQ(names_of(sides), (Names{"LICENSE", "README.md", "USE_POLICY.md"}));
  fs::create_directory(dir_ / "words");
  for (const char* name : {"generation_config.json", "chat_template.json", "README.md"}) {
    spit(dir_ / "words" / name, "other");
  }
  sides.replace_tokenizer(SideFiles::read(dir_ / "words"));
  EXPECT_EQ(names_of(sides),
            (Names{"LICENSE", "README.md", "USE_POLICY.md", "chat_template.json"}));
  EXPECT_EQ(sides.files().at("README.md"), "README.md");
}

TEST_F(SideFilesTest, LargeFilesStay) {
  fs::resize_file(dir_ / "model" / "README.md", (16 << 20) + 1);
  const SideFiles sides = SideFiles::read(dir_ / "model");
  EXPECT_FALSE(sides.files().contains("README.md"));
  EXPECT_EQ(sides.left_out().front(), "README.md");
  EXPECT_TRUE(SideFiles::read(dir_ / "none").files().empty());
}

}  // namespace
}  // namespace twell::io
