#include "cli/program.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/reference.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "files/mapped_file.h"
#include "files/note.h"
#include "files/unfinished.h"

namespace twell::cli {
namespace {

// Of programs that a signal ends: 128 and its number.
constexpr int kFailed = 1, kWrongUse = 2, kInterrupted = 128 + SIGINT, kReaderGone = 128 + SIGPIPE;
constexpr const char* kUnfinished = "interrupted, nothing unfinished was kept";
constexpr const char* kOutOfMemory = "out of memory; use a smaller model, batch or shape";

// Takes a bar away, which is drawn again.
std::string_view clear_line() { return knows_sequences(stderr) ? "\r\x1b[K" : ""; }

void tell(const std::string& note) { put(stderr, fmt::format("{}note: {}\n", clear_line(), note)); }

// One line, whatever the message was.
int fail(const std::string& command, std::string message, int code) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  for (std::size_t at; (at = message.find('\n')) != std::string::npos;) {
    message.replace(at, 1, "; ");
  }
  constexpr std::size_t kLongest = 1000;
  if (message.size() > kLongest) message = message.substr(0, kLongest) + " ...";
  put(stderr, fmt::format("{}{}: error: {}\n", clear_line(), command, message));
  return code;
}

// What libraries throw, in our words.
std::string reason(const c10::Error& e) {
  const std::string text = e.what_without_backtrace();
  for (const char* sign : {"can't allocate memory", "Storage size calculation overflowed",
                           "invalid storage size", "out of memory"}) {
    if (text.find(sign) != std::string::npos) return kOutOfMemory;
  }
  return text;
}

std::string reason(const std::filesystem::filesystem_error& e) {
  return e.path1().string() + ": " + io::system_reason(e.code().value());
}

// "twell bench ffn", as far as the arguments were understood.
std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) name += " " + command_name(*sub);
  return name;
}

// The command that was understood last.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::string wrong_use(const CLI::App& app, const CLI::ParseError& e) {
  const std::string see = " (see " + command_name(app) + " --help)";
  // CLI11 misses a command before it looks at what stands in its place.
  const CLI::App& last = innermost(app);
  const auto rest = app.remaining(true);
  if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) && !rest.empty() &&
      last.get_subcommands([](const CLI::App*) { return true; }).size() > 0) {
    std::string names;
    for (const CLI::App* sub : last.get_subcommands([](const CLI::App*) { return true; })) {
      names += (names.empty() ? "" : ", ") + sub->get_name();
    }
    return "there is no command \"" + rest.front() + "\"; expected one of " + names + see;
  }
  return e.what() + see;
}

int run(CLI::App& app, int argc, char** argv) {
  if (argc <= 1) {
    put(stdout, help_in_columns(app.help()));
    return kWrongUse;
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream out;
    app.exit(e, out, out);
    put(stdout, help_in_columns(out.str()));
    return 0;
  } catch (const CLI::ParseError& e) {
    return fail(command_name(app), wrong_use(app, e), kWrongUse);
  } catch (const io::Interrupted&) {
    return fail(command_name(app), kUnfinished, kInterrupted);
  } catch (const c10::Error& e) {
    return fail(command_name(app), reason(e), kFailed);
  } catch (const std::bad_alloc&) {
    return fail(command_name(app), kOutOfMemory, kFailed);
  } catch (const std::filesystem::filesystem_error& e) {
    return fail(command_name(app), reason(e), kFailed);
  } catch (const std::exception& e) {
    return fail(command_name(app), io::library_reason(e.what()), kFailed);
  }
}

}  // namespace

int program(int argc, char** argv) {
  hold_standard_streams();
  CLI::App app(
      "Exact sparse feed-forward layers: train, measure, inspect and run sparse language "
      "models.",
      "twell");
  app.set_version_flag("--version", std::string("twell ") + kVersion);
  app.require_subcommand(1);
  app.footer("twell COMMAND --help tells more about each. Start with: twell demo --text FILE");
  add_demo(app);
  add_train(app);
  add_generate(app);
  add_chat(app);
  CLI::App& bench = *app.add_subcommand("bench", "Measure dense against sparse");
  bench.require_subcommand(1);
  bench.footer("twell bench ffn --help, and so on, tells more.");
  add_bench_ffn(bench);
  add_bench_model(bench);
  add_bench_train(bench);
  add_prepare(app);
  add_stats(app);
  add_eval(app);
  add_synth(app);
  add_tokenize(app);
  add_convert(app);
  add_quantize(app);
  add_calibrate(app);
  add_explain(app);
  add_info(app);

  const auto print = [&app](const std::string& what) {
    put(stdout, what == "man" ? man_page(app) : bash_completion(app));
    throw CLI::Success();
  };
  app.add_option_function<std::string>("--print", print, "For packages")
      ->check(CLI::IsMember({"man", "bash-completion"}))
      ->group("");

  const io::InterruptHandler interrupts({.wait = [](const std::string& why) { tell(why); },
                                         .end =
                                             [&app](const std::function<void()>& last_words) {
                                               // Where the program waits for a reader, nobody
                                               // reads.
                                               if (last_words && ftrylockfile(stdout) == 0)
                                                 last_words();
                                               io::remove_unfinished();
                                               fail(command_name(app), kUnfinished, kInterrupted);
                                               _exit(kInterrupted);
                                             }});
  io::tell_of_lost_pages("twell");
  io::set_note_sink(tell);
  const int code = run(app, argc, argv);
  const int lost = output_error();
  if (code != 0 || lost == 0) return code;
  if (lost == EPIPE) return kReaderGone;  // `twell generate | head`: nobody asks for words
  return fail(command_name(app), "standard output cannot be written: " + io::system_reason(lost),
              kFailed);
}

}  // namespace twell::cli
