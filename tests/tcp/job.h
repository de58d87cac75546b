// Starts a command as several processes by the variables that torchrun sets, at a free port, and
// says how each ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace moe::test {

struct JobEnd {
  std::vector<int> statuses;  // by process; 128 + the signal's number; -1: ended by this
  std::string text;           // of both streams of all processes
  double seconds;
};

using Variables = std::map<std::string, std::string>;

/// A port of this machine that nobody listens at.
int free_port();

class Job {
 public:
  using Command = std::vector<std::string>;
  /// What process i has instead; a text "" is none.
  using Change = std::function<void(int i, Variables& variables)>;
  Job(int n, Command command, Change change = nullptr);
  /// Those that are left are killed.
  ~Job();

  int port() const { return port_; }
  void start(int i);
  void start_all();
  void signal(int i, int number) const;
  /// All but one that may stand still; what is left after `seconds` is killed.
  JobEnd wait(int but = -1, double seconds = 60);
  /// What they wrote until now.
  const std::string& text();

 private:
  const int n_, port_;
  const Command command_;
  const Change change_;
  std::vector<pid_t> pids_;  // 0: none
  int read_ = -1, write_ = -1;
  std::string text_;
};

JobEnd run(int n, const Job::Command& command, const Job::Change& change = nullptr);
/// A case of job_ranks.
JobEnd run_case(int n, const std::string& name);

}  // namespace moe::test
