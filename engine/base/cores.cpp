#include "engine/base/cores.h"

#include <pthread.h>

namespace moe {

StayOnCore::StayOnCore(int64_t rank, int64_t num_ranks) {
  if (pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) != 0) return;
  if (CPU_COUNT(&before_) / num_ranks != 1) return;
  int core = 0;
  for (int64_t left = rank; left > 0 || !CPU_ISSET(core, &before_); ++core) {
    if (CPU_ISSET(core, &before_)) --left;
  }
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  changed_ = pthread_setaffinity_np(pthread_self(), sizeof(own), &own) == 0;
}

StayOnCore::~StayOnCore() {
  if (changed_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

}  // namespace moe
