// Threads for what neither the network's threads nor the engine's may wait for.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weir {

class WorkPool {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    virtual void run() noexcept = 0;
  };

  explicit WorkPool(int threads);
  ~WorkPool();  // as stop()
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Tasks start in the order in which they came; after stop() they are dropped.
  void post(std::shared_ptr<Task> task);
  void post(std::function<void()> call);  // must not throw
  void stop();                            // after what has been posted

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weir
