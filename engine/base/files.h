// Files in folders that somebody else may have prepared: what is no regular file is not read, links
// are not followed where nobody typed them, and what is written appears whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace moe {

/// A file descriptor that closes itself; -1 where there is none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// What close(2) returns: the last word of some file systems on what was written.
  int close();

 private:
  int fd_;
};

/// Whether links in a path are followed. They are in a path that the user typed; they are not in
/// one that was checked, since one that stands there now was put there afterwards.
enum class Links { kFollow, kRefuse };

/// Opens a folder as a place for *at(2) calls and follows no link on the way, ".." apart. make:
/// folders that are missing are made. Not valid, with errno, where it fails: ELOOP for a link.
Descriptor open_folder(const std::filesystem::path& path, bool make);

/// "a folder", "a link", "a FIFO", ... of a mode of stat(2); "" of a regular file.
std::string unusual_kind(unsigned mode);

/// A regular file that is read from its beginning.
class InputFile {
 public:
  /// Throws UserError with the path and the reason. Does not wait for the writer of a FIFO.
  InputFile(const std::filesystem::path& path, Links links);
  /// Fewer bytes at the file's end only. Throws UserError.
  size_t read(void* to, size_t bytes);
  /// The next read begins at the file's beginning again. Throws UserError.
  void rewind();
  /// When it was opened.
  size_t size() const { return size_; }

 private:
  std::string path_;
  Descriptor file_;
  size_t size_ = 0;
};

/// The whole file. Throws as InputFile.
std::string read_file(const std::filesystem::path& path, Links links = Links::kFollow);

/// A file that appears under its name when it is complete, in the place of what stood there. Until
/// then it has a random name beside it and is locked, by which others see that its writer lives.
class AtomicFile {
 public:
  /// No part of the path may be a link. Removes what killed writers left in that folder.
  /// Throws RunError with the path and the reason, as the other members do.
  explicit AtomicFile(std::filesystem::path path);
  /// Leaves nothing behind unless commit() has returned.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  /// durable: also on the disk when this returns, should the machine stop.
  void commit(bool durable);

 private:
  [[noreturn]] void fail(const char* action) const;
  void make_temporary();

  std::filesystem::path path_;
  Descriptor folder_, file_;
  std::string temporary_;  // its name; "" where there is none
};

/// Removes what stands at a path of which no part before the last is a link, if anything does.
void remove_file(const std::filesystem::path& path);

/// Writes at the end of a file, by one call where the disk takes it whole. anew: what stood there
/// goes and an empty file takes its place; else the file is there and is a regular one under this
/// name alone. No part of the path may be a link. Throws RunError with the path and the reason.
void append_file(const std::filesystem::path& path, std::string_view text, bool anew);

/// Writes an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace moe
