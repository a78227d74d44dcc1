// Learns a tokenizer for the comparison with the package `tokenizers`:
//   twell_bpe_driver VOCAB_SIZE MIN_FREQUENCY TEXT OUT
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/bpe_trainer.h"
#include "files/atomic_file.h"
#include "twell/status.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: twell_bpe_driver VOCAB_SIZE MIN_FREQUENCY TEXT OUT\n";
    return 2;
  }
  try {
    const std::string text = twell::io::read_file(argv[3]);
    const std::vector<std::string_view> texts = {text};
    twell::lm::BpeOptions options;
    options.vocab_size = std::stoll(argv[1]);
    options.min_frequency = std::stoll(argv[2]);
    twell::io::write_file_atomically(argv[4], twell::lm::train_bpe(texts, options));
  } catch (const twell::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
