// What a model's directory holds beside the weights, config.json and the tokenizer that are read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace twell::io {

// Files that a copy of a model should have too: generation_config.json, chat templates, licences,
// the model card. In memory, because the directory may be gone when a checkpoint is written.
class SideFiles {
 public:
  SideFiles() = default;
  // Of a model's directory: its small files that no reader here needs, and the templates in
  // additional_chat_templates/. Weights in other formats, code, large files and other directories
  // are left_out(). Hidden files are those of tools. Nothing of what is no directory. Throws Error
  // (environment) where a file cannot be read.
  static SideFiles read(const std::filesystem::path& directory);

  // Those of another tokenizer, from its directory, in place of those that belong to one. Neither
  // generation_config.json stays: its ids are of one tokenizer and its other numbers of one model.
  void replace_tokenizer(const SideFiles& other);
  // Writes those whose names are still free in a directory that a model was written into.
  void save(const std::filesystem::path& directory) const;

  const std::map<std::string, std::string>& files() const { return files_; }  // name -> contents
  // Names, ascending; of directories with "/" behind them.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  void read_into(const std::filesystem::path& directory, const std::string& prefix);

  std::map<std::string, std::string> files_;
  std::vector<std::string> left_out_;
};

// Tells what of a model's directory its copies will not have, if anything.
void note_left_out(const std::filesystem::path& directory, const SideFiles& sides);

}  // namespace twell::io
