#include "engine/comm/transport/tcp_queues.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"

namespace moe {
namespace {

size_t size_of(Bytes bytes) {
  return static_cast<size_t>(bytes);
}

bool only_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

RunError other_size(Bytes total, Bytes bytes) {
  return run_error("a message of {} bytes arrived, but the receiver expects one of {} bytes", total,
                   bytes);
}

}  // namespace

void TcpOutbox::add(int64_t channel, int tag, TcpRequest& request) {
  const auto same = [&](const Stream& s) { return s.channel == channel && s.tag == tag; };
  auto found = std::find_if(streams_.begin(), streams_.end(), same);
  if (found == streams_.end()) found = streams_.insert(streams_.end(), {channel, tag, {}});
  found->requests.push_back(&request);
}

void TcpOutbox::drop(const TcpRequest& request) {
  if (from_ == &request) {  // the rest of a begun frame is still sent
    kept_.assign(body_, size_of(frame_.bytes));
    body_ = kept_.data();
    from_ = nullptr;
  }
  for (Stream& stream : streams_) std::erase(stream.requests, &request);
  std::erase_if(streams_, [](const Stream& s) { return s.requests.empty(); });
}

void TcpOutbox::say_abort(int status) {
  if (from_ != nullptr) drop(*from_);
  streams_.clear();
  abort_ = status;
}

bool TcpOutbox::empty() const {
  return !sending_ && streams_.empty() && !goodbye_ && !abort_;
}

bool TcpOutbox::begin_frame() {
  frame_ = {};
  body_ = nullptr;
  sent_ = 0;
  if (!streams_.empty()) {
    const Stream& stream = streams_.front();
    from_ = stream.requests.front();
    frame_.tag = stream.tag;
    frame_.channel = stream.channel;
    frame_.total = from_->bytes;
    frame_.offset = from_->moved;
    frame_.bytes = std::min(TcpFrame::kMostBytes, from_->bytes - from_->moved);
    body_ = from_->data + from_->moved;
  } else if (abort_) {
    frame_.kind = TcpFrame::kAbort;
    frame_.tag = *abort_;
    abort_.reset();
  } else if (goodbye_) {
    frame_.kind = TcpFrame::kGoodbye;
    goodbye_ = false;
  } else {
    return false;
  }
  return true;
}

void TcpOutbox::end_frame() {
  sending_ = false;
  if (from_ == nullptr) return;
  TcpRequest* const done = std::exchange(from_, nullptr);
  done->moved += frame_.bytes;
  Stream& stream = streams_.front();
  if (done->moved == done->bytes) stream.requests.pop_front();
  if (stream.requests.empty()) {
    streams_.pop_front();
  } else {
    streams_.splice(streams_.end(), streams_, streams_.begin());
  }
  if (done->moved == done->bytes) done->over.store(true, std::memory_order_release);
}

TcpLink TcpOutbox::flush(int descriptor, Bytes most) {
  for (Bytes written = 0; written < most;) {
    if (!sending_ && !(sending_ = begin_frame())) return TcpLink::kOpen;
    const size_t body_sent = sent_ - std::min(sent_, sizeof frame_);
    iovec parts[2] = {{reinterpret_cast<char*>(&frame_) + std::min(sent_, sizeof frame_),
                       sizeof frame_ - std::min(sent_, sizeof frame_)},
                      {const_cast<char*>(body_) + body_sent, size_of(frame_.bytes) - body_sent}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && only_later(errno)) return TcpLink::kOpen;
    if (n < 0) return TcpLink::kClosed;
    sent_ += static_cast<size_t>(n);
    written += n;
    if (sent_ == sizeof frame_ + size_of(frame_.bytes)) end_frame();
  }
  return TcpLink::kOpen;
}

void TcpInbox::post(int64_t channel, int tag, TcpRequest& request) {
  Stream& stream = streams_[{channel, tag}];
  if (stream.received.empty()) {
    // The first frame may have begun under a receive that was dropped before its bytes came.
    const bool begun = stream_ == &stream && head_read_ == sizeof frame_ && body_read_ == 0;
    if (begun && stream.posted.empty() && frame_.offset == 0 && frame_.total != request.bytes)
      throw other_size(frame_.total, request.bytes);
    stream.posted.push_back(&request);
    return;
  }
  ReceivedMessage& first = stream.received.front();
  if (first.total != request.bytes) throw other_size(first.total, request.bytes);
  std::memcpy(request.data, first.text.data(), first.text.size());
  request.moved = static_cast<Bytes>(first.text.size());
  const bool whole = request.moved == request.bytes;
  stream.received.pop_front();
  if (whole) {
    request.over.store(true, std::memory_order_release);
  } else {
    stream.posted.push_back(&request);
  }
}

void TcpInbox::drop(const TcpRequest& request) {
  for (auto& [key, stream] : streams_) std::erase(stream.posted, &request);
}

std::optional<std::string> TcpInbox::take(int64_t channel) {
  for (auto& [key, stream] : streams_) {
    if (key.first != channel || stream.received.empty()) continue;
    ReceivedMessage& first = stream.received.front();
    if (static_cast<Bytes>(first.text.size()) < first.total) continue;
    std::string text = std::move(first.text);
    stream.received.pop_front();
    return text;
  }
  return std::nullopt;
}

void TcpInbox::begin_frame() {
  stream_ = nullptr;
  if (frame_.kind == TcpFrame::kGoodbye && frame_.bytes == 0) {
    goodbye_ = true;
  } else if (frame_.kind == TcpFrame::kAbort && frame_.bytes == 0) {
    abort_ = frame_.tag;
  } else if (frame_.kind != TcpFrame::kData || frame_.bytes <= 0 ||
             frame_.bytes > TcpFrame::kMostBytes || frame_.offset < 0 ||
             frame_.total < frame_.bytes || frame_.offset > frame_.total - frame_.bytes) {
    fault_ = "it sent bytes that are not a message of this program";
  } else {
    stream_ = &streams_[{frame_.channel, frame_.tag}];
    const Bytes begun = std::exchange(stream_->begun, frame_.offset + frame_.bytes);
    const Bytes total = std::exchange(stream_->total, frame_.total);
    if (frame_.offset > 0) {
      if (frame_.offset == begun && frame_.total == total) return;
      fault_ = fmt::format(
          "it sent bytes {} to {} of a message of {} bytes, after {} bytes of one of {} bytes",
          frame_.offset, frame_.offset + frame_.bytes, frame_.total, begun, total);
      return;
    }
    if (stream_->posted.empty()) {
      stream_->received.push_back({"", frame_.total});
    } else if (stream_->posted.front()->bytes != frame_.total) {
      fault_ = other_size(frame_.total, stream_->posted.front()->bytes).what();
    }
  }
}

/// Returns the posted receive to which the frame's byte `at` of its message belongs, or null.
TcpRequest* TcpInbox::request_at(Bytes at) const {
  if (stream_->posted.empty()) return nullptr;
  TcpRequest* const first = stream_->posted.front();
  return first->moved == at && first->bytes == frame_.total ? first : nullptr;
}

/// Returns the memory for the frame's next `bytes` bytes: posted memory, that of a message which is
/// kept, or scrap_. It may differ at each read, because a receive may be posted or dropped between.
char* TcpInbox::room(Bytes bytes) {
  const Bytes at = frame_.offset + body_read_;
  if (TcpRequest* const request = request_at(at)) return request->data + at;
  const bool kept = stream_->posted.empty() && !stream_->received.empty() &&
                    static_cast<Bytes>(stream_->received.back().text.size()) == at;
  std::string& text = kept ? stream_->received.back().text : scrap_;
  const size_t begin = kept ? size_of(at) : 0;
  text.resize(begin + size_of(bytes));
  return text.data() + begin;
}

void TcpInbox::advance(Bytes bytes) {
  const Bytes at = frame_.offset + body_read_;
  body_read_ += bytes;
  if (stream_->posted.empty()) {
    if (!stream_->received.empty() &&
        static_cast<Bytes>(stream_->received.back().text.size()) > at) {
      stream_->received.back().text.resize(size_of(at + bytes));
    }
    return;
  }
  TcpRequest* const request = request_at(at);
  if (request == nullptr) return;
  request->moved += bytes;
  if (request->moved < request->bytes) return;
  stream_->posted.pop_front();
  request->over.store(true, std::memory_order_release);
}

TcpLink TcpInbox::fill(int descriptor, Bytes most) {
  for (Bytes total = 0; total < most;) {
    const bool head = head_read_ < sizeof frame_;
    const size_t wanted = head ? sizeof frame_ - head_read_ : size_of(frame_.bytes - body_read_);
    char* const to =
        head ? reinterpret_cast<char*>(&frame_) + head_read_ : room(static_cast<Bytes>(wanted));
    const ssize_t n = recv(descriptor, to, wanted, MSG_DONTWAIT);
    const int error = errno;
    if (head) {
      head_read_ += n > 0 ? static_cast<size_t>(n) : 0;
    } else {
      advance(std::max<ssize_t>(n, 0));
    }
    if (n < 0 && only_later(error)) return TcpLink::kOpen;
    errno = n < 0 ? error : 0;
    if (n <= 0) return TcpLink::kClosed;
    total += n;
    if (head && head_read_ == sizeof frame_) begin_frame();
    if (!fault_.empty()) return TcpLink::kClosed;
    if (head_read_ == sizeof frame_ && body_read_ == frame_.bytes) {
      head_read_ = 0;
      body_read_ = 0;
    }
  }
  return TcpLink::kOpen;
}

}  // namespace moe
