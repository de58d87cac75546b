// The command line: parses options, connects the processes of a job, and calls Host::main.
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>

#include "bindings/host/host.h"
#include "bindings/host/machine.h"
#include "engine/base/names.h"
#include "engine/base/stop.h"
#include "engine/base/utf8.h"
#include "engine/comm/job/launch.h"
#include "engine/comm/job/processes.h"
#include "engine/run.h"
#include "kernels/kernels.h"

namespace fs = std::filesystem;

namespace {

constexpr int kDone = 0, kWrongInput = 1, kWrongCommand = 2, kRunFailed = 3, kInternal = 4;
constexpr double kReportDeadlineS = 600;  // for reading results and writing the page

std::string default_cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder = xdg != nullptr && *xdg != '\0' ? fs::path(xdg)
                    : home != nullptr              ? fs::path(home) / ".cache"
                                                   : fs::temp_directory_path();
  return (folder / "moebench" / "profile.sqlite").string();
}

int status_of(const moe::lua::Failure& failure) {
  if (failure.kind == "run") return kRunFailed;
  if (failure.kind == "command") return kWrongCommand;
  return failure.kind == "internal" ? kInternal : kWrongInput;
}

int report(const moe::lua::Failure& failure) {
  std::fflush(stdout);
  std::fprintf(stderr, "moebench: %s\n", moe::printable(failure.message).c_str());
  if (!failure.traceback.empty()) {
    std::fprintf(stderr, "%s\n", moe::printable(failure.traceback).c_str());
  }
  return status_of(failure);
}

using Failed = std::optional<moe::lua::Failure>;

// Calls `body`; returns its result, or its exception as a failure.
template <class Body>
Failed attempt(Body body) {
  try {
    return body();
  } catch (const moe::lua::LuaError& e) {
    return e.failure();
  } catch (const moe::UserError& e) {
    return moe::lua::Failure{"user", e.what(), ""};
  } catch (const moe::RunError& e) {
    return moe::lua::Failure{"run", e.what(), ""};
  } catch (const std::exception& e) {
    return moe::lua::foreign_failure(e);
  }
}

// Refuses a recipe that is not a file in a folder, such as standard input: every rank reads it
// again, and it may read other files in its folder.
void check_recipe(const std::string& recipe) {
  if (!recipe.starts_with("/dev/") && !recipe.starts_with("/proc/") && recipe != "-") return;
  throw moe::user_error("{}: a recipe must be a file that can be read several times; give its path",
                        recipe);
}

// Checks before anything runs that the recipe can be read and the output folder written; makes the
// folder of the profile cache.
void prepare(const moe::lua::HostOptions& options) {
  moe::read_file(options.recipe);
  if (!options.out_dir.empty()) moe::lua::check_writable_folder(options.out_dir);
  if (options.cache.empty() || options.cache == ":memory:") return;
  std::error_code error;
  fs::create_directories(fs::path(options.cache).parent_path(), error);
}

// Refuses arguments that are not UTF-8, since they may be written to JSON.
void check_texts(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!moe::first_invalid_byte(argv[i])) continue;
    throw CLI::ParseError(
        fmt::format("argument '{}' is not UTF-8; give UTF-8 text", moe::printable(argv[i])),
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
  throw CLI::ParseError(moe::unknown_name("command", argv[1], std::move(names)),
                        CLI::ExitCodes::ExtrasError);
}

// Returns whether a signal may end the command at once: it prints, or replaces files as a whole.
bool reads_only(const moe::lua::HostOptions& options) {
  return options.mode == "report" || options.mode == "export" || options.mode == "list" ||
         options.mode == "doc";
}

// Returns the failure of an interrupted command: the given one, as kind "run" unless it is
// "internal", or that of the interrupt if there is none since the recipe caught it.
Failed as_interrupted(Failed failure) {
  if (!failure) return moe::lua::Failure{"run", moe::Interrupted().what(), ""};
  if (failure->kind != "internal") failure->kind = "run";
  return failure;
}

Failed run_host(const moe::lua::HostOptions& options, const std::string& argument) {
  if (!reads_only(options)) moe::lua::install_stop_handlers();
  moe::lua::Host host(options);
  Failed failure = host.main(argument);
  if (host.must_stop()) failure = as_interrupted(std::move(failure));
  if (!failure && options.mode == "run" && !options.trust && !host.had_effect()) {
    failure = {"user",
               options.recipe +
                   ": the recipe returned nothing, ran nothing and printed nothing; return the "
                   "experiment that it makes",
               ""};
  }
  if (!failure && std::fflush(stdout) != 0) {
    failure = {"run",
               "cannot write to standard output; is the disk full or the reader of the pipe gone?",
               ""};
  }
  return failure;
}

