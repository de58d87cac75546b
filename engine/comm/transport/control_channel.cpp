#include "engine/comm/transport/control_channel.h"

#include "engine/base/errors.h"

namespace moe {

ControlChannel::ControlChannel(Processes& processes, int64_t channel)
    : processes_(processes), transport_(*processes.transport_), channel_(channel) {}

void ControlChannel::send(int64_t peer, std::string text) {
  if (processes_.failed()) return;
  try {
    const std::lock_guard lock(mutex_);
    forget_sent();
    Sent& sent = sent_.emplace_back(Sent{std::move(text), transport_.messages()});
    sent.messages->send(channel_, peer, 0, sent.text.data(), static_cast<Bytes>(sent.text.size()));
    forget_sent();  // most messages are sent at once
  } catch (const RunError& error) {
    processes_.fail(error.what());
  }
}

void ControlChannel::forget_sent() {
  while (!sent_.empty() && sent_.front().messages->over()) sent_.pop_front();
}

std::optional<Transport::ControlMessage> ControlChannel::read() {
  if (processes_.failed()) return std::nullopt;
  try {
    return transport_.read(channel_);
  } catch (const RunError& error) {
    processes_.fail(error.what());
    return std::nullopt;
  }
}

}  // namespace moe
