// The options of the command line: commands, their options, and what is checked before one runs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bindings/host/host.h"

namespace moe::lua {

/// The options of the command line, and their values after parse().
struct Command {
  HostOptions options;
  std::vector<std::string> settings, where;  // of --set and --where
  std::vector<std::string> names;            // of --name
  std::string kind, machine_file = "machine.lua", page, figures;
  std::vector<std::string> topic;
  CLI::App app{
      "A workbench for Mixture-of-Experts training systems: plans, simulates and executes.",
      "moebench"};
  const CLI::App *run, *list, *doc, *calibrate, *report, *exported, *diff, *merge, *session;
  const CLI::Option* out;

  Command();
  Command(const Command&) = delete;
  /// Throws the exceptions of CLI11 for wrong arguments.
  void parse(int argc, char** argv);
};

}  // namespace moe::lua
