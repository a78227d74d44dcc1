// Errors of libtwell. Every failure that a caller can cause or meet is a twell::Error. A broken
// internal invariant aborts. A message is one line: what was wrong, where, what was expected and
// what was given.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace twell {

// What kind of failure an Error is.
enum class ErrorKind {
  invalid_argument,  // the caller passed what the operation's contract excludes
  unsupported,       // valid, but not available in this build or on this machine
  environment,       // a file, a device or the operating system failed
  out_of_memory,
};

// A failure, with its kind and where it happened.
class Error : public std::runtime_error {
 public:
  // `operation` names the public function (or the file); `message` is one line.
  Error(ErrorKind kind, std::string_view operation, std::string_view message)
      : std::runtime_error(std::string(operation) + ": " + std::string(message)),
        kind_(kind),
        operation_(operation) {}

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& operation() const noexcept { return operation_; }

 private:
  ErrorKind kind_;
  std::string operation_;
};

}  // namespace twell
#pragma GCC visibility pop
