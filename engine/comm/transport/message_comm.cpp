#include "engine/comm/transport/message_comm.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/index.h"

namespace moe {
namespace {

enum Tag : int { kCall, kData, kSum };

/// The FNV-1a hash (64 bits) of the sizes of a peer's pieces.
uint64_t hash_of(const Bytes* sizes, int64_t n) {
  uint64_t hash = 14695981039346656037ull;
  for (int64_t i = 0; i < n; ++i) {
    hash = (hash ^ static_cast<uint64_t>(sizes[i])) * 1099511628211ull;
  }
  return hash;
}

Bytes sum_of(const Bytes* sizes, int64_t n) {
  Bytes sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += sizes[i];
  return sum;
}

/// Returns the offset at which a peer's n pieces, from number `first` on, begin, if they follow
/// each other without gaps; else -1.
Bytes one_stretch(const std::vector<Bytes>& offset, const std::vector<Bytes>& bytes, int64_t first,
                  int64_t n) {
  Bytes begin = 0, end = -1;
  for (int64_t i = first; i < first + n; ++i) {
    if (bytes[index(i)] == 0) continue;
    if (end >= 0 && offset[index(i)] != end) return -1;
    if (end < 0) begin = offset[index(i)];
    end = offset[index(i)] + bytes[index(i)];
  }
  return begin;
}

/// Calls body(offset, bytes, at) for each of a peer's n pieces, from number `first` on, that is not
/// empty; `at` is the piece's offset among these pieces when packed.
template <class Body>
void each_piece(const std::vector<Bytes>& offset, const std::vector<Bytes>& bytes, int64_t first,
                int64_t n, Body body) {
  Bytes at = 0;
  for (int64_t i = first; i < first + n; ++i) {
    if (bytes[index(i)] > 0) body(offset[index(i)], bytes[index(i)], at);
    at += bytes[index(i)];
  }
}

void copy_own(const Pieces& pieces, int64_t own, const void* send, void* receive) {
  for (int64_t g = 0; g < pieces.groups; ++g) {
    const size_t i = index(own * pieces.groups + g);
    if (pieces.send_bytes[i] == 0) continue;  // the buffers may be null
    const void* const from = static_cast<const char*>(send) + pieces.send_offset[i];
    void* const to = static_cast<char*>(receive) + pieces.receive_offset[i];
    if (from != to) std::memmove(to, from, index(pieces.send_bytes[i]));
  }
}

}  // namespace

MessageComm::MessageComm(Processes& processes, int64_t channel)
    : MessageComm(processes, channel, {processes.size()}, processes.rank()) {}

MessageComm::MessageComm(Processes& processes, int64_t channel, const Members& who, int64_t number)
    : processes_(processes),
      channel_(channel),
      who_(who),
      number_(number),
      messages_(processes.transport_->messages()),
      mine_(index(who.size)),
      theirs_(index(who.size)),
      sent_(index(who.size)),
      received_(index(who.size)) {}

void MessageComm::set_timeout(double seconds) {
  timeout_s_ = seconds;
  for (const auto& made : subgroups_) made->set_timeout(seconds);
}

/// Members exchange messages in pairs, in the order of the lane's calls, so a group needs no
/// channel of its own, and creating it involves no other rank.
Communicator& MessageComm::among(const Members& who) {
  for (const auto& made : subgroups_) {
    if (made->who_ == who) return *made;
  }
  subgroups_.push_back(std::unique_ptr<MessageComm>(
      new MessageComm(processes_, channel_, who, (number_ - who.first) / who.stride)));
  subgroups_.back()->set_timeout(timeout_s_);
  return *subgroups_.back();
}

CommTimes MessageComm::meet(const Request& request) {
  if (processes_.failed()) complete(request);
  for (int64_t m = 0; m < who_.size; ++m) {
    Call& call = mine_[index(m)];
    call = {.kind = request.kind, .size = request.size, .root = request.root};
    request.what.copy(call.what, sizeof call.what - 1);
    call.post = processes_.to_common(request.post);
    if (request.pieces != nullptr) {
      const Bytes* const sizes = &request.pieces->send_bytes[index(m * request.pieces->groups)];
      call.groups = request.pieces->groups;
      call.bytes = sum_of(sizes, call.groups);
      call.pieces = hash_of(sizes, call.groups);
    }
    if (m == number_) continue;
    messages_->receive(channel_, who_.rank(m), kCall, &theirs_[index(m)], sizeof(Call));
    messages_->send(channel_, who_.rank(m), kCall, &call, sizeof(Call));
  }
  theirs_[index(number_)] = mine_[index(number_)];
  const Nanoseconds deadline =
      timeout_s_ > 0 ? clock_ns() + static_cast<Nanoseconds>(timeout_s_ * kNsPerSecond) : 0;
  const Processes::Wait result = processes_.await(*messages_, deadline);
  if (result == Processes::Wait::kLate) time_out(request, messages_->missing());
  if (result == Processes::Wait::kFailed) complete(request);
  compare(request);
  Nanoseconds begin = 0;
  for (const Call& call : theirs_) begin = std::max(begin, call.post);
  return {request.post, std::max(request.post, processes_.from_common(begin)), 0};
}

void MessageComm::complete(const Request& request) {
  if (!processes_.failed() && processes_.await(*messages_, 0) == Processes::Wait::kOver) return;
  messages_->give_up();
  throw run_error("rank {}: {}: stopped: {}", who_.rank(number_), describe(request),
                  processes_.reason());
}

void MessageComm::time_out(const Request& request, const std::vector<int64_t>& missing) {
  const std::string reason = fmt::format(
      "rank {}: {}: rank{} {} did not arrive in {} s", who_.rank(number_), describe(request),
      missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), timeout_s_);
  processes_.fail(reason);
  messages_->give_up();
  throw RunError(reason);
}

