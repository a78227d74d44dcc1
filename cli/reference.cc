#include "cli/reference.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <vector>

#include "cli/version.h"

namespace twell::cli {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// What --help shows: nothing that was removed.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

// Calls f(command, its name behind "twell ") for every one that does something, in order.
void for_each_command(const CLI::App& app, const std::string& before,
                      const std::function<void(const CLI::App&, const std::string&)>& f) {
  for (const CLI::App* command : commands_of(app)) {
    const std::string name = before + command->get_name();
    if (commands_of(*command).empty()) f(*command, name);
    for_each_command(*command, name + " ", f);
  }
}

// Text as groff takes it: a hyphen is a minus, and no line begins with a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (begins && (c == '.' || c == '\'')) {
      out += std::string("\\&") + c;
    } else if (!begins || c != '\n') {  // no empty lines
      out += c;
    }
  }
  return out;
}

std::string roff_options(const CLI::App& command) {
  const CLI::Formatter format;  // the one of --help
  std::string out;
  for (const CLI::Option* option : shown_options(command)) {
    std::string values = format.make_option_opts(option);
    values.erase(0, values.find_first_not_of(' '));
    out += fmt::format(".TP\n\\fB{}\\fR {}\n{}\n", roff(option->get_name(false, true)),
                       roff(values), roff(option->get_description()));
  }
  return out;
}

// "Example:\n  twell ..." under a command: as it stands.
std::string roff_footer(const CLI::App& command) {
  return command.get_footer().empty() ? "" : ".PP\n.nf\n" + roff(command.get_footer()) + "\n.fi\n";
}

bool names_files(const std::string& type) {
  return type.starts_with("FILE") || type.starts_with("DIR") || type.starts_with("PATH");
}

// "dense sparse" of the type "TEXT:{dense,sparse}"; "" of any other.
std::string choices(const std::string& type) {
  const auto begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::string out = type.substr(begin + 1, end - begin - 1);
  std::ranges::replace(out, ',', ' ');
  return out;
}

// What follows an option that takes a value; looked up by "/bench/ffn:--path", the command and the
// word before the cursor.
std::string completions_of_values(const CLI::App& command, const std::string& path) {
  std::string out;
  for (const CLI::Option* option : shown_options(command)) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::string type = option->get_type_name(), words = choices(type);
    std::string reply;
    if (names_files(type)) {
      reply = "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); ";
    } else if (!words.empty()) {
      reply = fmt::format("mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$word\"); ", words);
    }
    out += fmt::format("    {}:{}) {}return ;;\n", path, option->get_name(), reply);
  }
  return out;
}

std::string completions_of_words(const CLI::App& command, const std::string& path) {
  std::string words;
  for (const CLI::App* next : commands_of(command)) words += next->get_name() + " ";
  for (const CLI::Option* option : shown_options(command)) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  }
  words.pop_back();
  return fmt::format("    {}) words=\"{}\" ;;\n", path, words);
}

}  // namespace

std::string man_page(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH TWELL 1 \"\" \"twell {}\" \"User Commands\"\n"
      ".SH NAME\ntwell \\- exact sparse feed\\-forward layers of language models\n"
      ".SH SYNOPSIS\n\\fBtwell\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n{}\n.SH OPTIONS\n{}.SH COMMANDS\n",
      kVersion, roff(app.get_description()), roff_options(app));
  for_each_command(app, "", [&out](const CLI::App& command, const std::string& name) {
    out += fmt::format(".SS \"twell {}\"\n{}.\n{}{}", roff(name), roff(command.get_description()),
                       roff_options(command), roff_footer(command));
  });
  out +=
      ".SH EXIT STATUS\n0, or 1 where a command failed, 2 where it was called wrongly, 130 where "
      "it was interrupted.\n";
  return out;
}

std::string bash_completion(const CLI::App& app) {
  std::string known, values, words = completions_of_words(app, "\"\"");
  const std::function<void(const CLI::App&, const std::string&)> add = [&](const CLI::App& parent,
                                                                           const std::string& at) {
    for (const CLI::App* command : commands_of(parent)) {
      const std::string path = at + "/" + command->get_name();
      known += (known.empty() ? "" : " | ") + path;
      values += completions_of_values(*command, path);
      words += completions_of_words(*command, path);
      add(*command, path);
    }
  };
  add(app, "");
  return fmt::format(
      R"(# Bash completion of twell {}; `twell --print bash-completion` writes it.
_twell() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command/${{COMP_WORDS[i]}}" in
      {}) command+=/${{COMP_WORDS[i]}} ;;
    esac
  done
  case "$command:$before" in
{}  esac
  case "$command" in
{}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -F _twell twell
)",
      kVersion, known, values, words);
}

}  // namespace twell::cli
