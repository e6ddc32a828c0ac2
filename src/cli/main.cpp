#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"

namespace weir::cli {

namespace {

// A mapped file that shrinks is not an error that code can catch: say so and leave.
void lost_file(int) {
  static constexpr char kMessage[] = "weir: a mapped model file changed or could not be read while it was in use\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGBUS, lost_file);
  CLI::App app{"weir: hybrid language models on your own hardware, exactly"};
  app.set_version_flag("--version", "weir " WEIR_VERSION);
  app.require_subcommand(1);
  add_run(app);
  add_score(app);
  add_tokenize(app);
  add_render(app);
  add_batch(app);
  add_bench(app);
  add_inspect(app);
  add_doctor(app);
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](CLI::App* a) { return a->get_name() == argv[1]; }).empty()) {
    std::fprintf(stderr, "weir: unknown command %s; weir --help lists them\n", printable(argv[1]).c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "weir: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weir: %s\n", error.what());
    return 1;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "weir: standard output: write failed\n");
    return 1;
  }
  return 0;
}

}  // namespace weir::cli
