// A recipe in a folder of its own, run by a host in this process.
#pragma once

#include <optional>
#include <string>

#include "bindings/host/host.h"
#include "tests/base/folder.h"

namespace moe::lua {

using moe::read_file;
using moe::write_file;
using moe::test::Folder;

inline HostOptions options_for(const std::string& recipe) {
  HostOptions options;
  options.scripts_dir = MOE_SOURCE_DIR "/scripts";
  options.recipe = recipe;
  options.cache = ":memory:";
  return options;
}

/// Runs the text as a recipe; what went wrong, or nothing.
inline std::optional<Failure> run_recipe(const Folder& folder, const std::string& text,
                                         void (*change)(HostOptions&) = nullptr) {
  HostOptions options = options_for(folder.write("recipe.lua", text));
  options.out_dir = folder.path("out");
  if (change != nullptr) change(options);
  Host host(options);
  return host.main();
}

/// The message of a recipe that must fail.
inline std::string message_of(const std::string& text, void (*change)(HostOptions&) = nullptr) {
  const Folder folder;
  const std::optional<Failure> failure = run_recipe(folder, text, change);
  return failure ? failure->message : "(no error)";
}

/// A host without a recipe, and Lua texts run as the library would, with all of its globals.
class LibraryState {
 public:
  LibraryState() : host_(options()) {}
  lua_State* L() { return host_.state(); }
  Host& host() { return host_; }
  /// Runs the text; throws as call() does.
  void run(const std::string& text, int num_results = 0) {
    if (luaL_loadstring(L(), text.c_str()) != 0) throw UserError(lua_tostring(L(), -1));
    call(L(), 0, num_results);
  }
  std::string text_of(const std::string& expression) {
    run("local core = require 'moe.core' return tostring(" + expression + ")", 1);
    std::string text = lua_tostring(L(), -1);
    lua_pop(L(), 1);
    return text;
  }

 private:
  static HostOptions options() {
    HostOptions o = options_for("");
    o.mode = "list";
    return o;
  }
  Host host_;
};

}  // namespace moe::lua
