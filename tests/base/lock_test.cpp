#include "engine/base/lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "engine/base/stop.h"
#include "tests/base/folder.h"
#include "tests/base/message_of.h"

namespace moe {
namespace {

TEST_CASE("a lock that is held names its holder at the end of the wait; a stop ends the wait") {
  const test::Folder folder;
  const auto open_it = [&] { return Descriptor(open(folder.path().c_str(), O_RDONLY)); };
  const Descriptor other = open_it();
  {
    const Descriptor first = open_it();
    CHECK(try_lock(first));
    CHECK_FALSE(try_lock(other));
    const std::string message = test::message_of<RunError>([&] { lock(other, "it", "wait", 0.2); });
    CHECK(message ==
          "it: process " + std::to_string(getpid()) + " still has it locked after 0.2 s; wait");
    request_stop();
    CHECK_THROWS_AS(lock(other, "it", "wait"), Interrupted);
    withdraw_stop();
  }
  lock(other, "it", "wait");
  CHECK_FALSE(try_lock(open_it()));
}

}  // namespace
}  // namespace moe
