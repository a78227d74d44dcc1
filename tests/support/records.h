// What the driver programs of Python's tests share. Each mode of one reads records (u32, bytes)
// from standard input and answers each with one on standard output; a failure ends it with the
// message on standard error and status 1. The other side: tests/support/driver_records.py.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace twell::test {

inline std::optional<std::string> read_record() {
  std::uint32_t length = 0;
  if (!std::cin.read(reinterpret_cast<char*>(&length), sizeof length)) return std::nullopt;
  std::string out(length, '\0');
  std::cin.read(out.data(), length);
  return out;
}

inline void write_record(const std::string& bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::cout.write(reinterpret_cast<const char*>(&length), sizeof length);
  std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void answer(const std::function<std::string(const std::string&)>& function) {
  while (const auto record = read_record()) write_record(function(*record));
}

// What main() is: `run` is given the arguments and returns false for a mode that it does not know.
template <class Run>
int run_driver(int argc, char** argv, const Run& run) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!run(arguments)) {
      std::cerr << "unknown mode " << arguments.at(0) << "\n";
      return 2;
    }
    std::cout.flush();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

}  // namespace twell::test
