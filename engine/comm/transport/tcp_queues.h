// What goes over one connection between two processes, both ways: messages cut into frames, so
// that those of other channels and tags pass a large one. What nobody has asked for yet is kept,
// and what is left of it goes where it is asked for. No call waits; the caller's lock is held.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "engine/base/units.h"

namespace moe {

/// A message under way. Queues keep its address until it is over or dropped.
struct TcpRequest {
  int64_t peer = 0;
  char* data = nullptr;  // only read where it is sent
  Bytes bytes = 0, moved = 0;
  std::atomic<bool> over{false};  // the last that is written to it
};

/// Before each frame, as it lies in memory.
struct TcpFrame {
  enum Kind : int32_t { kData = 0x6d6f6530, kGoodbye, kAbort };
  static constexpr Bytes kMostBytes = Bytes{1} << 18;
  int32_t kind = kData;
  int32_t tag = 0;  // of an abort: the exit status
  int64_t channel = 0;
  Bytes total = 0, offset = 0, bytes = 0;  // of the message; what this frame holds of it
};

enum class TcpLink : uint8_t { kOpen, kClosed };

class TcpOutbox {
 public:
  /// Behind those of its channel and tag.
  void add(int64_t channel, int tag, TcpRequest& request);
  /// Its memory is not read any more.
  void drop(const TcpRequest& request);
  /// When all else is out.
  void say_goodbye() { goodbye_ = true; }
  /// Instead of all else.
  void say_abort(int status);
  bool empty() const;
  /// Writes what the connection takes, to about `most` bytes. Closed: errno says why.
  TcpLink flush(int descriptor, Bytes most);

 private:
  struct Stream {
    int64_t channel;
    int tag;
    std::deque<TcpRequest*> requests;
  };
  bool begin_frame();
  void end_frame();

  std::list<Stream> streams_;  // each in turn sends a frame
  bool goodbye_ = false;
  std::optional<int> abort_;
  // The frame that is being sent.
  bool sending_ = false;
  TcpFrame frame_;
  TcpRequest* from_ = nullptr;  // null: none, or dropped
  const char* body_ = nullptr;
  size_t sent_ = 0;   // of the frame with its head
  std::string kept_;  // the body of one that was dropped
};

class TcpInbox {
 public:
  /// Throws RunError where the message that came has another size.
  void post(int64_t channel, int tag, TcpRequest& request);
  /// Its memory is not written any more.
  void drop(const TcpRequest& request);
  /// A whole message of the channel that nobody has asked for.
  std::optional<std::string> take(int64_t channel);
  /// Reads what has come, to about `most` bytes. Closed: by the other end
  /// (errno, 0 where it ended well), or fault().
  TcpLink fill(int descriptor, Bytes most);
  const std::string& fault() const { return fault_; }
  bool said_goodbye() const { return goodbye_; }
  std::optional<int> said_abort() const { return abort_; }

 private:
  struct ReceivedMessage {
    std::string text;  // as much as has come
    Bytes total;
  };
  struct Stream {
    std::deque<TcpRequest*> posted;
    std::deque<ReceivedMessage> received;
  };
  void begin_frame();
  char* room(Bytes bytes);
  void advance(Bytes bytes);

  std::map<std::pair<int64_t, int>, Stream> streams_;
  std::string fault_;
  bool goodbye_ = false;
  std::optional<int> abort_;
  // The frame that is being read.
  TcpFrame frame_;
  size_t head_read_ = 0;
  Bytes body_read_ = 0;
  Stream* stream_ = nullptr;
  std::string scrap_;  // what goes nowhere
};

}  // namespace moe
