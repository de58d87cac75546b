// TCP connections at the start of a job: who listens, connects and says what within a deadline
// (clock_ns(); nothing waits beyond it). Sockets never block, close with their object, are not
// inherited, send small messages at once (TCP_NODELAY), and writing raises no SIGPIPE.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"

namespace moe {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_ = -1;
};

/// "10.0.0.1:29501", "[::1]:29501".
std::string place_of(const std::string& address, int64_t port);
/// Whether it is this machine's own, which no other can reach: localhost, 127.*, ::1.
bool is_loopback(const std::string& address);

/// Listens at all of this machine's addresses, or only at its own where `address` is one; port 0:
/// any that is free. Throws RunError naming the port.
Socket listen_at(const std::string& address, int64_t port);
int64_t port_of(const Socket& listener);
/// The next connection; closed: there is none now. `address` of who connected.
Socket accept_at(const Socket& listener, std::string& address);
/// One try at every address of the name; closed: `why` it failed.
Socket connect_to(const std::string& address, int64_t port, Nanoseconds deadline, std::string& why);
/// Of the other end, as digits.
std::string address_of_peer(const Socket& socket);

/// All `bytes`; false: the other end closed, or the deadline passed.
bool write_all(const Socket& socket, const void* data, size_t bytes, Nanoseconds deadline);
bool read_all(const Socket& socket, void* data, size_t bytes, Nanoseconds deadline);

/// Until one is as `events` of poll() say, or the deadline; those that are.
struct Watched {
  int descriptor;
  short events;
};
std::vector<bool> wait_for(const std::vector<Watched>& watched, Nanoseconds deadline);

}  // namespace moe
