#include "engine/exec/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace moe {
namespace {

namespace fs = std::filesystem;

// Returns the number after `name` in a file of lines "name: number kB"; with an empty name, the
// first number of the file.
std::optional<Bytes> number_in(const fs::path& file, const std::string& name = "") {
  std::ifstream in(file);
  std::string word;
  while (!name.empty() && in >> word && word != name) {
  }
  Bytes value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

std::optional<Bytes> left_of_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::optional<Bytes> pages = number_in("/proc/self/statm");
  if (!pages) return std::nullopt;
  return static_cast<Bytes>(limit.rlim_cur) - *pages * sysconf(_SC_PAGESIZE);
}

// Reads cgroups of version 1 and 2. A limit of "max", and a path that is not mounted in this
// container, give nothing.
std::optional<Bytes> left_of_cgroup() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kind = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const bool unified = kind.empty();
    if (!unified && kind != "memory") continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (const std::string& folder : {root + path, root}) {
      const auto limit = number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
      const auto used =
          number_in(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
      if (limit && used) return *limit - *used;
    }
  }
  return std::nullopt;
}

}  // namespace

AvailableMemory available_memory() {
  AvailableMemory least{
      static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(sysconf(_SC_PAGESIZE)),
      "this machine's memory"};
  const auto limit = [&](std::optional<Bytes> bytes, const char* by) {
    if (bytes && *bytes < least.bytes) least = {std::max<Bytes>(*bytes, 0), by};
  };
  if (const auto free_kib = number_in("/proc/meminfo", "MemAvailable:")) {
    limit(*free_kib * 1024, "the machine's free memory");
  }
  limit(left_of_cgroup(), "the memory of its cgroup");
  limit(left_of_address_space(), "its address space (ulimit -v)");
  return least;
}

}  // namespace moe
