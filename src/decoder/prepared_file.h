// What `twell prepare` found of a model's feed-forward layers, in a file beside its checkpoint.
//
//   {"twell_prepared": 1, "checkpoint": "1f0c…", "inputs": 1024, "layers": [
//     {"name": "model.layers.0.mlp", "candidates": 0.031, "mean": […], "fired": […]}, …]}
//
// `checkpoint` is a digest of the layers' first projections, by which a file of other weights is
// told: 64-bit FNV-1a over each tensor's sizes, as 8 bytes little-endian, and its bytes, of those of
// more than 1024 the 16 at each of 64 places that are equally far apart. python/twell/prepared.py
// reads it too.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "decoder/model.h"
#include "twell/findings.h"

namespace twell::lm {

inline constexpr const char* kPreparedFile = "twell_prepared.json";

// Of the first projections of this model's layers: gate, or up without one. 16 hexadecimal digits.
std::string digest_of(const io::Checkpoint& checkpoint, const Model& model);

// By layer. Empty where there is no file, and, with a note that says why, where it is not of this
// checkpoint or cannot be read: findings only save time.
std::vector<LayerFindings> load_findings(const std::filesystem::path& directory,
                                         const io::Checkpoint& checkpoint, const Model& model);
// Written atomically. Throws twell::Error naming the file.
void save_findings(const std::filesystem::path& directory, const io::Checkpoint& checkpoint,
                   const Model& model, const std::vector<LayerFindings>& findings);

}  // namespace twell::lm
