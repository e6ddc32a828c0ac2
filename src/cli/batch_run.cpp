#include "cli/batch_run.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "cli/terminal.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

namespace json = boost::json;
using openai::Refusal;

class Stream final : public TokenStream {
 public:
  Stream(Mailbox& mailbox, int64_t line, size_t index) : mailbox_(mailbox), line_(line), index_(index) {}
  void on_token(const SampledToken& token) override { mailbox_.post({line_, index_, token}); }
  void on_end(const RequestEnd& end) override { mailbox_.post({line_, index_, end}); }

 private:
  Mailbox& mailbox_;
  int64_t line_;
  size_t index_;
};

std::string twice(const std::string& id, int64_t first, int64_t second) {
  return concat("lines ", first, " and ", second, ": the same custom_id ", printable(id));
}

}  // namespace

// --- mailbox ---

Mailbox::Mailbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) fail("eventfd: ", std::strerror(errno));
}

Mailbox::~Mailbox() { close(fd_); }

void Mailbox::post(Event event) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = events_.empty();
    events_.push_back(std::move(event));
  }
  if (first) eventfd_write(fd_, 1);
}

void Mailbox::take(std::vector<Event>& events) {
  events.clear();
  eventfd_t ignored = 0;
  eventfd_read(fd_, &ignored);
  const std::lock_guard lock(mutex_);
  std::swap(events, events_);
}

// --- lines ---

BatchLine BatchLine::parse(const BatchInput::Line& line, json::value& custom_id) {
  const std::string place = concat("line ", line.number);
  custom_id = nullptr;
  if (line.too_long) throw Refusal(concat(place, ": longer than ", BatchInput::kMaxLine, " bytes"));
  try {
    json::value value = parse_json(line.text, place, {.max_bytes = BatchInput::kMaxLine});
    if (!value.is_object()) throw Refusal(concat(place, ": expected a JSON object"));
    json::object& object = value.get_object();
    const JsonObject fields(place, "", [&] {
      json::object small = object;  // checked access to all but the body
      small.erase("body");
      return small;
    }());
    if (fields.string("custom_id").empty()) fields.fail_field("custom_id", "a string that is not empty");
    custom_id = fields.string("custom_id");
    if (fields.string("method") != "POST") fields.fail_field("method", "POST");
    const std::optional<openai::Endpoint> endpoint = openai::endpoint_of(fields.string("url"));
    if (!endpoint) fields.fail_field("url", "/v1/chat/completions or /v1/completions");
    json::value* body = object.if_contains("body");
    if (body == nullptr || !body->is_object()) {
      throw Refusal(concat(place, ": field 'body': expected an object"), "body");
    }
    return {*endpoint, std::move(body->get_object())};
  } catch (const Error& error) {
    throw Refusal::of(error);
  }
}

int64_t check_batch_ids(BatchInput& input) {
  std::unordered_map<std::string, int64_t> seen;
  BatchInput::Line line;
  int64_t lines = 0;
  while (input.next(line) != BatchInput::Status::kEnd) {
    ++lines;
    json::value id;
    try {
      BatchLine::parse(line, id);
    } catch (const Refusal&) {  // its own answer later
    }
    if (!id.is_string()) continue;
    const auto [first, is_new] = seen.try_emplace(std::string(id.get_string()), line.number);
    if (!is_new) fail(input.name(), ": ", twice(first->first, first->second, line.number));
  }
  input.rewind();
  return lines;
}

// --- the run ---

BatchRun::BatchRun(BatchInput& input, BatchResults& results, const openai::Served& served,
                   const SamplingOptions& defaults, Mailbox& mailbox, Service& service, int64_t total)
    : input_(input),
      results_(results),
      served_(served),
      defaults_(defaults),
      mailbox_(mailbox),
      service_(service),
      counts_{.total = total} {}

bool BatchRun::run() {
  while (!InterruptGuard::interrupted()) {
    const bool more = feed();
    take_events();
    progress_.show(counts_, service_);
    if (input_ended_ && running_.empty()) return true;
    if (!more) wait(!input_ended_ && in_flight_ < kInFlight);
  }
  return false;
}

void BatchRun::stop() {
  service_.stop();
  take_events();
  results_.sync();
}

// Takes some lines in; true when the next one is there already and there is room for it.
bool BatchRun::feed() {
  constexpr int kAtOnce = 16;  // then answers have their turn
  for (int i = 0; i < kAtOnce; ++i) {
    if (input_ended_ || in_flight_ >= kInFlight || InterruptGuard::interrupted()) return false;
    BatchInput::Line line;
    switch (input_.next(line)) {
      case BatchInput::Status::kEnd:
        input_ended_ = true;
        return false;
      case BatchInput::Status::kWait:
        return false;
      case BatchInput::Status::kLine:
        take(line);
    }
  }
  return true;
}

