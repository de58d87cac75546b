// What a terminal shows on stderr while a command runs: one status line, rewritten in place, and a
// row above it for each run that is finished. Nothing of it within the first second.
// Not here: which jobs there are, and what they are expected to take
// (scripts/moe/run/progress.lua).
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace moe::lua {

/// Times in ns of steady_ns(), durations in s.
struct Status {
  std::string what;
  std::optional<double> expected_s;  // of what runs now
  std::optional<double> rest_s;      // of what comes after it
  int64_t begin_ns = 0;
  int64_t step = 0, num_steps = 0;  // of what runs now; 0: it says nothing of steps
  int64_t first_step_ns = 0, last_step_ns = 0;
};

/// "[2/12] raf on 2 ranks of cpu, step 5 of 10, 1 min 5 s left". Where only what runs now can be
/// estimated: "... left of this one"; where nothing can be, no time.
std::string status_text(const Status& status, int64_t now_ns);

/// Any thread.
class Progress {
 public:
  /// Where stderr is no terminal, or this is not rank 0, it shows nothing.
  explicit Progress(bool root);
  /// Erases the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool shown() const { return shown_; }
  /// What runs from now on.
  void begin(const std::string& what, std::optional<double> expected_s = std::nullopt,
             std::optional<double> rest_s = std::nullopt);
  /// A step of it is over.
  void step(int64_t number, int64_t of);
  /// A line that stays, above the status line.
  void row(const std::string& text);
  /// Erases the line, as something else is written to the terminal; it comes again with the next
  /// draw().
  void erase();
  /// Called every few milliseconds: draws what changed, and each second once more.
  void draw();

 private:
  void write(const std::string& text) const;

  const bool shown_;
  const int64_t begin_ns_;
  std::mutex mutex_;  // of what follows
  Status status_;
  std::vector<std::string> rows_;  // that are not drawn yet
  std::string drawn_;              // the status line as it stands there
  int64_t drawn_ns_ = 0;
};

}  // namespace moe::lua
