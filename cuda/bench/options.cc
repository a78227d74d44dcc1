#include "cuda/bench/options.h"

#include <sstream>

#include "twell/status.h"

namespace twell::bench {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& message) {
  throw Error(ErrorKind::invalid_argument, name, message);
}

std::vector<std::string> items_of(const std::string& name, const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(item);
  if (out.empty()) refuse(name, "expected a list, got nothing");
  return out;
}

// Numbers of at least one, or above zero where they need not be whole.
template <class T>
std::vector<T> numbers_of(const std::string& name, const std::string& text) {
  std::vector<T> out;
  for (const std::string& item : items_of(name, text)) {
    std::istringstream in(item);
    T value{};
    if (!(in >> value) || !in.eof() || !(value > 0)) {
      refuse(name, "expected numbers above 0, got '" + text + "'");
    }
    out.push_back(value);
  }
  return out;
}

template <class T>
T number_of(const std::string& name, const std::string& text) {
  const std::vector<T> numbers = numbers_of<T>(name, text);
  if (numbers.size() != 1) refuse(name, "expected one number, got '" + text + "'");
  return numbers.front();
}

void choose(Options& options, const std::string& text) {
  options.exact = options.layers = options.train = options.sweeps = false;
  for (const std::string& item : items_of("--only", text)) {
    if (item == "exact") {
      options.exact = true;
    } else if (item == "layers") {
      options.layers = true;
    } else if (item == "train") {
      options.train = true;
    } else if (item == "sweeps") {
      options.sweeps = true;
    } else {
      refuse("--only", "expected exact, layers, train or sweeps, got '" + item + "'");
    }
  }
}

}  // namespace

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--list" || name == "--predict") {
      (name == "--list" ? options.list : options.predict) = true;
      continue;
    }
    if (i + 1 == arguments.size()) refuse(name, std::string("expected a value\n") + kUsage);
    const std::string& value = arguments[++i];
    if (name == "--json") {
      options.json = value;
    } else if (name == "--only") {
      choose(options, value);
    } else if (name == "--tokens") {
      options.tokens = numbers_of<std::int64_t>(name, value);
    } else if (name == "--nnz") {
      options.nnz = numbers_of<double>(name, value);
    } else if (name == "--train-tokens") {
      options.train_tokens = numbers_of<std::int64_t>(name, value);
    } else if (name == "--train-nnz") {
      options.train_nnz = numbers_of<double>(name, value);
    } else if (name == "--runs") {
      options.runs = number_of<int>(name, value);
    } else if (name == "--hidden") {
      options.depth = number_of<std::int64_t>(name, value);
    } else if (name == "--ffn") {
      options.hidden = number_of<std::int64_t>(name, value);
    } else {
      refuse(name, std::string("no such option\n") + kUsage);
    }
  }
  if (options.depth % 8 != 0 || options.hidden % 8 != 0) {
    refuse("--hidden and --ffn", "expected multiples of 8");
  }
  return options;
}

}  // namespace twell::bench
