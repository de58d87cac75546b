#include "engine/run.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/device/executor.h"
#include "engine/sim/simulator.h"

namespace moe {
namespace {

struct Row {
  const char* name;
  std::unique_ptr<Executor> (*make)();
};

constexpr Row kExecutors[] = {
    {"simulate", make_simulator},
    {"cpu", make_cpu_executor},
    {"cuda", make_cuda_executor},
};

}  // namespace

RunResult run(const Plan& plan, std::string_view executor, const RunOptions& options) {
  std::vector<std::string> names;
  for (const Row& row : kExecutors) {
    if (executor == row.name) return row.make()->run(plan, options);
    names.push_back(row.name);
  }
  throw UserError(unknown_name("executor", executor, names));
}

}  // namespace moe
