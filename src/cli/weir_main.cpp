#include "cli/commands.h"

int main(int argc, char** argv) { return weir::cli::main(argc, argv); }
