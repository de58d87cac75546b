// Messages over TCP. One thread of the transport sends and receives for all connections; a caller
// of send() first tries to send directly.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/job/launch.h"
#include "engine/comm/transport/tcp_mesh.h"
#include "engine/comm/transport/tcp_queues.h"
#include "engine/comm/transport/transport.h"

namespace moe {
namespace {

constexpr Bytes kAtOnce = TcpFrame::kMostBytes;  // most bytes moved while a peer's lock is held
constexpr auto kNap = std::chrono::milliseconds(1);
constexpr Nanoseconds kLastWordsOut = 300'000'000, kFarewell = 10'000'000'000;

struct Peer {
  std::mutex mutex;  // guards all members except `lost`
  Socket socket;     // closed for this rank itself and after the connection has ended
  TcpOutbox outbox;
  TcpInbox inbox;
  std::string why;                // why the peer is lost
  std::atomic<bool> lost{false};  // set after everything that it sent has been read
};

class Tcp final : public Transport {
 public:
  explicit Tcp(const TcpJob& job);
  ~Tcp() override;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(peers_.size()); }
  int64_t size_here() const override { return size_here_; }
  int64_t place_here() const override { return place_here_; }
  int64_t open_channel() override { return num_channels_++; }
  std::unique_ptr<Messages> messages() override;
  std::optional<ControlMessage> read(int64_t channel) override;
  void finish() override;
  void abort(int status) override;

  Peer& peer(int64_t rank) { return peers_.at(index(rank)); }
  void send(int64_t channel, int tag, TcpRequest& request);

 private:
  void serve();
  void move(Peer& peer, short events);
  void close(Peer& peer, int error);
  void wake() const;
  /// Whether `holds` is true for all peers that are connected.
  bool all(bool (*holds)(Peer&));

  const int64_t rank_;
  int64_t size_here_ = 1, place_here_ = 0;
  std::atomic<int64_t> num_channels_{0};
  std::deque<Peer> peers_;
  Socket wake_;
  std::atomic<bool> stop_{false};
  std::jthread mover_;  // last: uses all of the above
};

class TcpMessages final : public Messages {
 public:
  explicit TcpMessages(Tcp& tcp) : tcp_(tcp) {}
  ~TcpMessages() override { give_up(); }

  void send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) override;
  void receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) override;
  bool over() override;
  std::vector<int64_t> missing() const override;
  void give_up() override;

 private:
  TcpRequest& add(int64_t peer, const void* data, Bytes bytes);

  Tcp& tcp_;
  std::deque<TcpRequest> requests_;
};

Tcp::Tcp(const TcpJob& job)
    : rank_(job.rank), peers_(index(job.size)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_.open())
    throw run_error("cannot create an eventfd, which wakes the thread of the connections: {}",
                    std::strerror(errno));
  TcpMesh mesh = connect_all(job);
  size_here_ = mesh.size_here;
  place_here_ = mesh.place_here;
  for (size_t r = 0; r < peers_.size(); ++r) peers_[r].socket = std::move(mesh.peers[r]);
  mover_ = start_thread("the TCP connections", [this] { serve(); });
}

Tcp::~Tcp() {
  stop_.store(true);
  wake();
  if (mover_.joinable()) mover_.join();
}

void Tcp::wake() const {
  const uint64_t one = 1;
  // write() fails only when the thread has been woken already.
  [[maybe_unused]] const ssize_t written = write(wake_.descriptor(), &one, sizeof one);
}

void Tcp::serve() {
  std::vector<pollfd> watched(peers_.size() + 1);
  while (!stop_.load()) {
    watched.back() = {wake_.descriptor(), POLLIN, 0};
    for (size_t r = 0; r < peers_.size(); ++r) {
      const std::lock_guard lock(peers_[r].mutex);
      const bool writes = !peers_[r].outbox.empty();
      watched[r] = {peers_[r].socket.descriptor(),
                    static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0};
    }
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // interrupted by a signal
    uint64_t times = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.descriptor(), &times, sizeof times);
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (watched[r].revents != 0) move(peers_[r], watched[r].revents);
    }
  }
}

void Tcp::move(Peer& peer, short events) {
  const std::lock_guard lock(peer.mutex);
  if (!peer.socket.open()) return;
  if ((events & ~POLLOUT) != 0) {
    const TcpLink link = peer.inbox.fill(peer.socket.descriptor(), kAtOnce);
    if (const auto status = peer.inbox.said_abort()) std::_Exit(*status);
    if (link == TcpLink::kClosed) return close(peer, errno);
  }
  // A failure to write is ignored: the peer may have sent the reason why it ended, which the next
  // read finds.
  if ((events & POLLOUT) != 0) peer.outbox.flush(peer.socket.descriptor(), kAtOnce);
}

