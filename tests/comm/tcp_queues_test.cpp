#include "engine/comm/transport/tcp_queues.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "engine/base/errors.h"
#include "engine/comm/transport/sockets.h"

namespace moe {
namespace {

/// Two ends of a connection that takes little at a time.
struct Ends {
  explicit Ends(int small = 4096) {
    int both[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0);
    for (int end : both) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    from = Socket(both[0]);
    to = Socket(both[1]);
  }
  Socket from, to;
};

struct Message {
  explicit Message(std::string content) : text(std::move(content)) {
    request.data = text.data();
    request.bytes = static_cast<Bytes>(text.size());
  }
  std::string text;
  TcpRequest request;
};

std::string random_text(std::mt19937_64& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

/// Until nothing moves any more.
void move_all(const Ends& ends, TcpOutbox& outbox, TcpInbox& inbox) {
  for (int quiet = 0; quiet < 3; ++quiet) {
    if (!outbox.empty()) quiet = 0;
    CHECK(outbox.flush(ends.from.descriptor(), 10'000) == TcpLink::kOpen);
    CHECK(inbox.fill(ends.to.descriptor(), 10'000) == TcpLink::kOpen);
  }
}

TEST_CASE("messages of each channel and tag keep their order, whenever they are asked for") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const Ends ends;
    TcpOutbox outbox;
    TcpInbox inbox;
    constexpr size_t kStreams = 4;
    std::array<std::deque<Message>, kStreams> sent, received;
    for (int i = 0; i < 200; ++i) {
      const size_t s = random() % kStreams;
      const auto channel = static_cast<int64_t>(s / 2);
      const int tag = static_cast<int>(s % 2);
      const bool large = random() % 20 == 0;
      if (random() % 2 == 0) {
        sent[s].emplace_back(random_text(random, 1 + random() % (large ? 700'000 : 300)));
        outbox.add(channel, tag, sent[s].back().request);
      } else if (received[s].size() < sent[s].size()) {
        received[s].emplace_back(std::string(sent[s][received[s].size()].text.size(), '\0'));
        inbox.post(channel, tag, received[s].back().request);
      }
      outbox.flush(ends.from.descriptor(), static_cast<Bytes>(random() % 5000));
      inbox.fill(ends.to.descriptor(), static_cast<Bytes>(random() % 5000));
    }
    move_all(ends, outbox, inbox);
    for (size_t s = 0; s < kStreams; ++s) {
      for (size_t i = 0; i < sent[s].size(); ++i) {
        CHECK(sent[s][i].request.over.load());
        if (i < received[s].size()) {
          CHECK(received[s][i].request.over.load());
          CHECK(received[s][i].text == sent[s][i].text);
        } else if (s == 2) {  // of channel 1, whose tag 0 is read first
          CHECK(inbox.take(1) == sent[s][i].text);
        }
      }
    }
  }
}

TEST_CASE("a small message passes a large one of another channel") {
  const Ends ends;
  TcpOutbox outbox;
  TcpInbox inbox;
  Message large(std::string(10'000'000, 'a')), small("beat");
  outbox.add(0, 0, large.request);
  outbox.flush(ends.from.descriptor(), 1000);
  outbox.add(1, 0, small.request);
  std::optional<std::string> got;
  Bytes before = 0;
  while (!got) {
    outbox.flush(ends.from.descriptor(), 10'000);
    inbox.fill(ends.to.descriptor(), 10'000);
    got = inbox.take(1);
    before = large.request.moved;
  }
  CHECK(got == "beat");
  CHECK(before <= 2 * TcpFrame::kMostBytes);
}

TEST_CASE("what is dropped on the way is not touched any more, and what follows arrives") {
  for (const Bytes before : {0, 10, 50, 20'000, 300'000, 600'000}) {
    CAPTURE(before);
    const Ends ends;
    TcpOutbox outbox;
    TcpInbox inbox;
    Message there(std::string(1'000'000, 'a')), here(std::string(1'000'000, '\0')), next("next");
    outbox.add(0, 0, there.request);
    inbox.post(0, 0, here.request);
    for (Bytes moved = 0; moved < before; moved += 5000) {
      outbox.flush(ends.from.descriptor(), 5000);
      inbox.fill(ends.to.descriptor(), 5000);
    }
    outbox.drop(there.request);
    inbox.drop(here.request);
    std::fill(there.text.begin(), there.text.end(), 'b');
    std::fill(here.text.begin(), here.text.end(), 'c');
    outbox.add(1, 0, next.request);
    move_all(ends, outbox, inbox);
    CHECK(here.text.find_first_not_of('c') == std::string::npos);
    CHECK(inbox.take(1) == "next");
    CHECK_FALSE(inbox.take(0));
  }
}

TEST_CASE("a goodbye comes after all messages, an abort instead of them") {
  const Ends ends;
  TcpOutbox outbox;
  TcpInbox inbox;
  Message first(std::string(500'000, 'a')), second("second");
  outbox.say_goodbye();
  outbox.add(0, 0, first.request);
  move_all(ends, outbox, inbox);
  CHECK(inbox.said_goodbye());
  CHECK(inbox.take(0) == first.text);
  outbox.add(0, 0, second.request);
  outbox.say_abort(7);
  move_all(ends, outbox, inbox);
  CHECK(inbox.said_abort() == 7);
  CHECK_FALSE(inbox.take(0));
}

TEST_CASE("what is no message closes the connection with the reason") {
  const Ends ends;
  TcpInbox inbox;
  const std::string noise(100, 'x');
  CHECK(write_all(ends.from, noise.data(), noise.size(), 0));
  CHECK(inbox.fill(ends.to.descriptor(), 1000) == TcpLink::kClosed);
  CHECK(inbox.fault() == "it sent bytes that are not a message of this program");
}

TEST_CASE(
    "a frame that does not continue its message writes no byte beyond the receiver's memory") {
  constexpr Bytes kMost = TcpFrame::kMostBytes, kWanted = 100;
  struct Row {
    TcpFrame first, second;
  };
  const auto frame = [](Bytes total, Bytes offset, Bytes bytes, int kind = TcpFrame::kData) {
    return TcpFrame{kind, 0, 0, total, offset, bytes};
  };
  const Row row = GENERATE_COPY(
      Row{frame(kWanted, 0, 60), frame(60 + kMost, 60, kMost)},                 // another total
      Row{frame(kWanted, 0, 60), frame(kWanted, 70, 30)},                       // a hole
      Row{frame(kWanted, 0, kWanted), frame(kWanted + kMost, kWanted, kMost)},  // after its end
      Row{frame(kWanted, 0, 60), frame(INT64_MIN, 0, kMost)},
      Row{frame(kWanted, 0, 60), frame(0, 0, kMost, TcpFrame::kGoodbye)},
      Row{frame(kWanted, 0, 60), frame(0, 0, kMost, TcpFrame::kAbort)});
  const bool soon = GENERATE(true, false);
  CAPTURE(row.second.total, row.second.offset, soon);
  const Ends ends(4 * kMost);
  TcpInbox inbox;
  std::string memory(kWanted + 2 * kMost, '-');  // the receiver's 100 bytes, and what lies behind
  TcpRequest wanted;
  wanted.data = memory.data();
  wanted.bytes = kWanted;
  if (soon) inbox.post(0, 0, wanted);
  const std::string body(kMost, 'x');
  for (const TcpFrame& one : {row.first, row.second}) {
    CHECK(write_all(ends.from, &one, sizeof one, 0));
    CHECK(write_all(ends.from, body.data(), static_cast<size_t>(one.bytes), 0));
    inbox.fill(ends.to.descriptor(), 2 * kMost);
  }
  CHECK_THAT(inbox.fault(), Catch::StartsWith("it sent bytes"));
  if (!soon) inbox.post(0, 0, wanted);
  CHECK(memory.find('x', kWanted) == std::string::npos);
}

TEST_CASE("a receive that is posted after a frame's head is compared with it") {
  const Ends ends;
  TcpInbox inbox;
  Message dropped(std::string(300, '-')), wanted(std::string(100, '-'));
  inbox.post(0, 0, dropped.request);
  const TcpFrame head{TcpFrame::kData, 0, 0, 300, 0, 300};
  CHECK(write_all(ends.from, &head, sizeof head, 0));
  CHECK(inbox.fill(ends.to.descriptor(), 1000) == TcpLink::kOpen);
  inbox.drop(dropped.request);
  CHECK_THROWS_WITH(inbox.post(0, 0, wanted.request),
                    "a message of 300 bytes arrived, but the receiver expects one of 100 bytes");
}

TEST_CASE("a message of another size than expected is named with both, asked for soon or late") {
  for (const bool soon : {true, false}) {
    const Ends ends;
    TcpOutbox outbox;
    TcpInbox inbox;
    Message sent("four"), wanted("three");
    outbox.add(0, 0, sent.request);
    outbox.flush(ends.from.descriptor(), 1000);
    const std::string why = "a message of 4 bytes arrived, but the receiver expects one of 5 bytes";
    if (soon) {
      inbox.post(0, 0, wanted.request);
      CHECK(inbox.fill(ends.to.descriptor(), 1000) == TcpLink::kClosed);
      CHECK(inbox.fault() == why);
    } else {
      CHECK(inbox.fill(ends.to.descriptor(), 1000) == TcpLink::kOpen);
      CHECK_THROWS_WITH(inbox.post(0, 0, wanted.request), why);
    }
  }
}

}  // namespace
}  // namespace moe
