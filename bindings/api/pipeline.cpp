// core.pipeline_rows: the turns of a schedule of the engine. core.pipeline_times: faults and times
// of rows. core.turns_alike: whether rows have the turns of others. core.lane_times: the order and
// the times of tasks on lanes.
#include <algorithm>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "engine/pipeline/likeness.h"
#include "engine/pipeline/timeline.h"
#include "engine/schedule/lane_search.h"

namespace moe::lua {
namespace {

using nlohmann::json;
using pipeline::Work;

// ({ name, ranks, chunks, micro_batches, group }) -> a text per rank
int pipeline_rows(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields fields(values, "pipeline");
  const pipeline::Query query{fields.integer("ranks"), fields.integer("chunks"),
                              fields.integer("micro_batches"), fields.integer("group", 1)};
  json rows = json::array();
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    const pipeline::Shape shape{query.ranks, query.ranks * query.chunks, query.micro_batches,
                                def.placing};
    for (int64_t rank = 0; def.name == fields.text("name") && rank < query.ranks; ++rank) {
      rows.push_back(text_of(row_of(def.turns(query, rank), rank, shape)));
    }
  }
  push_json(L, rows);
  return 1;
}

std::vector<double> numbers(const Fields& fields, const char* key) {
  if (!fields.has(key)) return {};
  return fields.value().at(key);
}

pipeline::Costs costs_of(const Fields& query) {
  const Fields send = query.at("send"), pair = query.at("pair");
  pipeline::Costs costs{.pair_saving = pair.number("saving"),
                        .mode = value_named<pipeline::SendMode>("mode", send.text("mode")),
                        .send_f = send.number("f"),
                        .send_b = send.number("b"),
                        .act = numbers(query, "act"),
                        .keep_w = query.number("keep_w")};
  for (const Work work : {Work::kF, Work::kB, Work::kI, Work::kW}) {
    costs.times[static_cast<size_t>(work)] = numbers(query.at("times"), name_of(work));
  }
  if (pair.has("time")) costs.pair = pair.number("time");
  for (const json& link : send.value().at("links")) costs.links[{link[0], link[1]}] = link[2];
  return costs;
}

// ({ rows, transfers, ranks, stages, micro_batches, placement, times, pair = { time, saving },
// send, act, keep_w, entries }) -> { errors }, or rows and times
int pipeline_times(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields query(values, "moe.pipeline_times");
  const pipeline::Shape shape{query.integer("ranks"), query.integer("stages"),
                              query.integer("micro_batches"),
                              value_named<pipeline::Placing>("placement", query.text("placement"))};
  pipeline::Table table = pipeline::parse_table(values.at("rows"));
  json result;
  for (const auto& fault : find_faults(table, shape, query.flag("transfers", false))) {
    result["errors"].push_back({{"code", fault.code}, {"action", fault.action}});
    if (fault.rank >= 0) result["errors"].back()["rank"] = fault.rank + 1;
  }
  if (result.is_null()) {
    for (pipeline::Row& row : table.rows) {
      std::erase_if(row, [](const auto& action) { return is_transfer(action.work); });
      result["rows"].push_back(text_of(row));
    }
    const pipeline::Timeline t = compose(table.rows, shape, costs_of(query));
    result.update({{"step", t.step},
                   {"busy", t.busy},
                   {"bubble", t.bubble},
                   {"inner", t.inner},
                   {"sending", t.sending},
                   {"peak", t.peak}});
    if (query.flag("entries", true)) result.update({{"begins", t.begins}, {"ends", t.ends}});
  }
  push_json(L, result);
  return 1;
}

// (rows of few micro-batches, rows of many) -> how many neighbours of each turn of many are alike
// on both sides, the least; -1 if few lacks a turn (pipeline/likeness.h)
int turns_alike(lua_State* L) {
  const auto few = pipeline::parse_table(to_json(L, 1)).rows;
  int32_t least = pipeline::Like::kReach;
  for (const auto& row : alike(few, pipeline::parse_table(to_json(L, 2)).rows)) {
    for (const pipeline::Like& like : row) least = std::min(least, like.reach);
  }
  lua_pushinteger(L, least);
  return 1;
}

// ({ tasks = { lane, time, after, needs }, order }) -> { order, begins, length }; without an order:
// the shortest that is found
int lane_times(lua_State* L) {
  const json values = to_json(L, 1);
  std::vector<LaneTask> tasks;
  for (const json& task : values.at("tasks")) {
    tasks.push_back({task.at("lane"), task.at("time"), task.at("after"), task.at("needs")});
  }
  const TaskOrders orders =
      values.contains("order") ? TaskOrders(values.at("order")) : shortest_orders(tasks);
  const TaskTimes times = times_in(tasks, orders);
  push_json(L, {{"order", orders}, {"begins", times.begins}, {"length", times.length}});
  return 1;
}

}  // namespace

void open_pipeline(lua_State* L) {
  set_functions(L, {{"pipeline_rows", core_function<pipeline_rows>},
                    {"pipeline_times", core_function<with_effect<pipeline_times>>},
                    {"turns_alike", core_function<turns_alike>},
                    {"lane_times", core_function<with_effect<lane_times>>}});
}

}  // namespace moe::lua
