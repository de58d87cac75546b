// Which files a recipe may read and write, and writing that is all or nothing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

  /// The real path of a file or folder that may be read. A relative path is looked up from the
  /// working folder, then from the recipe's and the output folder. Throws UserError when it does
  /// not exist or lies outside (links are followed first).
  std::filesystem::path readable(const std::string& path) const;
  /// The path of an output file; its folders are made. Throws UserError for a name that leads out
  /// of the output folder, or when there is none.
  std::filesystem::path writable(const std::string& name) const;

 private:
  bool inside(const std::filesystem::path& real) const;
  Options options_;
};

/// FNV-1a 64, continued from `so_far`.
uint64_t text_hash(std::string_view text, uint64_t so_far = 14695981039346656037ull);
/// The whole file. Throws UserError naming the path and the reason.
std::string read_file(const std::filesystem::path& path);
/// Writes beside the target and renames. Throws RunError naming the path and the reason (disk
/// full).
void write_file(const std::filesystem::path& path, const std::string& text);
/// One write at the end of the file, which is made, or emptied first where `anew`; never through a
/// link. Throws RunError naming the path and the reason.
void append_file(const std::filesystem::path& path, const std::string& text, bool anew);
/// Makes the folder and tries to write into it. Throws UserError naming it and the reason.
void check_writable_folder(const std::filesystem::path& folder);

}  // namespace moe::lua
