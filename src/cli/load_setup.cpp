#include "cli/load_setup.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <optional>

#include "base/error.h"
#include "cli/load_answer.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

constexpr size_t kEnoughWords = 64;

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += out.empty() ? word : " " + word;
  return out;
}

// Tokens of a text; nothing when the server has no such end point. Each kind of server reads the field that it knows.
std::optional<int64_t> tokenized(LoadClient& client, const std::string& model, const std::string& text) {
  const json::object body{{"model", model}, {"content", text},      {"prompt", text},
                          {"text", text},   {"add_special", false}, {"add_special_tokens", false}};
  const LoadClient::Reply reply = client.post("/tokenize", json::serialize(body));
  if (reply.status != 200) return std::nullopt;
  try {
    const json::value value = parse_json(reply.body, "/tokenize");
    const json::array* tokens =
        value.is_object() && value.as_object().contains("tokens") ? value.as_object().at("tokens").if_array() : nullptr;
    if (tokens != nullptr && !tokens->empty()) return static_cast<int64_t>(tokens->size());
  } catch (const Error&) {
    // something else lives there
  }
  return std::nullopt;
}

// Tokens of a prompt of the first `count` words, as the server's usage has it.
int64_t used(LoadClient& client, LoadRequestOptions request, const std::vector<std::string>& words) {
  const Conversation conversation{.messages = {{"user", joined(words)}}, .max_tokens = 1};
  request.ignore_eos = false;  // one token is one token
  const LoadClient::Reply reply = client.post(request.path(), load_body(request, conversation));
  if (reply.status != 200) fail(request.path(), ": http ", reply.status, ": ", error_message(reply.body));
  LoadAnswer answer(LoadAnswer::Clock::now(), false);
  answer.feed(reply.body, LoadAnswer::Clock::now());
  const LoadRecord record = answer.finish();
  // The one token may have no text.
  if (record.failure != LoadFailure::kNone && record.failure != LoadFailure::kEmpty) {
    fail(request.path(), ": ", record.message);
  }
  if (!record.counted) {
    fail(request.path(),
         ": the server has no /tokenize and sends no usage, so prompts can't be sized; --prompts takes a "
         "file of them");
  }
  return record.input_tokens;
}

}  // namespace

std::string served_model(LoadClient& client, const std::string& url) {
  const LoadClient::Reply reply = client.get("/v1/models");
  if (reply.status != 200) fail(url, "/v1/models: http ", reply.status, ": ", error_message(reply.body));
  const std::string place = url + "/v1/models";
  const json::value value = parse_json(reply.body, place);
  const json::array* models =
      value.is_object() && value.as_object().contains("data") ? value.as_object().at("data").if_array() : nullptr;
  if (models == nullptr || models->empty() || !models->front().is_object()) {
    fail(place, ": expected a model; --model names one");
  }
  return JsonObject(place, "data[0]", models->front().as_object()).string("id");
}

WordList sized_words(LoadClient& client, const LoadRequestOptions& request) {
  const std::vector<std::string>& words = common_words();
  const std::optional<int64_t> all = tokenized(client, request.model, joined(words));
  if (!all) {
    const std::vector<std::string> few(words.begin(), words.begin() + 8), more(words.begin(), words.begin() + 136);
    const int64_t tokens = used(client, request, more) - used(client, request, few);
    if (tokens < 1) fail("the server's usage does not grow with the prompt, so prompts can't be sized");
    return {words, static_cast<double>(tokens) / 128};
  }
  if (*all == static_cast<int64_t>(words.size())) return {words, 1};
  std::vector<std::string> single;
  for (const std::string& word : words) {
    // As it stands inside a text, after another one.
    if (tokenized(client, request.model, concat("the ", word)) == 2) single.push_back(word);
  }
  if (single.size() >= kEnoughWords) return {std::move(single), 1};
  return {words, static_cast<double>(*all) / static_cast<double>(words.size())};
}

}  // namespace weir::cli
