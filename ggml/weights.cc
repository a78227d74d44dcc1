#include "ggml/weights.h"

#include <dirent.h>
#include <ggml-cpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ggml/host.h"
#include "ggml/ledger.h"
#include "ggml/options.h"

namespace twell::ggml {
namespace {

// The parts of a layer in the names of its weights: down, what is multiplied before it, and a gate
// whose presence makes its activation another one (T5 v1.1 has a gated GELU under the
// architecture's same name).
struct Layer {
  std::string_view down, up, gate, other_gate;
};
constexpr Layer kDense = {".ffn_down.weight", ".ffn_up.weight", "", ".ffn_gate.weight"};
constexpr Layer kShared = {".ffn_down_shexp.weight", ".ffn_up_shexp.weight", "",
                           ".ffn_gate_shexp.weight"};
constexpr Layer kExperts = {".ffn_down_exps.weight", ".ffn_up_exps.weight", "",
                            ".ffn_gate_exps.weight"};
constexpr Layer kGatedExperts = {".ffn_down_exps.weight", ".ffn_up_exps.weight",
                                 ".ffn_gate_exps.weight", ""};
constexpr Layer kChannelMix = {".channel_mix_value.weight", ".channel_mix_key.weight", "", ""};

// llama.cpp's graphs with ReLU or squared ReLU right before down; SmallThinker's experts have a
// gate with ReLU.
struct Family {
  std::string_view architecture;
  std::vector<Layer> layers;
};
const std::vector<Family>& families() {
  static const std::vector<Family> kAll = {
      {"arcee", {kDense}},
      {"jais2", {kDense}},
      {"nemotron", {kDense}},
      {"nemotron_h", {kDense}},
      {"nemotron_h_moe", {kDense, kShared, kExperts}},
      {"plm", {kDense}},
      {"rwkv6", {kChannelMix}},
      {"rwkv7", {kChannelMix}},
      {"smallthinker", {kGatedExperts}},
      {"t5", {kDense}},
      {"t5encoder", {kDense}},
  };
  return kAll;
}
const Family* family_of(std::string_view architecture) {
  const auto found = std::find_if(families().begin(), families().end(), [&](const Family& family) {
    return family.architecture == architecture;
  });
  return found == families().end() ? nullptr : &*found;
}

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() > end.size() && name.substr(name.size() - end.size()) == end;
}
// The part of a layer that a weight is by its name; empty if it is none.
std::string_view part_of(std::string_view name, const Layer& layer) {
  for (const std::string_view part : {layer.down, layer.up, layer.gate}) {
    if (!part.empty() && ends_with(name, part)) return part;
  }
  return {};
}
// The layer that a weight belongs to; null if it is none of these.
const Layer* layer_of(std::string_view name, const std::vector<Layer>& layers) {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const Layer& layer) {
    return !part_of(name, layer).empty();
  });
  return found == layers.end() ? nullptr : &*found;
}
// The layer of any architecture.
const Layer* layer_of(std::string_view name) {
  for (const Family& family : families()) {
    if (const Layer* const layer = layer_of(name, family.layers)) return layer;
  }
  return nullptr;
}

using Header = std::shared_ptr<const gguf_context>;

// Headers of GGUF files that the process has open, by what the system knows a file by. A header
// takes 20 ms to read where the vocabulary is large, and is asked for once a weight.
class OpenFiles {
 public:
  static std::vector<Header> headers() {
    static std::mutex mutex;
    static auto* const known =
        new std::map<Key, Header>;  // NOLINT(cppcoreguidelines-owning-memory)
    const std::lock_guard lock(mutex);
    std::map<Key, Header> open;
    std::vector<Header> found;
    for (const std::string& path : paths()) {
      struct stat is = {};
      if (stat(path.c_str(), &is) != 0 || !S_ISREG(is.st_mode)) continue;
      const Key key{is.st_dev, is.st_ino, is.st_size, is.st_mtim.tv_sec, is.st_mtim.tv_nsec};
      Header& header = open[key];
      if (header != nullptr) continue;
      const auto before = known->find(key);
      header = before != known->end() ? before->second : read(path);
      if (header != nullptr) found.push_back(header);
    }
    *known = std::move(open);
    return found;
  }

 private:
  using Key = std::tuple<dev_t, ino_t, off_t, time_t, long>;

