// The commands of the program. Each adds itself to the parser and returns what runs when the user names it.
#pragma once

#include <CLI/CLI.hpp>

namespace weir::cli {

void add_run(CLI::App& app);
void add_score(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_render(CLI::App& app);
void add_batch(CLI::App& app);
void add_serve(CLI::App& app);
void add_tour(CLI::App& app);
void add_replay(CLI::App& app);
void add_bench(CLI::App& app);
void add_doctor(CLI::App& app);
void add_inspect(CLI::App& app);
void add_load(CLI::App& app);

// Parses the arguments and runs the command. Exit codes: 0 done, 1 an error (one line on standard error), 2 wrong
// usage.
int main(int argc, char** argv);

}  // namespace weir::cli
