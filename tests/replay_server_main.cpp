// replay_server WORDS ANSWERS.json: the server's application with answers that are given, for tests with real clients.
//
// WORDS: a folder with a tokenizer and a chat format. ANSWERS: {NAME: {"ids": [...]} or {"text": TEXT in which markers
// count}}, with "error": what happens after the last token; a prompt gets the answer that it names last, as [[NAME]].
// It says where it listens, and serves until standard input ends.
#include <cstdio>
#include <exception>
#include <map>

#include "formats/json.h"
#include "server/application.h"
#include "tests/support/replay_engine.h"

namespace {

using namespace weir;
namespace json = boost::json;

std::map<std::string, test::ReplayAnswer> read_answers(const std::string& path, const ModelText& text) {
  std::map<std::string, test::ReplayAnswer> out;
  const json::value file = read_json_file(path);
  for (const auto& [name, value] : file.as_object()) {
    const JsonObject fields(path, name, value.as_object());
    test::ReplayAnswer answer{{}, fields.string_or("error", "")};
    if (fields.has("text")) {
      answer.ids = text.tokenizer().encode(fields.string("text"), SpecialTokens::kParse, false);
    } else {
      for (const int64_t id : fields.integers("ids", 0, text.tokenizer().vocab_size() - 1)) {
        answer.ids.push_back(static_cast<int32_t>(id));
      }
    }
    out.emplace(name, std::move(answer));
  }
  return out;
}

void serve(const std::string& words, const std::string& path) {
  const ModelText text = ModelText::open(words);
  const std::map<std::string, test::ReplayAnswer> answers = read_answers(path, text);
  const openai::Served served{.text = &text,
                              .name = "replay",
                              .fingerprint = "weir-replay",
                              .vocab = text.tokenizer().vocab_size(),
                              .context = 8192,
                              .tokens = 8192};
  test::ReplayEngine engine({.answer = [&](const Request& request) -> test::ReplayAnswer {
                               const std::string prompt = text.tokenizer().decode(request.prompt, false);
                               const size_t begin = prompt.rfind("[["), end = prompt.find("]]", begin);
                               if (begin == std::string::npos || end == std::string::npos) return {};
                               const auto found = answers.find(prompt.substr(begin + 2, end - begin - 2));
                               return found == answers.end() ? test::ReplayAnswer() : found->second;
                             },
                             .step = std::chrono::microseconds(200)});
  Application application({});
  http::Server server({.port = 0,
                       .handler =
                           [&](http::Request request, std::shared_ptr<http::Response> response) {
                             application.handle(std::move(request), std::move(response));
                           },
                       .error_body = Application::error_body});
  application.open(served, engine);
  std::printf("http://127.0.0.1:%d\n", server.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {}
  engine.stop();
  server.stop();
  application.close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: replay_server WORDS ANSWERS.json\n");
    return 2;
  }
  try {
    serve(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay_server: %s\n", error.what());
    return 1;
  }
}
