#include "bindings/host/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/lock.h"

namespace moe::lua {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxLinks = 40;  // the limit of Linux
std::atomic<int64_t> all_reads{0};

bool is_under(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

/// Returns the path in normal form and without a slash at the end: "a/b" for "a/./b/".
fs::path tidy(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

/// Returns the output folder in the form in which it is opened. Links on the way to an absolute
/// path are trusted as the system's and resolved; a folder that is itself a link, and links in a
/// relative path, are not trusted, since another user may have made them.
fs::path output_folder(const fs::path& folder) {
  const fs::path path = tidy(folder);
  if (path.is_relative() || path == path.root_path()) return path;
  std::error_code error;
  const fs::path parent = fs::weakly_canonical(path.parent_path(), error);
  return error ? path : parent / path.filename();
}

bool has_link(const fs::path& folder) {
  return !open_folder(folder, false).valid() && errno == ELOOP;
}

std::string reason() {
  return errno == ELOOP ? "the path has a symbolic link in it; give the path without links"
                        : std::strerror(errno);
}

struct Found {
  enum class Where { kInside, kMissing, kOutside } where;
  fs::path real;  // kInside: the path without links
  int error = 0;  // kMissing: errno of the reason
};

/// Resolves a path one symbolic link at a time, as long as it is in one of the folders or on the
/// way to one, so that no other place is accessed.
class Search {
 public:
  explicit Search(const std::vector<fs::path>& folders) {
    for (const fs::path& folder : folders) {
      std::error_code error;
      named_.push_back(tidy(fs::absolute(folder)));
      const fs::path real = fs::weakly_canonical(named_.back(), error);
      if (!error) real_.push_back(tidy(real));
    }
  }

  Found find(const fs::path& path) {
    at_ = "/";
    left_.assign(path.begin(), path.end());
    std::reverse(left_.begin(), left_.end());
    for (int links = 0; !left_.empty();) {
      const fs::path part = left_.back();
      left_.pop_back();
      const fs::path next = tidy(at_ / part);
      if (!concerns(next)) return {Found::Where::kOutside, {}};
      std::error_code error;
      const fs::file_status status = fs::symlink_status(next, error);
      if (!fs::exists(status)) return missing(next, error ? error.value() : ENOENT);
      if (!fs::is_symlink(status)) {
        at_ = next;
      } else if (++links > kMaxLinks || !enter(next)) {
        return missing(next, ELOOP);
      }
    }
    if (!inside(at_)) return {Found::Where::kOutside, {}};
    return {Found::Where::kInside, at_};
  }

 private:
  bool inside(const fs::path& path) const {
    return std::any_of(real_.begin(), real_.end(),
                       [&](const fs::path& folder) { return is_under(path, folder); });
  }
  bool concerns(const fs::path& path) const {
    const auto on_the_way = [&](const fs::path& folder) {
      return is_under(path, folder) || is_under(folder, path);
    };
    return std::any_of(real_.begin(), real_.end(), on_the_way) ||
           std::any_of(named_.begin(), named_.end(), on_the_way);
  }
  /// Makes a symbolic link's target the next part to resolve; returns false if it is unreadable.
  bool enter(const fs::path& link) {
    std::error_code error;
    const fs::path to = fs::read_symlink(link, error);
    if (error) return false;
    const std::vector<fs::path> parts(to.begin(), to.end());
    left_.insert(left_.end(), parts.rbegin(), parts.rend());
    if (to.is_absolute()) at_ = "/";
    return true;
  }
  Found missing(fs::path path, int error) const {
    for (auto part = left_.rbegin(); part != left_.rend(); ++part) path /= *part;
    const bool ours = inside(tidy(path));
    return {ours ? Found::Where::kMissing : Found::Where::kOutside, {}, error};
  }

  std::vector<fs::path> named_, real_;  // the folders as they are named, and without links
  fs::path at_;                         // the resolved part of the path, without links
  std::vector<fs::path> left_;          // parts still to be resolved, the next one last
};

}  // namespace

void check_path(const std::string& path) {
  const size_t nul = path.find('\0');
  if (nul == std::string::npos) return;
  throw user_error("'{}\\0': a path must not contain a NUL character", path.substr(0, nul));
}

int64_t Files::reads() {
  return all_reads;
}

std::vector<fs::path> Files::roots() const {
  std::vector<fs::path> all = {options_.recipe_dir};
  for (const fs::path& folder : {options_.out_dir, fs::path("out")}) {
    if (!has_link(output_folder(folder))) all.push_back(folder);
  }
  all.insert(all.end(), options_.roots.begin(), options_.roots.end());
  all.insert(all.end(), options_.named.begin(), options_.named.end());
  if (options_.trust) all.emplace_back("/");
  std::erase_if(all, [](const fs::path& folder) { return folder.empty(); });
  return all;
}

fs::path Files::readable(const std::string& path) const {
  check_path(path);
  if (counts_ && !path.starts_with(options_.library.string() + "/")) ++all_reads;
  if (path.empty()) throw user_error("cannot read '': give the name of a file");
  std::vector<fs::path> places = {fs::absolute(path)};
  if (fs::path(path).is_relative()) {
    std::vector<fs::path> folders = {options_.recipe_dir, options_.out_dir};
    folders.insert(folders.end(), options_.roots.begin(), options_.roots.end());
    for (const fs::path& folder : folders) {
      if (!folder.empty()) places.push_back(fs::absolute(folder / path));
    }
  }
  Search search(roots());
  int error = 0;
  for (const fs::path& place : places) {
    Found found = search.find(place);
    if (found.where == Found::Where::kInside) return std::move(found.real);
    if (found.where == Found::Where::kMissing && error == 0) error = found.error;
  }
  if (error == ENOENT && !options_.recipe_dir.empty() && places.size() > 1) {
    throw user_error(
        "cannot read {}: there is no such file in the recipe's folder, the output folder or a "
        "folder of --read; a recipe may only read elsewhere if --read names the folder, --set the "
        "file, or --trust is given",
        path);
  }
  if (error != 0) throw user_error("cannot read {}: {}", path, std::strerror(error));
  throw user_error(
      "{} is outside the recipe's folder and the output folder; a recipe may only read it if "
      "--read names its folder, --set names it, or --trust is given",
      path);
}

std::string Files::read(const std::string& path) const {
  return read_file(readable(path), Links::kRefuse, options_.most_bytes);
}

// The lock is that of the folder itself, so that it leaves no file. A folder that this user cannot
// list cannot be locked.
void Files::lock_folder(const fs::path& root) const {
  while (options_.lock && !lock_.valid()) {
    const Descriptor folder = open_folder(root, true);
    Descriptor list(openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!list.valid()) return;
    lock(list, "output folder " + options_.out_dir.string(),
         "wait until it has ended, or give --out another folder");
    // A process that made the folder and wrote nothing into it may have removed it meanwhile.
    struct stat locked {
    }, there{};
    const bool same = fstat(list.get(), &locked) == 0 && stat(root.c_str(), &there) == 0 &&
                      locked.st_ino == there.st_ino && locked.st_dev == there.st_dev;
    if (same) lock_ = std::move(list);
  }
}

fs::path Files::writable(const std::string& name) const {
  check_path(name);
  if (options_.out_dir.empty())
    throw user_error(
        "cannot write {}: this command of moebench writes no files; use `moebench run`", name);
  const auto refuse = [&](const std::string& why) {
    return user_error("'{}' does not name a file in the output folder {}{}", name,
                      options_.out_dir.string(), why);
  };
  const fs::path relative = fs::path(name).lexically_normal();
  const bool leads_out =
      relative.is_absolute() || relative.begin() == relative.end() || *relative.begin() == "..";
  if (leads_out || !relative.has_filename() || relative == ".") throw refuse("");
  const fs::path root = output_folder(options_.out_dir), path = root / relative;
  if (!open_folder(root, true).valid()) {
    throw user_error("output folder {}: {}", options_.out_dir.string(), reason());
  }
  lock_folder(root);
  const Descriptor folder = open_folder(path.parent_path(), true);
  if (!folder.valid() && errno == ELOOP) throw refuse(": its path has a symbolic link in it");
  if (!folder.valid()) throw run_error("cannot make {}: {}", path.parent_path().string(), reason());
  struct stat there {};
  const std::string file = path.filename();
  if (fstatat(folder.get(), file.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
    const std::string kind = unusual_kind(there.st_mode);
    if (!kind.empty()) throw refuse(": there is " + kind);
  }
  return path;
}

uint64_t text_hash(std::string_view text, uint64_t so_far) {
  for (const char c : text) so_far = (so_far ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return so_far;
}

void check_writable_folder(const fs::path& folder) {
  const fs::path path = output_folder(folder);
  if (!open_folder(path, true).valid()) {
    throw user_error("--out {}: the folder cannot be made: {}", folder.string(), reason());
  }
  try {
    AtomicFile probe(path / "probe");  // removed again by its destructor
  } catch (const RunError& e) {
    throw user_error("--out {}: {}", folder.string(), e.what());
  }
}

}  // namespace moe::lua
