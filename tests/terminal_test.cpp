// A conversation on a terminal: `weir run` behind a pseudo-terminal, with keys as a user's terminal sends them.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "cli/line_buffer.h"
#include "formats/json.h"
#include "tests/support/cli.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;

class Terminal {
 public:
  Terminal(const std::vector<std::string>& arguments, int columns, const std::vector<std::string>& environment = {}) {
    winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns)};
    child_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (child_ == 0) {
      setenv("TERM", "xterm", 1);
      unsetenv("NO_COLOR");
      for (const std::string& variable : environment) setenv(variable.c_str(), "1", 1);
      std::vector<char*> argv{const_cast<char*>(WEIR_BINARY)};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(WEIR_BINARY, argv.data());
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(fd_);
  }

  void type(const std::string& keys) {
    // A terminal's buffer is small: what the program shows meanwhile is taken away.
    for (size_t at = 0; at < keys.size();) {
      const ssize_t n = write(fd_, keys.data() + at, std::min<size_t>(keys.size() - at, 1024));
      if (n > 0) at += static_cast<size_t>(n);
      take(5ms);
    }
  }

  // Waits until `text` is shown, from now on. All that was shown until then, or a failure after a minute.
  std::string wait_for(const std::string& text) {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (std::chrono::steady_clock::now() < limit) {
      const size_t found = shown_.find(text, seen_);
      if (found != std::string::npos) {
        const std::string out = shown_.substr(seen_, found + text.size() - seen_);
        seen_ = found + text.size();
        return out;
      }
      if (!take(100ms) && ended_) break;
    }
    ADD_FAILURE() << "never shown: " << text << "\nshown: " << shown_.substr(seen_);
    return {};
  }

  int exit_code() {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (!ended_ && std::chrono::steady_clock::now() < limit) take(100ms);
    int status = 0;
    if (!ended_ || waitpid(child_, &status, 0) != child_) return -1;
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& shown() const { return shown_; }

 private:
  bool take(std::chrono::milliseconds patience) {
    pollfd input{fd_, POLLIN, 0};
    if (poll(&input, 1, static_cast<int>(patience.count())) <= 0) return false;
    char bytes[4096];
    const ssize_t n = read(fd_, bytes, sizeof bytes);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    shown_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  pid_t child_ = -1;
  int fd_ = -1;
  bool ended_ = false;
  std::string shown_;
  size_t seen_ = 0;
};

class TerminalTest : public CliFixture {
 protected:
  std::vector<std::string> run(const std::vector<std::string>& more) const {
    std::vector<std::string> out{"run", fixture("kimi_k3/k3-tiny"), "--threads", "1"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  const std::string prompt_ = "> ";
};

TEST_F(TerminalTest, AConversationIsSavedAndLoadedAndReusesItsState) {
  Terminal terminal(run({"--max-tokens", "20", "--system", "Be brief."}), 80);
  terminal.wait_for(prompt_);
  // Long enough to leave an anchor behind: the second turn goes on from there at least.
  std::string hello = "Hello";
  for (int i = 0; i < 150; ++i) hello += concat(" ", i);
  terminal.type(hello + "\r");
  terminal.wait_for("(0 cached)");
  terminal.wait_for(prompt_);
  terminal.type("Second\r");
  const std::string second = terminal.wait_for(" cached)");
  EXPECT_EQ(second.find("(0 cached)"), std::string::npos);
  terminal.wait_for(prompt_);
  terminal.type("/save " + path("chat.json") + "\r");
  terminal.wait_for("Saved 5 messages");
  terminal.type("/clear\r");
  terminal.wait_for("empty");
  terminal.type("/load " + path("chat.json") + "\r");
  terminal.wait_for("Loaded 5 messages");
  terminal.type("/save " + path("again.json") + "\r");
  terminal.wait_for("Saved");
  terminal.type("/system\r");
  terminal.wait_for("Be brief.");
  terminal.type("/load /nonexistent\r");
  terminal.wait_for("/nonexistent");
  terminal.type("/frobnicate\r");
  terminal.wait_for("no such command");
  terminal.type("/help\r");
  terminal.wait_for("/save FILE");
  terminal.wait_for(prompt_);
  terminal.type("/quit\r");
  EXPECT_EQ(terminal.exit_code(), 0);
  const boost::json::value saved = read_json_file(path("chat.json"));
  EXPECT_EQ(saved, read_json_file(path("again.json")));
  const boost::json::array& messages = saved.at("messages").as_array();
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].at("content").as_string(), "Be brief.");
  EXPECT_EQ(messages[1].at("content").as_string(), hello);
  EXPECT_EQ(messages[2].at("role").as_string(), "assistant");
}

TEST_F(TerminalTest, CtrlCStopsAnAnswerAndASecondOneLeaves) {
  Terminal terminal(run({"--ignore-eos"}), 80);
  terminal.wait_for(prompt_);
  terminal.type("Hello\r");
  terminal.wait_for("\x1b[2m");  // reasoning begins
  terminal.type("\x03");
  terminal.wait_for("cancelled");
  terminal.wait_for(prompt_);
  terminal.type("\x03");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(TerminalTest, CtrlDLeaves) {
  Terminal terminal(run({}), 80);
  terminal.wait_for(prompt_);
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(TerminalTest, APasteOfTenThousandCharactersIsOneMessage) {
  std::string text;
  for (int i = 0; text.size() < 10000; ++i) text += concat("line ", i, " of a paste, \xc3\xa4\xe4\xbd\xa0\n");
  for (const int columns : {80, 12}) {
    Terminal terminal(run({"--max-tokens", "1"}), columns);
    terminal.wait_for(prompt_);
    terminal.type("\x1b[200~" + text + "\x1b[201~");
    terminal.type("end\r");
    // One id for nearly every byte: more than this model's context.
    terminal.wait_for("the conversation has 1");
    terminal.wait_for(prompt_);
    // What was written comes back with Up, to be shortened.
    terminal.type("\x1b[A\x15");
    terminal.type("\x17\x17\x17\r");
    terminal.wait_for("the conversation has 1");
  }
}

TEST_F(TerminalTest, LinesAreEditedAndRemembered) {
  Terminal terminal(run({"--max-tokens", "1"}), 40);
  terminal.wait_for(prompt_);
  // "acb", then the cursor between c and b, c erased, "\n" put in by Alt-Enter; wide characters in front.
  terminal.type("\xe4\xbd\xa0 acb\x1b[D\x7f\x1b\r\r");
  terminal.wait_for(" tok/s");
  terminal.wait_for(prompt_);
  terminal.type("\x1b[A\x05!\r");  // the same again with "!" at the end
  terminal.wait_for(" tok/s");
  terminal.wait_for(prompt_);
  terminal.type("/save " + path("chat.json") + "\r");
  terminal.wait_for("Saved 4");
  const boost::json::value saved = read_json_file(path("chat.json"));
  EXPECT_EQ(saved.at("messages").at(0).at("content").as_string(), "\xe4\xbd\xa0 a\nb");
  EXPECT_EQ(saved.at("messages").at(2).at("content").as_string(), "\xe4\xbd\xa0 a\nb!");
}

TEST_F(TerminalTest, NoColorIsObeyed) {
  Terminal terminal(run({"--max-tokens", "4", "--ignore-eos"}), 80, {"NO_COLOR"});
  terminal.wait_for(prompt_);
  terminal.type("Hello\r");
  terminal.wait_for(" tok/s");
  EXPECT_EQ(terminal.shown().find("\x1b[2m"), std::string::npos);
  EXPECT_EQ(terminal.shown().find("\x1b[0m"), std::string::npos);
}

TEST(LineLayout, WrapsAtTheWindowAndIndentsNewLines) {
  cli::LineBuffer buffer;
  buffer.set("abcdefgh\nxy");
  const cli::ScreenLines lines = cli::lay_out("> ", buffer, 8);
  EXPECT_EQ(lines.rows, (std::vector<std::string>{"> abcde", "fgh", "  xy"}));
  EXPECT_EQ(lines.cursor_row, 2u);
  EXPECT_EQ(lines.cursor_column, 4);
}

TEST(LineLayout, CountsWideCharactersTwiceAndMarksNoneForCombiningOnes) {
  cli::LineBuffer buffer;
  buffer.set(
      "\xe4\xbd\xa0\xe5\xa5\xbd"
      "e\xcc\x81");
  EXPECT_EQ(cli::lay_out("", buffer, 80).cursor_column, 5);
  buffer.set(
      "a\x01\xff"
      "b");
  EXPECT_EQ(cli::lay_out("", buffer, 80).rows.front(), "a??b");
}

TEST(LineEditing, MovesByWholeCharacters) {
  cli::LineBuffer buffer;
  buffer.set("a\xc3\xa4z");
  buffer.left();
  buffer.erase_left();
  EXPECT_EQ(buffer.text(), "az");
  buffer.insert("one two ");
  buffer.erase_word_left();
  EXPECT_EQ(buffer.text(), "aone z");
  buffer.erase_to_line_start();
  EXPECT_EQ(buffer.text(), "z");
}

}  // namespace
}  // namespace weir::test
