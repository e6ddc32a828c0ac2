// What there is, and what each path does.
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "formats/json.h"
#include "server/anthropic.h"
#include "server/application_call.h"
#include "server/dialect.h"
#include "server/engine_view.h"
#include "server/ids.h"
#include "server/responses.h"
#include "server/text_endpoints.h"
#include "server/web_page.h"

namespace weir {
namespace {

namespace json = boost::json;
using openai::Refusal;

constexpr int64_t kMostMemory = int64_t{1} << 30;  // of a body's JSON

json::object body_of(const http::Request& request) {
  if (const std::string_view coding = request.header("content-encoding"); !coding.empty() && coding != "identity") {
    throw Refusal(concat("Content-Encoding: expected none, found ", printable(coding)), {}, "unsupported_coding", 415);
  }
  json::value value = parse_json(request.body, "request", {.max_memory = kMostMemory});
  if (!value.is_object()) throw Refusal("request: expected a JSON object");
  return std::move(value.get_object());
}

void send_json(http::Response& response, int status, const json::object& object, http::Headers headers = {}) {
  response.send(status, "application/json", json::serialize(object), std::move(headers));
}

// `name`=N in a query.
int64_t integer_of(std::string_view query, std::string_view name, int64_t fallback) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name) || pair.size() <= name.size() || pair[name.size()] != '=') continue;
    int64_t value = 0;
    const char* end = pair.data() + pair.size();
    const auto [stop, error] = std::from_chars(pair.data() + name.size() + 1, end, value);
    if (error != std::errc() || stop != end || value < -1) {
      throw Refusal(concat(name, ": expected an integer from -1, found ", printable(pair.substr(name.size() + 1))),
                    std::string(name));
    }
    return value;
  }
  return fallback;
}

json::object count_messages(const json::object& body, const openai::Served& served) {
  return anthropic::count_tokens(body, served);
}

// Requests of one client take turns with those of others.
uint64_t client_of(const http::Request& request) {
  std::string_view key = request.header("authorization");
  if (key.empty()) key = request.header("x-api-key");
  return std::hash<std::string_view>()(key.empty() ? std::string_view(request.peer) : key);
}

json::object model_object(const std::string& name, const openai::Served& served, int64_t created) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "weir"},
          {"root", served.name},
          {"max_model_len", served.context},
          {"adapters", json::array()}};
}

}  // namespace

const std::vector<Application::Route>& Application::routes() {
  static const std::vector<Route> kRoutes{
      {"GET", "/", &Application::page, false, true},
      {"GET", "/health/live", &Application::live, false, true},
      {"GET", "/health/ready", &Application::ready, false, true},
      {"GET", "/health", &Application::ready, false, true},
      {"GET", "/metrics", &Application::metrics},
      {"GET", "/engine", &Application::engine},
      {"GET", "/v1/models", &Application::models},
      {"GET", "/v1/models/", &Application::one_model, false, false, true},
      {"POST", "/v1/chat/completions", &Application::answer, true},
      {"POST", "/v1/completions", &Application::answer, true},
      {"POST", "/v1/responses", &Application::answer, true},
      {"GET", "/v1/responses/", &Application::stored, false, false, true},
      {"DELETE", "/v1/responses/", &Application::forget, false, false, true},
      {"POST", "/v1/messages", &Application::answer, true},
      {"POST", "/v1/messages/count_tokens", &Application::words, true},
      {"POST", "/tokenize", &Application::words, true},
      {"POST", "/detokenize", &Application::words, true},
      {"POST", "/apply_template", &Application::words, true},
  };
  return kRoutes;
}

void Application::page(Call& call) {
  call.response->send(200, "text/html; charset=utf-8", std::string(web_page()),
                      {{"Content-Security-Policy", std::string(web_page_policy())}});
}

void Application::live(Call& call) {
  const State now = state();
  send_json(*call.response, now == State::kFaulted ? 503 : 200, {{"state", state_name(now)}});
}

void Application::ready(Call& call) {
  std::unique_lock lock(mutex_);
  const State now = state_;
  json::object body{{"state", state_name(now)}};
  if (!reason_.empty()) body["reason"] = reason_;
  lock.unlock();
  const int status = now == State::kReady ? 200 : 503;
  send_json(*call.response, status, body, retry_headers(status));
}

