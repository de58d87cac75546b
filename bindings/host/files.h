// Which files a recipe may read and write.
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
    std::filesystem::path out_dir;             // "": nothing may be written
    std::vector<std::filesystem::path> roots;  // folders that may be read beside those
    std::vector<std::filesystem::path> named;  // files or folders that the command line names
    bool trust = false;                        // no limits
  };
  explicit Files(Options options) : options_(std::move(options)) {}

  /// The real path of a file or folder that may be read: without links, as engine/base/files.h
  /// wants it. A relative path is looked up from the working folder, then from the recipe's and the
  /// output folder. Throws UserError when it does not exist or lies outside; what stands outside is
  /// not looked at, so that the message does not depend on it.
  std::filesystem::path readable(const std::string& path) const;
  /// The content of such a file.
  std::string read(const std::string& path) const;
  /// The path of an output file, without links; its folders are made. Throws UserError for a name
  /// that leads out of the output folder or is no file's there, or when there is none.
  std::filesystem::path writable(const std::string& name) const;

 private:
  std::vector<std::filesystem::path> roots() const;
  Options options_;
};

/// FNV-1a 64, continued from `so_far`.
uint64_t text_hash(std::string_view text, uint64_t so_far = 14695981039346656037ull);
/// Makes the folder and tries to write into it. Throws UserError naming it and the reason.
void check_writable_folder(const std::filesystem::path& folder);
/// Throws UserError for a text that no path can be: one with a NUL, behind which a system call sees
/// nothing.
void check_path(const std::string& path);

}  // namespace moe::lua
