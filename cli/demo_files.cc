#include "cli/demo_files.h"

#include <sstream>

#include "cli/model_files.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/run_directory.h"

namespace twell::cli {
namespace fs = std::filesystem;
namespace {

// In model/: the name of the checkpoint that the demo ended with. A run that went on from there is
// somebody's.
constexpr const char* kMarker = ".demo";

}  // namespace

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
  expect_own("model", fs::path("model") / kMarker,
             io::latest_checkpoint(path_ / "model").value_or(fs::path()).filename().string());
  expect_own("report.html", "report.html", "<title>twell demo</title>");
  expect_own("results.json", "results.json", "\"speedup_prefill\"");
  // Of a demo that was killed.
  fs::remove_all(temporary_);
  unfinished_.emplace([this] { remove_trained(); });
}

void DemoDirectory::expect_own(const char* name, const fs::path& file,
                               std::string_view mark) const {
  std::error_code error;
  const fs::path found = path_ / file;
  if (!fs::exists(fs::symlink_status(path_ / name, error))) return;
  if (fs::is_regular_file(found, error) && io::read_file(found).find(mark) != std::string::npos) {
    return;
  }
  io::fail_file("--out " + path_.string(),
                "holds \"{}\", which no demo made; choose another directory", name);
}

DemoDirectory::~DemoDirectory() {
  unfinished_.reset();
  remove_trained();
}

void DemoDirectory::remove_trained() const {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  if (!made_ || fs::exists(path_ / "model", ignored)) return;
  fs::remove_all(path_ / "cache", ignored);
  fs::remove(path_, ignored);  // only if nothing else is in it
}

std::string DemoDirectory::keep() {
  const fs::path newest = io::latest_checkpoint(temporary_).value_or(fs::path());
  io::write_file_atomically(temporary_ / kMarker, newest.filename().string());
  const fs::path model = path_ / "model";
  const fs::path older = path_ / ".older-model.twell-tmp";
  fs::remove_all(older);
  unfinished_->finish([&] {
    if (fs::exists(model)) fs::rename(model, older);
    fs::rename(temporary_, model);
  });
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
