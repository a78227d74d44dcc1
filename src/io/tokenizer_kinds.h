// Makers of the kinds of tokenizers; Tokenizer's static functions hand on to these.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/tokenizer_impl.h"

namespace twell::io {

std::shared_ptr<Tokenizer::Impl> read_tokenizer_json(std::string_view json,
                                                     const std::string& file);
std::shared_ptr<Tokenizer::Impl> read_gpt2_tokenizer(std::string_view vocab_json,
                                                     std::string_view merges,
                                                     const std::string& file);
std::shared_ptr<Tokenizer::Impl> read_llama2c_tokenizer(std::string_view bytes,
                                                        const std::string& file);

}  // namespace twell::io
