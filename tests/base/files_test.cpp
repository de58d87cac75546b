#include "engine/base/files.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "engine/base/errors.h"
#include "tests/base/folder.h"

namespace fs = std::filesystem;

namespace moe {
namespace {

using test::Folder;

size_t size_of(const Folder& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder.path()), {}));
}

}  // namespace

TEST_CASE("a file is the old one until it is the whole new one") {
  const Folder folder;
  write_file(folder.path("a"), "old");
  {
    AtomicFile file(folder.path("a"));
    file.write("new text", 8);
    CHECK(read_file(folder.path("a")) == "old");
    file.commit(true);
  }
  CHECK(read_file(folder.path("a")) == "new text");
  { AtomicFile given_up(folder.path("a")); }
  CHECK(size_of(folder) == 1);
  const std::string long_name(255, 'n');
  write_file(folder.path(long_name), "text");
  CHECK(read_file(folder.path(long_name)) == "text");
}

TEST_CASE("writers of one name at once leave one of their texts and nothing else") {
  const Folder folder;
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'i'; ++c) {
    writers.emplace_back([&folder, c] {
      for (int i = 0; i < 50; ++i) write_file(folder.path("x"), std::string(10000, c));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = read_file(folder.path("x"));
  CHECK(text == std::string(10000, text[0]));
  CHECK(size_of(folder) == 1);
}

TEST_CASE("the file of a writer that died is removed, that of one that lives is not") {
  const Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    AtomicFile file(folder.path("dead"));
    file.write("half", 4);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(size_of(folder) == 1);
  AtomicFile alive(folder.path("alive"));
  CHECK(size_of(folder) == 1);
  AtomicFile other(folder.path("other"));
  CHECK(size_of(folder) == 2);
  alive.commit(false);
  other.commit(false);
  CHECK(fs::exists(folder.path("alive")));
  CHECK(fs::exists(folder.path("other")));
}

TEST_CASE("no link is followed on the way to a file that is written, nor where that is refused") {
  const Folder folder, elsewhere;
  write_file(elsewhere.path("f"), "theirs");
  fs::create_directory_symlink(elsewhere.path(""), folder.path("link"));
  fs::create_symlink(elsewhere.path("f"), folder.path("f"));
  CHECK_THROWS_AS(write_file(folder.path("link/f"), "mine"), RunError);
  CHECK_THROWS_AS(read_file(folder.path("link/f"), Links::kRefuse), UserError);
  CHECK_THROWS_AS(read_file(folder.path("f"), Links::kRefuse), UserError);
  CHECK(read_file(folder.path("link/f")) == "theirs");
  CHECK_FALSE(open_folder(folder.path("link"), false).valid());
  CHECK_FALSE(open_folder(folder.path("link/new"), true).valid());
  CHECK(open_folder(folder.path("new/er"), true).valid());
  write_file(folder.path("f"), "mine");  // takes the link's place
  CHECK(read_file(elsewhere.path("f")) == "theirs");
  CHECK(std::distance(fs::directory_iterator(elsewhere.path()), {}) == 1);
}

TEST_CASE("lines are added to a file of one name alone, and begin in a file of their own") {
  const Folder folder, elsewhere;
  const fs::path lines = folder.path("lines");
  CHECK_THROWS_AS(append_file(lines, "lost", false), RunError);
  append_file(lines, "one", true);
  append_file(lines, " two", false);
  CHECK(read_file(lines) == "one two");
  append_file(lines, "anew", true);
  CHECK(read_file(lines) == "anew");
  write_file(elsewhere.path("f"), "theirs");
  const auto symbolic = [&] { fs::create_symlink(elsewhere.path("f"), lines); };
  const auto hard = [&] { fs::create_hard_link(elsewhere.path("f"), lines); };
  for (const std::function<void()>& plant : {std::function<void()>(symbolic), {hard}}) {
    fs::remove(lines);
    plant();
    CHECK_THROWS_AS(append_file(lines, "mine", false), RunError);
    append_file(lines, "mine", true);  // takes the link's place
    CHECK(read_file(lines) == "mine");
    CHECK(read_file(elsewhere.path("f")) == "theirs");
  }
}

TEST_CASE("what is no regular file is not read, and a FIFO is not waited for") {
  const Folder folder;
  REQUIRE(mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  for (const std::string& path : {folder.path("fifo"), folder.path(""), std::string("/dev/null")}) {
    CHECK_THROWS_WITH(read_file(path), Catch::Contains("not a file"));
  }
  CHECK(!read_file("/proc/self/status").empty());
}

}  // namespace moe
