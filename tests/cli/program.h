// Runs the real program in a shell.
#pragma once

#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

namespace moe::test {

/// The exit status (128 + the signal's number where one ended it) and what was printed, errors too.
struct Outcome {
  int exit;
  std::string text;
};

inline FILE* start(const std::string& command) {
  FILE* const pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  REQUIRE(pipe != nullptr);
  return pipe;
}

inline Outcome finish(FILE* pipe) {
  Outcome o{-1, ""};
  std::array<char, 4096> buffer;
  while (size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) o.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  o.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return o;
}

inline Outcome run(const std::string& command) {
  return finish(start(command));
}

}  // namespace moe::test
