// Runs the program as a user would, and looks at what it says.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/model_files.h"

namespace weir::test {

struct CliResult {
  int code = -1;
  std::string out, err;
};

class CliFixture : public testing::Test {
 protected:
  // `arguments` as a shell takes them; `input` is what standard input holds.
  CliResult weir(const std::string& arguments, const std::string& input = "") {
    const std::string in = file("in", input), out = path("out"), err = path("err");
    const std::string command = std::string(WEIR_BINARY) + " " + arguments + " <" + in + " >" + out + " 2>" + err;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Fails with one line on standard error that has all these parts, and says nothing on standard output.
  void expect_error(const std::string& arguments, const std::vector<std::string>& parts,
                    const std::string& input = "") {
    const CliResult result = weir(arguments, input);
    EXPECT_EQ(result.code, 1) << arguments << "\n" << result.out << result.err;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " not in " << result.err;
    }
  }

  TemporaryFolder folder_;
};

// In single quotes, for the shell.
inline std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace weir::test
