// twell: trains, measures, inspects and runs sparse language models.
#include "cli/program.h"

int main(int argc, char** argv) { return twell::cli::program(argc, argv); }
