// Child processes that answer questions side by side: each calls the same Lua function with a text
// and returns a text. A child is a fork of this process, so that it has the recipe as it is at that
// moment; what it changes stays with it. It draws nothing, prints nothing on standard output,
// ignores the terminal's signals, and ends when this process does, however that ends.
#pragma once

#include <sys/types.h>

#include <lua.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bindings/host/host.h"

namespace moe::lua {

class Workers {
 public:
  /// Starts `count` children that call the function on top of the stack, which is popped. Throws
  /// RunError when the system starts no more processes.
  Workers(lua_State* L, int64_t count);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t size() const { return children_.size(); }
  /// Sends a question to child `i`, which must not have one.
  void ask(size_t i, const std::string& question);
  struct Answer {
    size_t child;
    std::string text;
  };
  /// Waits for an answer of any child that has a question. Returns nothing when a stop was
  /// requested meanwhile. Throws RunError when a child ended without an answer.
  std::optional<Answer> next();

 private:
  struct Child {
    pid_t pid = -1;
    int socket = -1;
    bool asked = false;
    std::string read;  // the part of the answer that has arrived
  };
  [[noreturn]] void serve(lua_State* L, int socket, pid_t parent);
  [[noreturn]] void lost(const Child& child);
  bool take(Child& child);

  Host& host_;
  std::vector<Child> children_;
};

}  // namespace moe::lua
