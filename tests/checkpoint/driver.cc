// The readers and writers of model directories as a program, so that the Python tests can compare
// them with the packages they must agree with.
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "tests/support/records.h"

namespace {

using namespace twell::io;
using twell::test::answer;

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

bool run(const std::vector<std::string>& arguments) {
  const std::string& mode = arguments.at(0);
  if (mode == "safetensors") {
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
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) { return twell::test::run_driver(argc, argv, run); }
