// How a job comes together by torchrun's variables, and what it says where it does not.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/tcp/job.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

/// What one process says and its status, with these variables beside those of rank 0 of 2.
void says(const Variables& set, int status, const std::string& text) {
  const JobEnd end = run(1, {MOEBENCH_BINARY, "run", "recipe.lua"}, [&](int, Variables& all) {
    all["WORLD_SIZE"] = "2";
    all["MOEBENCH_CONNECT_S"] = "0.3";
    for (const auto& [name, value] : set) all[name] = value;
  });
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{status});
  CHECK_THAT(end.text, Contains(text));
}

TEST_CASE("a variable that is wrong is named with its value") {
  says({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, 1, "RANK=4: with WORLD_SIZE=4 it must be 0 to 3");
  says({{"RANK", "-1"}}, 1, "RANK=-1: must be a whole number from 0 to 1");
  says({{"RANK", "first"}}, 1, "RANK=first: must be a whole number");
  says({{"RANK", ""}}, 1,
       "RANK is not set, but RANK='', WORLD_SIZE='2' and MASTER_ADDR='127.0.0.1'");
  says({{"WORLD_SIZE", "0"}}, 1, "WORLD_SIZE=0: must be a whole number from 1 to 4096");
  says({{"MASTER_ADDR", ""}}, 1, "MASTER_ADDR is not set");
  says({{"MASTER_PORT", ""}}, 1, "MASTER_PORT is not set");
  says({{"MASTER_PORT", "http"}}, 1, "MASTER_PORT=http: must be a whole number from 1 to 65535");
  says({{"MASTER_PORT", "65535"}}, 1,
       "MASTER_PORT=65535: without MOEBENCH_PORT, rank 0 listens at MASTER_PORT + 1");
  says({{"MOEBENCH_PORT", "1.5"}}, 1, "MOEBENCH_PORT=1.5: must be a whole number");
  says({{"MOEBENCH_CONNECT_S", "soon"}}, 1, "MOEBENCH_CONNECT_S=soon: must be seconds");
}

TEST_CASE("a variable that is wrong everywhere is told by rank 0 alone") {
  const JobEnd end = run(2, {MOEBENCH_BINARY, "run", "recipe.lua"},
                         [](int, Variables& all) { all["MASTER_PORT"] = "http"; });
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{1, 1});
  CHECK(end.text.find("MASTER_PORT") == end.text.rfind("MASTER_PORT"));
}

TEST_CASE("other commands of several processes run once, and do not wait for each other") {
  const JobEnd end = run(2, {MOEBENCH_BINARY, "doctor"});
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{0, 0});
  CHECK_THAT(end.text, Contains("profile cache"));
  CHECK(end.text.find("profile cache") == end.text.rfind("profile cache"));
}

TEST_CASE("processes that do not meet say who is missing, and where they looked") {
  says({{"RANK", "0"}}, 3, "rank 1 of 2 did not connect to rank 0 within 0.3 s");
  const int port = free_port();
  const std::string at = "127.0.0.1:" + std::to_string(port);
  says({{"RANK", "1"}, {"MOEBENCH_PORT", std::to_string(port)}}, 3,
       "rank 1: cannot connect to " + at + " within 0.3 s: Connection refused");
  says({{"RANK", "1"}, {"MASTER_ADDR", "no-such-host.invalid"}}, 3,
       "rank 1: cannot connect to no-such-host.invalid:");
}

/// Listens at a port, or connects to it; closed at the end.
class ForeignSocket {
 public:
  ForeignSocket() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ForeignSocket(const ForeignSocket&) = delete;
  ~ForeignSocket() { close(socket_); }

  int listen() {
    REQUIRE(bind(socket_, address(0), sizeof(sockaddr_in)) == 0);
    REQUIRE(::listen(socket_, 1) == 0);
    socklen_t length = sizeof address_;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address_), &length);
    return ntohs(address_.sin_port);
  }
  void connect(int port) {
    for (int i = 0; i < 1000; ++i) {
      if (::connect(socket_, address(port), sizeof(sockaddr_in)) == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL("nobody listens");
  }
  void say(const std::string& text) const {
    CHECK(send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
  }
  bool is_turned_away() const {
    char byte;
    return recv(socket_, &byte, 1, 0) <= 0;
  }

 private:
  sockaddr* address(int port) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address_.sin_port = htons(static_cast<uint16_t>(port));
    return reinterpret_cast<sockaddr*>(&address_);
  }
  const int socket_;
  sockaddr_in address_{};
};

TEST_CASE("a port that is in use is named, with the variable that sets another") {
  ForeignSocket other;
  const int port = other.listen();
  says({{"RANK", "0"}, {"MOEBENCH_PORT", std::to_string(port)}}, 3,
       "cannot listen at 127.0.0.1:" + std::to_string(port) +
           ": Address already in use (rank 0 listens at MASTER_ADDR, port MOEBENCH_PORT, or "
           "MASTER_PORT + 1 without it); set MOEBENCH_PORT to a free port");
}

TEST_CASE("foreign connections are turned away, and the job comes together") {
  Job job(3, {MOE_JOB_RANKS, "texts"});
  job.start(0);
  ForeignSocket silent, loud, brief;
  silent.connect(job.port());
  loud.connect(job.port());
  loud.say("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  brief.connect(job.port());
  brief.say("moe");
  CHECK(loud.is_turned_away());
  job.start(2);
  job.start(1);
  const JobEnd end = job.wait();
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{0, 0, 0});
  CHECK(silent.is_turned_away());
  CHECK(brief.is_turned_away());
}

TEST_CASE("a process that does not belong to the job is told why, and who it stood for is named") {
  const auto turned_away = [](const Variables& instead, const std::string& why) {
    const JobEnd end = run(2, {MOEBENCH_BINARY, "run", "recipe.lua"}, [&](int i, Variables& all) {
      all["MOEBENCH_CONNECT_S"] = "1";
      all["MOEBENCH_PORT"] = std::to_string(std::stoi(all["MASTER_PORT"]) + 1);
      for (const auto& [name, value] : instead) {
        if (i == 1) all[name] = value;
      }
    });
    INFO(end.text);
    CHECK(end.statuses == std::vector<int>{3, 3});
    CHECK_THAT(end.text,
               Contains("rank 1: this process was rejected at 127.0.0.1:") && Contains(why));
    CHECK_THAT(
        end.text,
        Contains("rank 1 of 2 did not connect to rank 0 within 1 s; a process was rejected: "));
  };
  turned_away({{"WORLD_SIZE", "3"}}, "RANK=1 has WORLD_SIZE=3, but rank 0 has WORLD_SIZE=2");
  turned_away({{"TORCHELASTIC_RUN_ID", "other"}}, "belongs to another job: ");
}

TEST_CASE("two processes with the same RANK are told so") {
  const JobEnd end = run(3, {MOEBENCH_BINARY, "run", "recipe.lua"}, [](int i, Variables& all) {
    all["MOEBENCH_CONNECT_S"] = "1";
    if (i == 2) all["RANK"] = "1";
  });
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 3, 3});
  CHECK_THAT(end.text, Contains("RANK=1: another process has this RANK"));
  CHECK_THAT(end.text, Contains("rank 2 of 3 did not connect to rank 0 within 1 s"));
}

}  // namespace
}  // namespace moe::test
