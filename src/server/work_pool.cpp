#include "server/work_pool.h"

#include <utility>

namespace weir {
namespace {

class Call final : public WorkPool::Task {
 public:
  explicit Call(std::function<void()> call) : call_(std::move(call)) {}
  void run() noexcept override { call_(); }

 private:
  std::function<void()> call_;
};

}  // namespace

WorkPool::WorkPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

WorkPool::~WorkPool() { stop(); }

void WorkPool::post(std::shared_ptr<Task> task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.notify_one();
}

void WorkPool::post(std::function<void()> call) { post(std::make_shared<Call>(std::move(call))); }

void WorkPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::shared_ptr<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task->run();
    task.reset();  // may be the last owner: not under the lock
    lock.lock();
  }
}

}  // namespace weir
