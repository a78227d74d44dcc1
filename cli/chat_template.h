// The chat template of a model: what it is given to read of a conversation. Jinja itself executes
// it, in a Python of its own, so that the text is that of `transformers`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace twell::cli {

// messages: [{"role": "user", "content": "…"}, …]. -> the text up to where the model answers.
// `files`: where the model's are, {"directory": "…"} or {"files": {name: text, …}}.
// Throws Error (environment) naming the model where it has no template, the template refuses the
// messages, takes 10 seconds or 2 GB, or no Python with Jinja is found.
std::string render_chat(const std::string& model, const nlohmann::json& files,
                        const nlohmann::json& messages);

// The same without a template, for models that have none: what the system says, then lines of
// "User: " and "Assistant:", as in a play. An answer has the blank that the model begins it with.
std::string plain_chat(const nlohmann::json& messages);
// Where an answer to it ends: the model goes on as the user.
inline constexpr const char* kPlainChatStop = "\nUser:";

}  // namespace twell::cli
