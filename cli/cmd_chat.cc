// twell chat: a conversation with a model that was trained for it.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "cli/chat_template.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/sampling.h"
#include "cli/text_stream.h"
#include "engine/conversation.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "tokenizer/unicode.h"

namespace twell::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kHelp =
    "/reset forgets the conversation, /system TEXT sets what the model is told first, /exit ends.\n"
    "Ctrl-C stops an answer, Ctrl-D ends.\n";

struct ChatCommand : ModelOptions {
  std::string system;
  bool no_template = false;
  std::int64_t context = 8192;
  SamplingChoice sampling;
};

// Lines of standard input, without their ends.
class Lines {
 public:
  // None where there are no more. Ctrl-C throws away what is being typed: an empty line.
  std::optional<std::string> next() {
    while (true) {
      if (const auto end = read_.find('\n'); end != std::string::npos) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return plain(line + '\n');
      }
      if (ended_) {
        if (read_.empty()) return {};
        return plain(std::exchange(read_, {}) + '\n');
      }
      std::array<pollfd, 2> wait{
          {{STDIN_FILENO, POLLIN, 0}, {io::interrupt_descriptor(), POLLIN, 0}}};
      if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR) return {};
      if (io::interrupted()) {
        read_.clear();
        io::forget_interrupt();
        return "";
      }
      if (wait[0].revents == 0) continue;
      std::array<char, 4096> part{};
      const ssize_t got = ::read(STDIN_FILENO, part.data(), part.size());
      if (got > 0) read_.append(part.data(), static_cast<std::size_t>(got));
      ended_ = got == 0 || (got < 0 && errno != EINTR);
    }
  }
  std::int64_t number() const { return number_; }  // of the last one, from 1

 private:
  std::string plain(const std::string& line) {
    ++number_;
    std::string out = with_plain_lines(line);
    out.pop_back();
    return out;
  }

  std::string read_;
  bool ended_ = false;
  std::int64_t number_ = 0;
};

class Chat {
 public:
  explicit Chat(ChatCommand& o)
      : o_(o),
        files_(o.chat_files()),
        tokenizer_(o.tokenizer()),
        options_(o.sampling.of(o.location(), 1024)) {
    if (const auto why = why_no_text(o_.system); !why.empty()) {
      io::fail_argument("--system", "{}", why);
    }
    reset();
    if (o_.no_template) o_.sampling.stop.emplace_back(kPlainChatStop);
    text_of(Json::array({{{"role", "user"}, {"content", "?"}}}));  // fails early
    model_ = o.open();
    conversation_.emplace(*model_, o.context);
  }

  void talk() {
    const bool asks = ::isatty(STDIN_FILENO) != 0;
    if (asks) put(stderr, kHelp);
    // Ctrl-C ends an answer, and the conversation goes on.
    const io::Unhurried conversation({}, io::Unhurried::Of::ctrl_c);
    const io::LastWords last_words([this] { o_.tell_so_far(); });
    while (true) {
      if (asks) put(stderr, "\n> ");
      const auto line = lines_.next();
      io::check_interrupt();
      if (!line || command_of(*line) == "/exit") break;
      if (line->empty()) continue;
      if (const auto why = why_no_text(*line); !why.empty()) {
        refuse(why);
      } else if (!obey(*line)) {
        answer(*line);
        o_.write_so_far(results());
      }
    }
    if (asks) put(stderr, "\n");
    o_.write(results());
  }

 private:
  void reset() {
    messages_ = Json::array();
    if (!o_.system.empty()) messages_.push_back({{"role", "system"}, {"content", o_.system}});
  }

  Json results() const { return {{"messages", messages_}, {"turns", turns_}}; }

  std::string text_of(const Json& messages) const {
    return o_.no_template ? plain_chat(messages) : render_chat(o_.model, files_, messages);
  }

  // A line that is a slash and letters, without spaces behind; else nothing. What goes on, as a
  // path or a sentence does, is for the model.
  static std::string_view command_of(std::string_view line) {
    line = line.substr(0, line.find_last_not_of(" \t") + 1);
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    const bool is =
        line.size() > 1 && line[0] == '/' && std::ranges::all_of(line.substr(1), is_letter);
    return is ? line : std::string_view();
  }

  // Whether the line was for the program.
  bool obey(const std::string& line) {
    constexpr std::string_view kSystem = "/system ";
    const std::string_view command = command_of(line);
    if (line.starts_with(kSystem)) {
      o_.system = line.substr(kSystem.size());
      reset();
    } else if (command == "/reset") {
      reset();
    } else if (command == "/help" || command == "/system") {
      put(stderr, kHelp);
    } else if (!command.empty()) {
      put(stderr,
          fmt::format("{} is no command, so it was not sent; a space in front sends it.\n{}",
                      command, kHelp));
    } else {
      return false;
    }
    return true;
  }

