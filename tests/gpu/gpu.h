// What the cases of test_gpu share: the GPU, and streams and events that end with their scope.
#pragma once

#include <catch2/catch.hpp>

#include "tests/gpu/plugin.h"

namespace moe::test {

/// The opened plugin's table.
const kernels::DeviceTable& gpu();

class OwnStream {
 public:
  explicit OwnStream(bool urgent = false) : stream_(gpu().make_stream(urgent)) {
    INFO(gpu().take_error());
    REQUIRE(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  ~OwnStream() { gpu().end_stream(stream_); }
  operator kernels::Stream() const { return stream_; }
  void finish() const { test::finish(gpu(), stream_); }

 private:
  kernels::Stream stream_;
};

class OwnEvent {
 public:
  explicit OwnEvent(bool timed = false) : event_(gpu().make_event(timed)) {
    INFO(gpu().take_error());
    REQUIRE(event_);
  }
  OwnEvent(const OwnEvent&) = delete;
  ~OwnEvent() { gpu().end_event(event_); }
  operator kernels::Event() const { return event_; }

 private:
  kernels::Event event_;
};

/// Nanoseconds that the device spends in what `give` gives to the stream.
template <class Give>
double device_ns(kernels::Stream stream, Give give) {
  const OwnEvent from(true), to(true);
  gpu().record(from, stream);
  give();
  gpu().record(to, stream);
  finish(gpu(), stream);
  return gpu().elapsed_ns(from, to);
}

}  // namespace moe::test
