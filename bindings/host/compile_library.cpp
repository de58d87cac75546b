// compile_library SCRIPTS FILE.cpp: writes the bytecode of all Lua files in SCRIPTS/moe as the
// table of bindings/host/library_code.h. A part of the build; the program compiles nothing.
#include <lua.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

namespace fs = std::filesystem;

namespace {

int append_code(lua_State*, const void* data, size_t size, void* code) {
  static_cast<std::string*>(code)->append(static_cast<const char*>(data), size);
  return 0;
}

std::string literal(const std::string& bytes) {
  std::string text = "\"";
  char octal[5];
  for (const char c : bytes) {
    std::snprintf(octal, sizeof octal, "\\%03o", static_cast<unsigned char>(c));
    text += octal;
  }
  return text + '"';
}

}  // namespace

int main(int, char** argv) {
  const fs::path scripts = argv[1];
  lua_State* const L = luaL_newstate();
  std::ofstream out(argv[2]);
  out << "#include \"bindings/host/library_code.h\"\n"
         "namespace moe::lua {\nconst std::vector<LibraryFile> kLibraryFiles = {\n";
  for (const auto& entry : fs::recursive_directory_iterator(scripts / "moe")) {
    if (entry.path().extension() != ".lua") continue;
    std::ifstream in(entry.path());
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const std::string name = fs::relative(entry.path(), scripts).string();
    std::string code;
    if (luaL_loadbufferx(L, text.data(), text.size(), ("@" + name).c_str(), "t") != 0) {
      std::cerr << lua_tostring(L, -1) << "\n";
      return 1;
    }
    lua_dump(L, append_code, &code);
    lua_settop(L, 0);
    out << "{" << literal(name) << ", " << std::hash<std::string>()(text) << "u, {" << literal(code)
        << ", " << code.size() << "}},\n";
  }
  out << "};\n}  // namespace moe::lua\n";
  lua_close(L);
  return out.flush() ? 0 : 1;
}
