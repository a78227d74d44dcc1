// The directory of a training run:
//
//   log.jsonl                  one line per group of steps
//   step-00000200/             a Hugging Face directory; trainer/ inside it: what resuming needs
//   latest -> step-00000200    the newest, for people; nothing here reads it
//   .lock                      locked by the process that trains here
//
// A checkpoint is there whole or not at all, whenever the process was killed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "files/unfinished.h"

namespace twell::io {

// Makes a directory that appears whole or not at all: files are written to a temporary directory
// beside it, `.NAME.twell-tmp`, and commit() renames that. One that a killed process left behind is
// removed by the next AtomicDirectory of the same name. An empty directory that is there, perhaps a
// mount, is kept: the temporary is made inside it and commit() moves what it holds, config.json
// last. A link is followed.
class AtomicDirectory {
 public:
  // Throws Error (environment) where `path` is not is_free_directory() or the temporary cannot be
  // made.
  explicit AtomicDirectory(std::filesystem::path path);
  ~AtomicDirectory();  // without commit(): removes what was written
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool is_there_ = false;  // before
  bool committed_ = false;
  std::optional<Unfinished> unfinished_;
};

// Whether AtomicDirectory would make it: nothing is there, or an empty directory.
bool is_free_directory(const std::filesystem::path& path);

// Of the one process that trains in it.
class RunDirectory {
 public:
  // Made if absent, and locked until this object or its process ends; then what a killed process
  // left half-written is removed. Throws Error (environment) where another process has the lock,
  // naming it, where `latest` is no link, as a copy that follows links makes it, and where what has
  // the name of a checkpoint is none. A directory that was made here and in which nothing came to
  // be goes with this object. A file system without locks or links goes without, and a note says
  // so.
  explicit RunDirectory(std::filesystem::path path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  // Lets `save` write the checkpoint of this step, points `latest` to it and only then removes all
  // but the newest `keep` checkpoints. A step that is already there is kept as it is.
  std::filesystem::path add(std::int64_t step, std::int64_t keep,
                            const std::function<void(const std::filesystem::path&)>& save);

 private:
  void lock();
  void remove_if_empty() const;
  void refuse_or_go_without(int reason);
  void link_latest(const std::string& name);

  std::filesystem::path path_;
  bool made_ = false;
  int lock_ = -1;
  std::optional<Unfinished> unfinished_;
};

// The checkpoint of the most steps in a run directory, whoever trains there; none if there is none.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run);

// Whether a run trains or trained there.
bool is_run_directory(const std::filesystem::path& path);

// For commands that read models: latest_checkpoint() of a run directory, anything else unchanged.
std::filesystem::path resolve_model_directory(const std::filesystem::path& path);

}  // namespace twell::io
