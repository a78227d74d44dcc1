// What every command has in common: how it is declared, where its words go, how it stops.
#pragma once

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/json_out.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace twell::cli {

// Options that every command understands.
struct CommonOptions {
  std::string json;  // file of the machine-readable results; "-" is standard output; empty: none
  int threads = 0;   // of PyTorch and of the sparse kernels; 0: as many as PyTorch would use
  std::string device_name = "cpu";
  at::Device device = at::kCPU;  // after begin()

  // Words for people. They go to standard error where the results go to standard output.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    put(words(), fmt::format(format, std::forward<Args>(args)...));
  }
  // The same, broken between words where a line is full, and a newline.
  template <class... Args>
  void say_lines(fmt::format_string<Args...> format, Args&&... args) const {
    put(words(), wrapped(fmt::format(format, std::forward<Args>(args)...), 2) + "\n");
  }
  // Whether those words may have colour.
  bool colour() const { return shows_colour(words()); }
  // Throws where a path is empty or an output could not be written later, would replace what is no
  // earlier output, or is a file that is read as well: before long work, not after it. Sets
  // PyTorch's thread count and opens the device. Called first.
  void begin();
  // Writes the results, if asked for, with the keys every command adds ("twell", "machine").
  void write(const nlohmann::json& results) const;
  // The same of results that are not all there yet, with "complete": false, without a word and not
  // to the terminal, so that a run that is cut off leaves what it had.
  void write_so_far(nlohmann::json results) const;
  void tell_so_far() const;  // of a run that is cut off, once: where that is, if anywhere

  // Declares that an option names a file to write, which may replace an older one of its kind.
  void writes(CLI::Option* option, OutputKind kind) { outputs_.emplace_back(option, kind); }

 private:
  std::FILE* words() const { return json == "-" ? stderr : stdout; }
  friend CLI::App& declare_command(CLI::App& parent, const std::string& name,
                                   const std::string& description, const std::string& example,
                                   CommonOptions& common);
  void check_paths() const;
  void put_json(const nlohmann::json& results) const;

  const CLI::App* command_ = nullptr;
  std::vector<std::pair<CLI::Option*, OutputKind>> outputs_;
  mutable bool wrote_so_far_ = false;
};

// Adds a command with --json and --threads, a description and an example under its help. `run` is
// called with the parsed options; it throws where it fails.
template <class Options>
using CommandBody = void (*)(Options&);

CLI::App& declare_command(CLI::App& parent, const std::string& name, const std::string& description,
                          const std::string& example, CommonOptions& common);

template <class Options>
std::pair<CLI::App&, std::shared_ptr<Options>> add_command(CLI::App& parent,
                                                           const std::string& name,
                                                           const std::string& description,
                                                           const std::string& example,
                                                           CommandBody<Options> run) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = declare_command(parent, name, description, example, *options);
  command.callback([options, run] {
    options->begin();
    try {
      run(*options);
    } catch (...) {
      options->tell_so_far();
      throw;
    }
  });
  return {command, options};
}

void add_device_option(CLI::App& command, CommonOptions& common);  // --device

// A list of files or directories that has to be given.
void add_paths_option(CLI::App& command, const std::string& name, std::vector<std::string>& paths,
                      const std::string& description);

// An option that is no more: its use is an error that says what is there instead.
void add_removed_option(CLI::App& command, const std::string& name, const std::string& instead);

// --seed: 64 bits without a sign.
CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed,
                             const std::string& description);

// Numbers from `least` to `most`, written as people write them. No NaN.
CLI::Validator in_range(double least, double most);
inline const CLI::Validator kPositive = in_range(1, 0x1p40);
inline const CLI::Validator kCounts = in_range(1, 1 << 20);  // of tokens or units
inline const CLI::Validator kZeroOrMore = in_range(0, 0x1p40);

// Names of the activations that yield zeros, for --activation; of those with a threshold too.
std::vector<std::string> activation_names(bool thresholds = false);

// One per file cmd_*.cc.
void add_demo(CLI::App& app);
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_bench_ffn(CLI::App& bench);
void add_bench_model(CLI::App& bench);
void add_bench_train(CLI::App& bench);
void add_prepare(CLI::App& app);
void add_stats(CLI::App& app);
void add_eval(CLI::App& app);
void add_synth(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_convert(CLI::App& app);
void add_quantize(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_explain(CLI::App& app);
void add_info(CLI::App& app);

}  // namespace twell::cli
