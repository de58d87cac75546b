// The messages of one connection between two processes, in both directions. Messages are cut into
// frames, so that messages of other channels and tags can overtake a large one. A message that
// arrives before its receive is posted is kept; frames that arrive after the post go to the posted
// memory. No call waits; the caller holds the connection's lock. Connecting: tcp_mesh.h.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "engine/base/units.h"

namespace moe {

/// A message in progress. TcpOutbox and TcpInbox keep its address until it is over or dropped.
struct TcpRequest {
  int64_t peer = 0;
  char* data = nullptr;  // for a message to send, only read
  Bytes bytes = 0, moved = 0;
  std::atomic<bool> over{false};  // written after all other members
};

/// The header of each frame, sent as it is in memory.
struct TcpFrame {
  enum Kind : int32_t { kData = 0x6d6f6530, kGoodbye, kAbort };
  static constexpr Bytes kMostBytes = Bytes{1} << 18;
  int32_t kind = kData;
  int32_t tag = 0;  // for kAbort: the exit status
  int64_t channel = 0;
  /// Total bytes of the message; offset and bytes of this frame within it.
  Bytes total = 0, offset = 0, bytes = 0;
};

enum class TcpLink : uint8_t { kOpen, kClosed };

class TcpOutbox {
 public:
  /// Appends a message to the queue of its channel and tag.
  void add(int64_t channel, int tag, TcpRequest& request);
  /// Removes a message; its memory is not read after this call. If a frame of it has been begun,
  /// the rest of that frame is still sent, from a copy.
  void drop(const TcpRequest& request);
  /// Makes flush() send the goodbye frame when all messages have been sent.
  void say_goodbye() { goodbye_ = true; }
  /// Drops all messages and makes flush() send the abort frame.
  void say_abort(int status);
  bool empty() const;
  /// Writes as much as the connection accepts, up to about `most` bytes. When it returns kClosed,
  /// errno has the reason.
  TcpLink flush(int descriptor, Bytes most);

 private:
  struct Stream {
    int64_t channel;
    int tag;
    std::deque<TcpRequest*> requests;
  };
  bool begin_frame();
  void end_frame();

  std::list<Stream> streams_;  // served in turn, one frame each
  bool goodbye_ = false;
  std::optional<int> abort_;
  // The frame that is being sent:
  bool sending_ = false;
  TcpFrame frame_;
  TcpRequest* from_ = nullptr;  // null: the frame has no message, or its message was dropped
  const char* body_ = nullptr;
  size_t sent_ = 0;   // bytes sent, header included
  std::string kept_;  // the body of a frame whose message was dropped
};

class TcpInbox {
 public:
  /// Posts memory to receive a message. Throws RunError when the message has begun to arrive and
  /// has another size.
  void post(int64_t channel, int tag, TcpRequest& request);
  /// Removes a posted receive; its memory is not written after this call.
  void drop(const TcpRequest& request);
  /// Returns a complete message of the channel for which no receive was posted; nullopt when there
  /// is none.
  std::optional<std::string> take(int64_t channel);
  /// Reads what has arrived, up to about `most` bytes. When it returns kClosed, the other end
  /// closed the connection (errno is the reason, 0 for an orderly end), or fault() is set.
  TcpLink fill(int descriptor, Bytes most);
  const std::string& fault() const { return fault_; }
  bool said_goodbye() const { return goodbye_; }
  std::optional<int> said_abort() const { return abort_; }

 private:
  struct ReceivedMessage {
    std::string text;  // the bytes that have arrived so far
    Bytes total;
  };
  struct Stream {
    std::deque<TcpRequest*> posted;
    std::deque<ReceivedMessage> received;
    Bytes total = 0, begun = 0;  // of the message whose frames arrive: its bytes, those in frames
  };
  void begin_frame();
  TcpRequest* request_at(Bytes at) const;
  char* room(Bytes bytes);
  void advance(Bytes bytes);

  std::map<std::pair<int64_t, int>, Stream> streams_;
  std::string fault_;
  bool goodbye_ = false;
  std::optional<int> abort_;
  // The frame that is being read:
  TcpFrame frame_;
  size_t head_read_ = 0;
  Bytes body_read_ = 0;
  Stream* stream_ = nullptr;
  std::string scrap_;  // receives bytes that no message needs
};

}  // namespace moe
