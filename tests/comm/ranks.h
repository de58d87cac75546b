// Runs a function as every rank on a thread of its own and hands back what each one threw.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace moe {

/// Message of the error of each rank, "" where there was none.
inline std::vector<std::string> run_ranks(int64_t num_ranks,
                                          const std::function<void(int64_t)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> no_errors(int64_t num_ranks) {
  return std::vector<std::string>(static_cast<size_t>(num_ranks));
}

}  // namespace moe
