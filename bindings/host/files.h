// Which files a recipe may read and write. Without --trust it may read only its own folder, the
// output folder, ./out, the Lua library's folder, and files and folders that the command line
// names; it may write only into the output folder. Other places are not accessed at all. Opening
// and reading files is in engine/base/files.h.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/files.h"

namespace moe::lua {

class Files {
 public:
  struct Options {
    std::filesystem::path recipe_dir;
    std::filesystem::path out_dir;             // "" means that nothing may be written
    std::filesystem::path library;             // the Lua library's folder
    std::vector<std::filesystem::path> roots;  // further folders that may be read
    std::vector<std::filesystem::path> named;  // files or folders that the command line names
    bool trust = false;                        // true means no limits of folders
    size_t most_bytes = kMostBytesOfFile;      // of a file that is read as a whole
    bool lock = false;  // true means that one process at a time writes into the output folder
  };
  explicit Files(Options options) : options_(std::move(options)) {}

  /// Returns the real path, without symbolic links, of a file or folder that the recipe may read. A
  /// relative path is looked up in the working folder, then in the recipe's folder, the output
  /// folder and Options::roots. Throws UserError if it does not exist or is outside the folders
  /// that may be read. Places that may not be read are not accessed, so the message is the same
  /// whether a file exists there or not.
  std::filesystem::path readable(const std::string& path) const;
  /// Returns the content of a file that the recipe may read; throws as readable(), and for a file
  /// of more than Options::most_bytes.
  std::string read(const std::string& path) const;
  /// How often readable() and read() were called in this process for paths outside the library's
  /// folder, except while the recipe was loaded once more for a rank.
  static int64_t reads();
  void count_reads(bool count) { counts_ = count; }
  /// Returns the path of an output file, without symbolic links, and makes its folders. Throws
  /// UserError if the name leads out of the output folder, if something other than a regular
  /// file has this name, or if there is no output folder. With Options::lock the first call locks
  /// the output folder until this object ends, and throws as lock() does.
  std::filesystem::path writable(const std::string& name) const;

 private:
  std::vector<std::filesystem::path> roots() const;
  void lock_folder(const std::filesystem::path& root) const;
  Options options_;
  bool counts_ = true;
  mutable Descriptor lock_;
};

/// Returns the FNV-1a 64 hash of the text, continued from the hash `so_far`.
uint64_t text_hash(std::string_view text, uint64_t so_far = 14695981039346656037ull);
/// Makes the folder and tries to write into it. Throws UserError naming the folder and the reason.
void check_writable_folder(const std::filesystem::path& folder);
/// Throws UserError if the text contains a NUL, at which a system call would end the path.
void check_path(const std::string& path);

}  // namespace moe::lua
