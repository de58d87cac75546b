#include "bindings/host/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "bindings/host/watchdog.h"
#include "engine/base/utf8.h"

namespace moe::lua {
namespace {

constexpr int64_t kQuietNs = 1'000'000'000;  // nothing is drawn for this long at the beginning
constexpr int64_t kRedrawNs = 100'000'000;   // shortest time between two drawings
constexpr size_t kUsualColumns = 80;
constexpr const char* kErase = "\r\033[K";

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string duration_text(double s) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(s, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// Returns the estimated seconds left for the current run: from its finished steps if there are at
// least two (the first includes all preparations), else from expected_s.
std::optional<double> left_s(const Status& s, int64_t now_ns) {
  if (s.step > 1) {
    const double each = seconds(s.last_step_ns - s.first_step_ns) / static_cast<double>(s.step - 1);
    const double ahead = each * static_cast<double>(s.num_steps - s.step);
    return std::max(0.0, ahead - seconds(now_ns - s.last_step_ns));
  }
  if (!s.expected_s) return std::nullopt;
  return std::max(0.0, *s.expected_s - seconds(now_ns - s.begin_ns));
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Returns the part of the text that fits into a line of the terminal.
std::string fit(const std::string& given, size_t columns) {
  const std::string text = printable(given);
  size_t end = 0;
  for (size_t used = 0; end < text.size(); ++end) {
    if (!continues_character(text[end]) && used++ == columns) break;
  }
  return text.substr(0, end);
}

size_t columns_of_terminal() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return kUsualColumns;
  return size.ws_col;
}

}  // namespace

std::string status_text(const Status& status, int64_t now_ns) {
  std::string text = status.what;
  if (status.step > 0) text += fmt::format(", step {} of {}", status.step, status.num_steps);
  const std::optional<double> left = left_s(status, now_ns);
  if (!left) return text;
  if (!status.rest_s) return text + ", " + duration_text(*left) + " left of this one";
  return text + ", " + duration_text(*left + *status.rest_s) + " left";
}

Progress::Progress(bool root)
    : shown_(root && isatty(STDERR_FILENO) != 0), begin_ns_(steady_ns()) {}

Progress::~Progress() {
  draw();
  erase();
}

void Progress::begin(const std::string& what, std::optional<double> expected_s,
                     std::optional<double> rest_s) {
  const std::lock_guard lock(mutex_);
  status_ = {.what = what, .expected_s = expected_s, .rest_s = rest_s, .begin_ns = steady_ns()};
}

void Progress::step(int64_t number, int64_t of) {
  const std::lock_guard lock(mutex_);
  const int64_t now = steady_ns();
  if (status_.step == 0) status_.first_step_ns = now;
  status_.step = number;
  status_.num_steps = of;
  status_.last_step_ns = now;
}

void Progress::row(const std::string& text) {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  rows_.push_back(text);
}

void Progress::erase() {
  const std::lock_guard lock(mutex_);
  if (drawn_.empty()) return;
  write(kErase);
  drawn_.clear();
}

void Progress::draw() {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  const int64_t now = steady_ns();
  if (now - begin_ns_ < kQuietNs || now - drawn_ns_ < kRedrawNs) return;
  drawn_ns_ = now;
  const size_t columns = columns_of_terminal() - 1;  // some terminals wrap at the last column
  const std::string line = fit(status_text(status_, now), columns);
  if (rows_.empty() && line == drawn_) return;
  std::string text = kErase;
  for (const std::string& row : rows_) text += fit(row, row.size()) + "\n";
  rows_.clear();
  write(text + line);
  drawn_ = line;
}

void Progress::write(const std::string& text) const {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace moe::lua
