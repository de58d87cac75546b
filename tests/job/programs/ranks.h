// What one process of a job does in a test: cases by name, and what they check with. A check
// that fails ends the job with status 9 and a line on stderr.
#pragma once

#include <map>
#include <string>

#include "engine/comm/job/processes.h"

namespace moe::test {

using Case = void (*)(Processes&);
using Cases = std::map<std::string, Case>;

/// Collectives and failures.
Cases comm_cases();
/// Whole runs.
Cases run_cases();
/// Runs whose lanes choose while the step runs.
Cases turns_cases();
/// Whole runs on devices.
Cases device_cases();

void expect(Processes& processes, bool holds, const std::string& what);

}  // namespace moe::test
