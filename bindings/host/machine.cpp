#include "bindings/host/machine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/comm/transport/transport.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/data.h"
#include "engine/exec/device/executor.h"
#include "engine/run.h"
#include "kernels/kernels.h"

namespace moe::lua {
namespace {

namespace fs = std::filesystem;

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the revision of a .git folder. HEAD has either the revision or "ref: <name>"; that name's
// revision is in a file or in packed-refs.
std::string revision_in(const fs::path& git) {
  const std::string head = first_line(git / "HEAD");
  if (!head.starts_with("ref: ")) return head;
  const std::string name = head.substr(5);
  const std::string revision = first_line(git / name);
  if (!revision.empty()) return revision;
  std::ifstream packed(git / "packed-refs");
  for (std::string line; std::getline(packed, line);) {
    if (line.size() > 41 && line.substr(41) == name) return line.substr(0, 40);
  }
  return "";
}

std::string git_revision(const fs::path& start) {
  std::error_code error;
  for (fs::path folder = fs::absolute(start); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (fs::is_directory(folder / ".git", error)) return revision_in(folder / ".git");
  }
  return "";
}

std::string cache_line(const std::string& path) {
  try {
    ProfileCache cache(path);
    const std::string warning = cache.take_warning();
    return warning.empty() ? "usable" : warning;
  } catch (const UserError& e) {
    return e.what();
  }
}

/// Returns a line of doctor's text: what it is about, or "" to go on, and what is said of it.
std::string line_of(std::string_view what, std::string_view value) {
  return fmt::format("{:<18}{}\n", what, value);
}

std::string corpus_line(const std::string& fallback) {
  try {
    const std::string path = default_corpus_path(fallback);
    return fmt::format("{}, {} bytes to train on", path, read_text(path, 128).train.size());
  } catch (const UserError& e) {
    return fmt::format("none: {}", e.what());
  }
}

}  // namespace

const char* program_version() {
  return MOE_VERSION;
}

std::string find_scripts() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path();
  for (const fs::path& place : {folder.parent_path() / "share" / "moebench", folder / "scripts"}) {
    if (!error && fs::exists(place / "moe" / "init.lua")) return place.string();
  }
  return MOE_SOURCE_SCRIPTS;
}

nlohmann::json machine_json(const std::string& scripts_dir) {
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel_set", kernels::kernel_set()},
          {"git", git_revision(scripts_dir)}};
}

std::string doctor_text(const std::string& scripts_dir, const std::string& cache) {
  std::string tables;
  for (const auto* table : kernels::runnable_tables()) {
    tables += fmt::format("{}{}", tables.empty() ? "" : ", ", table->name);
  }
  std::string text;
  const auto line = [&](std::string_view what, std::string_view value) {
    text += line_of(what, value);
  };
  line("cpu", fmt::format("{}, {} threads", cpu_name(), std::thread::hardware_concurrency()));
  line("kernels", kernels::kernel_set());
  line("instruction sets", tables);
  const std::string no_gpu = cuda_missing();
  bool first = true;
  for (const ExecutorDef& def : executors()) {
    if (missing(def).empty())
      line(first ? "executors" : "", fmt::format("{}: {}", def.name, def.doc));
    first = false;
  }
  line("MPI", mpi_library().empty() ? "none in this build; with libopenmpi-dev and openmpi-bin it "
                                      "runs one rank per process under mpirun or srun"
                                    : mpi_library());
  line("gpu", no_gpu.empty() ? cuda_gpu() : no_gpu + "; plans for GPU clusters are simulated");
  line("profile cache", cache);
  line("", cache_line(cache));
  const char* const machine_file = "machine.lua";
  line("machine file", fs::exists(machine_file)
                           ? fmt::format("{} in this folder, for moe.machine", machine_file)
                           : fmt::format("no {} here; `moebench calibrate` measures this machine "
                                         "and writes it",
                                         machine_file));
  line("corpus", corpus_line(scripts_dir));
  line("scripts", scripts_dir);
  line("compilers", "none needed: recipes are Lua, kernels are built in");
  return text;
}

std::string reading_text(const MachineReading& reading) {
  constexpr size_t kShown = 8;
  std::vector<MachineReading::Core> cores = reading.cores;
  std::stable_sort(cores.begin(), cores.end(), [](const auto& a, const auto& b) {
    return a.reference.middle > b.reference.middle;
  });
  const std::string slowest =
      cores.size() > kShown ? fmt::format("; the {} slowest:", kShown) : ", slowest first:";
  cores.resize(std::min(cores.size(), kShown));
  std::string text =
      line_of("quiet now", fmt::format("{:g} s of the reference kernel on each of {} cores{}",
                                       reading.seconds, reading.cores.size(), slowest));
  text += line_of("", "core  10% of calls below  median ms  90% of calls below");
  for (const auto& [number, ns, busy] : cores) {
    text += line_of("", fmt::format("{:4}  {:18.3f}  {:9.3f}  {:18.3f}", number, to_ms(ns.low),
                                    to_ms(ns.middle), to_ms(ns.high)));
  }
  const double processes = reading.others - reading.stolen;
  text += line_of(
      "", fmt::format("change from the first to the last third {:+.1f}%", 100 * reading.drift));
  text += line_of("", fmt::format("of the cores' time other processes used {:.1f}%, the hypervisor "
                                  "took {:.1f}%",
                                  100 * processes, 100 * reading.stolen));
  text +=
      line_of("", fmt::format("a sleeping thread wakes {:.3f} ms late (median), {:.3f} ms (95th "
                              "percentile)",
                              to_ms(reading.late), to_ms(reading.very_late)));
  const std::vector<std::string> found = disturbances(reading);
  return text + line_of("verdict", found.empty() ? "quiet enough to time"
                                                 : fmt::format("not quiet enough to time: {}",
                                                               fmt::join(found, "; ")));
}

}  // namespace moe::lua
