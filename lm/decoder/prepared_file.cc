#include "decoder/prepared_file.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "files/atomic_file.h"
#include "files/json_reader.h"
#include "files/note.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVersion = 1;

class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) {
      hash_ = (hash_ ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3U;
    }
  }
  void add(std::int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      const auto b = static_cast<std::byte>(static_cast<std::uint64_t>(number) >> shift);
      add(std::span(&b, 1));
    }
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

void add_sample(Fnv1a& digest, std::span<const std::byte> bytes) {
  constexpr std::size_t kPlaces = 64, kBytes = 16;
  if (bytes.size() <= kPlaces * kBytes) {
    digest.add(bytes);
    return;
  }
  for (std::size_t place = 0; place < kPlaces; ++place) {
    digest.add(bytes.subspan((bytes.size() - kBytes) * place / (kPlaces - 1), kBytes));
  }
}

// By layer: the gate, or up in a model without one.
std::vector<std::string> first_projections(const Model& model) {
  std::vector<std::string> out;
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    const FfnNames names = model.ffn_names(layer);
    out.push_back(names.gate.empty() ? names.up : names.gate);
  }
  return out;
}

template <class T>
std::vector<T> numbers(const io::JsonObject& object, const char* key, std::int64_t count,
                       double low, double high) {
  const io::Json::array_t& array = object.array(key);
  std::vector<T> out;
  for (const io::Json& value : array) {
    const bool good =
        value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
    if (!good) {
      throw Error(ErrorKind::environment, object.path_of(key),
                  fmt::format("expected numbers from {} to {}", low, high));
    }
    out.push_back(value.get<T>());
  }
  if (std::ssize(out) != count) {
    throw Error(ErrorKind::environment, object.path_of(key),
                fmt::format("expected {} numbers, got {}", count, out.size()));
  }
  return out;
}

std::vector<LayerFindings> parse(const std::string& file, const io::Checkpoint& checkpoint,
                                 const Model& model) {
  const io::Json json = io::parse_json(io::read_file(file), file);
  const io::JsonObject document(json, file);
  const std::int64_t version = document.integer("twell_prepared", 1, 1 << 20);
  if (version != kVersion) {
    throw Error(ErrorKind::environment, file, fmt::format("is of version {}", version));
  }
  const std::string digest = digest_of(checkpoint, first_projections(model));
  if (const std::string of = document.string("checkpoint"); of != digest) {
    throw Error(ErrorKind::environment, file,
                fmt::format("is of other weights ({}, these are {})", of, digest));
  }
  const std::int64_t inputs = document.integer("inputs", 1, std::int64_t{1} << 40);
  const std::int64_t width = model.config().hidden_size, neurons = model.config().intermediate_size;
  std::vector<LayerFindings> out;
  for (const io::JsonObject& layer : document.objects("layers")) {
    LayerFindings& one = out.emplace_back();
    one.inputs = inputs;
    one.mean = numbers<float>(layer, "mean", width, -1e30, 1e30);
    one.fired = numbers<std::int64_t>(layer, "fired", neurons, 0, static_cast<double>(inputs));
    if (layer.has("candidates")) one.candidates = layer.number("candidates", 0.0, 1.0);
  }
  if (std::ssize(out) != model.layers()) {
    throw Error(ErrorKind::environment, file,
                fmt::format("has {} layers, the model {}", out.size(), model.layers()));
  }
  return out;
}

}  // namespace

std::string digest_of(const io::Checkpoint& checkpoint, std::span<const std::string> weights) {
  Fnv1a digest;
  for (const std::string& weight : weights) {
    const std::string packed = weight + "_packed";  // of a quantised one
    const io::CheckpointTensor tensor = checkpoint.at(
        !checkpoint.contains(weight) && checkpoint.contains(packed) ? packed : weight);
    for (const std::int64_t size : tensor.info->shape) digest.add(size);
    add_sample(digest, {tensor.data, tensor.info->bytes()});
  }
  return fmt::format("{:016x}", digest.value());
}

std::vector<LayerFindings> load_findings(const fs::path& directory,
                                         const io::Checkpoint& checkpoint, const Model& model) {
  const fs::path file = directory / kPreparedFile;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return {};
  try {
    return parse(file.string(), checkpoint, model);
  } catch (const Error& error) {
    const std::string name = file.string() + ": ";
    const std::string what = error.what();
    io::note(fmt::format("{}{}: ignored; twell prepare makes it anew", name,
                         what.starts_with(name) ? what.substr(name.size()) : what));
    return {};
  }
}

void save_findings(const fs::path& directory, const io::Checkpoint& checkpoint, const Model& model,
                   const std::vector<LayerFindings>& findings) {
  const std::vector<std::string> weights = first_projections(model);
  std::string layers;
  for (std::size_t l = 0; l < findings.size(); ++l) {
    const LayerFindings& one = findings[l];
    // The direction alone matters.
    io::Json mean = io::Json::array();
    for (const float value : one.mean) mean.push_back(std::stod(fmt::format("{:.4g}", value)));
    io::Json layer = {{"weight", weights[l]}, {"mean", mean}, {"fired", one.fired}};
    if (one.candidates) layer["candidates"] = *one.candidates;
    layers += (l == 0 ? "\n" : ",\n") + layer.dump();
  }
  io::write_file_atomically(
      directory / kPreparedFile,
      fmt::format(
          "{{\"twell_prepared\": {}, \"checkpoint\": \"{}\", \"inputs\": {}, \"layers\": [{}]}}\n",
          kVersion, digest_of(checkpoint, weights), findings.empty() ? 0 : findings.front().inputs,
          layers));
}

}  // namespace twell::lm
