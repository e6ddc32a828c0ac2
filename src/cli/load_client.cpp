#include "cli/load_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/signal_set.hpp>
#include <cmath>
#include <csignal>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"
#include "cli/load_answer.h"
#include "cli/load_connections.h"
#include "cli/load_system.h"

namespace weir::cli {
namespace {

namespace asio = boost::asio;
using Clock = LoadAnswer::Clock;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kAfterRefusal{100};  // before a worker tries again
constexpr std::chrono::milliseconds kProgressEvery{500};

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

class LoadClient::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)), connections_(io_, options_.url, duration_of(options_.timeout)) {
    raise_file_limit();
  }

  Reply call(std::string_view method, const std::string& path, const std::string& body) {
    LoadConnections::Outcome out;
    spawn([](Impl& self, std::string bytes, LoadConnections::Outcome& into) -> asio::awaitable<void> {
      into = co_await self.connections_.exchange(bytes, nullptr, self.out_.check);
    }(*this, message(method, path, body), out));
    run_loop();
    if (out.failure != LoadFailure::kNone) fail(options_.url.text(), ": ", out.message);
    return {out.status, std::move(out.body)};
  }

  LoadRun run(const LoadSchedule& schedule, const PromptSource& prompts, const LoadRequestOptions& request,
              const GoodputLimits& limits, const Progress& progress);

 private:
  void spawn(asio::awaitable<void> task);
  void run_loop();
  void stop();

  std::string message(std::string_view method, const std::string& path, const std::string& body) const;

  bool take_turn();
  asio::awaitable<void> arrivals();
  asio::awaitable<void> worker();
  asio::awaitable<bool> converse(Conversation conversation, std::string bytes, Clock::time_point due);
  asio::awaitable<void> watch_signals();
  asio::awaitable<void> show_progress();

  Options options_;
  asio::io_context io_{1};
  LoadConnections connections_;
  std::exception_ptr broken_;

  // Of the present run.
  const LoadSchedule* schedule_ = nullptr;
  const PromptSource* prompts_ = nullptr;
  const LoadRequestOptions* request_ = nullptr;
  const Progress* progress_ = nullptr;
  LoadRun out_;
  Clock::time_point start_, end_;  // end_: of the last answer
  int64_t tasks_ = 0, begun_ = 0, conversations_ = 0, in_flight_ = 0;
  bool stopping_ = false;
  asio::steady_timer arrival_{io_}, progress_timer_{io_};
  asio::signal_set signals_{io_};
};

// A run is over when the last of its tasks is.
void LoadClient::Impl::spawn(asio::awaitable<void> task) {
  ++tasks_;
  asio::co_spawn(io_, std::move(task), [this](std::exception_ptr error) {
    if (error && !broken_) {
      broken_ = error;
      stop();
    }
    if (--tasks_ > 0) return;
    signals_.cancel();
    progress_timer_.cancel();
  });
}

void LoadClient::Impl::run_loop() {
  io_.restart();
  io_.run();
  if (broken_) std::rethrow_exception(std::exchange(broken_, nullptr));
}

void LoadClient::Impl::stop() {
  stopping_ = true;
  arrival_.cancel();
  connections_.cancel();
}

std::string LoadClient::Impl::message(std::string_view method, const std::string& path, const std::string& body) const {
  std::string out = concat(method, " ", options_.url.base, path, " HTTP/1.1\r\nHost: ", options_.url.authority(),
                           "\r\nUser-Agent: weir-load\r\nAccept: */*\r\n");
  if (!options_.api_key.empty()) out += concat("Authorization: Bearer ", options_.api_key, "\r\n");
  if (method == "POST") out += concat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  return out + "\r\n" + body;
}

bool LoadClient::Impl::take_turn() {
  if (stopping_ || (schedule_->requests > 0 && begun_ >= schedule_->requests)) return false;
  if (schedule_->seconds > 0 && seconds_of(Clock::now() - start_) >= schedule_->seconds) return false;
  ++begun_;
  return true;
}