void MessageComm::compare(const Request& request) const {
  // Compares the calls as they were sent (names may be cut off), so that all members come to the
  // same result.
  const auto request_of = [](const Call& call, Pieces& pieces) {
    pieces.groups = call.groups;
    return Request{call.kind,
                   call.what,
                   nullptr,
                   nullptr,
                   call.size,
                   call.root,
                   call.kind == CallKind::kAllToAll ? &pieces : nullptr};
  };
  Pieces mine, theirs;
  const Request own = request_of(mine_[index(number_)], mine);
  for (int64_t m = 0; m < who_.size; ++m) {
    const Request other = request_of(theirs_[index(m)], theirs);
    const std::string why = mismatch(who_.rank(number_), own, who_.rank(m), other);
    if (why.empty()) continue;
    processes_.fail(why);
    throw RunError(why);
  }
  if (request.pieces != nullptr) check_sizes(request);
}

void MessageComm::check_sizes(const Request& request) const {
  const int64_t groups = request.pieces->groups;
  for (int64_t m = 0; m < who_.size; ++m) {
    const Bytes* const sizes = &request.pieces->receive_bytes[index(m * groups)];
    const Call& call = theirs_[index(m)];
    const Bytes expected = sum_of(sizes, groups);
    if (call.bytes == expected && call.pieces == hash_of(sizes, groups)) continue;
    const std::string why =
        fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {} bytes{}",
                    describe(request), who_.rank(m), call.bytes, who_.rank(number_), expected,
                    call.bytes == expected ? " in pieces of other sizes" : "");
    processes_.fail(why);
    throw RunError(why);
  }
}

CommTimes MessageComm::call(const Request& request) {
  CommTimes times = meet(request);
  switch (request.kind) {
    case CallKind::kAllToAll:
      exchange(request);
      break;
    case CallKind::kAllReduceF32:
    case CallKind::kReduceScatterF32:
      reduce<float>(request);
      break;
    case CallKind::kAllReduceF64:
    case CallKind::kReduceScatterF64:
      reduce<double>(request);
      break;
    case CallKind::kAllGather:
      spread(request, request.in, request.size * who_.size, 1);
      break;
    case CallKind::kBroadcast:
      from_root(request);
      break;
    case CallKind::kBarrier:
      break;
  }
  times.end = clock_ns();
  return times;
}

