// Every recipe under tests/recipes/bad is wrong in one way. Its first lines say the exit status, the
// line that the message must name, and parts of the message; here the real program runs each.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct Expected {
  int exit = -1;
  std::string line, args;
  std::vector<std::string> says;
};

Expected expected_of(const fs::path& file) {
  Expected e;
  std::ifstream in(file);
  for (std::string l; std::getline(in, l) && l.rfind("-- ", 0) == 0;) {
    const size_t colon = l.find(": ");
    const std::string key = l.substr(3, colon - 3), value = l.substr(colon + 2);
    if (key == "exit") e.exit = std::stoi(value);
    if (key == "line") e.line = value;
    if (key == "args") e.args = value;
    if (key == "says") e.says.push_back(value);
  }
  return e;
}

struct Outcome {
  int exit;
  std::string text;
};

Outcome run(const std::string& command) {
  Outcome o{-1, ""};
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer;
  while (size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) o.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  o.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return o;
}

std::string scratch() {
  return (fs::temp_directory_path() / ("moebench-bad-" + std::to_string(getpid()))).string();
}

}  // namespace

TEST_CASE("every wrong recipe gets its status, its line and its message, once") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(MOE_SOURCE_DIR "/tests/recipes/bad")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 40);
  for (const fs::path& file : files) {
    const Expected e = expected_of(file);
    const std::string out = e.args.find("--out") == std::string::npos ? " --out " + scratch() : "";
    const Outcome o = run(std::string(MOEBENCH_BINARY) + " run " + file.string() + out + " " + e.args);
    INFO(file.filename().string() << "\n" << o.text);
    CHECK(o.exit == e.exit);
    for (const std::string& part : e.says) CHECK(o.text.find(part) != std::string::npos);
    if (!e.line.empty()) {
      const std::string place = file.filename().string() + ":" + e.line + ":";
      CHECK(o.text.find(place) != std::string::npos);
    }
    const size_t first = o.text.find("moebench: ");
    REQUIRE(first != std::string::npos);
    CHECK(o.text.find("moebench: ", first + 1) == std::string::npos);
  }
  fs::remove_all(scratch());
}

TEST_CASE("the command line has its own status") {
  const std::string program = MOEBENCH_BINARY;
  CHECK(run(program + " run").exit == 2);
  CHECK(run(program + " fly away").exit == 2);
  CHECK(run(program + " run /nonexistent.lua").exit == 1);
  CHECK(run(program + " --help").exit == 0);
  CHECK(run(program + " run --help").exit == 0);
  CHECK(run(program + " list").exit == 0);
  CHECK(run(program + " list gatez").exit == 1);
  CHECK(run(program + " doctor").exit == 0);
}
