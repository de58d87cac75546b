#include "bindings/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

#include "bindings/host/machine.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"
#include "engine/run.h"

namespace fs = std::filesystem;

namespace moe::lua {
namespace {

std::string default_cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // A relative path would lie in whichever folder the program runs in.
  const auto is_absolute = [](const char* path) { return path != nullptr && *path == '/'; };
  const fs::path folder = is_absolute(xdg)    ? fs::path(xdg)
                          : is_absolute(home) ? fs::path(home) / ".cache"
                                              : fs::temp_directory_path();
  return (folder / "moebench" / "profile.sqlite").string();
}

// Refuses a path in whose folder the system could open no file, since it has too many bytes.
const CLI::Validator kPathLength(
    [](const std::string& path) {
      std::error_code error;
      std::ignore = fs::symlink_status(fs::absolute(path) / std::string(NAME_MAX / 2, 'x'), error);
      const bool long_name = fs::path(path).filename().string().size() > NAME_MAX;
      return long_name || error == std::errc::filename_too_long
                 ? fmt::format("the path is too long for the system ({} bytes)", path.size())
                 : "";
    },
    "");

// Refuses arguments that are not UTF-8, since they may be written to JSON.
void check_texts(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!first_invalid_byte(argv[i])) continue;
    throw CLI::ParseError(
        fmt::format("argument '{}' is not UTF-8; give UTF-8 text", printable(argv[i])),
        CLI::ExitCodes::InvalidError);
  }
}

// Refuses a first word that is not a command, and names the nearest command; CLI11 would only
// report that a command is missing.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  throw CLI::ParseError(unknown_name("command", argv[1], std::move(names)),
                        CLI::ExitCodes::ExtrasError);
}

std::map<std::string, std::string> parse_settings(const std::string& option,
                                                  const std::vector<std::string>& settings) {
  std::map<std::string, std::string> values;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw CLI::ValidationError(option, "'" + setting + "': give path=value");
    }
    const std::string key = setting.substr(0, equals);
    if (!values.emplace(key, setting.substr(equals + 1)).second) {
      throw CLI::ValidationError(
          option, "'" + key + "' is given twice; give several values as " + key + "=1,2,4");
    }
  }
  return values;
}

std::vector<std::string> executor_names() {
  std::vector<std::string> names;
  for (const ExecutorDef& def : executors()) names.emplace_back(def.name);
  return names;
}

void add_cache(CLI::App& command, HostOptions& options) {
  command
      .add_option("--cache", options.cache,
                  "the file of measured times; simulations are kept beside it")
      ->check(kPathLength)
      ->default_str(options.cache);
}

// Options of all commands that evaluate Lua of the user.
void add_state_options(CLI::App& command, HostOptions& options) {
  command
      .add_option("--read", options.readable,
                  "a folder whose files the recipe may read too, such as weights")
      ->check(CLI::ExistingDirectory)
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command.add_flag("--trust", options.trust,
                   "no sandbox: the recipe may do everything that you may do");
  command
      .add_option("--workers", options.workers,
                  "processes that simulate at the same time; default: one per core")
      ->check(CLI::Range(1, 1024));
  add_cache(command, options);
}

void add_recipe_options(CLI::App& command, HostOptions& options,
                        std::vector<std::string>& settings) {
  command.add_option("recipe", options.recipe, "the recipe, a Lua file, or - for standard input")
      ->required();
  command
      .add_option("--set", settings,
                  "path=value: a value of `over` or `params`, or of a field of model, cluster, run "
                  "or system; x2 is a factor, 1,2,4 a sweep (moebench doc set)")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command.add_option("--executor", options.executor, "run only the entries for this executor")
      ->check(CLI::IsMember(executor_names()));
  command.add_option("--sensitivity", options.sensitivity,
                     "a field of simulated runs, such as iteration_ms: show how it moves with each "
                     "assumed constant");
  command.add_option("--ranks", options.ranks, "number of ranks of real runs")
      ->check(CLI::Range(1, 1024));
  command.add_option("--seed", options.seed, "seed of data and policies; default: 1")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
  command.add_option("--points", options.points,
                     "PART/PARTS: of a sweep or search only this part, such as 3/8, the third of "
                     "eight; `moebench merge` puts parts together");
  add_state_options(command, options);
}

CLI::App* add_merge(CLI::App& app, HostOptions& options) {
  CLI::App* command = app.add_subcommand(
      "merge", "the results of all parts of a sweep (--points) as those of one run");
  command->add_option("dir", options.folders, "the folders that the parts wrote");
  command->add_option("--out", options.out_dir, "the folder to write to")->check(kPathLength);
  command->add_option("--caches", options.caches,
                      "caches that --cache of the parts named: their simulations are added to "
                      "those of --cache");
  add_cache(*command, options);
  return command;
}

CLI::App* add_serve(CLI::App& app, HostOptions& options) {
  CLI::App* command = app.add_subcommand(
      "serve", "answers requests, lines of JSON, in a Lua state that stays alive");
  const std::string only = "on standard input and output, which is the only way";
  command->add_flag("--stdio", only)->required();
  add_state_options(*command, options);
  CLI::App* prompt = app.add_subcommand("repl", "a prompt at which texts in Lua are evaluated");
  add_state_options(*prompt, options);
  return command;
}

