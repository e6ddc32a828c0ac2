// A request on its way through the application.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "server/application.h"

namespace weir {

struct Application::Call {
  Clock::time_point arrived;
  http::Request request;
  std::shared_ptr<http::Response> response;
  std::string_view rest;  // of the path, after a route's prefix
  std::string allowed;    // methods of the path
};

struct Application::Route {
  std::string_view method, path;
  Action action = nullptr;
  bool slow = false;    // reads a body: not on the network's threads
  bool open = false;    // needs no key
  bool prefix = false;  // paths that begin so
};

}  // namespace weir
