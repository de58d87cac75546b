// job_ranks CASE, started as one of several processes: prints "ok" on rank 0 where the case ends
// well, else every process prints what it threw.
#include <cstdio>
#include <cstdlib>

#include "tests/job/programs/ranks.h"

namespace moe::test {

void expect(Processes& processes, bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "rank %d: not so: %s\n", static_cast<int>(processes.rank()), what.c_str());
  std::fflush(stderr);
  processes.exit_job(9);
}

}  // namespace moe::test

int main(int argc, char** argv) {
  moe::test::Cases cases = moe::test::comm_cases();
  cases.merge(moe::test::run_cases());
  cases.merge(moe::test::turns_cases());
  cases.merge(moe::test::device_cases());
  const auto found = cases.find(argc > 1 ? argv[1] : "");
  if (found == cases.end()) {
    std::fprintf(stderr, "no such case\n");
    return 2;
  }
  moe::Processes::Options options;
  options.measure_clock = found->first == "clock";
  moe::Processes processes(options);
  try {
    found->second(processes);
    if (processes.is_root()) std::printf("ok\n");
    std::fflush(stdout);
    processes.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%d threw: %s\n", static_cast<int>(processes.rank()), error.what());
    processes.exit_job(3);
  }
  return 0;
}
