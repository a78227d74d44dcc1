#include "checkpoint/side_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/note.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kTemplates = "additional_chat_templates";
constexpr std::uintmax_t kLargest = 16 << 20;

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Weights in other formats, and code.
bool is_left_out(const fs::directory_entry& entry) {
  std::error_code ignored;
  const std::string extension = entry.path().extension().string();
  return entry.file_size(ignored) > kLargest ||
         is_any_of(extension, {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack",
                               ".ot", ".onnx", ".gguf", ".ggml", ".npz", ".tflite", ".py"}) ||
         entry.path().string().ends_with(".index.json");
}

// Its ids or its words are those of a tokenizer.
bool is_of_tokenizer(const std::string& name) {
  return name.starts_with(kTemplates) || name.starts_with("chat_template") ||
         name.starts_with("tokenizer") || name.starts_with("vocab") ||
         is_any_of(fs::path(name).extension().string(), {".model", ".tiktoken"}) ||
         is_any_of(name, {"generation_config.json", "special_tokens_map.json", "added_tokens.json",
                          "merges.txt", "tekken.json"});
}

}  // namespace

SideFiles SideFiles::read(const fs::path& directory) {
  SideFiles out;
  std::error_code ignored;
  if (fs::is_directory(directory, ignored)) out.read_into(directory, "");
  std::ranges::sort(out.left_out_);
  return out;
}

void SideFiles::read_into(const fs::path& directory, const std::string& prefix) {
  std::set<std::string> read = {"config.json", "tokenizer.json", "trainer"};
  try {
    for (const std::string& name : files_of_checkpoint(directory)) read.insert(name);
  } catch (const Error&) {
    // A tokenizer's directory has no weights.
  }
  std::error_code error;
  for (auto entry = fs::directory_iterator(directory, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || read.contains(name)) continue;
    if (entry->is_directory(ignored) && prefix.empty() && name == kTemplates) {
      read_into(entry->path(), name + "/");
    } else if (entry->is_regular_file(ignored) && !is_left_out(*entry)) {
      files_[prefix + name] = read_file(entry->path());
    } else {
      left_out_.push_back(prefix + name + (entry->is_directory(ignored) ? "/" : ""));
    }
  }
  if (error) {
    fail_file(directory.string(), "cannot be read: {}", system_reason(error.value()));
  }
}

void SideFiles::replace_tokenizer(const SideFiles& other) {
  std::erase_if(files_, [](const auto& file) { return is_of_tokenizer(file.first); });
  std::ranges::copy_if(other.files_, std::inserter(files_, files_.end()),
                       [](const auto& file) { return is_of_tokenizer(file.first); });
  files_.erase("generation_config.json");
}

void SideFiles::save(const fs::path& directory) const {
  for (const auto& [name, contents] : files_) {
    std::error_code error;
    if (fs::exists(directory / name, error)) continue;
    fs::create_directories((directory / name).parent_path(), error);
    write_file_atomically(directory / name, contents);
  }
}

void note_left_out(const fs::path& directory, const SideFiles& sides) {
  if (sides.left_out().empty()) return;
  note(fmt::format("{}: not copied: {}", directory.string(), fmt::join(sides.left_out(), ", ")));
}

}  // namespace twell::io
