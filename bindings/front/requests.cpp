#include "bindings/front/requests.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "bindings/host/host.h"
#include "engine/base/stop.h"

namespace moe::lua {
namespace {

using nlohmann::json;

// Returns the field of a line, or null if the line is no object or has no such field.
json field_of(const json& line, const char* name) {
  if (!line.is_object()) return nullptr;
  const auto found = line.find(name);
  return found == line.end() ? json(nullptr) : *found;
}

}  // namespace

Requests::Requests() {
  std::fflush(stdout);
  out_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (out_ < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw run_error("standard output and standard error must be open");
  }
  std::thread([this] { read(); }).detach();  // it blocks in read(); the process ends without it
}

void Requests::read() {
  std::string text;
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block, static_cast<size_t>(got));
    size_t from = 0;
    for (size_t to; (to = text.find('\n', from)) != std::string::npos; from = to + 1) {
      take(text.substr(from, to - from));
    }
    text.erase(0, from);
  }
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    wake_.notify_one();
  }
  // The requests so far are answered, unless whoever reads the answers is gone.
  pollfd answers = {out_, 0, 0};
  while (poll(&answers, 1, -1) < 0 || (answers.revents & (POLLERR | POLLHUP)) == 0) {
  }
  request_stop();
}

void Requests::take(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return;
  const json interrupted = field_of(json::parse(line, nullptr, false), "interrupt");
  const std::lock_guard lock(mutex_);
  if (interrupted.is_null()) {
    lines_.push_back(line);
    wake_.notify_one();
  } else if (busy_ && interrupted == id_) {
    request_stop();
  }
}

std::optional<std::string> Requests::next() {
  std::unique_lock lock(mutex_);
  busy_ = false;
  while (lines_.empty() && !over_ && !must_end()) {
    wake_.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (lines_.empty() || must_end()) return std::nullopt;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  id_ = field_of(json::parse(line, nullptr, false), "id");
  busy_ = true;
  return line;
}

void Requests::write(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(out_, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw run_error("cannot write the answer: the reader of stdout is gone");
    at += static_cast<size_t>(written);
  }
}

void Requests::output(std::string_view text) {
  const json line = {{"id", id_}, {"output", text}};
  write(line.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace moe::lua
