#include "engine/comm/transport/tcp_mesh.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/comm/communicator.h"

namespace moe {
namespace {

// Structs are sent as they are in memory: a machine of the other byte order fails at the magic
// number.
constexpr uint64_t kHelloMagic = 0x6d6f652d68656c31, kAnswerMagic = 0x6d6f652d616e7331;
constexpr auto kBetweenTries = std::chrono::milliseconds(50);
// How long to retry a port that a process of an earlier job may be about to release.
constexpr Nanoseconds kPortInUse = 1'000'000'000;
// Rank 0's timeout ends the wait of all ranks, so the others wait this much longer.
constexpr Nanoseconds kLater = 5'000'000'000;

/// The first message of a process to one that it connects to.
struct Hello {
  uint64_t magic = kHelloMagic, job = 0, machine = 0;
  int64_t size = 0, rank = 0, port = 0;  // port: where it listens
};
struct Answer {
  uint64_t magic = kAnswerMagic, accepted = 1;
  std::array<char, 240> why{};
};
/// Where a process listens. An empty address means the address at which rank 0 is reached.
struct Entry {
  std::array<char, 64> address{};
  int64_t port = 0;
  uint64_t machine = 0;
};

Nanoseconds in_seconds(double seconds) {
  return clock_ns() + static_cast<Nanoseconds>(seconds * kNsPerSecond);
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// A number that is the same for processes that share a clock.
uint64_t machine() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  if (text.empty()) {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    text = name.data();
  }
  return std::hash<std::string>()(text);
}

/// Accepts the connections of the ranks from `first` on.
class Acceptor {
 public:
  Acceptor(const TcpJob& job, const Socket& listener, int64_t first)
      : job_(job), listener_(listener), first_(first) {}

  struct Connection {
    Socket socket;
    std::string address;
    Hello hello;
  };
  /// Returns the connections in rank order, from `first` on. Throws RunError when the deadline
  /// passes, when a rank that has connected closes its connection, or when rank 0 does (`rank_0` is
  /// a closed socket when this process is rank 0).
  std::vector<Connection> wait_for_all(Nanoseconds deadline, const Socket& rank_0) {
    connections_.resize(index(job_.size - first_));
    while (!missing().empty()) {
      poll_once(deadline, rank_0);
      if (clock_ns() < deadline || missing().empty()) continue;
      throw run_error(
          "{} of {} did not connect to rank {} within {} s{} (to wait longer, set "
          "MOEBENCH_CONNECT_S)",
          ranks_text(missing()), job_.size, job_.rank, job_.connect_s,
          turned_away_.empty() ? "" : "; a process was rejected: " + turned_away_);
    }
    return std::move(connections_);
  }

 private:
  /// A connection whose peer has not sent all of its Hello.
  struct Handshake {
    Connection connection;
    size_t bytes_read = 0;
    bool done = false;
  };

  std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (!connections_[i].socket.open()) ranks.push_back(first_ + static_cast<int64_t>(i));
    }
    return ranks;
  }

