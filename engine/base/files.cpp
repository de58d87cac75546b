#include "engine/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "engine/base/errors.h"

namespace moe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = ".moebench-", kSuffix = ".tmp";
constexpr size_t kDigits = 16;

std::string reason() {
  return errno == ELOOP ? "its path contains a symbolic link, which is not allowed"
                        : std::strerror(errno);
}

std::optional<struct stat> stat_at(const Descriptor& folder, const std::string& name) {
  struct stat found {};
  if (fstatat(folder.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return found;
}

Descriptor enter(const Descriptor& folder, const std::string& name) {
  Descriptor next(
      openat(folder.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!next.valid() && errno == ENOTDIR) {
    const std::optional<struct stat> found = stat_at(folder, name);
    errno = found && S_ISLNK(found->st_mode) ? ELOOP : ENOTDIR;
  }
  return next;
}

Descriptor open_input(const fs::path& path, Links links) {
  const int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  if (links == Links::kFollow) return Descriptor(open(path.c_str(), flags));
  const Descriptor folder = open_folder(path.parent_path(), false);
  if (!folder.valid()) return Descriptor();
  return Descriptor(openat(folder.get(), path.filename().c_str(), flags | O_NOFOLLOW));
}

std::string random_name() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
    throw run_error("cannot choose a random file name: getrandom() failed: {}", reason());
  return fmt::format("{}{:0{}x}{}", kPrefix, bits, kDigits, kSuffix);
}

bool is_temporary(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits + kSuffix.size()) return false;
  const std::string_view digits = name.substr(kPrefix.size(), kDigits);
  return name.starts_with(kPrefix) && name.ends_with(kSuffix) &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Removes a temporary file whose writer is dead, holding the file's lock while it does so. The
/// lock shows whether the writer lives; a process id would not, since the same id may belong to
/// another process in another container or at a later time.
void remove_if_left_over(const Descriptor& folder, const char* name) {
  if (!is_temporary(name)) return;
  const Descriptor file(openat(folder.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  const bool ours = file.valid() && fstat(file.get(), &found) == 0 && S_ISREG(found.st_mode) &&
                    found.st_uid == geteuid();
  if (ours && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlinkat(folder.get(), name, 0);
}

/// Writes all `bytes`. Returns false, with errno set, if not all of them could be written.
bool write_all(const Descriptor& file, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(file.get(), p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

UserError too_large(const fs::path& path, size_t bytes, size_t most) {
  return user_error("cannot read {}: it has {} bytes ({:.1f} GiB); allowed: at most {} MiB",
                    path.string(), bytes, static_cast<double>(bytes) / (1 << 30), most >> 20);
}

void remove_left_over(const Descriptor& folder) {
  const int fd = openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(fdopendir(fd), closedir);
  if (!list) return;
  while (const dirent* entry = readdir(list.get())) remove_if_left_over(folder, entry->d_name);
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (valid()) close();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

Descriptor::~Descriptor() {
  if (valid()) close();
}

int Descriptor::close() {
  return ::close(std::exchange(fd_, -1));
}

Descriptor open_folder(const fs::path& path, bool make) {
  const char* const start = path.is_absolute() ? "/" : ".";
  Descriptor folder(open(start, O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (const fs::path& part : path.relative_path()) {
    if (!folder.valid()) break;
    if (part.empty() || part == ".") continue;
    Descriptor next = enter(folder, part);
    if (!next.valid() && errno == ENOENT && make) {
      if (mkdirat(folder.get(), part.c_str(), 0777) != 0 && errno != EEXIST) return Descriptor();
      next = enter(folder, part);
    }
    folder = std::move(next);
  }
  return folder;
}

std::string unusual_kind(unsigned mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a link";
  if (S_ISFIFO(mode)) return "a FIFO or a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

InputFile::InputFile(const fs::path& path, Links links, size_t most)
    : path_(path.string()), file_(open_input(path, links)) {
  struct stat found {};
  if (!file_.valid() || fstat(file_.get(), &found) != 0) {
    throw user_error("cannot read {}: {}", path_, reason());
  }
  const std::string kind = unusual_kind(found.st_mode);
  if (!kind.empty()) throw user_error("cannot read {}: it is {}, not a file", path_, kind);
  size_ = static_cast<size_t>(found.st_size);
  if (size_ > most) throw too_large(path_, size_, most);
}

size_t InputFile::read(void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(file_.get(), static_cast<char*>(to) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw user_error("cannot read {}: {}", path_, reason());
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void InputFile::read_at(size_t offset, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = pread(file_.get(), static_cast<char*>(to) + done, bytes - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw user_error("cannot read {}: {}", path_, reason());
    if (n == 0)
      throw user_error(
          "cannot read {}: it ends after {} bytes, but had {} when it was opened; it must not "
          "change while it is used",
          path_, offset + done, size_);
    done += static_cast<size_t>(n);
  }
}

// Reads to the end of the file: its size is only a first guess, since a file in /proc has size 0,
// and another file may grow.
std::string read_file(const fs::path& path, Links links, size_t most) {
  InputFile file(path, links, most);
  std::string text(file.size() + 1, '\0');
  size_t done = 0;
  while ((done += file.read(text.data() + done, text.size() - done)) == text.size()) {
    if (done > most) throw too_large(path, done, most);
    text.resize(2 * text.size());
  }
  text.resize(done);
  return text;
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), folder_(open_folder(path_.parent_path(), false)) {
  if (!folder_.valid()) fail("open the folder of");
  remove_left_over(folder_);
  make_temporary();
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlinkat(folder_.get(), temporary_.c_str(), 0);
}

// The loop starts again with another name where a process that cleans up left-over files locked and
// removed the new file before this process could lock it. On a file system without locks,
// remove_if_left_over() removes no file.
void AtomicFile::make_temporary() {
  for (;;) {
    temporary_ = random_name();
    file_ = Descriptor(openat(folder_.get(), temporary_.c_str(),
                              O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file_.valid()) {
      temporary_.clear();
      if (errno == EEXIST) continue;
      fail("open");
    }
    const bool taken = flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat made {};
    if (fstat(file_.get(), &made) != 0) fail("open");
    if (!taken && made.st_nlink > 0) return;
  }
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (!write_all(file_, data, bytes)) fail("write");
}

void AtomicFile::commit(bool durable) {
  if (durable && fsync(file_.get()) != 0) fail("write");
  const std::string name = path_.filename();
  // Errors of close(2) must be known before the rename, so a duplicate of the descriptor is closed
  // here; file_, and with it the lock, is closed after the rename.
  Descriptor same(dup(file_.get()));
  if (same.close() != 0) fail("write");
  if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), name.c_str()) != 0) fail("write");
  temporary_.clear();
  file_ = Descriptor();
  if (!durable) return;
  // Calls fsync(2) for the folder, so that the new name is on the disk too.
  const Descriptor list(openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (list.valid()) fsync(list.get());
}

void AtomicFile::fail(const char* action) const {
  throw run_error("cannot {} {}: {}", action, path_.string(), reason());
}

void append_file(const fs::path& path, std::string_view text, bool anew) {
  const Descriptor folder = open_folder(path.parent_path(), false);
  const std::string name = path.filename();
  if (folder.valid() && anew) unlinkat(folder.get(), name.c_str(), 0);
  const int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Descriptor file(openat(folder.get(), name.c_str(), flags | (anew ? O_CREAT | O_EXCL : 0), 0666));
  struct stat found {};
  const auto fail = [&](const std::string& why) {
    return run_error("cannot write {}: {}", path.string(), why);
  };
  if (!file.valid() || fstat(file.get(), &found) != 0) throw fail(reason());
  if (!S_ISREG(found.st_mode) || found.st_nlink != 1)
    throw fail("it is not a regular file, or it has a second name (a hard link)");
  if (!write_all(file, text.data(), text.size()) || file.close() != 0) throw fail(reason());
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit(false);
}

void check_json_size(std::string_view text, const std::string& what) {
  // Of nlohmann::json and libstdc++ on 64 bits: an element of a list that grows, 16 bytes in the
  // old and up to 32 in the new memory; an empty list or object; a member's node with its name.
  constexpr size_t kElement = 48, kList = 96, kMember = 96, kMost = size_t{512} << 20;
  size_t bytes = text.size();
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted)
      i += c == '\\' ? 1 : 0;
    else if (c == ',')
      bytes += kElement;
    else if (c == ':')
      bytes += kMember;
    else if (c == '{' || c == '[')
      bytes += kList;
  }
  if (bytes <= kMost) return;
  throw user_error(
      "{}: the values of its JSON text would take about {} MiB of memory; allowed: {} MiB", what,
      bytes >> 20, kMost >> 20);
}

}  // namespace moe
