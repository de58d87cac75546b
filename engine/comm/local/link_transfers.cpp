#include "engine/comm/local/link_transfers.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {

LinkTransfers::LinkTransfers(const Cluster& link, bool keep_use)
    : link_(link), wire_(link_, network_options(link_, keep_use), false) {}

void LinkTransfers::begin(Channel& channel, uint64_t turn, const NetworkOp& op,
                          Nanoseconds earliest) {
  MOE_CHECK(channel.over,
            "transfer {} of a lane within a group begins, but transfer {} of the same lane and "
            "group must end first",
            turn, channel.turn);
  channel.turn = turn;
  channel.begin = std::max({earliest, channel.end, wire_.now()});
  channel.end = channel.begin + alone_ns(link_, op);
  channel.op = wire_.begin(op, static_cast<double>(channel.begin));
  channel.over = false;
  on_wire_[channel.op] = &channel;
}

bool LinkTransfers::is_over(Channel& channel, Nanoseconds now) {
  // Other transfers never make a transfer end earlier than alone.
  while (!channel.over && now >= channel.end && wire_.next_ns() <= now) {
    wire_.advance(wire_.next_ns(), ended_);
    for (const Done& done : ended_) {
      Channel& its = *on_wire_.at(done.op);
      its.end = done.times.end_ns;
      its.over = true;
      on_wire_.erase(done.op);
    }
    ended_.clear();
  }
  return channel.over && now >= channel.end;
}

Nanoseconds LinkTransfers::next_ns(const Channel& channel) {
  return channel.over ? channel.end : std::max(wire_.next_ns(), channel.end);
}

bool LinkTransfers::may_end_next(const Channel& channel) {
  return channel.over || wire_.may_end_next(channel.op);
}

}  // namespace moe
