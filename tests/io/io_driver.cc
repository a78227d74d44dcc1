// The readers and writers as a program, so that the Python tests can compare them with the packages
// they must agree with. Each mode reads length-prefixed records (u32, bytes) from standard input
// and answers each with one on standard output; a failure ends it with the message on standard
// error and status 1.
#include <utf8proc.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/config.h"
#include "io/regex.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"
#include "io/unicode.h"

namespace {

using namespace twell::io;

std::optional<std::string> read_record() {
  std::uint32_t length = 0;
  if (!std::cin.read(reinterpret_cast<char*>(&length), sizeof length)) return std::nullopt;
  std::string out(length, '\0');
  std::cin.read(out.data(), length);
  return out;
}

void write_record(const std::string& bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::cout.write(reinterpret_cast<const char*>(&length), sizeof length);
  std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void answer(const std::function<std::string(const std::string&)>& function) {
  while (const auto record = read_record()) write_record(function(*record));
}

std::string bytes_of(const std::vector<std::int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)};
}
std::vector<std::int32_t> ids_of(const std::string& bytes) {
  const auto* ids = reinterpret_cast<const std::int32_t*>(bytes.data());
  return {ids, ids + bytes.size() / sizeof(std::int32_t)};
}

// name, dtype, shape, then the bytes, for every tensor: what a Python test can compare.
std::string describe(const SafetensorsFile& file) {
  std::string out;
  for (const auto& [key, value] : file.metadata())
    out.append("meta ").append(key).append(" ").append(value).append("\n");
  for (const TensorInfo& tensor : file.tensors()) {
    out.append(tensor.name).append(" ").append(name_of(tensor.dtype));
    for (const std::int64_t dimension : tensor.shape) {
      out.append(" ").append(std::to_string(dimension));
    }
    out += "\n";
    out.append(reinterpret_cast<const char*>(file.data(tensor)), tensor.bytes());
    out += "\n";
  }
  return out;
}

// Copies a checkpoint through the reader and the writer.
void copy_checkpoint(const std::string& from, const std::string& to, std::uint64_t max_shard) {
  const Checkpoint in(from);
  std::vector<TensorData> tensors;
  for (const std::string& name : in.names()) {
    const CheckpointTensor tensor = in.at(name);
    tensors.push_back({{name, tensor.info->dtype, tensor.info->shape}, tensor.data});
  }
  save_checkpoint(to, tensors, max_shard, in.metadata());
}

int run(const std::vector<std::string>& arguments) {
  const std::string& mode = arguments.at(0);
  if (mode == "encode" || mode == "encode-special") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& text) {
      return bytes_of(tokenizer.encode(text, mode == "encode-special"));
    });
  } else if (mode == "decode" || mode == "decode-skip") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& record) {
      return tokenizer.decode(ids_of(record), mode == "decode-skip");
    });
  } else if (mode == "stream") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& record) {
      StreamDecoder decoder(tokenizer);
      std::string out;
      for (const std::int32_t id : ids_of(record)) out += decoder.push(id);
      return out + decoder.finish();
    });
  } else if (mode == "nfc") {
    answer([](const std::string& text) { return to_nfc(text); });
  } else if (mode == "assigned") {
    // Of a text, the characters that are assigned in the Unicode versions of both PCRE2 and
    // utf8proc.
    const Regex assigned(R"(\P{Cn})", "");
    answer([&](const std::string& text) {
      std::string out;
      for (const Span& span : assigned.find_all(text)) {
        std::size_t at = span.begin;
        const auto code = static_cast<utf8proc_int32_t>(next_code(text, at));
        if (utf8proc_category(code) != UTF8PROC_CATEGORY_CN)
          out.append(text, span.begin, at - span.begin);
      }
      return out;
    });
  } else if (mode == "safetensors") {
    answer([](const std::string& path) { return describe(SafetensorsFile(path)); });
  } else if (mode == "safetensors-verdict") {
    answer([](const std::string& path) -> std::string {
      try {
        const SafetensorsFile file(path);
        return "ok";
      } catch (const std::exception& error) {
        return error.what();
      }
    });
  } else if (mode == "copy") {
    copy_checkpoint(arguments.at(1), arguments.at(2), std::stoull(arguments.at(3)));
  } else if (mode == "config") {
    save_config(arguments.at(2), load_config(arguments.at(1)));
  } else {
    std::cerr << "unknown mode " << mode << "\n";
    return 2;
  }
  std::cout.flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
