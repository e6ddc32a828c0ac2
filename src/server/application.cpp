#include "server/application.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <ctime>

#include "server/application_call.h"
#include "server/dialect.h"

namespace weir {
namespace {

namespace json = boost::json;
using openai::Refusal;

// Adds the headers that pages of other origins need, and counts.
class CountedResponse final : public http::Response {
 public:
  CountedResponse(std::shared_ptr<http::Response> inner, Metrics& metrics, const std::string& cors_origin)
      : inner_(std::move(inner)), metrics_(metrics), cors_origin_(cors_origin) {}

  void send(int status, std::string_view type, std::string body, http::Headers headers) override {
    metrics_.responded(status);
    inner_->send(status, type, std::move(body), with_cors(std::move(headers)));
  }
  void start(int status, std::string_view type, http::Headers headers) override {
    metrics_.responded(status);
    inner_->start(status, type, with_cors(std::move(headers)));
  }
  bool write(std::string bytes) override { return inner_->write(std::move(bytes)); }
  void finish() override { inner_->finish(); }
  void on_gone(std::function<void()> call) override { inner_->on_gone(std::move(call)); }

 private:
  http::Headers with_cors(http::Headers headers) const {
    if (!cors_origin_.empty()) headers.emplace_back("Access-Control-Allow-Origin", cors_origin_);
    return headers;
  }

  std::shared_ptr<http::Response> inner_;
  Metrics& metrics_;
  const std::string& cors_origin_;
};

std::string_view error_kind(int status) {
  switch (status) {
    case 401:
      return "key";
    case 404:
    case 405:
      return "not_found";
    case 413:
      return "too_large";
    case 429:
      return "queue_full";
    case 503:
      return "unavailable";
    default:
      return status < 500 ? "bad_request" : "fault";
  }
}

}  // namespace

std::string_view state_name(Application::State state) {
  switch (state) {
    case Application::State::kLoading:
      return "loading";
    case Application::State::kReady:
      return "ready";
    case Application::State::kDraining:
      return "draining";
    case Application::State::kFaulted:
      break;
  }
  return "faulted";
}

Application::Application(Options options) : options_(std::move(options)), started_unix_(std::time(nullptr)) {
  silence_ = std::thread([this] { watch_silence(); });
}

Application::~Application() { close(); }

void Application::count_connections(std::function<http::Server::Counters()> counters) {
  const std::lock_guard lock(mutex_);
  connections_ = std::move(counters);
}

// --- states ---

void Application::open(const openai::Served& served, EngineQueue& engine, const AnswerDefaults& defaults) {
  const std::lock_guard lock(mutex_);
  model_ = {&served, &engine, defaults};
  if (state_ != State::kLoading) return;  // somebody has ended it already
  state_ = State::kReady;
  reason_.clear();
}

void Application::drain() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kFaulted) return;
  state_ = State::kDraining;
  reason_ = "the server is shutting down";
}

void Application::fault(const std::string& why) {
  const std::lock_guard lock(mutex_);
  state_ = State::kFaulted;
  reason_ = concat("the engine has stopped: ", why);
}

void Application::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake_.notify_all();
  }
  if (silence_.joinable()) silence_.join();
  readers_.stop();
  writers_.stop();
}

Application::State Application::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Application::Model Application::model() const {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) throw Refusal(reason_, {}, std::string(state_name(state_)), 503);
  return model_;
}

// --- calls ---

void Application::handle(http::Request request, std::shared_ptr<http::Response> response) {
  const auto call = std::make_shared<Call>();
  call->arrived = Clock::now();
  call->request = std::move(request);
  call->response = std::make_shared<CountedResponse>(std::move(response), metrics_, options_.cors_origin);
  guarded(*call, [&] {
    const Route* route = find(*call);
    check_access(*route, *call);
    if (!route->slow) return (this->*route->action)(*call);
    readers_.post([this, call, route] { guarded(*call, [&] { (this->*route->action)(*call); }); });
  });
}

void Application::guarded(Call& call, const std::function<void()>& work) {
  try {
    work();
  } catch (const Refusal& refusal) {
    refuse(call, refusal);
  } catch (const Error& error) {
    refuse(call, Refusal::of(error));
  } catch (const std::exception& error) {
    refuse(call, Refusal(error.what(), {}, {}, 500));
  }
}

void Application::refuse(Call& call, const Refusal& refusal) {
  metrics_.error(error_kind(refusal.status()));
  http::Headers headers = retry_headers(refusal.status());
  if (refusal.status() == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (refusal.status() == 405) headers.emplace_back("Allow", call.allowed);
  call.response->send(refusal.status(), "application/json",
                      json::serialize(dialect_of(call.request.path).error(refusal)), std::move(headers));
}

const Application::Route* Application::find(Call& call) const {
  const std::string_view path = call.request.path;
  for (const Route& route : routes()) {
    const bool matches =
        route.prefix ? path.starts_with(route.path) && path.size() > route.path.size() : path == route.path;
    if (!matches) continue;
    // The transport leaves the body of a HEAD's answer out.
    if (route.method == (call.request.method == "HEAD" ? "GET" : call.request.method)) {
      call.rest = path.substr(route.path.size());
      return &route;
    }
    call.allowed += concat(call.allowed.empty() ? "" : ", ", route.method);
  }
  static const Route kPreflight{.method = "OPTIONS", .action = &Application::preflight, .open = true};
  if (!options_.cors_origin.empty() && call.request.method == "OPTIONS" && !call.allowed.empty()) return &kPreflight;
  if (call.allowed.empty()) throw Refusal(concat("there is nothing at ", printable(path)), {}, "not_found", 404);
  throw Refusal(concat(printable(path), " takes ", call.allowed, ", found ", printable(call.request.method)), {},
                "method_not_allowed", 405);
}

void Application::check_access(const Route& route, const Call& call) const {
  if (route.open || options_.keys.allow(call.request)) return;
  throw Refusal("expected an API key, in Authorization: Bearer KEY or in x-api-key; found none that is known", {},
                "invalid_api_key", 401);
}

void Application::preflight(Call& call) {
  call.response->send(204, "text/plain", "",
                      {{"Access-Control-Allow-Methods", call.allowed},
                       {"Access-Control-Allow-Headers", "*, Authorization"},
                       {"Access-Control-Max-Age", "86400"}});
}

void Application::check_name(const json::object& body, const openai::Served& served) const {
  const json::value* name = body.if_contains("model");
  if (name == nullptr || !name->is_string()) return;  // the dialect says what it thinks of that
  const std::string_view wanted = name->get_string();
  if (wanted == served.name || std::ranges::find(options_.aliases, wanted) != options_.aliases.end()) return;
  throw Refusal(concat("the model ", printable(wanted), " does not exist; this server has ", printable(served.name)),
                "model", "model_not_found", 404);
}

std::string Application::error_body(int status, const std::string& message, std::string_view path) {
  return json::serialize(dialect_of(path).error(Refusal(message, {}, {}, status)));
}

// --- silent streams ---

void Application::watch_silence() {
  std::vector<std::shared_ptr<Exchange>> live;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.keep_alive / 5, [&] { return closing_; })) {
    std::erase_if(exchanges_, [](const std::weak_ptr<Exchange>& exchange) { return exchange.expired(); });
    for (const std::weak_ptr<Exchange>& exchange : exchanges_) {
      if (std::shared_ptr<Exchange> one = exchange.lock()) live.push_back(std::move(one));
    }
    lock.unlock();
    for (const std::shared_ptr<Exchange>& exchange : live) exchange->keep_alive(options_.keep_alive);
    live.clear();
    lock.lock();
  }
}

}  // namespace weir
