// Saving a checkpoint so that there is a whole one at every moment:
//  1. shards go to names that no older checkpoint uses;
//  2. the index is renamed into place;
//  3. older files go, model.safetensors first: readers prefer it, so until then the old checkpoint
//     is the one they see.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "checkpoint/checkpoint.h"
#include "files/file_error.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;

// The usual names; with a generation where an older checkpoint has these.
std::vector<std::string> shard_names(const fs::path& directory, std::size_t count) {
  for (int generation = 1;; ++generation) {
    const std::string suffix = generation == 1 ? "" : fmt::format("-g{}", generation);
    std::vector<std::string> out;
    bool fresh = true;
    for (std::size_t i = 1; i <= count; ++i) {
      out.push_back(fmt::format("model-{:05}-of-{:05}{}.safetensors", i, count, suffix));
      std::error_code ignored;
      fresh = fresh && !fs::exists(directory / out.back(), ignored);
    }
    if (fresh) return out;
  }
}

// Shards of older checkpoints, also of ones that were never finished.
void remove_old_shards(const fs::path& directory, const std::set<std::string>& keep) {
  static const std::regex pattern(R"(model-\d{5}-of-\d{5}(-g\d+)?\.safetensors)");
  std::vector<fs::path> old;
  std::error_code ignored;
  for (auto entry = fs::directory_iterator(directory, ignored);
       !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (std::regex_match(name, pattern) && !keep.contains(name)) old.push_back(entry->path());
  }
  for (const auto& path : old) fs::remove(path, ignored);
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path directory, const std::vector<TensorSpec>& tensors,
                                   std::uint64_t max_shard_bytes,
                                   const SafetensorsMetadata& metadata)
    : directory_(std::move(directory)) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) fail_file(directory_.string(), "cannot be made: {}", error.message());
  std::vector<std::vector<TensorSpec>> plan(1);
  std::uint64_t filled = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t bytes = tensor.bytes();
    if (!plan.back().empty() && bytes > max_shard_bytes - std::min(filled, max_shard_bytes)) {
      plan.emplace_back();
      filled = 0;
    }
    if (!shard_of_.emplace(tensor.name, plan.size() - 1).second) {
      fail_argument("CheckpointWriter", "tensor name {} is used twice", in_quotes(tensor.name));
    }
    plan.back().push_back(tensor);
    filled += bytes;
    total_bytes_ += bytes;
  }
  const auto names = plan.size() == 1 ? std::vector<std::string>{std::string(kCheckpointFile)}
                                      : shard_names(directory_, plan.size());
  shards_.reserve(plan.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    shards_.push_back({names[i], SafetensorsWriter(directory_ / names[i], plan[i], metadata)});
  }
}

void CheckpointWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    fail_argument("CheckpointWriter::write", "{}: no tensor {} was announced", directory_.string(),
                  in_quotes(name));
  }
  shards_[found->second].writer.write(name, bytes);
}

void CheckpointWriter::commit() {
  std::set<std::string> kept;
  for (auto& shard : shards_) {
    shard.writer.commit();
    kept.insert(shard.file_name);
  }
  std::error_code ignored;
  if (shards_.size() == 1) {
    fs::remove(directory_ / kCheckpointIndex, ignored);
  } else {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [name, shard] : shard_of_) map[name] = shards_[shard].file_name;
    const nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}},
                                  {"weight_map", map}};
    write_file_atomically(directory_ / kCheckpointIndex, index.dump(2) + "\n");
    fs::remove(directory_ / kCheckpointFile, ignored);
  }
  remove_old_shards(directory_, kept);
}

void save_checkpoint(const fs::path& directory, const std::vector<TensorData>& tensors,
                     std::uint64_t max_shard_bytes, const SafetensorsMetadata& metadata) {
  CheckpointWriter writer(directory, {tensors.begin(), tensors.end()}, max_shard_bytes, metadata);
  for (const auto& tensor : tensors) {
    writer.write(tensor.name, {static_cast<const std::byte*>(tensor.data),
                               static_cast<std::size_t>(tensor.bytes())});
  }
  writer.commit();
}

}  // namespace twell::io
