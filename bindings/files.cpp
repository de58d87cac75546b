#include "bindings/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/base/errors.h"

namespace moe::lua {
namespace fs = std::filesystem;
namespace {

bool is_under(const fs::path& real, const fs::path& folder) {
  if (folder.empty()) return false;
  std::error_code error;
  const fs::path root = fs::weakly_canonical(folder, error);
  return !error &&
         std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
}

std::string reason() {
  return std::strerror(errno);
}

// A file descriptor that closes itself; close() reports what the disk says at the end.
class OutputFile {
 public:
  explicit OutputFile(const fs::path& path)
      : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw run_error("cannot write {}: {}", path_.string(), reason());
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw run_error("cannot write {}: {}", path_.string(), reason());
      done += static_cast<size_t>(n);
    }
  }
  void close() {
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) throw run_error("cannot write {}: {}", path_.string(), reason());
  }

 private:
  fs::path path_;
  int fd_;
};

void write_and_rename(const fs::path& temporary, const fs::path& path, const std::string& text) {
  OutputFile file(temporary);
  file.write(text);
  file.close();
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) throw run_error("cannot write {}: {}", path.string(), error.message());
}

}  // namespace

bool Files::inside(const fs::path& real) const {
  const auto holds = [&](const fs::path& folder) { return is_under(real, folder); };
  return options_.trust || holds(options_.recipe_dir) || holds(options_.out_dir) ||
         std::any_of(options_.roots.begin(), options_.roots.end(), holds) ||
         std::any_of(options_.named.begin(), options_.named.end(), holds);
}

fs::path Files::readable(const std::string& path) const {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  for (const fs::path& folder : {options_.recipe_dir, options_.out_dir}) {
    if (error && fs::path(path).is_relative()) real = fs::canonical(folder / path, error);
  }
  if (error) throw user_error("cannot read {}: {}", path, error.message());
  if (!inside(real)) {
    throw user_error(
        "{} lies outside the recipe's folder and the output; a recipe may not read it "
        "unless --set names it or --trust is given",
        path);
  }
  return real;
}

fs::path Files::writable(const std::string& name) const {
  if (options_.out_dir.empty()) throw user_error("{}: nothing is written in this mode", name);
  const fs::path path = options_.out_dir / name;
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  const fs::path root = fs::weakly_canonical(options_.out_dir);
  if (name.empty() || error || !is_under(real, root) || real == root) {
    throw user_error("'{}' does not name a file in the output folder {}", name,
                     options_.out_dir.string());
  }
  fs::create_directories(path.parent_path(), error);
  if (error) throw run_error("cannot make {}: {}", path.parent_path().string(), error.message());
  return path;
}

uint64_t text_hash(std::string_view text, uint64_t so_far) {
  for (const char c : text) so_far = (so_far ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return so_far;
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw user_error("cannot read {}: a folder", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) throw user_error("cannot read {}: {}", path.string(), reason());
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) throw user_error("cannot read {}: {}", path.string(), reason());
  return text.str();
}

void write_file(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + fmt::format(".tmp-{}", getpid());
  try {
    write_and_rename(temporary, path, text);
  } catch (const RunError&) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

void append_file(const fs::path& path, const std::string& text, bool anew) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (anew ? O_TRUNC : 0);
  const int fd = open(path.c_str(), flags, 0666);
  const bool good =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const std::string why = reason();
  if (fd >= 0) ::close(fd);
  if (!good) throw run_error("cannot write {}: {}", path.string(), why);
}

void check_writable_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw user_error("--out {}: cannot be made: {}", folder.string(), error.message());
  const fs::path probe = folder / fmt::format(".probe-{}", getpid());
  try {
    OutputFile(probe).close();
  } catch (const RunError&) {
    throw user_error("--out {}: cannot be written: {}", folder.string(), reason());
  }
  fs::remove(probe, error);
}

}  // namespace moe::lua
