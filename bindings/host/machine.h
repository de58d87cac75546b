// What this program and this machine are, for results and for `moebench doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace moe::lua {

const char* program_version();
/// The folder that holds moe/init.lua: beside an installed program, else in the source tree.
std::string find_scripts();

/// {cpu, cores, kernel_set, git}. git: the revision of the working tree that scripts_dir lies in,
/// as its .git folder says, or "".
nlohmann::json machine_json(const std::string& scripts_dir);

/// The text of `moebench doctor`: what this machine can run, and what is missing.
std::string doctor_text(const std::string& scripts_dir, const std::string& cache);

}  // namespace moe::lua
