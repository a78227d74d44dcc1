// Names and numbers of a tokenizer's values in GGUF files.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace twell::io::gguf_keys {

inline constexpr const char* kModel = "tokenizer.ggml.model";
inline constexpr const char* kOfBytes = "gpt2";        // kinds of models
inline constexpr const char* kOfCharacters = "llama";  // SentencePiece's
inline constexpr const char* kPre = "tokenizer.ggml.pre";
inline constexpr const char* kTokens = "tokenizer.ggml.tokens";
inline constexpr const char* kTypes = "tokenizer.ggml.token_type";
inline constexpr const char* kScores = "tokenizer.ggml.scores";
inline constexpr const char* kMerges = "tokenizer.ggml.merges";
inline constexpr const char* kAddBegin = "tokenizer.ggml.add_bos_token";
inline constexpr const char* kAddEnd = "tokenizer.ggml.add_eos_token";
inline constexpr const char* kAddSpace = "tokenizer.ggml.add_space_prefix";
inline constexpr const char* kBegin = "tokenizer.ggml.bos_token_id";
// Each ends a text: a document, a turn, a message to a tool.
inline constexpr const char* kEnds[] = {
    "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
// llama.cpp ends a text at these too, which stand between the files of a repository,
inline constexpr const char* kEndsOfFiles[] = {"tokenizer.ggml.fim_pad_token_id",
                                               "tokenizer.ggml.fim_rep_token_id",
                                               "tokenizer.ggml.fim_sep_token_id"};
// and at tokens of these names, whatever the file says.
inline constexpr std::string_view kEndsByName[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|fim_pad|>",
    "<end_of_utterance>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|repo_name|>",
    "<|fim_repo|>",
    "<fim-repo>",
    "<REPO>",
    "<|tool_response>",
    "<reponame>",
    "<|file_sep|>",
};
inline constexpr const char* kUnknown = "tokenizer.ggml.unknown_token_id";
inline constexpr const char* kPadding = "tokenizer.ggml.padding_token_id";
inline constexpr const char* kChatTemplate = "tokenizer.chat_template";

// Types of tokens.
inline constexpr std::int32_t kNormalToken = 1;
inline constexpr std::int32_t kUnknownToken = 2;
inline constexpr std::int32_t kControlToken = 3;
inline constexpr std::int32_t kUserDefinedToken = 4;  // looked for in a text, but not special
inline constexpr std::int32_t kUnusedToken = 5;
inline constexpr std::int32_t kByteToken = 6;

inline constexpr const char* kSpaceMark = "\xE2\x96\x81";  // SentencePiece's, in a space's place

// Stands for an id that the tokenizer does not have.
inline std::string placeholder_token(std::size_t id) { return fmt::format("[PAD{}]", id); }

}  // namespace twell::io::gguf_keys
