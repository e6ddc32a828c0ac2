#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "base/error.h"
#include "cli/commands.h"
#include "models/builtin.h"

namespace weir::cli {

namespace {

// A mapped file that shrinks is not an error that code can catch: say so and leave.
void lost_file(int) {
  static constexpr char kMessage[] = "weir: a mapped model file changed or could not be read while it was in use\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

// Files that are opened later must not become one of the three. Was standard output open?
bool hold_standard_files() {
  bool has_output = true;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (fd == STDOUT_FILENO) has_output = false;
    if (open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) != fd) _exit(1);
  }
  return has_output;
}

int fail_with(std::string_view message, int code = 1) {
  std::fprintf(stderr, "weir: %s\n", one_line(message).c_str());
  return code;
}

// One line, instead of CLI11's two.
int wrong_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::string command = "weir";
  for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
  return fail_with(concat(error.what(), "; ", command, " --help lists what there is"), 2);
}

int finished() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return 0;
  return fail_with("standard output: write failed");
}

}  // namespace

int main(int argc, char** argv) {
  if (!hold_standard_files()) return fail_with("standard output: closed");
  std::signal(SIGBUS, lost_file);
  add_builtin_model();
  CLI::App app{"weir: hybrid language models on your own hardware, exactly"};
  app.set_version_flag("--version", "weir " WEIR_VERSION);
  app.require_subcommand(1);
  add_run(app);
  add_tour(app);
  add_score(app);
  add_tokenize(app);
  add_render(app);
  add_batch(app);
  add_serve(app);
  add_replay(app);
  add_bench(app);
  add_load(app);
  add_inspect(app);
  add_doctor(app);
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](CLI::App* a) { return a->get_name() == argv[1]; }).empty()) {
    return fail_with(concat("unknown command ", printable(argv[1]), "; weir --help lists them"), 2);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return wrong_usage(app, error);
    app.exit(error);  // prints the help or the version
  } catch (const std::bad_alloc&) {
    return fail_with("out of memory");
  } catch (const std::exception& error) {
    return fail_with(error.what());
  }
  return finished();
}

}  // namespace weir::cli