  // The conversation's tokens. What does not leave room for an answer loses its oldest exchanges;
  // what the system says and the last question stay.
  std::vector<std::int64_t> fitting_tokens() {
    const std::int64_t room =
        conversation_->context() - std::min(kRoom, conversation_->context() / 4);
    const auto first = static_cast<Json::difference_type>(o_.system.empty() ? 0 : 1);
    std::int64_t forgotten = 0;
    while (true) {
      // A template writes special tokens itself.
      const auto ids = tokenizer_.encode(text_of(messages_), o_.no_template);
      if (std::ssize(ids) <= room) {
        if (forgotten > 0) {
          put(stderr, fmt::format("[the context of {} tokens is full: the oldest {} exchanges are "
                                  "forgotten]\n",
                                  conversation_->context(), forgotten));
        }
        return {ids.begin(), ids.end()};
      }
      if (std::ssize(messages_) <= first + 1) {
        io::fail_argument("your message",
                          "has {} tokens with what stands around it, and a context of {} "
                          "leaves room for {}; shorten it, or raise --context",
                          ids.size(), conversation_->context(), room);
      }
      messages_.erase(messages_.begin() + first, messages_.begin() + first + 2);
      ++forgotten;
    }
  }

  void answer(const std::string& question) {
    const Json before = messages_;
    messages_.push_back({{"role", "user"}, {"content", question}});
    std::vector<std::int64_t> ids;
    try {
      ids = fitting_tokens();
    } catch (const Error& error) {
      messages_ = before;
      return refuse(error.what());
    }
    lm::GenerateOptions options = options_;
    ++options_.sampling.seed;  // another answer to the same question
    TextStream stream(tokenizer_, ids, o_.sampling.stop);
    options.on_token = [&](std::int64_t, std::int64_t token) {
      o_.say("{}", stream.push(token));
      return !io::interrupted() && !stream.stopped() && output_error() == 0;
    };
    const lm::GenerateResult result =
        named(o_.model, [&] { return conversation_->generate(ids, options); });
    const std::string rest = stream.finish();
    const bool stopped = io::interrupted();
    o_.say("{}\n", rest);
    if (stopped) {
      put(stderr, "[stopped]\n");
      io::forget_interrupt();
    }
    messages_.push_back({{"role", "assistant"}, {"content", stream.text()}});
    const lm::GeneratedSequence& said = result.sequences[0];
    turns_.push_back({{"prompt_tokens", ids.size()},
                      {"prompt_tokens_run", result.timing.prompt_tokens},
                      {"tokens", said.tokens.size()},
                      {"finish", stream.stopped() ? "stop_string" : lm::name_of(said.finish)},
                      {"prefill_tokens_per_s", result.timing.prefill_tokens_per_s()},
                      {"decode_tokens_per_s", result.timing.decode_tokens_per_s()}});
  }

  // Somebody who types can type again; a file cannot.
  void refuse(const std::string& why) const {
    if (::isatty(STDIN_FILENO) == 0) {
      io::fail_argument(fmt::format("line {} of standard input", lines_.number()), "{}", why);
    }
    put(stderr, why + "\n");
  }

  static constexpr std::int64_t kRoom = 256;  // tokens kept free for an answer

  ChatCommand& o_;
  Json files_;
  io::Tokenizer tokenizer_;
  lm::GenerateOptions options_;
  std::unique_ptr<lm::Model> model_;
  std::optional<lm::Conversation> conversation_;
  Lines lines_;
  Json messages_, turns_ = Json::array();
};

void run(ChatCommand& o) { Chat(o).talk(); }

}  // namespace

void add_chat(CLI::App& app) {
  auto [c, o] = add_command<ChatCommand>(app, "chat", "Talk with a model",
                                         "twell chat --model SmolLM2-135M-Instruct", run);
  add_model_option(c, *o);
  c.add_option("--system", o->system, "What the model is told before the conversation")
      ->type_name("TEXT");
  c.add_flag("--no-template", o->no_template,
             "Do without the model's chat template, for a model that has none");
  c.add_option("--max-tokens", o->sampling.max_tokens,
               "Tokens of an answer, at most (the model's, or 1024)")
      ->check(in_range(1, 1 << 30));
  c.add_option("--context", o->context,
               "Tokens of the conversation that are kept, at most; the oldest "
               "exchanges are forgotten first")
      ->check(in_range(16, 1 << 30));
  add_sampling_options(c, o->sampling);
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
