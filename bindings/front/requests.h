// The streams of `moebench serve --stdio`: lines of JSON that come in on stdin are requests, lines
// that go out on stdout are answers. A thread reads, so that a request to interrupt, or that nobody
// reads the answers any more, is seen while another request is worked on. What the lines say is in
// scripts/moe/front/serve.lua and bindings/README.md, not here.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace moe::lua {

class Requests {
 public:
  /// Requires: the object lives as long as the process, whose thread uses it. Takes stdin and
  /// stdout over: what other code writes to stdout goes to stderr from now on.
  Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Waits for the next request and returns its line; nothing when the input has ended or a signal
  /// other than SIGINT came. A line {"interrupt": id} is no request: it makes the request with this
  /// id stop (base/stop.h) if that one is being worked on.
  std::optional<std::string> next();
  /// Writes an answer, one line. Throws RunError if the reader of stdout is gone.
  void write(const std::string& line);
  /// Writes what the request that is worked on prints, as {"id": id, "output": text}.
  void output(std::string_view text);

 private:
  void read();
  void take(const std::string& line);

  int out_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::deque<std::string> lines_;
  nlohmann::json id_;  // of the request that is worked on
  bool busy_ = false, over_ = false;
};

}  // namespace moe::lua
