#include "engine/comm/job/processes.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "engine/base/index.h"
#include "engine/base/stop.h"
#include "engine/base/threads.h"
#include "engine/base/utf8.h"
#include "engine/comm/local/backoff.h"
#include "engine/comm/transport/control_channel.h"
#include "engine/comm/transport/message_comm.h"

namespace moe {
namespace {

constexpr Nanoseconds kLookEvery = 10'000'000;
constexpr Nanoseconds kBeatEvery = 500'000'000;
constexpr Nanoseconds kAbsent = 200'000'000;
constexpr Nanoseconds kLettersOut = 200'000'000;
constexpr Nanoseconds kMessagePoll = 10'000;
constexpr int kClockRounds = 64;
constexpr size_t kLongestReason = 2000;  // bytes; fits into send buffers if the peer does not read
constexpr char kBeat[] = ".", kStop[] = "s";

void sleep_ns(Nanoseconds ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

/// Makes the pieces of one member that sends send[i] bytes to member i and receives receive[i] from
/// member i.
Pieces pieces_of(const std::vector<Bytes>& send, const std::vector<Bytes>& receive) {
  Pieces pieces;
  Bytes to = 0, from = 0;
  for (size_t i = 0; i < send.size(); ++i) {
    pieces.send_offset.push_back(to);
    pieces.receive_offset.push_back(from);
    to += send[i];
    from += receive[i];
  }
  pieces.send_bytes = send;
  pieces.receive_bytes = receive;
  return pieces;
}

}  // namespace

Processes::Processes(Options options)
    : options_(options), transport_(open_transport()), alive_(transport_->open_channel()) {
  control_ = std::make_unique<MessageComm>(*this, transport_->open_channel());
  for (int64_t r = 0; r < size(); ++r) {
    letters_.push_back(transport_->messages());
    if (r != rank() && (is_root() || r == 0)) watched_.push_back(r);
    beats_.push_back(transport_->messages());
  }
  stop_letter_ = transport_->messages();
  find_clock(options_.measure_clock || size_here() < size());
  last_look_ = clock_ns();
  heard_.assign(index(size()), last_look_);
  monitor_ = start_thread("the heartbeats of the job", [this] { watch(); });
}

Processes::~Processes() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (monitor_.joinable()) monitor_.join();
}

std::vector<Communicator*> Processes::lanes(int64_t n, double timeout_s) {
  while (static_cast<int64_t>(lanes_.size()) < n) {
    control_->barrier(
        fmt::format("lane {}", lanes_.size()));  // a peer that makes another call is named
    lanes_.push_back(std::make_unique<MessageComm>(*this, transport_->open_channel()));
  }
  std::vector<Communicator*> result;
  for (int64_t l = 0; l < n; ++l) {
    lanes_[index(l)]->set_timeout(timeout_s);
    result.push_back(lanes_[index(l)].get());
  }
  return result;
}

ControlChannel& Processes::control_channel(int64_t n) {
  while (static_cast<int64_t>(control_channels_.size()) <= n) {
    control_->barrier(fmt::format("control channel {}", control_channels_.size()));
    control_channels_.push_back(
        std::make_unique<ControlChannel>(*this, transport_->open_channel()));
  }
  return *control_channels_[index(n)];
}

std::string Processes::broadcast(const std::string& what, std::string text) {
  auto bytes = static_cast<Bytes>(text.size());
  control_->broadcast(what, &bytes, sizeof bytes, 0);
  text.resize(index(bytes));
  control_->broadcast(what, text.data(), bytes, 0);
  return text;
}

std::vector<std::string> Processes::gather(const std::string& what, const std::string& text) {
  const std::vector<Bytes> none(index(size()));
  std::vector<Bytes> to_leader = none, from_all = none, sizes = none;
  to_leader[0] = sizeof(Bytes);
  if (is_root()) from_all.assign(index(size()), sizeof(Bytes));
  const auto own = static_cast<Bytes>(text.size());
  control_->all_to_all(what, &own, sizes.data(), pieces_of(to_leader, from_all));
  to_leader[0] = own;
  Bytes sum = 0;
  for (const Bytes bytes : sizes) sum += bytes;
  std::string all(index(sum), '\0');
  control_->all_to_all(what, text.data(), all.data(), pieces_of(to_leader, sizes));
  if (!is_root()) return {};
  std::vector<std::string> texts;
  size_t at = 0;
  for (const Bytes bytes : sizes) {
    texts.push_back(all.substr(at, index(bytes)));
    at += index(bytes);
  }
  return texts;
}

std::string Processes::scatter(const std::string& what, const std::vector<std::string>& texts) {
  const std::vector<Bytes> none(index(size()));
  std::vector<Bytes> sizes = none, to_all = none, from_leader = none;
  std::string all;
  for (size_t r = 0; is_root() && r < sizes.size(); ++r) {
    sizes[r] = static_cast<Bytes>(texts.at(r).size());
    to_all[r] = sizeof(Bytes);
    all += texts[r];
  }
  from_leader[0] = sizeof(Bytes);
  Bytes own = 0;
  control_->all_to_all(what, sizes.data(), &own, pieces_of(to_all, from_leader));
  from_leader[0] = own;
  std::string text(index(own), '\0');
  control_->all_to_all(what, all.data(), text.data(), pieces_of(sizes, from_leader));
  return text;
}

/// If `measure`, measures ahead_ns_ (rank 0's clock minus this process's) and clock_error_ns_. The
/// ranks ask for rank 0's clock one after the other, so that rank 0 answers each at once.
void Processes::find_clock(bool measure) {
  for (int64_t r = 1; measure && r < size(); ++r) {
    if (is_root()) {
      for (int i = 0; i < kClockRounds; ++i) distance_to(r);
    } else if (r == rank()) {
      Nanoseconds shortest = 0;
      for (int i = 0; i < kClockRounds; ++i) {
        const Nanoseconds begin = clock_ns();
        const Nanoseconds theirs = distance_to(0);
        const Nanoseconds took = clock_ns() - begin;
        if (i > 0 && took >= shortest) continue;
        shortest = took;
        ahead_ns_ = theirs - (begin + took / 2);
        clock_error_ns_ = (took + 1) / 2;
      }
    }
  }
  control_->barrier("clock");
}

/// On rank 0, answers one request of `peer` for the time; on another rank, sends the request to
/// rank 0. Returns the time that the other side sent. No other thread sends messages during this.
Nanoseconds Processes::distance_to(int64_t peer) {
  Nanoseconds theirs = 0, mine = 0;
  const auto in = transport_->messages(), out = transport_->messages();
  in->receive(alive_, peer, 0, &theirs, sizeof theirs);
  if (!is_root()) out->send(alive_, peer, 0, &mine, sizeof mine);
  while (!in->over()) std::this_thread::yield();
  mine = clock_ns();
  if (is_root()) out->send(alive_, peer, 0, &mine, sizeof mine);
  while (!out->over()) std::this_thread::yield();
  return theirs;
}

std::string Processes::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Processes::note_failure(const std::string& reason) {
  if (failed_.exchange(true, std::memory_order_acq_rel)) return;
  reason_ = reason;
}

void Processes::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed()) return;
  reason_ = reason;
  letter_.assign(1, '!');
  letter_.append(reason, 0, kLongestReason);
  failed_.store(true, std::memory_order_release);
  for (int64_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    letters_[index(r)]->send(alive_, r, 0, letter_.data(), static_cast<Bytes>(letter_.size()));
  }
  // Waits until the reason has been sent: after fail(), no thread of this process sends messages.
  const Nanoseconds until = clock_ns() + kLettersOut;
  while (!messages_out() && clock_ns() < until) sleep_ns(kMessagePoll);
}