CLI::App* add_calibrate(CLI::App& app, HostOptions& options, std::string& file) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "measure this machine's rates and collectives, for moe.machine in recipes");
  command
      ->add_option("--ranks", options.ranks,
                   "number of ranks that run at the same time; default: 2")
      ->check(CLI::Range(1, 64));
  command->add_option("--device", options.device, "what is measured: cpu, or cuda for the GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--precision", options.precision, "type of activations: f32, or bf16 on cuda")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--hidden", options.hidden, "hidden sizes whose ops are measured")
      ->check(CLI::Range(16, 65536));
  command
      ->add_option("--max-bytes", options.max_bytes,
                   "largest bytes of a rank in a collective; default: 64 MiB")
      ->check(CLI::Range(int64_t{4096}, int64_t{1} << 34));
  command->add_option("--out", file, "the file to write")->check(kPathLength)->default_str(file);
  return command;
}

CLI::App* add_report(CLI::App& app, HostOptions& options, std::string& page) {
  CLI::App* command =
      app.add_subcommand("report", "one HTML page of the results in one or several folders");
  command->add_option("dir", options.folders, "folders that runs wrote")->required();
  command
      ->add_option("--out", page,
                   "the file to write; default: DIR/report.html for one folder, else ./report.html")
      ->check(kPathLength);
  return command;
}

void add_where(CLI::App& command, std::vector<std::string>& where) {
  command
      .add_option("--where", where,
                  "key=a,b: only runs whose field or coordinate has one of these values")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
}

CLI::App* add_export(CLI::App& app, HostOptions& options, std::string& to,
                     std::vector<std::string>& names) {
  CLI::App* command = app.add_subcommand(
      "export", "the charts of results as SVG, and their tables as CSV and LaTeX");
  command->add_option("dir", options.folders, "a folder that a run wrote")->required()->expected(1);
  command->add_option("--out,--to", to, "the folder to write to; default: DIR/figures")
      ->check(kPathLength);
  command
      ->add_option("--name", names,
                   "name=text: pictures and tables show the text in place of the name of a system "
                   "or coordinate")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  for (const char* option : {"width", "font"}) {
    command->add_option(fmt::format("--{}", option), options.drawn[option],
                        option == std::string("width")
                            ? "of a picture, in points; default: 252, or 336 of bars"
                            : "the font of pictures; default: Helvetica or Arial");
  }
  return command;
}

CLI::App* add_diff(CLI::App& app, HostOptions& options) {
  CLI::App* command =
      app.add_subcommand("diff", "what differs between two results: times, memory and plans");
  command->add_option("results", options.folders, "two folders that runs wrote, before and after")
      ->required()
      ->expected(2);
  return command;
}

}  // namespace

Command::Command() {
  options.scripts_dir = find_scripts();
  options.cache = default_cache();
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  CLI::App* const recipe = app.add_subcommand("run", "run a recipe");
  add_recipe_options(*recipe, options, settings);
  out = recipe
            ->add_option("--out", options.out_dir,
                         "output folder; default: out/<recipe>; :temporary: for one that is "
                         "removed at the end")
            ->check(kPathLength);
  recipe->add_flag("--json", options.json,
                   "prints results.json, and what else is printed to stderr; without --out no "
                   "folder is left");
  add_recipe_options(
      *app.add_subcommand("check", "check a recipe and plan its runs, without running it"), options,
      settings);
  CLI::App* const built_in = app.add_subcommand("list", "list what is built in");
  built_in->add_option(
      "kind", kind,
      "what to list, for example passes or clusters; default: all; another name is answered with "
      "those that there are");
  CLI::App* const topics =
      app.add_subcommand("doc", "fields, methods and functions of recipes, topic by topic");
  topics->add_option(
      "topic", topic,
      "for example model, gate, pass.partition or results; default: list all topics");
  run = recipe;
  list = built_in;
  doc = topics;
  calibrate = add_calibrate(app, options, machine_file);
  CLI::App* const paged = add_report(app, options, page);
  CLI::App* const drawn = add_export(app, options, figures, names);
  add_where(*paged, where);
  add_where(*drawn, where);
  report = paged;
  exported = drawn;
  diff = add_diff(app, options);
  merge = add_merge(app, options);
  session = add_serve(app, options);
  app.add_subcommand("doctor",
                     "what this machine can run, what is missing, and whether it is quiet enough "
                     "to time, which takes 3 seconds; the exit status is 0 in all cases");
}

void Command::parse(int argc, char** argv) {
  check_texts(argc, argv);
  check_command(app, argc, argv);
  app.parse(argc, argv);
  options.set = parse_settings("--set", settings);
  options.where = parse_settings("--where", where);
  options.names = parse_settings("--name", names);
  std::erase_if(options.drawn, [](const auto& option) { return option.second.empty(); });
  options.mode = app.get_subcommands().front()->get_name();
}

}  // namespace moe::lua
