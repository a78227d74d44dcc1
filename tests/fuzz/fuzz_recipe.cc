// Any bytes either are a recipe, which survives being written, or a twell::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "train/recipe.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using twell::lm::Recipe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Recipe recipe = Recipe::from_json(text, "fuzz");
    if (!(Recipe::from_json(recipe.to_json(), "written") == recipe)) std::abort();
  } catch (const twell::Error& error) {
    if (error.operation() == "written") std::abort();
  }
  return 0;
}
