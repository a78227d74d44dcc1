#include "cli/chat_template.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <vector>

#include "chat_template_script.h"
#include "files/file_error.h"
#include "twell/status.h"

extern char** environ;

namespace twell::cli {
namespace {

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0)
      io::fail_file("pipe", "{}", io::system_reason(errno));
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int operator[](std::size_t end) const { return ends_[end]; }
  void close(std::size_t end) {
    if (ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }

 private:
  std::array<int, 2> ends_{};
};

using Clock = std::chrono::steady_clock;

// A template of a long conversation takes a tenth of a second.
constexpr std::chrono::seconds kPatience{10};

// All there is until the other end is closed; none where that takes longer than kPatience.
std::optional<std::string> read_all(int descriptor) {
  const Clock::time_point end = Clock::now() + kPatience;
  std::string text;
  std::array<char, 4096> part{};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return {};
    pollfd wait{descriptor, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = ::read(descriptor, part.data(), part.size());
    if (got > 0) text.append(part.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return text;
  }
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(descriptor, text.data(), text.size());
    if (put < 0 && errno != EINTR) return;  // it has ended, and its status says how
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::string python() {
  const char* named = std::getenv("TWELL_PYTHON");
  if (named != nullptr && *named != '\0') return named;
  return ::access(kPython, X_OK) == 0 ? kPython : "python3";
}

// Starts a program, gives it `input` and waits. -> what it wrote to standard output, or none where
// it took too long and was ended. It reads all of its input before, so one after the other cannot
// block. Throws Error (environment) where it cannot be started or fails.
std::optional<std::string> output_of(const std::vector<std::string>& command,
                                     const std::string& input) {
  Pipe in, out;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  // Of its own process group: Ctrl-C is for who waits for it.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (const std::string& one : command) arguments.push_back(const_cast<char*>(one.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) io::fail_file(command[0], "cannot be started: {}", io::system_reason(failed));
  in.close(0);
  out.close(1);
  write_all(in[1], input);
  in.close(1);
  std::optional<std::string> text = read_all(out[0]);
  if (!text) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text && status != 0) io::fail_file(command[0], "failed with status {}", status);
  return text;
}

}  // namespace

std::string render_chat(const std::string& model, const nlohmann::json& files,
                        const nlohmann::json& messages) {
  nlohmann::json request = files;
  request["messages"] = messages;
  const auto answer =
      output_of({python(), "-I", "-X", "utf8", "-c", kChatTemplateScript}, request.dump());
  std::string why = fmt::format("takes more than {} seconds", kPatience.count());
  if (answer) {
    const auto found = nlohmann::json::parse(*answer, nullptr, false);
    if (found.is_object() && found.contains("text")) return found["text"].get<std::string>();
    why = found.is_object() && found.contains("error") ? found["error"].get<std::string>()
                                                       : "no answer from " + python();
  }
  io::fail_file(model, "chat template: {}; --no-template does without", why);
}

std::string plain_chat(const nlohmann::json& messages) {
  std::string text;
  for (const auto& message : messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    if (role != "system") text += role == "user" ? "User: " : "Assistant:";
    text += message.at("content").get_ref<const std::string&>() + "\n\n";
  }
  return text + "Assistant:";
}

}  // namespace twell::cli
