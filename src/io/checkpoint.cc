#include "io/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "io/file_error.h"
#include "io/json_reader.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 256ULL << 20;

// Steps (insert, delete, replace) from one name to the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string similar_names(const std::string& name, const std::vector<std::string>& names) {
  // A bound on the work for hostile files; real checkpoints stay far below.
  constexpr std::size_t kMaxNames = 10'000;
  constexpr std::size_t kMaxLength = 200;
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<std::size_t, std::string_view>> scored;
  for (const auto& candidate : names) {
    if (scored.size() == kMaxNames) break;
    if (candidate.size() > kMaxLength || name.size() > kMaxLength) continue;
    scored.emplace_back(distance(name, candidate), candidate);
  }
  const std::size_t shown = std::min(kShown, scored.size());
  std::partial_sort(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(shown),
                    scored.end());
  std::string out;
  for (std::size_t i = 0; i < shown; ++i) {
    out += (i == 0 ? "" : ", ") + in_quotes(scored[i].second);
  }
  return out.empty() ? "there are none" : "nearest: " + out;
}

// tensor name -> file name, every file name a plain name within the directory.
std::unordered_map<std::string, std::string> read_index(const fs::path& path) {
  const std::string file = path.string();
  const Json document = parse_json(read_file(path, kMaxIndexBytes), file);
  const JsonObject index(document, file);
  std::unordered_map<std::string, std::string> out;
  const JsonObject map = index.object("weight_map");
  for (const auto& [name, value] : map.json().items()) {
    if (!value.is_string()) {
      fail_file(file, "weight_map: tensor {} names {}, expected a file", in_quotes(name),
                kind_of(value));
    }
    const auto& target = value.get_ref<const std::string&>();
    if (target.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
        !target.ends_with(".safetensors")) {
      fail_file(file,
                "weight_map: tensor {} names the file {}, expected a .safetensors file of "
                "this directory",
                in_quotes(name), in_quotes(target));
    }
    out.emplace(name, target);
  }
  if (out.empty()) fail_file(file, "weight_map is empty");
  return out;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    add_file(path);
  } else if (fs::exists(path / kSingle, ignored)) {
    add_file(path / kSingle);
  } else if (fs::exists(path / kIndex, ignored)) {
    const std::string index_file = (path / kIndex).string();
    const auto map = read_index(path / kIndex);
    std::set<std::string> files;
    for (const auto& [name, file] : map) files.insert(file);
    for (const auto& file : files) add_file(path / file);
    for (const auto& [name, file] : map) {
      const auto found = index_.find(name);
      if (found == index_.end() || found->second.file->path().filename() != file) {
        fail_file(index_file, "tensor {} is not in the file {}", in_quotes(name), in_quotes(file));
      }
    }
    for (const auto& [name, tensor] : index_) {
      if (!map.contains(name)) {
        fail_file(index_file, "does not mention tensor {} of the file {}", in_quotes(name),
                  tensor.file->path().filename().string());
      }
    }
  } else {
    fail_file(path.string(), "has neither {} nor {}", kSingle, kIndex);
  }
  names_.reserve(index_.size());
  for (const auto& [name, tensor] : index_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

void Checkpoint::add_file(const fs::path& file) {
  files_.push_back(std::make_unique<SafetensorsFile>(file));
  const SafetensorsFile& opened = *files_.back();
  for (const TensorInfo& tensor : opened.tensors()) {
    const auto [entry, fresh] =
        index_.emplace(tensor.name, CheckpointTensor{&tensor, opened.data(tensor), &opened});
    if (!fresh) {
      fail_file(file.string(), "tensor {} is in {} as well", in_quotes(tensor.name),
                entry->second.file->path().filename().string());
    }
  }
}

CheckpointTensor Checkpoint::at(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    fail_file(path_.string(), "tensor {} is missing among {} tensors ({})", in_quotes(name),
              names_.size(), similar_names(name, names_));
  }
  return found->second;
}

CheckpointTensor Checkpoint::expect(const std::string& name,
                                    const std::vector<std::int64_t>& shape) const {
  const CheckpointTensor tensor = at(name);
  if (tensor.info->shape != shape) {
    fail_file(tensor.file->path().string(), "tensor {} has the shape {}, expected {}",
              in_quotes(name), in_brackets(tensor.info->shape), in_brackets(shape));
  }
  return tensor;
}

}  // namespace twell::io
