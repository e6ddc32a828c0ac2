// SIGTERM and SIGINT as a server takes them: the first one asks for an end, the second one is the end.
#pragma once

#include <chrono>

namespace weir::cli {

class Shutdown {
 public:
  // Before other threads start. Until hold() a signal ends the program at once: nothing would be lost.
  Shutdown();
  ~Shutdown();
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;

  void hold();
  void ask();         // as a first signal; any thread
  void wait() const;  // until somebody asks
};

}  // namespace weir::cli