void MessageComm::exchange(const Request& request) {
  const Pieces& pieces = *request.pieces;
  const int64_t groups = pieces.groups;
  const auto* const send = static_cast<const std::byte*>(request.in);
  auto* const receive = static_cast<std::byte*>(request.out);
  for (int64_t m = 0; m < who_.size; ++m) {
    if (m == number_) continue;
    Part& in = received_[index(m)];
    in.bytes = sum_of(&pieces.receive_bytes[index(m * groups)], groups);
    in.offset = one_stretch(pieces.receive_offset, pieces.receive_bytes, m * groups, groups);
    if (in.offset < 0) in.buffer.resize(index(in.bytes));
    messages_->receive(channel_, who_.rank(m), kData,
                       in.offset < 0 ? in.buffer.data() : receive + in.offset, in.bytes);
  }
  for (int64_t i = 1; i < who_.size; ++i) {
    const int64_t m = (number_ + i) % who_.size;
    Part& out = sent_[index(m)];
    out.bytes = mine_[index(m)].bytes;
    out.offset = one_stretch(pieces.send_offset, pieces.send_bytes, m * groups, groups);
    if (out.offset < 0) {
      out.buffer.resize(index(out.bytes));
      each_piece(pieces.send_offset, pieces.send_bytes, m * groups, groups,
                 [&](Bytes offset, Bytes bytes, Bytes at) {
                   std::memcpy(out.buffer.data() + at, send + offset, index(bytes));
                 });
    }
    messages_->send(channel_, who_.rank(m), kData,
                    out.offset < 0 ? out.buffer.data() : send + out.offset, out.bytes);
  }
  copy_own(pieces, number_, send, receive);
  complete(request);
  for (int64_t m = 0; m < who_.size; ++m) {
    const Part& in = received_[index(m)];
    if (m == number_ || in.offset >= 0) continue;
    each_piece(pieces.receive_offset, pieces.receive_bytes, m * groups, groups,
               [&](Bytes offset, Bytes bytes, Bytes at) {
                 std::memcpy(receive + offset, in.buffer.data() + at, index(bytes));
               });
  }
}

/// Each member sums its share of the elements in rank order; all-reduce sends the sums to all.
template <class T>
void MessageComm::reduce(const Request& request) {
  if (scatters(request.kind)) {
    std::copy_n(sum_share<T>(request, request.size * who_.size), request.size,
                static_cast<T*>(request.out));
  } else {
    const T* const sums = sum_share<T>(request, request.size);
    spread(request, sums, request.size * Bytes{sizeof(T)}, sizeof(T));
  }
}

/// Returns the sums of this member's share of the elements: of all members' shares, which follow
/// each other and differ by at most one element.
template <class T>
const T* MessageComm::sum_share(const Request& request, int64_t elements) {
  const T* const in = static_cast<const T*>(request.in);
  const auto begin = [&](int64_t m) { return elements * m / who_.size; };
  const auto bytes = [&](int64_t m) {
    return (begin(m + 1) - begin(m)) * static_cast<Bytes>(sizeof(T));
  };
  const Bytes own = bytes(number_);
  const int64_t n = begin(number_ + 1) - begin(number_);
  sums_.resize(std::max(sums_.size(), index(own * who_.size)));
  T* const parts = reinterpret_cast<T*>(sums_.data());  // [members, n]
  for (int64_t m = 0; m < who_.size; ++m) {
    if (m == number_) continue;
    messages_->receive(channel_, who_.rank(m), kData, parts + m * n, own);
    messages_->send(channel_, who_.rank(m), kData, in + begin(m), bytes(m));
  }
  std::copy_n(in + begin(number_), n, parts + number_ * n);
  complete(request);
  for (int64_t m = 1; m < who_.size; ++m) {
    const T* const part = parts + m * n;
    for (int64_t i = 0; i < n; ++i) parts[i] += part[i];
  }
  return parts;
}

/// Sends this member's share of the output to all and receives theirs. `bytes` of the output are
/// divided into shares of whole units as in sum_share().
void MessageComm::spread(const Request& request, const void* own, Bytes bytes, Bytes unit) {
  const auto begin = [&](int64_t m) { return bytes / unit * m / who_.size * unit; };
  auto* const to = static_cast<std::byte*>(request.out);
  const Bytes mine = begin(number_ + 1) - begin(number_);
  for (int64_t m = 0; m < who_.size; ++m) {
    if (m == number_) continue;
    messages_->receive(channel_, who_.rank(m), kSum, to + begin(m), begin(m + 1) - begin(m));
    messages_->send(channel_, who_.rank(m), kSum, own, mine);
  }
  if (mine > 0 && own != to + begin(number_)) {
    std::memcpy(to + begin(number_), own, index(mine));
  }
  complete(request);
}

CommTimes MessageComm::broadcast(const std::string& what, void* data, Bytes bytes, int64_t root) {
  MOE_CHECK(root >= 0 && root < size(), "broadcast {}: the root is member {}, but must be 0 to {}",
            what, root, size() - 1);
  return post({CallKind::kBroadcast, what, data, data, bytes, root});
}

void MessageComm::from_root(const Request& request) {
  const int64_t root = request.root;
  for (int64_t m = 0; number_ == root && m < who_.size; ++m) {
    if (m != root) messages_->send(channel_, who_.rank(m), kData, request.in, request.size);
  }
  if (number_ != root) {
    messages_->receive(channel_, who_.rank(root), kData, request.out, request.size);
  }
  complete(request);
}

}  // namespace moe
