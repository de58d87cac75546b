// The bytecode of the Lua library that the build makes (compile_library.cpp), which takes a tenth
// of the time to load that the text takes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moe::lua {

struct LibraryFile {
  std::string_view name;  // such as moe/init.lua, which with "@" before it is the chunk's name
  size_t hash;            // std::hash of the text
  std::string_view code;  // as lua_dump() writes it
};

extern const std::vector<LibraryFile> kLibraryFiles;

}  // namespace moe::lua
