#include "engine/base/lock.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/base/utf8.h"

namespace moe {
namespace {

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Returns "process 123", or "another process" where /proc/locks does not tell which one holds the
/// lock: it lies on another machine, say, or in another container.
std::string holder(const Descriptor& file) {
  struct stat found {};
  if (fstat(file.get(), &found) != 0) return "another process";
  const std::string id =
      fmt::format("{:02x}:{:02x}:{}", major(found.st_dev), minor(found.st_dev), found.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);  // "1: FLOCK  ADVISORY  WRITE 123 08:01:5678 0 EOF"
    std::string number, type, strength, access, process, where;
    words >> number >> type >> strength >> access >> process >> where;
    const bool known = process.find_first_not_of("0123456789") == std::string::npos;
    if (type == "FLOCK" && where == id && known && process != "0") return "process " + process;
  }
  return "another process";
}

}  // namespace

LockWait::LockWait(std::string what, double seconds)
    : what_(std::move(what)), seconds_(seconds), begin_ns_(now_ns()) {}

bool LockWait::again() {
  constexpr double kShort = 2, kLongestSleep = 0.05;
  const double waited = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
  if (waited >= seconds_ || stop_requested()) return false;
  if (!said_ && waited > kShort) {
    said_ = true;
    std::fprintf(stderr, "moebench: waiting up to %.0f s for %s\n", seconds_,
                 printable(what_).c_str());
  }
  std::this_thread::sleep_for(
      std::chrono::duration<double>(std::min(kLongestSleep, 0.001 + waited / 4)));
  return true;
}

bool try_lock(const Descriptor& file) {
  int result = 0;
  do result = flock(file.get(), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0 || errno != EWOULDBLOCK;
}

void lock(const Descriptor& file, const std::string& what, const std::string& remedy,
          double seconds) {
  if (try_lock(file)) return;
  LockWait wait(fmt::format("{}, which {} has locked", what, holder(file)), seconds);
  while (wait.again()) {
    if (try_lock(file)) return;
  }
  check_stop();
  throw run_error("{}: {} still has it locked after {:g} s; {}", what, holder(file), seconds,
                  remedy);
}

}  // namespace moe
