// The display on a terminal (stderr) while a command runs: one status line, which is rewritten in
// place, and a line above it for each finished run. Nothing is shown in the first second. The list
// of runs and their expected durations are in scripts/moe/run/progress.lua, not here.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace moe::lua {

/// The content of the status line. Times are in ns of steady_ns(), durations in s.
struct Status {
  std::string what;
  std::optional<double> expected_s;  // expected duration of the current run
  std::optional<double> rest_s;      // expected duration of all runs after it
  int64_t begin_ns = 0;
  int64_t step = 0, num_steps = 0;  // of the current run; 0 if it does not report steps
  int64_t first_step_ns = 0, last_step_ns = 0;
};

/// Returns the text of the status line: "[2/12] raf on 2 ranks of cpu, step 5 of 10, 1 min 5 s
/// left". It ends in "... left of this one" if only the current run's duration can be estimated,
/// and has no time if that cannot be estimated either.
std::string status_text(const Status& status, int64_t now_ns);

/// Draws the display. Its functions may be called from any thread.
class Progress {
 public:
  /// root: whether this process is rank 0. Nothing is shown on other ranks, or without a terminal.
  explicit Progress(bool root);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool shown() const { return shown_; }
  /// Called when a run begins; `what` describes it on the status line.
  void begin(const std::string& what, std::optional<double> expected_s = std::nullopt,
             std::optional<double> rest_s = std::nullopt);
  /// Called when step `number` of `of` of the current run has ended.
  void step(int64_t number, int64_t of);
  /// Adds a line of text that stays on the terminal, above the status line.
  void row(const std::string& text);
  /// Erases the status line before other text is written to the terminal; draw() shows it again.
  void erase();
  /// Called every few milliseconds. At most every 0.1 s, draws new lines and a changed status line.
  void draw();

 private:
  void write(const std::string& text) const;

  const bool shown_;
  const int64_t begin_ns_;
  std::mutex mutex_;  // guards the members below
  Status status_;
  std::vector<std::string> rows_;  // rows that are not drawn yet
  std::string drawn_;              // the status line that is on the terminal
  int64_t drawn_ns_ = 0;
};

}  // namespace moe::lua
