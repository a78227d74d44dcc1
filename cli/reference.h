// What a distribution's package has of the command line, made from the definitions that --help
// shows: nothing to keep in step by hand.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace twell::cli {

std::string man_page(const CLI::App& app);         // of section 1, for groff
std::string bash_completion(const CLI::App& app);  // to be sourced

}  // namespace twell::cli
