#include "cli/shutdown.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace weir::cli {
namespace {

std::atomic<int> asked_fd{-1};
std::atomic<bool> held{false}, asked{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  const int error = errno;
  if (!held) _exit(0);
  if (asked.exchange(true)) _exit(128 + signal);
  eventfd_write(asked_fd, 1);
  errno = error;
}

}  // namespace

Shutdown::Shutdown() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) fail("eventfd: ", std::strerror(errno));
  asked_fd = fd;
  held = asked = false;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

Shutdown::~Shutdown() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  close(asked_fd.exchange(-1));
}

void Shutdown::hold() { held = true; }

void Shutdown::ask() { eventfd_write(asked_fd, 1); }

void Shutdown::wait() const {
  pollfd ready{asked_fd, POLLIN, 0};
  while (poll(&ready, 1, -1) < 0 && errno == EINTR) {}
}

}  // namespace weir::cli
