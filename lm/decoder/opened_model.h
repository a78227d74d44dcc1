// A model's files, opened: its configuration, and where its parameters come from.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "decoder/model.h"
#include "decoder/weights.h"
#include "twell/findings.h"

namespace twell::lm {

class OpenedModel {
 public:
  virtual ~OpenedModel() = default;
  OpenedModel(const OpenedModel&) = delete;
  OpenedModel& operator=(const OpenedModel&) = delete;

  // As the parameters are taken: tied only where the files hold no other head than the embedding,
  // and without `quantization`.
  const io::ModelConfig& config() const { return config_; }
  ParameterSource& source() const { return *source_; }

  // Throws twell::Error naming a tensor that nothing took: config.json describes another model than
  // the weights.
  virtual void check_all_used() const {}
  // What twell prepare found out about the feed-forward layers; empty: nothing.
  virtual std::vector<LayerFindings> findings(const Model& /*model*/) const { return {}; }
  // Tells what quantised weights cost that were taken as floating-point numbers, if there are any.
  void note_dequantized() const;

 protected:
  OpenedModel(std::string name, io::ModelConfig config)
      : name_(std::move(name)), config_(std::move(config)) {}

  std::string name_;  // for messages
  io::ModelConfig config_;
  std::unique_ptr<ParameterSource> source_;
};

}  // namespace twell::lm