  void poll_once(Nanoseconds deadline, const Socket& rank_0) {
    // The listener and the handshakes are watched for reading, complete connections only for being
    // closed by their peers.
    std::vector<Watched> watched = {{listener_.descriptor(), POLLIN},
                                    {rank_0.descriptor(), POLLRDHUP}};
    const size_t num_handshakes = handshakes_.size();
    for (const Handshake& one : handshakes_)
      watched.push_back({one.connection.socket.descriptor(), POLLIN});
    for (const Connection& one : connections_)
      watched.push_back({one.socket.descriptor(), POLLRDHUP});
    const std::vector<bool> ready = wait_for(watched, deadline);
    if (ready[1]) throw run_error("rank 0 ended before all processes were connected");
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (!ready[2 + num_handshakes + i]) continue;
      throw run_error("rank {} ended before all processes were connected",
                      first_ + static_cast<int64_t>(i));
    }
    for (size_t i = 0; i < num_handshakes; ++i) {
      if (ready[2 + i]) read_hello(handshakes_[i]);
    }
    std::erase_if(handshakes_, [](const Handshake& one) { return one.done; });
    if (!ready[0]) return;
    Handshake one;
    one.connection.socket = accept_at(listener_, one.connection.address);
    if (one.connection.socket.open()) handshakes_.push_back(std::move(one));
  }

  void read_hello(Handshake& one) {
    const ssize_t n = recv(one.connection.socket.descriptor(),
                           reinterpret_cast<char*>(&one.connection.hello) + one.bytes_read,
                           sizeof(Hello) - one.bytes_read, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    one.bytes_read += n > 0 ? static_cast<size_t>(n) : 0;
    const bool magic =
        one.bytes_read < sizeof kHelloMagic || one.connection.hello.magic == kHelloMagic;
    one.done = n <= 0 || !magic || one.bytes_read == sizeof(Hello);
    if (n > 0 && one.done && magic) answer(one.connection);
  }

  void answer(Connection& connection) {
    const std::string why = objection(connection.hello);
    Answer answer;
    answer.accepted = why.empty() ? 1 : 0;
    why.copy(answer.why.data(), answer.why.size() - 1);
    if (!why.empty()) turned_away_ = why;
    const bool sent = write_all(connection.socket, &answer, sizeof answer, clock_ns());
    if (!why.empty() || !sent) return;
    connections_[index(connection.hello.rank - first_)] = std::move(connection);
  }

  std::string objection(const Hello& hello) const {
    if (hello.job != job_.id) {
      return fmt::format(
          "the process belongs to another job: its MASTER_ADDR, MASTER_PORT, MOEBENCH_PORT or "
          "TORCHELASTIC_RUN_ID differs from rank {}'s",
          job_.rank);
    }
    if (hello.size != job_.size) {
      return fmt::format("RANK={} has WORLD_SIZE={}, but rank {} has WORLD_SIZE={}", hello.rank,
                         hello.size, job_.rank, job_.size);
    }
    if (hello.rank < first_ || hello.rank >= job_.size) {
      return fmt::format("RANK={}: another process has this RANK; give every process its own",
                         hello.rank);
    }
    if (connections_[index(hello.rank - first_)].socket.open()) {
      return fmt::format("RANK={}: another process has this RANK; give every process its own",
                         hello.rank);
    }
    return "";
  }

  const TcpJob& job_;
  const Socket& listener_;
  const int64_t first_;
  std::vector<Connection> connections_;
  std::vector<Handshake> handshakes_;
  std::string turned_away_;
};

constexpr char kWhere[] =
    "rank 0 listens at MASTER_ADDR, port MOEBENCH_PORT, or MASTER_PORT + 1 without it";

/// Sends the Hello and reads the Answer. Returns false when there was no answer; throws RunError
/// when the other end is no process of this job or rejects this process.
bool shake_hands(const Socket& socket, const Hello& hello, const std::string& place,
                 Nanoseconds deadline) {
  Answer answer;
  if (!write_all(socket, &hello, sizeof hello, deadline) ||
      !read_all(socket, &answer, sizeof answer, deadline)) {
    return false;
  }
  if (answer.magic != kAnswerMagic) {
    throw run_error("{}: the program that listens there is not a process of this job ({})", place,
                    kWhere);
  }
  answer.why.back() = '\0';
  if (answer.accepted == 0)
    throw run_error("this process was rejected at {}: {}", place, answer.why.data());
  return true;
}

/// Connects to a rank; tries again while no process listens there or answers.
Socket connect_until(const std::string& address, int64_t port, const Hello& hello, double seconds) {
  const Nanoseconds deadline = in_seconds(seconds);
  const std::string place = place_of(address, port);
  std::string why;
  for (;;) {
    Socket socket = connect_to(address, port, deadline, why);
    if (socket.open() && shake_hands(socket, hello, place, deadline)) return socket;
    if (socket.open()) why = "the program that listens there does not answer";
    if (clock_ns() >= deadline) break;
    std::this_thread::sleep_for(kBetweenTries);
  }
  throw run_error("cannot connect to {} within {} s: {} ({})", place, seconds, why, kWhere);
}