bool Processes::messages_out() {
  const auto out = [](const std::unique_ptr<Messages>& message) {
    try {
      return message->over();
    } catch (const RunError&) {
      return true;  // its receiver is lost
    }
  };
  return std::all_of(letters_.begin(), letters_.end(), out);
}

Processes::Wait Processes::await(Messages& messages, Nanoseconds deadline) {
  Backoff backoff;
  for (;;) {
    if (failed()) return Wait::kFailed;
    try {
      if (messages.over()) return Wait::kOver;
    } catch (const RunError& error) {
      fail(error.what());
      return Wait::kFailed;
    }
    const Nanoseconds now = clock_ns();
    if (deadline > 0 && now >= deadline) return Wait::kLate;
    backoff.rest(now);
  }
}

void Processes::watch() {
  std::unique_lock lock(mutex_);
  while (!over_ && !failed()) {
    lock.unlock();
    const Nanoseconds now = clock_ns();
    if (now - last_look_ > kAbsent) forgive(now - last_look_);
    last_look_ = now;
    try {
      listen(now);
      if (now - last_beat_ >= kBeatEvery) beat(now);
      pass_on_stop();
    } catch (const RunError& error) {
      fail(error.what());
    }
    look_for_silent(now);
    lock.lock();
    changed_.wait_for(lock, std::chrono::nanoseconds(kLookEvery), [&] { return over_; });
  }
}

void Processes::listen(Nanoseconds now) {
  while (const auto message = transport_->read(alive_)) {
    heard_[index(message->peer)] = now;
    if (message->text == kBeat) continue;
    if (message->text == kStop) {
      request_stop();
      continue;
    }
    const std::lock_guard guard(mutex_);
    note_failure(message->text.substr(1));
  }
}

/// Called when this process itself did not run for `absent` ns, because its machine was suspended
/// or overloaded: does not count that time as silence of its peers, since it could receive nothing.
void Processes::forgive(Nanoseconds absent) {
  for (Nanoseconds& heard : heard_) heard += absent;
}

void Processes::beat(Nanoseconds now) {
  last_beat_ = now;
  for (const int64_t r : watched_) {
    if (beats_[index(r)]->over()) beats_[index(r)]->send(alive_, r, 0, kBeat, 1);
  }
}

void Processes::pass_on_stop() {
  if (is_root() || stop_sent_ || !stop_requested()) return;
  stop_sent_ = true;
  stop_letter_->send(alive_, 0, 0, kStop, 1);
}

void Processes::look_for_silent(Nanoseconds now) {
  for (const int64_t r : watched_) {
    if (static_cast<double>(now - heard_[index(r)]) < options_.silence_s * kNsPerSecond) continue;
    fail(fmt::format("rank {} has been silent for {:.1f} s: its process was killed or does not run",
                     r, static_cast<double>(now - heard_[index(r)]) / kNsPerSecond));
    return;
  }
}

void Processes::finish() {
  control_->barrier("the end");
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  monitor_.join();
  transport_->finish();
}

void Processes::exit_job(int status, const std::string& last_words) {
  if (!is_root()) {
    std::signal(SIGTERM, SIG_DFL);  // mpirun sends it when rank 0 has left
    sleep_ns(static_cast<Nanoseconds>(kGrace_s * kNsPerSecond));
  }
  std::fputs(printable(last_words).c_str(), stderr);
  transport_->abort(status);
  std::_Exit(status);
}

}  // namespace moe
