#include "engine/schedule/packed.h"

#include "engine/base/errors.h"

namespace moe {
namespace {

template <class T, class Put>
void put_list(const std::vector<T>& list, Packer& packer, Put put) {
  packer.put(list.size());
  for (const T& one : list) put(one);
}

template <class T, class Get>
void get_list(std::vector<T>& list, Unpacker& unpacker, Get get) {
  size_t size = 0;
  unpacker.get(size);
  for (size_t i = 0; i < size; ++i) get(list.emplace_back());
}

}  // namespace

void put_schedule(const Schedule& s, Packer& p) {
  put_list(s.lanes, p, [&](const Lane& lane) {
    p.put(lane.name), p.put(lane.kind), p.put(lane.pick), p.put(lane.stage);
  });
  p.put(s.lane_of);
  put_list(s.order_edges, p, [&](const OrderEdge& edge) {
    p.put(edge.from), p.put(edge.to), p.put(edge.stage), p.put(edge.why);
  });
  p.put(s.priority);
  p.put(s.chunk_bytes);
  put_list(s.chunk_stage, p, [&](const std::string& stage) { p.put(stage); });
  put_list(s.holds, p,
           [&](const Hold& hold) { p.put(hold.from), p.put(hold.until), p.put(hold.stage); });
  put_list(s.exclusive, p, [&](const Exclusive& group) { p.put(group.lanes), p.put(group.stage); });
  put_list(s.log, p,
           [&](const Decision& d) { p.put(d.op), p.put(d.stage), p.put(d.why), p.put(d.skipped); });
  put_list(s.settings, p, [&](const Setting& set) {
    p.put(set.op), p.put(set.what), p.put(set.stage), p.put(set.before);
  });
}

Schedule get_schedule(Unpacker& u) {
  Schedule s;
  get_list(s.lanes, u, [&](Lane& lane) {
    u.get(lane.name), u.get(lane.kind), u.get(lane.pick), u.get(lane.stage);
    if (lane.pick != Pick::kPolicy) return;
    lane.choose = [where = fmt::format("lane {} (stage {})", lane.name, lane.stage)](
                      std::span<const OpId>) -> OpId {
      throw run_error("{}: its pick is a function of another process", where);
    };
  });
  u.get(s.lane_of);
  get_list(s.order_edges, u, [&](OrderEdge& edge) {
    u.get(edge.from), u.get(edge.to), u.get(edge.stage), u.get(edge.why);
  });
  u.get(s.priority);
  u.get(s.chunk_bytes);
  get_list(s.chunk_stage, u, [&](std::string& stage) { u.get(stage); });
  get_list(s.holds, u, [&](Hold& hold) { u.get(hold.from), u.get(hold.until), u.get(hold.stage); });
  get_list(s.exclusive, u, [&](Exclusive& group) { u.get(group.lanes), u.get(group.stage); });
  get_list(s.log, u,
           [&](Decision& d) { u.get(d.op), u.get(d.stage), u.get(d.why), u.get(d.skipped); });
  get_list(s.settings, u, [&](Setting& set) {
    u.get(set.op), u.get(set.what), u.get(set.stage), u.get(set.before);
  });
  return s;
}

}  // namespace moe