void BatchRun::wait(bool for_input) const {
  pollfd both[] = {{mailbox_.fd(), POLLIN, 0}, {input_.fd(), POLLIN, 0}};
  poll(both, for_input ? 2 : 1, progress_.patience_ms());
}

void BatchRun::take(const BatchInput::Line& line) {
  json::value custom_id;
  try {
    BatchLine parsed = BatchLine::parse(line, custom_id);
    const std::string id(custom_id.get_string());
    const auto [first, is_new] = lines_of_ids_.try_emplace(id, line.number);
    if (!is_new) {
      custom_id = nullptr;  // the id is the first one's
      throw Refusal(twice(id, first->second, line.number), "custom_id", "duplicate_custom_id");
    }
    if (results_.has(id)) {
      ++counts_.skipped;
      return;
    }
    openai::Body body = parse_body(parsed.endpoint, std::move(parsed.body), defaults_);
    if (body.stream) throw Refusal("request: field 'stream': a batch has no streams: expected false", "stream");
    start(line.number, custom_id, std::move(body));
  } catch (const Refusal& refusal) {
    const bool known =
        custom_id.is_string() ? results_.has(std::string(custom_id.get_string())) : results_.has_line(line.number);
    if (known) {
      ++counts_.skipped;
    } else {
      refuse(line.number, custom_id, refusal);
    }
  }
}

void BatchRun::start(int64_t number, const json::value& custom_id, openai::Body body) {
  Running running{.custom_id = custom_id, .job = openai::prepare(std::move(body), served_)};
  openai::Job& job = running.job;
  for (size_t i = 0; i < job.requests.size(); ++i) {
    running.answers.push_back(openai::answer_of(job, i, served_, concat("call_", number, "_", i, "_")));
    RequestId id = 0;
    const std::optional<SubmitRefusal> refusal =
        service_.submit(std::move(job.requests[i]), std::make_shared<Stream>(mailbox_, number, i), id);
    if (refusal) {
      // Those before it answer to nobody.
      for (const RequestId submitted : running.ids) service_.cancel(submitted);
      throw Refusal(refusal->why);
    }
    running.ids.push_back(id);
  }
  running.left = running.ids.size();
  in_flight_ += running.left;
  running_.emplace(number, std::move(running));
}

void BatchRun::take_events() {
  mailbox_.take(events_);
  for (const Mailbox::Event& event : events_) handle(event);
}

void BatchRun::handle(const Mailbox::Event& event) {
  const auto found = running_.find(event.line);
  if (found == running_.end()) return;
  Running& running = found->second;
  Answer& answer = running.answers[event.index];
  shown_.clear();
  if (const auto* token = std::get_if<SampledToken>(&event.what)) {
    if (!answer.stopped() && !answer.push(*token, shown_)) service_.cancel(running.ids[event.index]);
    return;
  }
  const auto& end = std::get<RequestEnd>(event.what);
  if (end.reason == FinishReason::kError) {
    if (!service_.alive()) fail("the engine has stopped: ", end.error);
    running.error = end.error;
  }
  // By Ctrl-C: not done, so it has no result.
  if (end.reason == FinishReason::kCancelled && !answer.stopped()) return;
  answer.end(end, shown_);
  --in_flight_;
  if (--running.left > 0) return;
  finish(event.line, running);
  running_.erase(found);
}

void BatchRun::finish(int64_t number, Running& running) {
  for (const Answer& answer : running.answers) {
    counts_.prompt_tokens += answer.usage().prompt_tokens;
    counts_.cached_tokens += answer.usage().cached_tokens;
    counts_.generated_tokens += answer.completion_tokens();
  }
  if (!running.error.empty()) return refuse(number, running.custom_id, Refusal(running.error, {}, {}, 500));
  const char* kind = running.job.body.endpoint == openai::Endpoint::kChat ? "chatcmpl-" : "cmpl-";
  results_.append(batch_result(number, running.custom_id, 200,
                               openai::response(running.job, running.answers, served_,
                                                {.id = concat(kind, number), .created = std::time(nullptr)})));
  ++counts_.answered;
}

void BatchRun::refuse(int64_t number, const json::value& custom_id, const Refusal& refusal) {
  results_.append(batch_result(number, custom_id, refusal.status(), refusal.body()));
  ++counts_.refused;
}

}  // namespace weir::cli
