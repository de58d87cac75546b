// Starts a command as several processes and says how it ended.
#pragma once

#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace moe::test {

struct JobEnd {
  int status;
  std::string text;  // of both streams of all processes
  double seconds;
};

/// As root and on fewer cores than processes, as tests run; a container may forbid one process to
/// read another's memory, by which Open MPI copies where it can.
inline JobEnd mpirun(int n, const std::string& command) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const std::string line = "exec 2>&1 < /dev/null; timeout -k 1 240 " MOE_MPIEXEC
                           " --oversubscribe --mca btl_vader_single_copy_mechanism none -n " +
                           std::to_string(n) + " " + command;
  const auto begin = std::chrono::steady_clock::now();
  FILE* const pipe = popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  JobEnd end{-1, "", 0};
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    end.text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  end.seconds = took.count();
  return end;
}

/// A case of job_ranks.
inline JobEnd run_case(int n, const std::string& name) {
  return mpirun(n, MOE_JOB_RANKS " " + name);
}

inline void ends_well(int n, const std::string& name) {
  const JobEnd end = run_case(n, name);
  INFO(end.text);
  CHECK(end.status == 0);
  CHECK_THAT(end.text, Catch::Matchers::Contains("ok"));
}
/// All say why, and none stays behind.
inline void ends_badly(int n, const std::string& name, const std::string& why) {
  const JobEnd end = run_case(n, name);
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Catch::Matchers::Contains("0 threw: ") && Catch::Matchers::Contains(why));
}

}  // namespace moe::test
