#include "corpus/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "files/file_error.h"
#include "files/note.h"
#include "files/run_directory.h"
#include "tokenizer/token_shard.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

bool is_text_name(const fs::path& path) {
  constexpr const char* kKnown[] = {".txt", ".md", ".rst", ".py", ".tokens"};
  return std::ranges::find(kKnown, path.extension()) != std::end(kKnown);
}

// Whether cache_name() made it.
bool is_cache_name(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kDigits = "0123456789abcdef";
  return name.size() == cache_name(0).size() && name.find_first_not_of(kDigits) == 16;
}

bool begins_with(const fs::path& file, std::string_view mark) {
  std::string found(mark.size(), '\0');
  std::ifstream in(file, std::ios::binary);
  return in.read(found.data(), static_cast<std::streamsize>(found.size())) && found == mark;
}

// Why a directory holds no texts; null where it may.
const char* reason_to_pass(const fs::path& directory) {
  std::error_code ignored;
  if (directory.extension() == ".twell-tmp") return "is what a killed process left";
  if (io::is_run_directory(directory)) return "is a run";
  const bool weights = fs::exists(directory / "model.safetensors", ignored) ||
                       fs::exists(directory / "model.safetensors.index.json", ignored);
  return weights && fs::exists(directory / "config.json", ignored) ? "is a model" : nullptr;
}

bool is_wanted(const fs::directory_entry& entry, const TextSearch& search) {
  std::error_code ignored;
  if (!entry.is_regular_file(ignored) || !is_text_name(entry.path()) ||
      entry.file_size(ignored) == 0 || fs::equivalent(entry.path(), search.leave_out, ignored)) {
    return false;
  }
  const bool cached = is_cache_name(entry.path());
  const bool wanted = search.shards && !cached;
  if (wanted || !begins_with(entry.path(), io::kTokenShardMagic)) return true;
  io::note(fmt::format("{} is passed over: it {}", entry.path().string(),
                       cached ? "is a cache of token ids" : "holds token ids"));
  return false;
}

// One directory is open at a time, however deep they lie.
void walk(const fs::path& directory, const TextSearch& search, std::vector<fs::path>& out) {
  std::error_code error, ignored;
  std::vector<fs::directory_entry> entries;
  for (auto entry = fs::directory_iterator(directory, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    entries.push_back(*entry);
  }
  if (error) {
    io::fail_file(directory.string(), "cannot be read: {}", io::system_reason(error.value()));
  }
  for (const fs::directory_entry& entry : entries) {
    if (!entry.is_directory(ignored)) {
      if (is_wanted(entry, search)) out.push_back(entry.path());
      continue;
    }
    const char* reason =
        entry.is_symlink(ignored) ? "is a link to a directory" : reason_to_pass(entry.path());
    if (reason == nullptr) {
      walk(entry.path(), search, out);
    } else {
      io::note(fmt::format("{} is passed over: it {}", entry.path().string(), reason));
    }
  }
}

}  // namespace

std::vector<fs::path> find_texts(const std::vector<fs::path>& paths, const TextSearch& search) {
  std::vector<fs::path> out;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      std::vector<fs::path> inside;
      walk(path, search, inside);
      std::ranges::sort(inside);
      out.insert(out.end(), inside.begin(), inside.end());
    } else if (fs::exists(path, error)) {
      out.push_back(path);
    } else {
      io::fail_file(path.string(), "training text: no such file or directory");
    }
  }
  if (out.empty()) {
    io::fail_file(paths.empty() ? "training text" : paths.front().string(),
                  "no text found: give files, or directories with .txt, .md, .rst, .py or .tokens "
                  "files in them");
  }
  return out;
}

std::string cache_name(std::uint64_t hash) { return fmt::format("{:016x}.tokens", hash); }

}  // namespace twell::lm