  static std::vector<std::string> paths() {
    std::vector<std::string> all;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
    if (folder == nullptr) return all;
    while (const dirent* const entry = readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe)
      if (entry->d_name[0] != '.') all.push_back(std::string("/proc/self/fd/") + entry->d_name);
    }
    return all;
  }
  // Null where it is no GGUF file.
  static Header read(const std::string& path) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    char magic[4] = {};
    if (file == nullptr || std::fread(magic, 1, 4, file.get()) != 4) return nullptr;
    if (std::memcmp(magic, GGUF_MAGIC, 4) != 0) return nullptr;
    return {gguf_init_from_file(path.c_str(), {true, nullptr}),
            [](const gguf_context* header) { gguf_free(const_cast<gguf_context*>(header)); }};
  }
};

bool lists(const gguf_context* header, const ggml_tensor& weight) {
  const std::int64_t at = gguf_find_tensor(header, weight.name);
  return at >= 0 && gguf_get_tensor_type(header, at) == weight.type &&
         std::equal(weight.ne, weight.ne + GGML_MAX_DIMS, gguf_get_tensor_ne(header, at));
}
std::string architecture_of(const gguf_context* header) {
  const std::int64_t at = gguf_find_key(header, "general.architecture");
  return at < 0 || gguf_get_kv_type(header, at) != GGUF_TYPE_STRING ? ""
                                                                    : gguf_get_val_str(header, at);
}

// Why a weight with such a name is left; empty if it is taken.
std::string reason_to_leave(const ggml_tensor& weight) {
  const std::string name = weight.name;
  const std::vector<Header> headers = OpenFiles::headers();
  std::string architecture;
  for (const Header& header : headers) {
    if (!lists(header.get(), weight)) continue;
    std::string its = architecture_of(header.get());
    if (its.empty()) continue;
    // Two models are being loaded that both have such a weight.
    if (!architecture.empty() && its != architecture) return "two open GGUF files list them";
    architecture = std::move(its);
  }
  // Of a model in several files the first alone may say it.
  for (std::size_t i = 0; i < headers.size() && architecture.empty(); ++i) {
    if (gguf_find_key(headers[i].get(), "split.count") >= 0) {
      architecture = architecture_of(headers[i].get());
    }
  }
  if (architecture.empty()) return "no open GGUF file lists them";
  const Family* const family = family_of(architecture);
  const Layer* const layer = family == nullptr ? nullptr : layer_of(name, family->layers);
  if (layer == nullptr) return architecture + "'s layers have no exact zeros";
  const std::string_view part = part_of(name, *layer);
  if (!layer->other_gate.empty()) {
    const std::string gate =
        name.substr(0, name.size() - part.size()) + std::string(layer->other_gate);
    for (const Header& header : headers) {
      if (gguf_find_tensor(header.get(), gate.c_str()) >= 0) {
        return architecture + "'s layers with a gate have no exact zeros";
      }
    }
  }
  if (!format_of(weight.type)) {
    return std::string("libtwell has no kernel for ") + ggml_type_name(weight.type);
  }
  if (part != layer->down && options().down_alone)
    return "TWELL_GGML=down leaves what is before it";
  // Its threads would wait in loops on the cores that ours compute on.
  if (part != layer->down && !host_has_openmp()) return "this program's threads are not OpenMP's";
  return {};
}

}  // namespace

std::optional<GgmlFormat> format_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return GgmlFormat::q4_0;
    case GGML_TYPE_Q5_0:
      return GgmlFormat::q5_0;
    case GGML_TYPE_Q8_0:
      return GgmlFormat::q8_0;
    case GGML_TYPE_Q4_K:
      return GgmlFormat::q4_k;
    case GGML_TYPE_Q5_K:
      return GgmlFormat::q5_k;
    case GGML_TYPE_Q6_K:
      return GgmlFormat::q6_k;
    default:
      return std::nullopt;
  }
}

GgmlOrder order_of(const ggml_tensor& weight) {
  const Layer* const layer = layer_of(weight.name);
  return layer == nullptr || part_of(weight.name, *layer) == layer->down ? GgmlOrder::inputs
                                                                         : GgmlOrder::outputs;
}

bool wanted(const ggml_tensor& weight) {
  if (layer_of(weight.name) == nullptr) return false;
  const std::string why = reason_to_leave(weight);
  if (why.empty()) {
    Ledger::get().expect();
  } else {
    Ledger::get().leave(weight.name, why);
  }
  return why.empty();
}

}  // namespace twell::ggml
