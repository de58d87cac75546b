#include "engine/comm/job/launch.h"

#include <cstdlib>
#include <optional>

#include "engine/base/errors.h"
#include "engine/comm/transport/transport.h"

namespace moe {
namespace {

constexpr int64_t kMostProcesses = 4096, kLastPort = 65535;
constexpr double kLongestConnect_s = 86400;

/// Environment variables in which MPI's launchers give a process its rank and the number of
/// processes. PMIx (srun --mpi=pmix) sets no variable with the number of processes. Slurm's
/// variable is used only together with PMIX_RANK, since it is also set in the shell of an
/// allocation.
struct Variables {
  const char* rank;
  const char* size;  // null: the launcher sets none
};
constexpr Variables kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                    {"PMI_RANK", "PMI_SIZE"},
                                    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                                    {"PMIX_RANK", nullptr}};

int64_t number(const char* variable) {
  const char* const text = variable != nullptr ? std::getenv(variable) : nullptr;
  return text != nullptr ? std::strtoll(text, nullptr, 10) : -1;
}

std::optional<int64_t> rank_by_mpi() {
  for (const Variables& launcher : kLaunchers) {
    const int64_t rank = number(launcher.rank);
    if (rank >= 0 && (launcher.size == nullptr || number(launcher.size) >= 0)) return rank;
  }
  return std::nullopt;
}

/// Returns the value of the environment variable; "" when it is not set.
std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? text : "";
}

std::optional<double> parsed(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') return std::nullopt;
  return value;
}

std::string set_variable(const char* variable) {
  const std::string text = text_of(variable);
  if (!text.empty()) return text;
  throw user_error(
      "{} is not set, but RANK='{}', WORLD_SIZE='{}' and MASTER_ADDR='{}' describe a job of "
      "several processes; set {}, or unset RANK, WORLD_SIZE and MASTER_ADDR",
      variable, text_of("RANK"), text_of("WORLD_SIZE"), text_of("MASTER_ADDR"), variable);
}

int64_t integer_of(const char* variable, int64_t least, int64_t most) {
  const std::string text = set_variable(variable);
  const std::optional<double> value = parsed(text);
  if (value && *value >= static_cast<double>(least) && *value <= static_cast<double>(most) &&
      *value == static_cast<double>(static_cast<int64_t>(*value))) {
    return static_cast<int64_t>(*value);
  }
  throw user_error("{}={}: must be a whole number from {} to {}", variable, text, least, most);
}

/// Returns the 64-bit FNV-1a hash of `text`.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace

Launch launch() {
  const std::optional<int64_t> by_mpi = rank_by_mpi();
  const std::string rank = text_of("RANK"), size = text_of("WORLD_SIZE");
  const int num_set = !rank.empty() + !size.empty() + !text_of("MASTER_ADDR").empty();
  if (by_mpi && (!mpi_library().empty() || num_set < 2)) return {Launch::By::kMpi, *by_mpi};
  if (num_set < 2) return {};
  const double own = parsed(rank).value_or(-1), all = parsed(size).value_or(0);
  return {Launch::By::kVariables, own > 0 && own < all ? static_cast<int64_t>(own) : 0};
}

TcpJob tcp_job() {
  TcpJob job;
  job.size = integer_of("WORLD_SIZE", 1, kMostProcesses);
  const std::string rank = set_variable("RANK");
  const std::optional<double> own = parsed(rank);
  if (own && *own >= static_cast<double>(job.size)) {
    throw user_error("RANK={}: with WORLD_SIZE={} it must be 0 to {}", rank, job.size,
                     job.size - 1);
  }
  job.rank = integer_of("RANK", 0, job.size - 1);
  job.address = set_variable("MASTER_ADDR");
  const int64_t master_port = integer_of("MASTER_PORT", 1, kLastPort);
  if (!text_of("MOEBENCH_PORT").empty()) {
    job.port = integer_of("MOEBENCH_PORT", 1, kLastPort);
  } else if (master_port == kLastPort) {
    throw user_error(
        "MASTER_PORT={}: without MOEBENCH_PORT, rank 0 listens at MASTER_PORT + 1, but the largest "
        "port is 65535; set MOEBENCH_PORT to a free port",
        master_port);
  } else {
    job.port = master_port + 1;
  }
  if (const std::string seconds = text_of("MOEBENCH_CONNECT_S"); !seconds.empty()) {
    const std::optional<double> value = parsed(seconds);
    if (!value || !(*value > 0 && *value <= kLongestConnect_s)) {
      throw user_error("MOEBENCH_CONNECT_S={}: must be seconds, more than 0 and at most {}",
                       seconds, kLongestConnect_s);
    }
    job.connect_s = *value;
  }
  job.id = hash_of(fmt::format("{}:{}:{}:{}", job.address, master_port, job.port,
                               text_of("TORCHELASTIC_RUN_ID")));
  return job;
}

}  // namespace moe
