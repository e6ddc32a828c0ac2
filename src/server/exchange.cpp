#include "server/exchange.h"

#include <boost/json/serialize.hpp>
#include <exception>

namespace weir {
namespace {

openai::Refusal refusal_of(const SubmitRefusal& refusal) {
  switch (refusal.kind) {
    case SubmitRefusal::Kind::kNeverFits:
      return openai::Refusal(refusal.why);
    case SubmitRefusal::Kind::kQueueFull:
      return openai::Refusal(refusal.why, {}, "queue_full", 429);
    case SubmitRefusal::Kind::kStopping:
    case SubmitRefusal::Kind::kDead:
      break;
  }
  return openai::Refusal(refusal.why, {}, "unavailable", 503);
}

double seconds(Exchange::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

http::Headers retry_headers(int status) {
  if (status == 429) return {{"Retry-After", "1"}};
  if (status == 503) return {{"Retry-After", "5"}};
  return {};
}

class Exchange::Stream final : public TokenStream {
 public:
  Stream(std::shared_ptr<Exchange> exchange, size_t index) : exchange_(std::move(exchange)), index_(index) {}
  void on_token(const SampledToken& token) override { exchange_->post({index_, Clock::now(), token}); }
  void on_end(const RequestEnd& end) override { exchange_->post({index_, Clock::now(), end}); }

 private:
  std::shared_ptr<Exchange> exchange_;
  size_t index_;
};

Exchange::Exchange(const Parts& parts, std::unique_ptr<Reply> reply, ErrorObject error_object,
                   std::shared_ptr<http::Response> response, Clock::time_point arrived)
    : parts_(parts),
      reply_(std::move(reply)),
      error_object_(error_object),
      response_(std::move(response)),
      arrived_(arrived) {}

// --- the ends of it: any thread ---

void Exchange::start() {
  const size_t count = reply_->job().requests.size();
  answers_.reserve(count);
  last_token_.resize(count);
  for (size_t i = 0; i < count; ++i) submit(i);
  left_ = count;
  parts_.metrics->request_started(seconds(Clock::now() - arrived_));
  response_->on_gone([weak = weak_from_this()] {
    if (const std::shared_ptr<Exchange> self = weak.lock()) self->abandon();
  });
  parts_.workers->post(shared_from_this());
}

void Exchange::submit(size_t index) {
  openai::Job& job = reply_->job();
  answers_.push_back(openai::answer_of(job, index, *parts_.served, reply_->call_prefix(index)));
  RequestId id = 0;
  const std::optional<SubmitRefusal> refusal =
      parts_.engine->submit(std::move(job.requests[index]), std::make_shared<Stream>(shared_from_this(), index), id);
  if (refusal) {
    cancel_all();
    throw refusal_of(*refusal);
  }
  ids_.push_back(id);
}

void Exchange::cancel_all() {
  for (const RequestId id : ids_) parts_.engine->cancel(id);
}

void Exchange::abandon() {
  if (gone_.exchange(true)) return;
  cancel_all();
  parts_.metrics->client_gone();
}

void Exchange::post(Event event) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(event));
  if (scheduled_) return;
  scheduled_ = true;
  parts_.workers->post(shared_from_this());
}

void Exchange::keep_alive(Clock::duration silence) {
  const Clock::time_point last{Clock::duration(last_write_.load())};
  if (last == Clock::time_point() || Clock::now() - last < silence) return;  // not begun, or not silent
  const std::lock_guard lock(mutex_);
  silent_ = true;
  if (scheduled_) return;
  scheduled_ = true;
  parts_.workers->post(shared_from_this());
}

// --- the worker ---

void Exchange::run() noexcept {
  bool silent = false;
  {
    const std::lock_guard lock(mutex_);
    std::swap(events_, waiting_);
    silent = std::exchange(silent_, false);
  }
  try {
    if (silent && !done_) reply_->keep_alive(out_);
    process(events_);
  } catch (const std::exception& error) {
    fault(500, error.what());
  }
  events_.clear();
  // Others have their turn before what has come in the meantime.
  const std::lock_guard lock(mutex_);
  scheduled_ = !waiting_.empty() || silent_;
  if (scheduled_) parts_.workers->post(shared_from_this());
}

void Exchange::process(std::vector<Event>& events) {
  if (gone_) done_ = true;
  if (!begun_ && !done_ && reply_->streams()) {
    response_->start(200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}});
    begun_ = true;
    last_write_ = Clock::now().time_since_epoch().count();
    reply_->begin(out_);
  }
  for (const Event& event : events) {
    if (done_) break;
    take(event);
  }
  flush();
  if (!events.empty()) {
    counted_.to_socket_seconds = seconds(Clock::now() - events.front().when);
    parts_.metrics->tokens(counted_);
    counted_.clear();
  }
}

void Exchange::take(const Event& event) {
  Answer& answer = answers_[event.index];
  shown_.clear();
  const auto* token = std::get_if<SampledToken>(&event.what);
  if (token == nullptr) return take_end(event, std::get<RequestEnd>(event.what));
  if (answer.stopped()) return;
  Clock::time_point& last = last_token_[event.index];
  if (last == Clock::time_point()) {
    counted_.first.push_back(seconds(event.when - arrived_));
  } else {
    counted_.between.push_back(seconds(event.when - last));
  }
  last = event.when;
  if (!answer.push(*token, shown_)) parts_.engine->cancel(ids_[event.index]);
  if (reply_->streams() && !shown_.empty()) reply_->add(event.index, answer, shown_, out_);
}

void Exchange::take_end(const Event& event, const RequestEnd& end) {
  Answer& answer = answers_[event.index];
  if (end.reason == FinishReason::kError) return fault(parts_.engine->alive() ? 500 : 503, end.error);
  if (end.reason == FinishReason::kCancelled && !answer.stopped()) return fault(503, "the server is shutting down");
  answer.end(end, shown_);
  if (reply_->streams()) reply_->add(event.index, answer, shown_, out_);
  if (--left_ == 0) complete();
}

void Exchange::complete() {
  done_ = true;
  if (reply_->streams()) {
    reply_->end(answers_, out_);
  } else {
    out_ = boost::json::serialize(reply_->body(answers_));
  }
  Metrics::Finished finished{.seconds = seconds(Clock::now() - arrived_)};
  for (const Answer& answer : answers_) {
    const RequestUsage& usage = answer.usage();
    finished.prompt_tokens += usage.prompt_tokens;
    finished.cached_tokens += usage.cached_tokens;
    finished.completion_tokens += answer.completion_tokens();
    finished.reasoning_tokens += answer.reasoning_tokens();
  }
  parts_.metrics->finished(finished);
}

void Exchange::fault(int status, const std::string& message) {
  if (done_) return;
  done_ = true;
  cancel_all();
  parts_.metrics->error(status == 503 ? "unavailable" : "fault");
  if (begun_) {
    reply_->fault(answers_, message, out_);
    return flush();
  }
  out_.clear();
  response_->send(status, "application/json",
                  boost::json::serialize(error_object_(openai::Refusal(message, {}, {}, status))),
                  retry_headers(status));
}

void Exchange::flush() {
  if (gone_) {
    out_.clear();
    return;
  }
  if (!reply_->streams()) {
    if (done_ && !out_.empty()) response_->send(200, "application/json", std::exchange(out_, {}));
    return;
  }
  if (!out_.empty()) {
    last_write_ = Clock::now().time_since_epoch().count();
    if (!response_->write(std::exchange(out_, {}))) abandon();
  }
  if (done_ && response_) {
    last_write_ = 0;
    response_->finish();
    response_.reset();
  }
}

}  // namespace weir
