#include "train/train_log.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "files/atomic_file.h"
#include "files/file_error.h"

namespace twell::lm {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The lines of steps up to `last`. Anything that is no line of ours is left out.
std::string kept_lines(const std::filesystem::path& path, std::int64_t last) {
  std::ifstream in(path);
  std::string out, line;
  while (std::getline(in, line)) {
    const OrderedJson record = OrderedJson::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("step")) continue;
    const OrderedJson& step = record["step"];
    if (step.is_number_integer() && step.get<std::int64_t>() <= last) out += line + "\n";
  }
  return out;
}

}  // namespace

std::string LogRecord::to_json() const {
  OrderedJson out = {{"step", step},
                     {"steps", steps},
                     {"loss", loss},
                     {"ce", ce},
                     {"l1", l1},
                     {"lr", lr},
                     {"l1_coef", l1_coefficient},
                     {"grad_norm", grad_norm},
                     {"tokens", tokens},
                     {"tokens_per_s", tokens_per_s},
                     {"seconds", seconds},
                     {"revived", revived},
                     {"sparse_layers", sparse_layers},
                     {"nnz_mean", nnz_mean}};
  OrderedJson& list = out["layers"] = OrderedJson::array();
  for (const LayerActivity& layer : layers) {
    list.push_back({{"nnz_mean", layer.nnz_mean},
                    {"nnz_max", layer.nnz_max},
                    {"dead_fraction", layer.dead_fraction},
                    {"active_fraction", layer.active_fraction},
                    {"l1", layer.l1},
                    {"first_nnz", layer.first_nnz}});
  }
  if (validation_loss) out["val_loss"] = *validation_loss;
  return out.dump();
}

void check_log(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return;
  const OrderedJson record = OrderedJson::parse(line, nullptr, false);
  if (record.is_object() && record.contains("l1_coef")) return;
  io::fail_file(path.string(), "is there already and is no log of a run: move it away");
}

TrainLog::TrainLog(std::filesystem::path path, std::int64_t keep_until) : path_(std::move(path)) {
  io::write_file_atomically(path_, keep_until > 0 ? kept_lines(path_, keep_until) : std::string());
  file_.open(path_, std::ios::app);
  if (!file_) io::fail_file(path_.string(), "cannot be opened: {}", io::system_reason(errno));
}

void TrainLog::write(const LogRecord& record) {
  errno = 0;
  file_ << record.to_json() << '\n' << std::flush;
  if (!file_) io::fail_file(path_.string(), "cannot be written: {}", io::system_reason(errno));
}

}  // namespace twell::lm
