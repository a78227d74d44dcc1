#include "models/registry.h"

#include <array>

#include "twell/status.h"

namespace twell::lm {

const Architecture& find_architecture(io::Architecture architecture) {
  struct Entry {
    io::Architecture id;
    Architecture architecture;
  };
  static constexpr std::array kTable{
      Entry{io::Architecture::llama, {"llama", &visit_llama}},
      Entry{io::Architecture::qwen2, {"qwen2", &visit_qwen2}},
  };
  for (const Entry& entry : kTable) {
    if (entry.id == architecture) return entry.architecture;
  }
  throw Error(ErrorKind::unsupported, "load_model",
              std::string("no model for architecture '") + io::name_of(architecture) + "'");
}

}  // namespace twell::lm