void Application::metrics(Call& call) {
  PrometheusText out;
  std::unique_lock lock(mutex_);
  const State now = state_;
  const Model here = model_;
  const auto connections = connections_;
  lock.unlock();
  out.gauge("state", "1 for the state that the server is in.");
  for (const State state : {State::kLoading, State::kReady, State::kDraining, State::kFaulted}) {
    out.sample(state == now ? 1 : 0, {{"state", state_name(state)}});
  }
  metrics_.write(out);
  if (connections) write_metrics(connections(), out);
  if (here.engine != nullptr) write_metrics(here.engine->snapshot(), out);
  call.response->send(200, PrometheusText::kContentType, out.text());
}

void Application::engine(Call& call) {
  const int64_t since = integer_of(call.request.query, "since", -1);
  std::unique_lock lock(mutex_);
  const State now = state_;
  const Model here = model_;
  lock.unlock();
  json::object out{{"state", state_name(now)},
                   {"uptime_s", std::chrono::duration<double>(Clock::now() - started_).count()}};
  if (here.engine != nullptr) {
    out["model"] = {{"name", here.served->name}, {"context", here.served->context}};
    for (auto& [key, value] : engine_view(*here.engine, since)) out[key] = std::move(value);
  }
  send_json(*call.response, 200, out);
}

void Application::models(Call& call) {
  const openai::Served& served = *model().served;
  json::array list{model_object(served.name, served, started_unix_)};
  for (const std::string& alias : options_.aliases) list.push_back(model_object(alias, served, started_unix_));
  send_json(*call.response, 200, {{"object", "list"}, {"data", std::move(list)}});
}

void Application::one_model(Call& call) {
  const openai::Served& served = *model().served;
  check_name({{"model", call.rest}}, served);
  send_json(*call.response, 200, model_object(std::string(call.rest), served, started_unix_));
}

void Application::answer(Call& call) {
  const Model here = model();
  json::object body = body_of(call.request);
  check_name(body, *here.served);
  call.request.body = {};  // may be large, and the exchange lasts
  SamplingOptions defaults = here.defaults.sampling;
  if (here.defaults.new_seeds) defaults.seed = random_seed();
  const Dialect& dialect = dialect_of(call.request.path);
  note_unknown(dialect, body);
  std::unique_ptr<Reply> reply =
      dialect.reply({call.request.path, *here.served, defaults, responses_}, std::move(body));
  for (Request& request : reply->job().requests) request.client = client_of(call.request);
  const auto exchange = std::make_shared<Exchange>(Exchange::Parts{here.engine, here.served, &writers_, &metrics_},
                                                   std::move(reply), dialect.error, call.response, call.arrived);
  exchange->start();
  const std::lock_guard lock(mutex_);
  exchanges_.push_back(exchange);
}

// Once each, and not without end.
void Application::note_unknown(const Dialect& dialect, const json::object& body) {
  constexpr size_t kMost = 64;
  for (const auto& field : body) {
    if (dialect.knows(field.key())) continue;
    const std::string name = printable(field.key(), 40);
    {
      const std::lock_guard lock(mutex_);
      if (noted_.size() == kMost || !noted_.insert(name).second) continue;
    }
    if (options_.log)
      options_.log(concat("a request has the field ", name, ", which is not known here and is ignored"));
  }
}

void Application::stored(Call& call) {
  const std::shared_ptr<const ResponseStore::Entry> entry = responses_.get(call.rest);
  if (!entry) throw responses::not_found(call.rest);
  call.response->send(200, "application/json", entry->response);
}

void Application::forget(Call& call) {
  if (!responses_.erase(call.rest)) throw responses::not_found(call.rest);
  send_json(*call.response, 200, responses::deleted_object(call.rest));
}

void Application::words(Call& call) {
  const openai::Served& served = *model().served;
  const json::object body = body_of(call.request);
  check_name(body, served);
  const std::string_view path = call.request.path;
  const auto work = path == "/tokenize"         ? tokenize
                    : path == "/detokenize"     ? detokenize
                    : path == "/apply_template" ? apply_template
                                                : count_messages;
  send_json(*call.response, 200, work(body, served));
}

}  // namespace weir
