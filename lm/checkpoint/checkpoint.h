// The weights of a Hugging Face model directory: one model.safetensors, or several files named by
// model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"

namespace twell::io {

// A model's weights in its directory: one file, or several that an index names.
inline constexpr std::string_view kCheckpointFile = "model.safetensors";
inline constexpr std::string_view kCheckpointIndex = "model.safetensors.index.json";

// A tensor of an open Checkpoint; valid as long as that is.
struct CheckpointTensor {
  const TensorInfo* info = nullptr;
  const std::byte* data = nullptr;  // mapped, not necessarily aligned to the element
  const SafetensorsFile* file = nullptr;

  // Gives the pages back once the tensor has been converted.
  void drop_pages() const { file->drop_pages(*info); }
};

// A model's directory, or one .safetensors file, or one .safetensors.index.json. Of a directory
// model.safetensors, as in `transformers`, where both it and an index are there.
//
// An index says which file each tensor is taken from: shards may hold stale copies, and tensors
// that the index does not list. Those are no part of the checkpoint, and a note says so; one that
// is asked for all the same is found, as `transformers` finds it.
class Checkpoint {
 public:
  // Throws Error (environment) where there is none, where a tensor is not in the file that the
  // index names, or where a name in the index leaves the directory.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::vector<std::string>& names() const { return names_; }  // ascending; those listed
  // A model that was saved without its head has names without "model." (OPT's files): "model.x" is
  // found there as "x".
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  // Throws Error (environment) naming the checkpoint and the most similar names where absent.
  CheckpointTensor at(const std::string& name) const;
  // As at(), and throws where the shape differs.
  CheckpointTensor expect(const std::string& name, const std::vector<std::int64_t>& shape) const;

  const SafetensorsMetadata& metadata() const { return files_.front()->metadata(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  const CheckpointTensor* find(const std::string& name) const;  // null: absent
  void open_file(const std::filesystem::path& file);
  void open_index(const std::filesystem::path& index);
  void add_unlisted(const SafetensorsFile& file, const TensorInfo& tensor,
                    std::vector<std::string>& names);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, CheckpointTensor> index_;
  std::unordered_map<std::string, CheckpointTensor> unlisted_;  // by the index
  std::vector<std::string> names_;
};

// The files that Checkpoint reads, relative to the directory, ascending; the index among them.
// Throws Error (environment) as it does.
std::vector<std::string> files_of_checkpoint(const std::filesystem::path& path);

bool same_bytes(const CheckpointTensor& a, const CheckpointTensor& b);  // dtype, shape and bytes

// Throws Error (environment) naming file, tensor and position where an element of [begin, end) is
// NaN or infinite. Reads all of them: 10 GB/s or so a thread. Integer tensors pass.
void expect_finite(const CheckpointTensor& tensor, std::int64_t begin, std::int64_t end);

inline constexpr std::uint64_t kDefaultShardBytes = 5ULL << 30;

// Streams a checkpoint into `directory` (made if absent), tensor by tensor in any order. Until
// commit() returns, a checkpoint that was there before stays loadable; afterwards its files are
// gone. One file where everything fits into `max_shard_bytes`, else shards and an index; shards
// are filled in the order of `tensors`.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path directory, const std::vector<TensorSpec>& tensors,
                   std::uint64_t max_shard_bytes = kDefaultShardBytes,
                   const SafetensorsMetadata& metadata = {{"format", "pt"}});
  void write(const std::string& name, std::span<const std::byte> bytes);
  void commit();

 private:
  struct Shard {
    std::string file_name;
    SafetensorsWriter writer;
  };
  std::filesystem::path directory_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, std::size_t> shard_of_;
  std::uint64_t total_bytes_ = 0;
};

void save_checkpoint(const std::filesystem::path& directory, const std::vector<TensorData>& tensors,
                     std::uint64_t max_shard_bytes = kDefaultShardBytes,
                     const SafetensorsMetadata& metadata = {{"format", "pt"}});

}  // namespace twell::io
