// What the client of `weir load` asks of the system.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>

namespace weir::cli {

// A connection takes a file; the limit that a shell sets is often 1,024. Raises it as far as it goes.
void raise_file_limit();

double process_cpu_seconds();

// Has the kernel say when bytes arrive at the socket, where it can.
void ask_for_arrival_times(int socket);

struct Arrival {
  ssize_t size = 0;                   // bytes; 0: the other side has closed; -1: errno says why
  std::chrono::nanoseconds stamp{0};  // when the kernel got the newest of them, since 1970; 0: it does not say
};
Arrival receive(int socket, std::span<char> buffer);

}  // namespace weir::cli
