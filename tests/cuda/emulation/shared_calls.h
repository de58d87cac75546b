// What the emulation has of a block's shared memory beside the kernels' variables: the dynamic
// part, copies to it that run beside the threads, and a count of accesses that share banks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulation {

/// Ends the launch with an error.
void fault(const std::string& message);
void* dynamic_shared();
/// From null come zeros. The bytes land at once where the order of threads is an odd number, at
/// finish_copies where it is even: what must work with both works with all between.
void start_copy(void* to, const void* from, size_t bytes);
void finish_copies();
void note_bank_conflict();
/// Since the last call.
uint64_t take_bank_conflicts();

}  // namespace emulation