// The requests of a conversation, the first of which has had its turn taken. False when the server can't be reached.
asio::awaitable<bool> LoadClient::Impl::converse(Conversation conversation, std::string bytes, Clock::time_point due) {
  for (;;) {
    out_.tally.most_in_flight = std::max(out_.tally.most_in_flight, ++in_flight_);
    LoadAnswer answer(due, !conversation.later.empty());
    LoadConnections::Outcome out = co_await connections_.exchange(bytes, &answer, out_.check);
    --in_flight_;
    if (out.failure == LoadFailure::kNone && out.status != 200) {
      out.failure = LoadFailure::kStatus;
      out.message = error_message(out.body);
    }
    const LoadRecord record =
        out.failure == LoadFailure::kNone ? answer.finish() : answer.failed(out.failure, out.message, out.status);
    out_.tally.add(record);
    end_ = Clock::now();
    if (record.failure != LoadFailure::kNone) co_return record.failure != LoadFailure::kConnect;
    if (!next_turn(conversation, answer.text()) || !take_turn()) co_return true;
    bytes = message("POST", request_->path(), load_body(*request_, conversation));
    due = Clock::now();
  }
}

// Closed load: the next request when the one before has been answered.
asio::awaitable<void> LoadClient::Impl::worker() {
  while (take_turn()) {
    Conversation next = prompts_->conversation(conversations_++);
    std::string bytes = message("POST", request_->path(), load_body(*request_, next));
    const bool reached = co_await converse(std::move(next), std::move(bytes), Clock::now());
    if (reached || stopping_) continue;
    asio::steady_timer pause(io_, kAfterRefusal);
    co_await pause.async_wait(kTuple);
  }
}

// Open load: whatever has been answered by then. A request is made before it is due.
asio::awaitable<void> LoadClient::Impl::arrivals() {
  std::mt19937_64 random(schedule_->seed);
  double after = 0;
  for (;;) {
    Conversation next = prompts_->conversation(conversations_++);
    std::string bytes = message("POST", request_->path(), load_body(*request_, next));
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    after += -std::log1p(-uniform) / schedule_->rate;
    const Clock::time_point due = start_ + duration_of(after);
    if (schedule_->seconds > 0 && after >= schedule_->seconds) co_return;
    arrival_.expires_at(due);
    if (!stopping_) co_await arrival_.async_wait(kTuple);
    if (!take_turn()) co_return;
    spawn([](Impl& self, Conversation first, std::string request, Clock::time_point when) -> asio::awaitable<void> {
      co_await self.converse(std::move(first), std::move(request), when);
    }(*this, std::move(next), std::move(bytes), due));
  }
}

asio::awaitable<void> LoadClient::Impl::watch_signals() {
  const auto [error, signal] = co_await signals_.async_wait(kTuple);
  if (error) co_return;
  out_.interrupted = true;
  signals_.clear();
  std::signal(SIGINT, SIG_DFL);  // the second one
  std::signal(SIGTERM, SIG_DFL);
  stop();
}

asio::awaitable<void> LoadClient::Impl::show_progress() {
  for (;;) {
    progress_timer_.expires_after(kProgressEvery);
    const auto [error] = co_await progress_timer_.async_wait(kTuple);
    if (error) co_return;
    (*progress_)(out_.tally, in_flight_, seconds_of(Clock::now() - start_));
  }
}

LoadRun LoadClient::Impl::run(const LoadSchedule& schedule, const PromptSource& prompts,
                              const LoadRequestOptions& request, const GoodputLimits& limits,
                              const Progress& progress) {
  schedule_ = &schedule;
  prompts_ = &prompts;
  request_ = &request;
  progress_ = &progress;
  out_ = {};
  out_.tally.limits = limits;
  begun_ = conversations_ = 0;
  stopping_ = false;
  connections_.allow();
  boost::system::error_code ignored;
  signals_.add(SIGINT, ignored);
  signals_.add(SIGTERM, ignored);
  asio::co_spawn(io_, watch_signals(), asio::detached);
  if (progress) asio::co_spawn(io_, show_progress(), asio::detached);
  const double cpu = process_cpu_seconds();
  start_ = end_ = Clock::now();
  if (schedule.rate > 0) {
    spawn(arrivals());
  } else {
    for (int64_t i = 0; i < schedule.concurrency; ++i) spawn(worker());
  }
  run_loop();
  signals_.clear(ignored);
  out_.check.cpu_seconds = process_cpu_seconds() - cpu;
  out_.seconds = seconds_of(end_ - start_);
  return std::move(out_);
}

LoadClient::LoadClient(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LoadClient::~LoadClient() = default;

LoadClient::Reply LoadClient::get(const std::string& path) { return impl_->call("GET", path, ""); }
LoadClient::Reply LoadClient::post(const std::string& path, const std::string& body) {
  return impl_->call("POST", path, body);
}

LoadRun LoadClient::run(const LoadSchedule& schedule, const PromptSource& prompts, const LoadRequestOptions& request,
                        const GoodputLimits& limits, const Progress& progress) {
  return impl_->run(schedule, prompts, request, limits, progress);
}

}  // namespace weir::cli
