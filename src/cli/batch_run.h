// The work of `weir batch`: lines in, requests through a Service, results out. One thread reads, renders, tokenises,
// decodes and writes; the engine's thread passes tokens to its mailbox.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cli/batch_files.h"
#include "cli/batch_progress.h"
#include "engine/service.h"
#include "server/openai.h"

namespace weir::cli {

// What streams say, for a thread that waits with poll().
class Mailbox {
 public:
  struct Event {
    int64_t line = 0;
    size_t index = 0;  // of the request in its job
    std::variant<SampledToken, RequestEnd> what;
  };

  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void post(Event event);                 // any thread
  void take(std::vector<Event>& events);  // replaces them by what has come
  int fd() const { return fd_; }          // readable while something is there

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

// {"custom_id", "method", "url", "body"}. Throws openai::Refusal; `custom_id` is set as soon as it is known.
struct BatchLine {
  openai::Endpoint endpoint = openai::Endpoint::kChat;
  boost::json::object body;

  static BatchLine parse(const BatchInput::Line& line, boost::json::value& custom_id);
};

// Reads a file once, ahead: the number of its requests. Error when two have the same custom_id, naming both lines.
int64_t check_batch_ids(BatchInput& input);

class BatchRun {
 public:
  static constexpr size_t kInFlight = 256;  // answers

  // All must outlive the run; nobody else submits to the service.
  BatchRun(BatchInput& input, BatchResults& results, const openai::Served& served, const SamplingOptions& defaults,
           Mailbox& mailbox, Service& service, int64_t total);

  // Until the input ends and all is answered; false: Ctrl-C (an InterruptGuard lives) ended it.
  bool run();
  // Ends what runs, and sees to it that what has finished is on the disk.
  void stop();
  const BatchCounts& counts() const { return counts_; }
  double seconds() const { return progress_.seconds(); }

 private:
  struct Running {
    boost::json::value custom_id;
    openai::Job job;
    std::vector<Answer> answers;
    std::vector<RequestId> ids;
    size_t left = 0;
    std::string error;  // of the engine, for one of the answers
  };

  bool feed();
  void take(const BatchInput::Line& line);
  void start(int64_t number, const boost::json::value& custom_id, openai::Body body);
  void take_events();
  void handle(const Mailbox::Event& event);
  void finish(int64_t number, Running& running);
  void refuse(int64_t number, const boost::json::value& custom_id, const openai::Refusal& refusal);
  void wait(bool for_input) const;

  BatchInput& input_;
  BatchResults& results_;
  const openai::Served& served_;
  SamplingOptions defaults_;
  Mailbox& mailbox_;
  Service& service_;
  BatchProgress progress_;
  BatchCounts counts_;
  std::map<int64_t, Running> running_;  // by line
  size_t in_flight_ = 0;
  bool input_ended_ = false;
  std::unordered_map<std::string, int64_t> lines_of_ids_;
  std::vector<Mailbox::Event> events_;
  std::vector<ChatEvent> shown_;
};

}  // namespace weir::cli
