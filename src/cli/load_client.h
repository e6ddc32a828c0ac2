// The client of `weir load`: HTTP/1.1 without encryption, one thread, as many connections as there are requests in
// flight. The only header between the network and the rest; no Boost.Asio in it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cli/load_prompts.h"
#include "cli/load_request.h"
#include "cli/load_statistics.h"

namespace weir::cli {

// When requests are sent, and when no more are.
struct LoadSchedule {
  double rate = 0;          // open load: conversations that arrive per second, a Poisson process of `seed`;
  int64_t concurrency = 1;  // with 0 a closed load: so many requests at any time
  int64_t requests = 0;     // 0: no limit
  double seconds = 0;       // 0: no limit. Requests that have begun by then are finished and count
  uint64_t seed = 0;
};

struct LoadRun {
  LoadTally tally;
  LoadSelfCheck check;
  double seconds = 0;        // from the first request to the last answer
  bool interrupted = false;  // by SIGINT or SIGTERM: no more requests, those in flight are cancelled. A second signal
                             // ends the program
};

class LoadClient {
 public:
  struct Options {
    LoadUrl url;
    std::string api_key;   // "": none
    double timeout = 600;  // seconds, from connecting to the end of an answer
  };
  struct Reply {
    int status = 0;
    std::string body;
  };

  explicit LoadClient(Options options);  // Error: a name that can't be resolved
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // One request before the load, at a path below the URL's. Error: no answer; the answer's status is the caller's.
  Reply get(const std::string& path);
  Reply post(const std::string& path, const std::string& body);

  // Called now and then during a run.
  using Progress = std::function<void(const LoadTally& tally, int64_t in_flight, double seconds)>;
  LoadRun run(const LoadSchedule& schedule, const PromptSource& prompts, const LoadRequestOptions& request,
              const GoodputLimits& limits, const Progress& progress);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir::cli
