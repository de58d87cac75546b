#include "tests/tcp/job.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace moe::test {

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  close(socket);
  return ntohs(address.sin_port);
}

Job::Job(int n, Command command, Change change)
    : n_(n),
      port_(free_port()),
      command_(std::move(command)),
      change_(std::move(change)),
      pids_(static_cast<size_t>(n)) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  read_ = ends[0];
  write_ = ends[1];
  fcntl(read_, F_SETFL, O_NONBLOCK);
}

Job::~Job() {
  for (const pid_t pid : pids_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  close(read_);
  close(write_);
}

void Job::start(int i) {
  Variables variables = {
      {"RANK", std::to_string(i)},       {"WORLD_SIZE", std::to_string(n_)},
      {"LOCAL_RANK", std::to_string(i)}, {"LOCAL_WORLD_SIZE", std::to_string(n_)},
      {"MASTER_ADDR", "127.0.0.1"},      {"MASTER_PORT", std::to_string(port_ - 1)}};
  if (change_) change_(i, variables);
  std::vector<char*> arguments;
  for (const std::string& word : command_) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    for (const auto& [name, text] : variables) setenv(name.c_str(), text.c_str(), 1);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(write_, 1);
    dup2(write_, 2);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  pids_[static_cast<size_t>(i)] = pid;
}

void Job::start_all() {
  for (int i = 0; i < n_; ++i) start(i);
}

void Job::signal(int i, int number) const {
  if (const pid_t pid = pids_[static_cast<size_t>(i)]; pid > 0) kill(pid, number);
}

const std::string& Job::text() {
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = read(read_, buffer.data(), buffer.size())) > 0;) {
    text_.append(buffer.data(), static_cast<size_t>(n));
  }
  return text_;
}

JobEnd Job::wait(int but, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  JobEnd end{std::vector<int>(static_cast<size_t>(n_), -1), "", 0};
  for (;;) {
    text();
    bool all = true;
    for (int i = 0; i < n_; ++i) {
      pid_t& pid = pids_[static_cast<size_t>(i)];
      int status = 0;
      if (pid > 0 && waitpid(pid, &status, WNOHANG) == pid) {
        pid = 0;
        end.statuses[static_cast<size_t>(i)] =
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      all = all && (pid == 0 || i == but);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    end.seconds = took.count();
    if (all || end.seconds > seconds) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  end.text = text();
  return end;
}

JobEnd run(int n, const Job::Command& command, const Job::Change& change) {
  Job job(n, command, change);
  job.start_all();
  return job.wait();
}

JobEnd run_case(int n, const std::string& name) {
  return run(n, {MOE_JOB_RANKS, name});
}

}  // namespace moe::test
