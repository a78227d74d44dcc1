// What `twell prepare` found of a model's feed-forward layers, in a file beside its checkpoint.
//
//   {"twell_prepared": 1, "checkpoint": "1f0c…", "inputs": 1024, "layers": [
//     {"weight": "model.layers.0.mlp.gate_proj.weight", "candidates": 0.031,
//      "mean": […], "fired": […]}, …]}
//
// `weight` is a layer's first projection: its gate, or up without one. `checkpoint` is a digest of
// these, by which a file of other weights is told: 64-bit FNV-1a over each one's sizes, as 8 bytes
// little-endian, and its bytes as stored; of more than 1024 the 16 at each of 64 places from the
// first to the last, ⌊(bytes − 16) place / 63⌋. python/twell/prepared.py reads the file too.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "decoder/model.h"
#include "twell/findings.h"

namespace twell::lm {

inline constexpr const char* kPreparedFile = "twell_prepared.json";

// Of these tensors: 16 hexadecimal digits.
std::string digest_of(const io::Checkpoint& checkpoint, std::span<const std::string> weights);

// By layer. Empty where there is no file, and, with a note that says why, where it is not of this
// checkpoint or cannot be read: findings only save time.
std::vector<LayerFindings> load_findings(const std::filesystem::path& directory,
                                         const io::Checkpoint& checkpoint, const Model& model);
// Written atomically. Throws twell::Error naming the file.
void save_findings(const std::filesystem::path& directory, const io::Checkpoint& checkpoint,
                   const Model& model, const std::vector<LayerFindings>& findings);

}  // namespace twell::lm