Failed run_recipe(moe::lua::HostOptions options, bool out_given) {
  const bool writes = options.mode == "run";
  check_recipe(options.recipe);
  if (!writes) options.out_dir.clear();
  if (writes && !out_given) options.out_dir = "out/" + fs::path(options.recipe).stem().string();
  const bool root = options.processes == nullptr || options.processes->is_root();
  if (root) prepare(options);
  Failed failure = run_host(options, "");
  // Removes a default output folder into which nothing was written.
  std::error_code error;
  if (writes && !out_given && root) {
    fs::remove(options.out_dir, error);  // fails if the folder is not empty
    fs::remove("out", error);
  }
  return failure;
}

// Runs a command in one of several processes. If it fails in one process, all end; rank 0 prints
// why.
int run_in_job(moe::lua::HostOptions options,
               const std::function<Failed(const moe::lua::HostOptions&)>& command) {
  moe::Processes processes;
  options.processes = &processes;
  // This also hides what the script itself prints in other processes than rank 0's.
  if (!processes.is_root()) std::freopen("/dev/null", "w", stdout);
  const Failed failure = attempt([&] {
    Failed failed = command(options);
    if (!failed) processes.finish();
    return failed;
  });
  if (!failure) return kDone;
  processes.fail(fmt::format("rank {}: {}", processes.rank(), failure->message));
  if (processes.is_root()) {
    report(*failure);
    processes.exit_job(status_of(*failure), "");
  }
  processes.exit_job(status_of(*failure),
                     fmt::format("moebench: rank {}: {}\n", processes.rank(), failure->message));
}

// Runs a command that writes one file (calibrate, report).
Failed run_to_file(moe::lua::HostOptions options, const fs::path& file) {
  if (fs::is_directory(file) || file.filename().empty()) {
    throw moe::user_error("--out {}: is a folder; give the name of a file", file.string());
  }
  options.out_dir = file.has_parent_path() ? file.parent_path().string() : ".";
  moe::lua::check_writable_folder(options.out_dir);
  return run_host(options, file.filename().string());
}

void check_folders(const moe::lua::HostOptions& options) {
  for (const std::string& folder : options.folders) {
    if (!fs::is_directory(folder)) {
      throw moe::user_error("{}: {}: there is no such folder", options.mode, folder);
    }
  }
}

// Returns the folder as it can be written to: files are not written through links, so if the user
// names a link its target is taken.
fs::path real_folder(const fs::path& folder) {
  return moe::open_folder(folder, false).valid() ? folder : fs::canonical(folder);
}

Failed run_export(moe::lua::HostOptions options, const std::string& to) {
  check_folders(options);
  options.out_dir = to.empty() ? (real_folder(options.folders[0]) / "figures").string() : to;
  moe::lua::check_writable_folder(options.out_dir);
  options.load_deadline_s = kReportDeadlineS;
  return run_host(options, "");
}

Failed run_report(moe::lua::HostOptions options, fs::path page) {
  check_folders(options);
  if (page.empty()) {
    const bool one = options.folders.size() == 1;
    page = real_folder(one ? options.folders[0] : ".") / "report.html";
  }
  if (page.extension() != ".html") {
    throw moe::user_error("--out {}: the report is an HTML page; give a name that ends in .html",
                          page.string());
  }
  options.load_deadline_s = kReportDeadlineS;
  return run_to_file(std::move(options), page);
}

std::map<std::string, std::string> parse_settings(const std::string& option,
                                                  const std::vector<std::string>& settings) {
  std::map<std::string, std::string> values;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw CLI::ValidationError(option, "'" + setting + "': give key=value");
    }
    values[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return values;
}

std::vector<std::string> executor_names() {
  std::vector<std::string> names;
  for (const moe::ExecutorDef& def : moe::executors()) names.emplace_back(def.name);
  return names;
}

void add_recipe_options(CLI::App& command, moe::lua::HostOptions& options,
                        std::vector<std::string>& settings) {
  command.add_option("recipe", options.recipe, "the recipe, a Lua file")->required();
  command
      .add_option("--set", settings,
                  "key=value: the only value of `over` to run, or a new value of `params`")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command.add_option("--executor", options.executor, "run only the entries for this executor")
      ->check(CLI::IsMember(executor_names()));
  command.add_option("--sensitivity", options.sensitivity,
                     "a field of simulated runs, such as iteration_ms: show how it moves with each "
                     "assumed constant");
  command.add_option("--ranks", options.ranks, "number of ranks of real runs")
      ->check(CLI::Range(1, 4096));
  command.add_option("--seed", options.seed, "seed of data and policies; default: 1")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
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
  command
      .add_option("--cache", options.cache,
                  "the file of measured times; simulations are kept beside it")
      ->default_str(options.cache);
}

