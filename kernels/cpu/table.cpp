// Chooses the fast table at run time. Only fast_*.cpp are compiled for more than base x86-64.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/kernels.h"

namespace moe::kernels {

namespace v2 {
const KernelTable<float>& fast_table();
}
namespace v3 {
const KernelTable<float>& fast_table();
}
namespace v4 {
const KernelTable<float>& fast_table();
}

namespace {

struct Level {
  const char* name;
  bool runnable;
  const KernelTable<float>& (*table)();
};

/// Levels of instruction sets, the narrowest first.
std::vector<Level> levels() {
  return {{"v2", __builtin_cpu_supports("x86-64-v2") != 0, v2::fast_table},
          {"v3", __builtin_cpu_supports("x86-64-v3") != 0, v3::fast_table},
          {"v4", __builtin_cpu_supports("x86-64-v4") != 0, v4::fast_table}};
}

/// Returns the table of the level that MOEBENCH_ISA names, or of the widest runnable level if it is
/// not set. Throws std::runtime_error if this machine cannot run that level, or none at all.
const KernelTable<float>& choose() {
  blas();  // opens OpenBLAS, so that an error appears here and not in the first GEMM
  const char* wanted = std::getenv("MOEBENCH_ISA");
  const Level* best = nullptr;
  std::string allowed;
  const std::vector<Level> all = levels();
  for (const Level& level : all) {
    if (!level.runnable) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(level.name);
    if (!wanted || std::string(wanted) == level.name) best = &level;
  }
  if (best) return best->table();
  if (allowed.empty())
    throw std::runtime_error("this CPU lacks SSE4.2 (x86-64-v2), which the CPU kernels need");
  throw std::runtime_error("MOEBENCH_ISA=" + std::string(wanted) +
                           " names none of the kernel sets that this CPU can run: " + allowed);
}

}  // namespace

const KernelTable<float>& fast_table() {
  static const KernelTable<float>& table = choose();
  return table;
}

std::vector<const KernelTable<float>*> runnable_tables() {
  std::vector<const KernelTable<float>*> tables;
  for (const Level& level : levels())
    if (level.runnable) tables.push_back(&level.table());
  return tables;
}

std::string kernel_set() {
  return std::string("openblas ") + blas().version + " " + blas().core + ", " + fast_table().name +
         ", build " + MOE_KERNEL_BUILD;
}

}  // namespace moe::kernels
