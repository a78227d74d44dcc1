#include "train/train_log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/scratch.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

LogRecord record_of(std::int64_t step) {
  LogRecord record;
  record.step = step;
  record.layers.emplace_back().first_nnz = {1.0, 2.0};
  return record;
}

std::vector<std::int64_t> logged_steps(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::int64_t> out;
  std::string line;
  while (std::getline(in, line)) out.push_back(nlohmann::json::parse(line)["step"]);
  return out;
}

TEST(TrainLogTest, EveryLineIsThereWhenWriteReturns) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "log.jsonl";
  TrainLog log(path, 0);
  log.write(record_of(10));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10}));
  log.write(record_of(20));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10, 20}));
}

TEST(TrainLogTest, DropsWhatAResumedRunWritesAgain) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "log.jsonl";
  {
    TrainLog log(path, 0);
    for (const std::int64_t step : {10, 20, 30}) log.write(record_of(step));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 40, \"lo";  // killed while writing
  TrainLog log(path, 20);
  log.write(record_of(30));
  EXPECT_EQ(logged_steps(path), (std::vector<std::int64_t>{10, 20, 30}));
}

}  // namespace
}  // namespace twell::lm