/// Closes the connection to a peer. The peer is lost, for the reason in `why`, unless it said
/// goodbye before. The caller holds the peer's lock.
void Tcp::close(Peer& peer, int error) {
  const auto rank =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& one) { return &one == &peer; }) -
      peers_.begin();
  peer.socket.close();
  if (peer.inbox.said_goodbye()) return;
  const std::string& fault = peer.inbox.fault();
  peer.why = fmt::format("rank {} is lost: {}", rank,
                         !fault.empty()       ? fault
                         : error == ETIMEDOUT ? "its machine does not answer"
                                              : "its connection closed; its process was killed "
                                                "or has ended");
  peer.lost.store(true, std::memory_order_release);
}

void Tcp::send(int64_t channel, int tag, TcpRequest& request) {
  Peer& to = peer(request.peer);
  const std::lock_guard lock(to.mutex);
  if (!to.socket.open()) return;
  const bool first = to.outbox.empty();
  to.outbox.add(channel, tag, request);
  if (!first) return;
  to.outbox.flush(to.socket.descriptor(), kAtOnce);
  if (!to.outbox.empty()) wake();
}

std::unique_ptr<Messages> Tcp::messages() {
  return std::make_unique<TcpMessages>(*this);
}

std::optional<Transport::ControlMessage> Tcp::read(int64_t channel) {
  for (int64_t r = 0; r < size(); ++r) {
    const std::lock_guard lock(peer(r).mutex);
    if (auto text = peer(r).inbox.take(channel)) return ControlMessage{r, std::move(*text)};
  }
  for (Peer& one : peers_) {
    if (one.lost.load(std::memory_order_acquire)) throw RunError(one.why);
  }
  return std::nullopt;
}

bool Tcp::all(bool (*holds)(Peer&)) {
  return std::all_of(peers_.begin(), peers_.end(), [&](Peer& one) {
    const std::lock_guard lock(one.mutex);
    return !one.socket.open() || holds(one);
  });
}

void Tcp::finish() {
  for (Peer& one : peers_) {
    const std::lock_guard lock(one.mutex);
    one.outbox.say_goodbye();
  }
  wake();
  const Nanoseconds until = clock_ns() + kFarewell;
  const auto done = [](Peer& one) { return one.outbox.empty() && one.inbox.said_goodbye(); };
  while (!all(done) && clock_ns() < until) std::this_thread::sleep_for(kNap);
  stop_.store(true);
  wake();
  mover_.join();
  for (Peer& one : peers_) one.socket.close();
}

/// Sends abort frames to the other processes and waits (up to kLastWordsOut) until these have
/// closed their connections: bytes on their way may be lost when this side closes first.
void Tcp::abort(int status) {
  for (Peer& one : peers_) {
    const std::lock_guard lock(one.mutex);
    one.outbox.say_abort(status);
  }
  wake();
  const Nanoseconds until = clock_ns() + kLastWordsOut;
  while (!all([](Peer&) { return false; }) && clock_ns() < until) std::this_thread::sleep_for(kNap);
}

TcpRequest& TcpMessages::add(int64_t peer, const void* data, Bytes bytes) {
  TcpRequest& request = requests_.emplace_back();
  request.peer = peer;
  request.data = static_cast<char*>(const_cast<void*>(data));
  request.bytes = bytes;
  return request;
}

void TcpMessages::send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) {
  if (bytes > 0) tcp_.send(channel, tag, add(peer, data, bytes));
}

void TcpMessages::receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) {
  if (bytes == 0) return;
  TcpRequest& request = add(peer, data, bytes);
  const std::lock_guard lock(tcp_.peer(peer).mutex);
  tcp_.peer(peer).inbox.post(channel, tag, request);
}

bool TcpMessages::over() {
  bool all = true;
  for (const TcpRequest& request : requests_) {
    const Peer& peer = tcp_.peer(request.peer);
    // `lost` is read before `over`: it is set after everything that the peer sent has been read.
    const bool lost = peer.lost.load(std::memory_order_acquire);
    if (request.over.load(std::memory_order_acquire)) continue;
    if (lost) throw RunError(peer.why);
    all = false;
  }
  if (all) requests_.clear();
  return all;
}

std::vector<int64_t> TcpMessages::missing() const {
  std::set<int64_t> peers;
  for (const TcpRequest& request : requests_) {
    if (!request.over.load(std::memory_order_acquire)) peers.insert(request.peer);
  }
  return {peers.begin(), peers.end()};
}

void TcpMessages::give_up() {
  for (const TcpRequest& request : requests_) {
    if (request.over.load(std::memory_order_acquire)) continue;
    Peer& peer = tcp_.peer(request.peer);
    const std::lock_guard lock(peer.mutex);
    peer.inbox.drop(request);
    peer.outbox.drop(request);
  }
  requests_.clear();
}

}  // namespace

std::unique_ptr<Transport> open_tcp(const TcpJob& job) {
  return std::make_unique<Tcp>(job);
}

std::unique_ptr<Transport> open_transport() {
  return launch().by == Launch::By::kVariables ? open_tcp(tcp_job()) : open_mpi();
}

}  // namespace moe
