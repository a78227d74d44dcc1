// The chat template of a model: what it is given to read of a conversation. Jinja itself executes
// it, in a Python of its own, so that the text is that of `transformers`.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace twell::cli {

// messages: [{"role": "user", "content": "…"}, …]. -> the text up to where the model answers.
// Throws Error (environment) naming the model where it has no template, the template refuses the
// messages, or no Python with Jinja is found.
std::string render_chat(const std::filesystem::path& model, const nlohmann::json& messages);

}  // namespace twell::cli