CLI::App* add_calibrate(CLI::App& app, moe::lua::HostOptions& options, std::string& file) {
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
  command->add_option("--out", file, "the file to write")->default_str(file);
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

CLI::App* add_report(CLI::App& app, moe::lua::HostOptions& options, std::string& page) {
  CLI::App* command =
      app.add_subcommand("report", "one HTML page of the results in one or several folders");
  command->add_option("dir", options.folders, "folders that runs wrote")->required();
  command->add_option(
      "--out", page,
      "the file to write; default: DIR/report.html for one folder, else ./report.html");
  return command;
}

CLI::App* add_export(CLI::App& app, moe::lua::HostOptions& options, std::string& to) {
  CLI::App* command = app.add_subcommand(
      "export", "the charts of results as SVG, and their tables as CSV and LaTeX");
  command->add_option("dir", options.folders, "a folder that a run wrote")->required()->expected(1);
  command->add_option("--to", to, "the folder to write to; default: DIR/figures");
  return command;
}

// The options of the command line, and their values after parse().
struct Command {
  moe::lua::HostOptions options;
  std::vector<std::string> settings, where;
  std::string kind, machine_file = "machine.lua", page, figures;
  std::vector<std::string> topic;
  CLI::App app{
      "A workbench for Mixture-of-Experts training systems: plans, simulates and executes.",
      "moebench"};
  const CLI::App *run, *list, *doc, *calibrate, *report, *exported;
  const CLI::Option* out;

  Command() {
    options.scripts_dir = moe::lua::find_scripts();
    options.cache = default_cache();
    app.set_version_flag("--version", moe::lua::program_version());
    app.require_subcommand(1);
    CLI::App* const recipe = app.add_subcommand("run", "run a recipe");
    add_recipe_options(*recipe, options, settings);
    out = recipe->add_option("--out", options.out_dir, "output folder; default: out/<recipe>");
    add_recipe_options(
        *app.add_subcommand("check", "check a recipe and plan its runs, without running it"),
        options, settings);
    CLI::App* const built_in = app.add_subcommand("list", "list what is built in");
    built_in->add_option(
        "kind", kind,
        "gates, passes, placements, executors, clusters, metrics, models, ops, systems, workloads, "
        "claims, stubs");
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
    CLI::App* const drawn = add_export(app, options, figures);
    add_where(*paged, where);
    add_where(*drawn, where);
    report = paged;
    exported = drawn;
    app.add_subcommand("doctor",
                       "what this machine can run, what is missing, and whether it is quiet enough "
                       "to time, which takes 3 seconds; the exit status is 0 in all cases");
  }
  Command(const Command&) = delete;

  /// Throws the exceptions of CLI11 for wrong arguments.
  void parse(int argc, char** argv) {
    check_texts(argc, argv);
    check_command(app, argc, argv);
    app.parse(argc, argv);
    options.set = parse_settings("--set", settings);
    options.where = parse_settings("--where", where);
    options.mode = app.get_subcommands().front()->get_name();
  }
};

// Runs the command; returns its failure, if any, else sets `status`.
Failed dispatch(int argc, char** argv, int& status) {
  Command given;
  try {
    given.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;  // made printable below, since they quote arguments
    status = given.app.exit(e, out, err) == 0 ? kDone : kWrongCommand;
    std::fputs(moe::printable(out.str()).c_str(), stdout);
    std::fputs(moe::printable(err.str()).c_str(), stderr);
    return std::nullopt;
  }
  moe::lua::HostOptions& options = given.options;
  const moe::Launch launch = moe::launch();
  const bool in_job = launch.by != moe::Launch::By::kAlone;
  const bool out_given = given.out->count() > 0;
  if (in_job && given.run->parsed()) {
    status = run_in_job(options, [&](const auto& o) { return run_recipe(o, out_given); });
    return std::nullopt;
  }
  if (in_job && given.calibrate->parsed() && options.device == "cuda") {
    status = run_in_job(options, [&](const auto& o) { return run_to_file(o, given.machine_file); });
    return std::nullopt;
  }
  if (in_job && launch.rank != 0) return std::nullopt;  // commands below run on rank 0 only
  if (options.mode == "doctor") {
    std::cout << moe::lua::doctor_text(options.scripts_dir, options.cache) << std::flush
              << moe::lua::reading_text(moe::read_machine(3));
    return std::nullopt;
  }
  if (given.calibrate->parsed()) return run_to_file(options, given.machine_file);
  if (given.report->parsed()) return run_report(options, given.page);
  if (given.exported->parsed()) return run_export(options, given.figures);
  if (given.doc->parsed()) return run_host(options, fmt::format("{}", fmt::join(given.topic, ".")));
  return given.list->parsed() ? run_host(options, given.kind) : run_recipe(options, out_given);
}

}  // namespace

int main(int argc, char** argv) {
  int status = kDone;
  Failed failure = attempt([&] { return dispatch(argc, argv, status); });
  if (!failure) return status;
  const moe::Launch launch = moe::launch();
  if (launch.rank == 0) return report(*failure);
  // Rank 0 fails in the same way and prints it, except where ranks that torchrun's variables start
  // could not connect: there may be no rank 0, so each process prints its failure.
  if (launch.by != moe::Launch::By::kVariables || failure->kind != "run")
    return status_of(*failure);
  failure->message = fmt::format("rank {}: {}", launch.rank, failure->message);
  return report(*failure);
}
