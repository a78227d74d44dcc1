// Errors of libtwell. Every failure a caller can cause or meet is a twell::Error; a broken internal
// invariant aborts. Messages are one line: what was wrong, where, what was expected and got.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace twell {

enum class ErrorKind {
  invalid_argument,  // the caller passed something the operation's contract excludes
  unsupported,       // valid, but not available in this build or on this machine
  environment,       // a file, a device or the operating system failed
  out_of_memory,
};

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