Socket listen_for_all(const TcpJob& job) {
  const Nanoseconds until = clock_ns() + kPortInUse;
  for (;;) {
    try {
      return listen_at(job.address, job.port);
    } catch (const RunError& error) {
      if (clock_ns() < until) {
        std::this_thread::sleep_for(kBetweenTries);
        continue;
      }
      throw run_error("{} ({}); set MOEBENCH_PORT to a free port", error.what(), kWhere);
    }
  }
}

/// Returns how many of the ranks below `end` are on the machine `here` (machine()).
int64_t num_on(uint64_t here, const std::vector<Entry>& table, int64_t end) {
  return std::count_if(table.begin(), table.begin() + end,
                       [&](const Entry& one) { return one.machine == here; });
}

TcpMesh connect_root(const TcpJob& job) {
  const Socket listener = listen_for_all(job);
  std::vector<Acceptor::Connection> connections =
      Acceptor(job, listener, 1).wait_for_all(in_seconds(job.connect_s), Socket());
  std::vector<Entry> table(index(job.size));
  table[0].machine = machine();
  TcpMesh mesh;
  mesh.peers.resize(index(job.size));
  for (size_t r = 1; r < table.size(); ++r) {
    const Acceptor::Connection& connection = connections[r - 1];
    table[r].port = connection.hello.port;
    table[r].machine = connection.hello.machine;
    if (!is_loopback(connection.address)) {
      connection.address.copy(table[r].address.data(), table[r].address.size() - 1);
    }
  }
  for (size_t r = 1; r < table.size(); ++r) {
    if (!write_all(connections[r - 1].socket, table.data(), table.size() * sizeof(Entry),
                   in_seconds(job.connect_s))) {
      throw run_error("rank {} ended before all processes were connected", r);
    }
    mesh.peers[r] = std::move(connections[r - 1].socket);
  }
  mesh.size_here = num_on(table[0].machine, table, job.size);
  return mesh;
}

TcpMesh connect_other(const TcpJob& job) {
  const Socket listener = listen_at(job.address, 0);
  Hello hello{.job = job.id, .machine = machine(), .size = job.size, .rank = job.rank};
  hello.port = port_of(listener);
  TcpMesh mesh;
  mesh.peers.resize(index(job.size));
  mesh.peers[0] = connect_until(job.address, job.port, hello, job.connect_s);
  std::vector<Entry> table(index(job.size));
  if (!read_all(mesh.peers[0], table.data(), table.size() * sizeof(Entry),
                in_seconds(job.connect_s) + kLater)) {
    throw run_error("rank 0 at {} ended before all processes were connected",
                    place_of(job.address, job.port));
  }
  const std::string beside_rank_0 = address_of_peer(mesh.peers[0]);
  for (int64_t r = 1; r < job.rank; ++r) {
    const Entry& to = table[index(r)];
    const std::string address = to.address.front() != '\0' ? to.address.data() : beside_rank_0;
    mesh.peers[index(r)] = connect_until(address, to.port, hello, job.connect_s);
  }
  const int64_t next = job.rank + 1;
  std::vector<Acceptor::Connection> connections =
      Acceptor(job, listener, next).wait_for_all(in_seconds(job.connect_s), mesh.peers[0]);
  for (size_t i = 0; i < connections.size(); ++i) {
    mesh.peers[index(next) + i] = std::move(connections[i].socket);
  }
  mesh.size_here = num_on(hello.machine, table, job.size);
  mesh.place_here = num_on(hello.machine, table, job.rank);
  return mesh;
}

}  // namespace

TcpMesh connect_all(const TcpJob& job) {
  if (job.size == 1) return {std::vector<Socket>(1)};
  return job.rank == 0 ? connect_root(job) : connect_other(job);
}

}  // namespace moe
