#include "engine/comm/transport/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"

namespace moe {
namespace {

constexpr Nanoseconds kPerMs = 1'000'000;
constexpr Nanoseconds kLongestTry = 5'000 * kPerMs;  // longest time to connect to one address
constexpr int kWaiting = 4096;                       // connections that are not yet accepted

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Returns the addresses of the name; null, and the reason in `why`, when it has none.
Addresses resolve(const char* name, int64_t port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  if (code != 0) why = gai_strerror(code);
  return {code == 0 ? found : nullptr, freeaddrinfo};
}

Socket socket_for(const addrinfo& address) {
  return Socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

void set_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.descriptor(), level, option, &value, sizeof value);
}

std::string digits_of(const sockaddr_storage& address) {
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, text, sizeof text,
              nullptr, 0, NI_NUMERICHOST);
  const std::string digits = text, mapped = "::ffff:";  // before an IPv4 address at an IPv6 socket
  return digits.starts_with(mapped) ? digits.substr(mapped.size()) : digits;
}

/// Whether the socket is connected to itself. This happens when no process listens at a port and
/// the system chose that same port for this end.
bool with_itself(const Socket& socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_length = sizeof own, other_length = sizeof other;
  getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &own_length);
  getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&other), &other_length);
  return own_length == other_length && std::memcmp(&own, &other, own_length) == 0;
}

Socket try_one(const addrinfo& address, Nanoseconds deadline, std::string& why) {
  Socket socket = socket_for(address);
  int error = socket.open() ? 0 : errno;
  if (error == 0 && connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      if (wait_for({{socket.descriptor(), POLLOUT}}, deadline)[0]) {
        socklen_t length = sizeof error;
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
  }
  if (error == 0 && with_itself(socket)) error = ECONNREFUSED;
  if (error != 0) {
    why = std::strerror(error);
    return {};
  }
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

template <class Move>
bool move_all(const Socket& socket, size_t bytes, short events, Nanoseconds deadline, Move move) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = move(at);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK) ||
               !wait_for({{socket.descriptor(), events}}, deadline)[0]) {
      return false;
    }
  }
  return true;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::string place_of(const std::string& address, int64_t port) {
  const bool colons = address.find(':') != std::string::npos;
  return fmt::format("{}:{}", colons ? "[" + address + "]" : address, port);
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

Socket listen_at(const std::string& address, int64_t port) {
  std::string why;
  const bool own = is_loopback(address);
  const Addresses found = resolve(own ? address.c_str() : nullptr, port, own ? 0 : AI_PASSIVE, why);
  // When listening at all addresses, the IPv6 one also accepts IPv4.
  std::vector<const addrinfo*> order;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) order.push_back(a);
  std::stable_sort(order.begin(), order.end(), [&](const addrinfo* a, const addrinfo* b) {
    return !own && a->ai_family == AF_INET6 && b->ai_family != AF_INET6;
  });
  for (const addrinfo* a : order) {
    Socket socket = socket_for(*a);
    if (socket.open()) {
      set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
      if (a->ai_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
      if (bind(socket.descriptor(), a->ai_addr, a->ai_addrlen) == 0 &&
          listen(socket.descriptor(), kWaiting) == 0) {
        return socket;
      }
    }
    why = std::strerror(errno);
    if (errno == EADDRINUSE) break;
  }
  throw run_error("cannot listen at {}: {}", place_of(address, port), why);
}

int64_t port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket accept_at(const Socket& listener, std::string& address) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  Socket socket(accept4(listener.descriptor(), reinterpret_cast<sockaddr*>(&from), &length,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.open()) return socket;
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  address = digits_of(from);
  return socket;
}

Socket connect_to(const std::string& address, int64_t port, Nanoseconds deadline,
                  std::string& why) {
  const Addresses found = resolve(address.c_str(), port, 0, why);
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    Socket socket = try_one(*a, std::min(deadline, clock_ns() + kLongestTry), why);
    if (socket.open()) return socket;
  }
  return {};
}

std::string address_of_peer(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
  return digits_of(address);
}

bool write_all(const Socket& socket, const void* data, size_t bytes, Nanoseconds deadline) {
  return move_all(socket, bytes, POLLOUT, deadline, [&](size_t at) {
    return send(socket.descriptor(), static_cast<const char*>(data) + at, bytes - at, MSG_NOSIGNAL);
  });
}

bool read_all(const Socket& socket, void* data, size_t bytes, Nanoseconds deadline) {
  return move_all(socket, bytes, POLLIN, deadline, [&](size_t at) {
    return recv(socket.descriptor(), static_cast<char*>(data) + at, bytes - at, 0);
  });
}

std::vector<bool> wait_for(const std::vector<Watched>& watched, Nanoseconds deadline) {
  std::vector<pollfd> all;
  for (const Watched& one : watched) all.push_back({one.descriptor, one.events, 0});
  for (;;) {
    const Nanoseconds left = std::max<Nanoseconds>(deadline - clock_ns(), 0);
    const int n = poll(all.data(), all.size(), static_cast<int>((left + kPerMs - 1) / kPerMs));
    if (n >= 0 || errno != EINTR) break;
  }
  std::vector<bool> result;
  for (const pollfd& one : all) result.push_back(one.revents != 0);
  return result;
}

}  // namespace moe
