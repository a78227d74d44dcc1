#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "checkpoint/config_names.h"
#include "files/file_error.h"
#include "files/json_reader.h"
#include "files/note.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
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

// tensor name -> file name, every one within the directory.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const std::string file = path.string();
  const Json document = parse_python_json(read_file(path, kMaxIndexBytes), file);
  const JsonObject index(document, file);
  std::map<std::string, std::string> out;
  const JsonObject map = index.object("weight_map");
  for (const auto& [name, value] : map.json().items()) {
    if (!value.is_string()) {
      fail_file(file, "weight_map: tensor {} names {}, expected a file", in_quotes(name),
                kind_of(value));
    }
    const auto& target = value.get_ref<const std::string&>();
    if (!stays_within(target) || !target.ends_with(".safetensors")) {
      fail_file(file,
                "weight_map: tensor {} names the file {}, expected a .safetensors file within "
                "this directory",
                in_quotes(name), in_quotes(target));
    }
    out.emplace(name, target);
  }
  if (out.empty()) fail_file(file, "weight_map is empty");
  return out;
}

bool is_index(const fs::path& path) { return path.string().ends_with(".index.json"); }

// The one file, or the index.
fs::path main_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const std::string_view name : {kCheckpointFile, kCheckpointIndex}) {
    if (fs::exists(path / name, ignored)) return path / name;
  }
  // What else people have: PyTorch's own format, Meta's, TensorFlow's, llama.cpp's.
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension == ".gguf") {
      fail_file(path.string(), "has {} but no {}: twell convert {} DIRECTORY makes a model of it",
                in_quotes(name), kCheckpointFile, name);
    }
    if (name.starts_with("pytorch_model") || extension == ".pth" || extension == ".h5") {
      fail_file(path.string(),
                "has {} but no {}: weights are read from safetensors alone; load the model with "
                "transformers and write it with save_pretrained()",
                in_quotes(name), kCheckpointFile);
    }
  }
  fail_file(path.string(), "has neither {} nor {}", kCheckpointFile, kCheckpointIndex);
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  const fs::path file = main_file(path);
  if (is_index(file)) {
    open_index(file);
  } else {
    open_file(file);
  }
  names_.reserve(index_.size());
  for (const auto& [name, tensor] : index_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

void Checkpoint::open_file(const fs::path& file) {
  files_.push_back(std::make_unique<SafetensorsFile>(file));
  const SafetensorsFile& opened = *files_.back();
  for (const TensorInfo& tensor : opened.tensors()) {
    index_.emplace(tensor.name, CheckpointTensor{&tensor, opened.data(tensor), &opened});
  }
}

void Checkpoint::open_index(const fs::path& index) {
  const auto owner = read_index(index);
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, file] : owner) {
    const SafetensorsFile*& shard = opened[file];
    if (shard == nullptr) {
      files_.push_back(std::make_unique<SafetensorsFile>(index.parent_path() / file));
      shard = files_.back().get();
    }
    const TensorInfo* tensor = shard->find(name);
    if (tensor == nullptr) {
      fail_file(index.string(), "tensor {} is not in the file {}", in_quotes(name),
                in_quotes(file));
    }
    index_.emplace(name, CheckpointTensor{tensor, shard->data(*tensor), shard});
  }
  std::vector<std::string> unlisted;
  for (const auto& [file, shard] : opened) {
    for (const TensorInfo& tensor : shard->tensors()) add_unlisted(*shard, tensor, unlisted);
  }
  if (unlisted.empty()) return;
  note(fmt::format("{} does not list {} of its files' tensors, which are left out: {}{}",
                   index.string(), unlisted.size(), in_quotes(unlisted.front()),
                   unlisted.size() > 1 ? ", ..." : ""));
}

void Checkpoint::add_unlisted(const SafetensorsFile& file, const TensorInfo& tensor,
                              std::vector<std::string>& names) {
  const CheckpointTensor here{&tensor, file.data(tensor), &file};
  const auto listed = index_.find(tensor.name);
  if (listed == index_.end()) {
    unlisted_.insert_or_assign(tensor.name, here);  // of the last file, as in `transformers`
    names.push_back(tensor.name);
  } else if (listed->second.file != &file && !same_bytes(here, listed->second)) {
    note(fmt::format("{} holds another {} than {}, which the index names: it is left out",
                     file.path().string(), in_quotes(tensor.name),
                     listed->second.file->path().filename().string()));
  }
}

std::vector<std::string> files_of_checkpoint(const fs::path& path) {
  const fs::path file = main_file(path);
  std::set<std::string> out = {file.filename().string()};
  if (is_index(file)) {
    for (const auto& [tensor, shard] : read_index(file)) out.insert(shard);
  }
  return {out.begin(), out.end()};
}

bool same_bytes(const CheckpointTensor& a, const CheckpointTensor& b) {
  return a.info->dtype == b.info->dtype && a.info->shape == b.info->shape &&
         std::memcmp(a.data, b.data, a.info->bytes()) == 0;
}

const CheckpointTensor* Checkpoint::find(const std::string& name) const {
  for (const auto* map : {&index_, &unlisted_}) {
    if (const auto found = map->find(name); found != map->end()) return &found->second;
  }
  constexpr std::string_view kBase = "model.";
  return name.starts_with(kBase) ? find(name.substr(kBase.size())) : nullptr;
}

CheckpointTensor Checkpoint::at(const std::string& name) const {
  if (const CheckpointTensor* found = find(name)) return *found;
  fail_file(path_.string(), "tensor {} is missing among {} tensors ({})", in_quotes(name),
            names_.size(), similar_names(name, names_));
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
