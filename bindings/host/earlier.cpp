#include "bindings/host/earlier.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/files.h"

namespace fs = std::filesystem;

namespace moe::lua {
namespace {

// Files are first moved to this folder, which is then renamed: a numbered folder is complete, and
// the next run finishes what a killed process has begun.
constexpr const char* kUnfinished = ".earlier";

bool is_result(const std::string& name) {
  if (name == "results.json" || name == "runs.jsonl" || name == "report.html") return true;
  constexpr std::string_view kTrace = "trace-";
  const size_t end = name.find_first_not_of("0123456789", kTrace.size());
  return name.starts_with(kTrace) && end != std::string::npos && end > kTrace.size() &&
         name[end] == '-';
}

// Returns whether the text of a runs.jsonl has a run that ended.
bool has_ended_run(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) continue;
    const auto record = value.find("record");
    if (record != value.end() && record->contains("iteration_ms")) return true;
  }
  return false;
}

void rename_in(const Descriptor& from, const std::string& name, const Descriptor& to,
               const std::string& new_name) {
  if (renameat(from.get(), name.c_str(), to.get(), new_name.c_str()) == 0) return;
  throw run_error("cannot move the earlier results: {}: {}", name, std::strerror(errno));
}

}  // namespace

std::string keep_earlier(const Files& files) {
  const fs::path results = files.writable("results.json"), lines = files.writable("runs.jsonl");
  const fs::path folder = results.parent_path(), unfinished = folder / kUnfinished;
  const bool any = fs::exists(unfinished) || fs::exists(results) ||
                   (fs::exists(lines) && has_ended_run(read_file(lines, Links::kRefuse)));
  if (!any) return "";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_result(name) && entry.symlink_status().type() == fs::file_type::regular) {
      names.push_back(name);
    }
  }
  const Descriptor from = open_folder(folder, false), to = open_folder(unfinished, true);
  if (!from.valid() || !to.valid()) {
    throw run_error("cannot make {}: {}", unfinished.string(), std::strerror(errno));
  }
  for (const std::string& name : names) rename_in(from, name, to, name);
  int number = 1;
  while (fs::exists(fs::symlink_status(folder / std::to_string(number)))) ++number;
  rename_in(from, kUnfinished, from, std::to_string(number));
  return std::to_string(number);
}

}  // namespace moe::lua
