// The program: parses the command line, connects the processes of a job, and calls Host::main.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "bindings/command_line.h"
#include "bindings/host/machine.h"
#include "bindings/sweep/simulation_cache.h"
#include "engine/base/lock.h"
#include "engine/base/stop.h"
#include "engine/base/utf8.h"
#include "engine/comm/job/launch.h"
#include "engine/comm/job/processes.h"
#include "kernels/kernels.h"

namespace fs = std::filesystem;

namespace {

constexpr int kDone = 0, kWrongInput = 1, kWrongCommand = 2, kRunFailed = 3, kInternal = 4;
constexpr double kReportDeadlineS = 600;  // for reading results and writing the page

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

// Reads a recipe from standard input where its name is "-". Refuses other recipes that are not
// files in a folder: every rank reads them again.
void read_recipe(moe::lua::HostOptions& options) {
  if (options.recipe.starts_with("/dev/") || options.recipe.starts_with("/proc/")) {
    throw moe::user_error(
        "{}: a recipe must be a file that can be read several times; give its path, or - for "
        "standard input",
        options.recipe);
  }
  if (options.recipe != "-") return;
  if (options.processes != nullptr) {
    throw moe::user_error("-: the processes of a job have no common standard input; give a file");
  }
  options.recipe = "stdin";
  options.recipe_text = std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Makes the folder of the profile cache.
void prepare_cache(const moe::lua::HostOptions& options) {
  if (options.cache.empty() || options.cache == ":memory:") return;
  std::error_code error;
  const fs::file_status there = fs::symlink_status(options.cache, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    throw moe::user_error("--cache {}: is not a regular file; give the name of a file",
                          options.cache);
  }
  fs::create_directories(fs::path(options.cache).parent_path(), error);
  // For `merge --caches`, which takes that of a part without a simulation too.
  if (!options.points.empty())
    moe::lua::SimulationCache(moe::lua::simulations_beside(options.cache));
}

// Checks before anything runs that the recipe can be read and the output folder written.
void prepare(const moe::lua::HostOptions& options) {
  moe::lua::recipe_text(options);
  if (!options.out_dir.empty()) moe::lua::check_writable_folder(options.out_dir);
  prepare_cache(options);
}

// Returns whether a signal may end the command at once: it prints, or replaces files as a whole.
bool reads_only(const moe::lua::HostOptions& options) {
  for (const char* mode : {"report", "export", "diff", "merge", "list", "doc"}) {
    if (options.mode == mode) return true;
  }
  return false;
}

// Returns the failure of an interrupted command: the given one, as kind "run" unless it is
// "internal", or that of the interrupt if there is none since the recipe caught it.
Failed as_interrupted(Failed failure) {
  if (!failure) return moe::lua::Failure{"run", moe::Interrupted().what(), ""};
  if (failure->kind != "internal") failure->kind = "run";
  return failure;
}

// Runs the command in a host; sets `results` to the text of results.json that it wrote.
Failed run_host(const moe::lua::HostOptions& options, const std::string& argument,
                std::string* results = nullptr) {
  if (!reads_only(options)) moe::lua::install_stop_handlers();
  moe::lua::Host host(options);
  Failed failure = host.main(argument);
  if (results != nullptr) *results = host.results();
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

/// A folder that is removed at the end, with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (mkdtemp(path_.data()) != nullptr) return;
    throw moe::run_error("cannot make a temporary folder {}: {}", path_, std::strerror(errno));
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = fs::temp_directory_path() / "moebench-XXXXXX";
};

// Lets what is printed go to stderr; returns the descriptor of what was stdout.
moe::Descriptor take_stdout() {
  std::fflush(stdout);
  moe::Descriptor out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (out.valid() && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) return out;
  throw moe::run_error("standard output and standard error must be open");
}

// Writes the text of results.json, or an object without results, with the failure if there is one.
void write_json(const moe::Descriptor& out, std::string text, const Failed& failure) {
  if (failure || text.empty()) {
    auto whole = text.empty() ? nlohmann::json::object() : nlohmann::json::parse(text);
    if (failure) {
      whole["error"] = {{"kind", failure->kind},
                        {"message", failure->message},
                        {"traceback", failure->traceback}};
    }
    text = whole.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  if (!moe::lua::write_all(out.get(), text)) {
    throw moe::run_error("cannot write to standard output");
  }
}

// Sets the output folder of a recipe that is run; makes it if it is a temporary one.
void choose_folder(moe::lua::HostOptions& options, bool out_given,
                   std::optional<TemporaryFolder>& temporary) {
  options.temporary = options.out_dir == ":temporary:" || (options.json && !out_given);
  if (options.temporary) {
    options.out_dir = temporary.emplace().path();
  } else if (!out_given) {
    options.out_dir = "out/" + fs::path(options.recipe).stem().string();
    std::string part = options.points;  // "3/8" -> "3of8"
    if (!part.empty()) options.out_dir += "." + part.replace(part.find('/'), 1, "of");
  }
}

Failed run_recipe(moe::lua::HostOptions options, bool out_given) {
  const bool writes = options.mode == "run";
  const bool root = options.processes == nullptr || options.processes->is_root();
  options.json = options.json && root;
  std::optional<TemporaryFolder> temporary;
  const moe::Descriptor out = options.json ? take_stdout() : moe::Descriptor();
  std::string results;
  Failed failure = attempt([&] {
    read_recipe(options);
    if (writes) choose_folder(options, out_given, temporary);
    if (!writes) options.out_dir.clear();
    if (root) prepare(options);
    return run_host(options, "", &results);
  });
  if (options.json) write_json(out, results, failure);
  // Removes a default output folder into which nothing was written.
  std::error_code error;
  if (writes && !out_given && root && !options.temporary) {
    const moe::Descriptor folder(open(options.out_dir.c_str(), O_RDONLY | O_CLOEXEC));
    if (folder.valid() && moe::try_lock(folder)) {  // nor has another process begun to write
      fs::remove(options.out_dir, error);           // fails if the folder is not empty
      fs::remove("out", error);
    }
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

// Returns the file in which lines of the prompt are kept; "" if its folder cannot be made.
std::string history_file() {
  const char *xdg = std::getenv("XDG_STATE_HOME"), *home = std::getenv("HOME");
  if (xdg == nullptr && home == nullptr) return "";
  const fs::path state = xdg != nullptr ? fs::path(xdg) : fs::path(home) / ".local/state";
  std::error_code error;
  fs::create_directories(state / "moebench", error);
  return error ? "" : (state / "moebench/history").string();
}

// Answers requests (serve), or evaluates what is typed (repl).
Failed run_session(moe::lua::HostOptions options) {
  const TemporaryFolder folder;
  moe::Descriptor answers;
  options.out_dir = folder.path();
  options.temporary = true;
  prepare_cache(options);
  if (options.mode == "serve") {
    answers = take_stdout();
    signal(SIGPIPE, SIG_IGN);  // where its reader is gone, writing an answer fails
    options.answers = answers.get();
  } else {
    options.history = history_file();
  }
  return run_host(options, "");
}

// Refuses folders of `report` and `diff` that do not exist.
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

// Compares two folders with results, each named by itself or by its results.json.
Failed run_diff(moe::lua::HostOptions options) {
  for (std::string& folder : options.folders) {
    const fs::path path = folder;
    if (path.filename() != "results.json") continue;
    folder = path.has_parent_path() ? path.parent_path().string() : ".";
  }
  check_folders(options);
  options.load_deadline_s = kReportDeadlineS;
  return run_host(options, "");
}

// Merges folders, caches or both.
Failed run_merge(moe::lua::HostOptions options) {
  check_folders(options);
  if (options.folders.empty() && options.caches.empty()) {
    throw moe::user_error("merge: give the folders of all parts, or --caches");
  }
  if (!options.folders.empty()) {
    if (options.out_dir.empty()) {
      throw moe::user_error("merge: --out is missing; give the folder to write to");
    }
    moe::lua::check_writable_folder(options.out_dir);
  }
  options.load_deadline_s = kReportDeadlineS;
  return run_host(options, "");
}

Failed run_report(moe::lua::HostOptions options, fs::path page) {
  check_folders(options);
  if (page.empty()) {
    const bool one = options.folders.size() == 1;
    fs::path folder = one ? options.folders[0] : ".";
    // Files are not written through links, so if the user names a link its target folder is taken.
    if (!moe::open_folder(folder, false).valid()) folder = fs::canonical(folder);
    page = folder / "report.html";
  }
  if (page.extension() != ".html") {
    throw moe::user_error("--out {}: the report is an HTML page; give a name that ends in .html",
                          page.string());
  }
  options.load_deadline_s = kReportDeadlineS;
  return run_to_file(std::move(options), page);
}

// Runs the command; returns its failure, if any, else sets `status`.
Failed dispatch(int argc, char** argv, int& status) {
  moe::lua::Command given;
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
  const std::optional<int64_t> launched = moe::launched_rank();
  const bool out_given = given.out->count() > 0;
  const bool part = !options.points.empty();  // processes that a launcher started are on their own
  if (launched && given.run->parsed() && !part) {
    status = run_in_job(options, [&](const auto& o) { return run_recipe(o, out_given); });
    return std::nullopt;
  }
  if (launched && given.calibrate->parsed() && options.device == "cuda") {
    status = run_in_job(options, [&](const auto& o) { return run_to_file(o, given.machine_file); });
    return std::nullopt;
  }
  if (launched.value_or(0) != 0 && !part) return std::nullopt;  // commands below run on rank 0 only
  if (options.mode == "doctor") {
    std::cout << moe::lua::doctor_text(options.scripts_dir, options.cache) << std::flush
              << moe::lua::reading_text(moe::read_machine(3));
    return std::nullopt;
  }
  if (given.calibrate->parsed()) return run_to_file(options, given.machine_file);
  if (given.report->parsed()) return run_report(options, given.page);
  if (given.exported->parsed()) return run_export(options, given.figures);
  if (given.diff->parsed()) return run_diff(options);
  if (given.merge->parsed()) return run_merge(options);
  if (options.mode == "serve" || options.mode == "repl") return run_session(options);
  if (given.doc->parsed()) return run_host(options, fmt::format("{}", fmt::join(given.topic, ".")));
  return given.list->parsed() ? run_host(options, given.kind) : run_recipe(options, out_given);
}

}  // namespace

int main(int argc, char** argv) {
  int status = kDone;
  Failed failure = attempt([&] { return dispatch(argc, argv, status); });
  if (!failure) return status;
  // Where other ranks fail before they are connected, rank 0 fails in the same way and prints it.
  return moe::launched_rank().value_or(0) == 0 ? report(*failure) : status_of(*failure);
}
