#include "cli/demo_files.h"

#include <sstream>

#include "cli/model_files.h"
#include "io/file_error.h"

namespace twell::cli {
namespace fs = std::filesystem;

DemoDirectory::DemoDirectory(const fs::path& path)
    : path_(path), temporary_(path / ".model.twell-tmp") {
  std::error_code error;
  made_ = fs::create_directories(path_, error);
  if (error) {
    io::fail_file("--out " + path.string(), "cannot be made: {}", error.message());
  }
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name != "model" && name != "cache" && name != "report.html" && name != "results.json" &&
        name.find(".twell-tmp") == std::string::npos) {
      io::fail_file("--out " + path.string(),
                    "holds \"{}\", which is not of a demo; choose another directory", name);
    }
  }
  // Of a demo that was killed.
  fs::remove_all(temporary_);
}

DemoDirectory::~DemoDirectory() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  if (!made_ || fs::exists(path_ / "model", ignored)) return;
  fs::remove_all(path_ / "cache", ignored);
  fs::remove(path_, ignored);  // only if nothing else is in it
}

std::string DemoDirectory::keep() {
  const fs::path model = path_ / "model";
  const fs::path older = path_ / ".older-model.twell-tmp";
  fs::remove_all(older);
  if (fs::exists(model)) fs::rename(model, older);
  fs::rename(temporary_, model);
  fs::remove_all(older);
  return model.string();
}

std::string opening_of(const std::string& file) {
  constexpr int kWords = 6;
  std::istringstream in(read_text(file, 1 << 16));
  std::string prompt, word;
  for (int i = 0; i < kWords && in >> word; ++i) prompt += (i == 0 ? "" : " ") + word;
  return prompt.empty() ? "The" : prompt;
}

}  // namespace twell::cli
