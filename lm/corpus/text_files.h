// Which files a folder of texts holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace twell::lm {

struct TextSearch {
  bool shards = true;                    // token shards count as well
  std::filesystem::path leave_out = {};  // an output that lies among the texts
};

// The regular files among `paths` and, for directories, the .txt, .md, .rst, .py and .tokens files
// in them that are not empty, at any depth, sorted by path. What training itself makes is no text:
// runs, models and caches within a directory are passed over, and a note says so; so are links to
// directories. A path that is given is read, whatever it is. Throws Error (environment) where a
// path does not exist, a directory cannot be read, or nothing is found.
std::vector<std::filesystem::path> find_texts(const std::vector<std::filesystem::path>& paths,
                                              const TextSearch& search = {});

// What load_corpus() calls the token ids of texts in a cache; find_texts() passes over such a file.
std::string cache_name(std::uint64_t hash);

}  // namespace twell::lm
