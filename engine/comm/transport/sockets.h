// TCP sockets for the start of a job: listening, connecting, reading and writing, each until a
// deadline (of clock_ns(); only the look-up of a name may last longer). Sockets never block, are
// closed by their destructor, are not inherited, and send small messages at once (TCP_NODELAY);
// writing raises no SIGPIPE. Messages after the start are in tcp_queues.h.
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

/// Returns "10.0.0.1:29501", "[::1]:29501".
std::string place_of(const std::string& address, int64_t port);
/// Whether the address is one that no other machine can reach: localhost, 127.*, ::1.
bool is_loopback(const std::string& address);

/// Listens at all of this machine's addresses, or only at the loopback address when `address` is
/// one; port 0 means any free port. Throws RunError, which names `address` and the port.
Socket listen_at(const std::string& address, int64_t port);
int64_t port_of(const Socket& listener);
/// Returns the next connection and, in `address`, its peer; a closed socket when none is waiting.
Socket accept_at(const Socket& listener, std::string& address);
/// Tries to connect to every address of the name once, until one succeeds. Returns a closed socket,
/// and the reason in `why`, when all fail.
Socket connect_to(const std::string& address, int64_t port, Nanoseconds deadline, std::string& why);
/// Returns the IP address of the other end, in digits and without the port.
std::string address_of_peer(const Socket& socket);

/// Writes or reads all `bytes`. Returns false when the other end closed the connection or the
/// deadline passed.
bool write_all(const Socket& socket, const void* data, size_t bytes, Nanoseconds deadline);
bool read_all(const Socket& socket, void* data, size_t bytes, Nanoseconds deadline);

/// wait_for() waits until at least one descriptor is ready for its `events` (of poll()), or until
/// the deadline; it returns for each descriptor whether it is ready.
struct Watched {
  int descriptor;
  short events;
};
std::vector<bool> wait_for(const std::vector<Watched>& watched, Nanoseconds deadline);

}  // namespace moe
