// Runs a model for the comparisons in Python: fp32 logits of every position on standard output.
//   twell_decoder_driver MODEL dense|sparse|auto[:exact][,...] ID... [/ ID...]...
//     for each FFN path and sequence: of all its tokens at once, then through the cache.
//     :exact leaves inputs of products with blocks as they are.
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>

#include "decoder/model.h"
#include "tests/decoder/other_architectures.h"

namespace {

using namespace twell::lm;

// The first half in one pass, the rest token by token.
at::Tensor cached_logits(Model& model, const std::vector<std::int64_t>& ids) {
  KvCache cache = model.make_cache(1, static_cast<std::int64_t>(ids.size()));
  std::vector<at::Tensor> parts;
  std::span<const std::int64_t> left(ids);
  for (std::size_t take = (ids.size() + 1) / 2; !left.empty(); take = 1) {
    const Chunk chunk{0, left.first(take)};
    parts.push_back(model.head(model.hidden_states({&chunk, 1}, &cache)));
    left = left.subspan(take);
  }
  return at::cat(parts);
}

int run(const std::vector<std::string>& args) {
  if (args.size() < 3) return 2;
  const at::NoGradGuard no_grad;
  std::vector<std::vector<std::int64_t>> sequences(1);
  for (std::size_t i = 2; i < args.size(); ++i) {
    if (args[i] == "/") {
      sequences.emplace_back();
    } else {
      sequences.back().push_back(std::stoll(args[i]));
    }
  }
  std::stringstream paths(args[1]);
  for (std::string path; std::getline(paths, path, ',');) {
    LoadOptions options = {.path = parse_ffn_path(path.substr(0, path.find(':'))),
                           .architectures = twell::test::all_architectures()};
    if (path.ends_with(":exact")) options.round_inputs = false;
    const auto model = load_model(args[0], options);
    for (const auto& ids : sequences) {
      for (const at::Tensor& of :
           {model->forward(at::tensor(ids).unsqueeze(0)), cached_logits(*model, ids)}) {
        const at::Tensor logits = of.to(at::kFloat).contiguous();
        std::fwrite(logits.const_data_ptr(), 1, logits.nbytes(), stdout);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
