// Files in folders into which another user may have put symbolic links or special files. Only
// regular files are read, links are not followed except in a path that the user typed, and a file
// that is written appears complete or not at all, except by append_file(). Which folders a recipe
// may use is not decided here but in bindings/host/files.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace moe {

/// A file descriptor that closes itself; -1 means that there is none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Closes the descriptor. Returns the result of close(2): on some file systems a failed write is
  /// reported only then.
  int close();

 private:
  int fd_;
};

/// Whether symbolic links in a path are followed. kFollow is for a path that the user typed.
/// kRefuse is for a path that was checked before: a link in it was put there after the check.
enum class Links { kFollow, kRefuse };

/// Opens a folder for *at(2) calls, following no link (".." is accepted). `make`: create missing
/// folders. On failure returns an invalid descriptor with errno set (ELOOP for a link).
Descriptor open_folder(const std::filesystem::path& path, bool make);

/// Returns "a folder", "a link", "a FIFO or a pipe", ... for st_mode of stat(2); "" for a regular
/// file.
std::string unusual_kind(unsigned mode);

/// The most bytes of a file that is read as a whole where its caller allows no less: 2 GiB.
constexpr size_t kMostBytesOfFile = size_t{1} << 31;

/// A regular file.
class InputFile {
 public:
  /// Opens the file; does not wait for the writer of a FIFO. Throws UserError with the path and the
  /// reason when the file cannot be opened, is not a regular file or has more than `most` bytes.
  InputFile(const std::filesystem::path& path, Links links, size_t most = SIZE_MAX);
  /// Reads `bytes` bytes and returns their number, which is smaller only at the end of the file.
  /// Throws UserError when reading fails.
  size_t read(void* to, size_t bytes);
  /// Reads `bytes` bytes from the offset on; several threads may call it at the same time. Throws
  /// UserError when reading fails or the file ends before.
  void read_at(size_t offset, void* to, size_t bytes) const;
  /// The size in bytes when the file was opened.
  size_t size() const { return size_; }

 private:
  std::string path_;
  Descriptor file_;
  size_t size_ = 0;
};

/// Returns the content of the whole file. Throws UserError as InputFile does; a file that grows
/// beyond `most` bytes while it is read is refused too.
std::string read_file(const std::filesystem::path& path, Links links = Links::kFollow,
                      size_t most = kMostBytesOfFile);

/// A file that appears under its name only when it is complete, replacing an older file of that
/// name. Until then it has a random name in the same folder and is locked, which shows that its
/// writer lives.
class AtomicFile {
 public:
  /// Creates the temporary file. No part of the path may be a link. Also removes temporary files
  /// that killed writers left in that folder. All members throw RunError with path and reason.
  explicit AtomicFile(std::filesystem::path path);
  /// Removes the temporary file unless commit() has returned.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  /// Gives the file its final name. `durable`: when commit() returns, the file is also on the disk
  /// and survives a crash of the machine.
  void commit(bool durable);

 private:
  [[noreturn]] void fail(const char* action) const;
  void make_temporary();

  std::filesystem::path path_;
  Descriptor folder_, file_;
  std::string temporary_;  // name of the temporary file; "" when there is none
};

/// Appends `text` to a file, by one system call where the disk accepts all of it at once. `anew`:
/// an existing file is removed first and a new, empty one is created; otherwise the file must
/// exist, be a regular file and have no second name (hard link). No part of the path may be a link.
/// Throws RunError with the path and the reason.
void append_file(const std::filesystem::path& path, std::string_view text, bool anew);

/// Writes `text` as the whole content of an AtomicFile and commits it, not durably.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Throws UserError, which begins with `what`, if the values of the text would take more than 512
/// MiB as nlohmann::json has them: a few bytes of text can become a hundred times as many (as much
/// as a recipe may use). The text need not be JSON.
void check_json_size(std::string_view text, const std::string& what);

}  // namespace moe
