// core.pipeline_turns, _rank and _refusal: the turns of a schedule written in Lua. core.
// pipeline_times: rows, faults and times of a schedule or table. core.pipeline_layout.
#include <algorithm>
#include <optional>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "engine/pipeline/check.h"
#include "engine/pipeline/layout.h"
#include "engine/pipeline/schedules.h"
#include "engine/pipeline/timeline.h"

namespace moe::lua {
namespace {

using nlohmann::json;
using pipeline::Work;

constexpr const char* kPipelineTurns = "pipeline turns";

/// The turns that a schedule in Lua has given so far; the last row is that of the rank for which it
/// is being asked.
struct PipelineTurns {
  pipeline::Shape shape;
  std::vector<pipeline::Turns> rows;
  std::string code, reason;  // of a refusal
};

PipelineTurns& turns_at(lua_State* L, int index) {
  return check_userdata<PipelineTurns>(L, index, kPipelineTurns);
}

pipeline::Shape shape_of(const Fields& fields) {
  pipeline::Shape shape{.ranks = fields.integer("ranks"),
                        .stages = fields.integer("stages"),
                        .micro_batches = fields.integer("micro_batches")};
  shape.placing = value_named<pipeline::Placing>("placement", fields.text("placement"));
  return shape;
}

struct TurnOptions {
  std::optional<int64_t> chunk;
  bool beside = false;
};

TurnOptions turn_options(lua_State* L, int index, const pipeline::Shape& shape) {
  TurnOptions options;
  if (lua_isnoneornil(L, index)) return options;
  luaL_checktype(L, index, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    const std::string_view key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (key == "chunk") {
      options.chunk = check_index(L, -1, shape.chunks(), "chunk");
    } else if (key == "beside") {
      options.beside = lua_toboolean(L, -1) != 0;
    } else {
      check_keys(L, index, "options of a turn", {"beside", "chunk"});
    }
  }
  return options;
}

// p:forward(micro_batch, { chunk, beside }) and its like: adds a turn to the row.
template <Work kWork>
int add_turn(lua_State* L) {
  PipelineTurns& p = turns_at(L, 1);
  const pipeline::Shape& shape = p.shape;
  if (p.rows.empty()) throw user_error("turns can only be given while `turns` is called");
  pipeline::Turns& row = p.rows.back();
  const int64_t micro = check_index(L, 2, shape.micro_batches, "micro-batch");
  const bool second_way =
      shape.placing == pipeline::Placing::kTwoWay && micro >= shape.micro_batches / 2;
  const TurnOptions options = turn_options(L, 3, shape);
  if (options.beside && kWork != Work::kF) {
    throw user_error("beside: a pair is a forward and the backward after it; give it to p:forward");
  }
  if (!row.empty() && row.back().beside && kWork != Work::kB) {
    throw user_error("the forward before has beside = true; give p:backward as the next turn");
  }
  if (static_cast<int64_t>(row.size()) >= 4 * shape.chunks() * shape.micro_batches) {
    throw user_error("the rank takes more turns than its {} stages have with {} micro-batches",
                     shape.chunks(), shape.micro_batches);
  }
  row.push_back({kWork, options.beside, static_cast<int32_t>(micro),
                 static_cast<int32_t>(options.chunk.value_or(second_way ? 1 : 0))});
  return 0;
}

int refuse_schedule(lua_State* L) {
  PipelineTurns& p = turns_at(L, 1);
  p.code = utf8_argument(L, 2), p.reason = utf8_argument(L, 3);
  throw pipeline::refusal(p.code, p.reason);
}

template <int64_t pipeline::Shape::*kSize>
int push_size(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(turns_at(L, 1).shape.*kSize));
  return 1;
}

int push_chunks(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(turns_at(L, 1).shape.chunks()));
  return 1;
}

constexpr const char* kTurnArguments =
    "(micro_batch: integer, options?: { chunk?: integer, beside?: boolean })";

constexpr Member kPipelineTurnsMembers[] = {
    {"ranks", "integer", "pipeline ranks", push_size<&pipeline::Shape::ranks>},
    {"chunks", "integer", "stages per rank", push_chunks},
    {"micro_batches", "integer", "micro-batches of a step",
     push_size<&pipeline::Shape::micro_batches>},
    {"forward", kTurnArguments,
     "adds the forward of a micro-batch as the rank's next turn. chunk: which of the rank's "
     "stages, by default the first, for placement = 'two_way' that of the micro-batch; beside: the "
     "turn and the next one, a backward, run as a pair",
     method<add_turn<Work::kF>>},
    {"backward", kTurnArguments, "adds a whole backward: both gradients in one turn",
     method<add_turn<Work::kB>>},
    {"dx", kTurnArguments, "adds the gradient of the stage's input", method<add_turn<Work::kI>>},
    {"dw", kTurnArguments, "adds the gradient of the stage's weights, after its dx",
     method<add_turn<Work::kW>>},
    {"refuse", "(code: string, reason: string)",
     "ends with an error: the schedule does not exist for these numbers", method<refuse_schedule>},
};

constexpr TypeDef kPipelineTurnsDef = {
    kPipelineTurns, "p",
    "the turns of one rank of a pipeline schedule, which the schedule gives in order",
    kPipelineTurnsMembers};

// ({ ranks, stages, micro_batches, placement }) -> pipeline turns
int pipeline_turns(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  push_kept<PipelineTurns>(L, kPipelineTurns,
                           PipelineTurns{shape_of(Fields(values, "pipeline")), {}, {}, {}});
  return 1;
}

// (pipeline turns) -> begins the row of the next rank; checks the one before
int pipeline_rank(lua_State* L) {
  PipelineTurns& p = turns_at(L, 1);
  if (!p.rows.empty() && !p.rows.back().empty() && p.rows.back().back().beside) {
    throw user_error("rank {}: the last turn has beside = true, but no backward follows",
                     p.rows.size());
  }
  p.rows.emplace_back();
  return 0;
}

// (pipeline turns) -> code, reason of a refusal; nothing if there was none
int pipeline_refusal(lua_State* L) {
  const PipelineTurns& p = turns_at(L, 1);
  if (p.code.empty()) return 0;
  push_text(L, p.code);
  push_text(L, p.reason);
  return 2;
}

/// Returns what f() returns; its UserErrors get `prefix` in front.
template <class F>
auto naming(const std::string& prefix, F&& f) {
  try {
    return f();
  } catch (const UserError& e) {
    throw UserError(prefix + e.what());
  }
}

/// Returns the rows of the built-in schedule `fields.schedule`.
std::vector<pipeline::Row> built_in_rows(const Fields& fields, const pipeline::Shape& shape) {
  const std::string name = fields.text("schedule");
  const pipeline::Query query{shape.ranks, fields.integer("chunks"), shape.micro_batches,
                              fields.integer("group", 0)};
  std::vector<pipeline::Row> rows;
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    for (int64_t rank = 0; def.name == name && rank < shape.ranks; ++rank) {
      const pipeline::Turns turns = naming("moe.pipeline_times.schedule: " + name + ": ",
                                           [&] { return def.turns(query, rank); });
      rows.push_back(row_of(turns, rank, shape));
    }
  }
  return rows;
}

std::vector<double> numbers(const json& values, const char* key) {
  const auto given = values.find(key);
  return given == values.end() || given->is_null() ? std::vector<double>{}
                                                   : given->get<std::vector<double>>();
}

pipeline::Costs costs_of(const Fields& fields, const std::vector<pipeline::Row>& rows) {
  const json& values = fields.value();
  pipeline::Costs costs{.f = numbers(values, "f"),
                        .b = numbers(values, "b"),
                        .i = numbers(values, "i"),
                        .w = numbers(values, "w"),
                        .pair = value_named<pipeline::PairRule>("rule", fields.text("pair")),
                        .pair_value = fields.number("pair_value", 0),
                        .mode = value_named<pipeline::SendMode>("mode", fields.text("mode")),
                        .send_f = fields.number("send_f"),
                        .send_b = fields.number("send_b")};
  for (const json& link : values.at("links")) {
    costs.links.push_back({link.at(0).get<int64_t>(), link.at(1).get<int64_t>(), link.at(2)});
  }
  const auto is_split = [](const pipeline::Action& a) {
    return a.work == Work::kI || a.work == Work::kW;
  };
  for (const pipeline::Row& row : rows) {
    if ((costs.i.empty() || costs.w.empty()) && std::any_of(row.begin(), row.end(), is_split)) {
      throw user_error(
          "moe.pipeline_times.times: the schedule has turns I and W; give the times I and W");
    }
  }
  return costs;
}

json faults_json(const std::vector<pipeline::Finding>& found) {
  json all = json::array();
  for (const pipeline::Finding& fault : found) {
    all.push_back({{"code", fault.code}, {"action", fault.action}});
    if (fault.rank >= 0) all.back()["rank"] = fault.rank + 1;
  }
  return {{"errors", all}};
}

/// Holds back Lua's garbage collection while many tables are made, none of which is garbage.
struct NoCollection {
  explicit NoCollection(lua_State* state) : L(state) { lua_gc(L, LUA_GCSTOP, 0); }
  ~NoCollection() { lua_gc(L, LUA_GCRESTART, 0); }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
  lua_State* L;
};

/// Sets the field `entries` of the table on top; directly, since they may be a million.
void set_entries(lua_State* L, const pipeline::Timeline& t,
                 const std::vector<pipeline::Row>& rows) {
  const NoCollection guard(L);
  std::string text;
  lua_createtable(L, static_cast<int>(rows.size()), 0);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const std::vector<pipeline::Entry>& row = t.entries[rank];
    lua_createtable(L, static_cast<int>(row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) {
      lua_createtable(L, 0, 3);
      text.clear();
      append_entry(text, rows[rank], row[i].at);
      push_text(L, text);
      lua_setfield(L, -2, "text");
      lua_pushnumber(L, row[i].begin);
      lua_setfield(L, -2, "begin");
      lua_pushnumber(L, row[i].end);
      lua_setfield(L, -2, "end");
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
    lua_rawseti(L, -2, static_cast<int>(rank) + 1);
  }
  lua_setfield(L, -2, "entries");
}

/// Returns the table that the query gives, or the rows of its schedule.
pipeline::Table table_of(lua_State* L, const Fields& query, const pipeline::Shape& shape) {
  if (query.has("table")) {
    return naming("moe.pipeline_times.table: ",
                  [&] { return pipeline::parse_table(query.text("table"), shape.ranks); });
  }
  if (!lua_isuserdata(L, 2)) return {.rows = built_in_rows(query, shape)};
  pipeline::Table table;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    table.rows.push_back(row_of(turns_at(L, 2).rows[static_cast<size_t>(rank)], rank, shape));
  }
  return table;
}

// ({ schedule, group | table, spelled; ranks, chunks, stages, micro_batches, placement; f, b, i, w,
// pair, pair_value, mode, send_f, send_b, links, act, keep_w, timed, entries }, pipeline turns or
// nil) -> { errors }, or { rows, peak } with, if timed, the times
int pipeline_times(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  const Fields query(values, "moe.pipeline_times");
  const pipeline::Shape shape = shape_of(query);
  auto [rows, unknown] = table_of(L, query, shape);
  std::vector<pipeline::Finding> found = find_faults(rows, shape, query.flag("spelled", false));
  if (!unknown.empty()) {  // one of which may be the turn for which another waits
    std::erase_if(found, [](const auto& fault) { return fault.code == "deadlock"; });
    found.insert(found.begin(), unknown.begin(), unknown.end());
  }
  if (!found.empty()) {
    push_json(L, faults_json(found));
    return 1;
  }
  json result = {{"peak", peaks(rows, numbers(values, "act"), query.number("keep_w"))}};
  for (pipeline::Row& row : rows) {
    std::erase_if(row, [](const auto& action) { return is_transfer(action.work); });
    result["rows"].push_back(text_of(row));
  }
  if (!query.flag("timed", false)) {
    push_json(L, result);
    return 1;
  }
  const pipeline::Timeline t = compose(rows, shape, costs_of(query, rows));
  result.update({{"step", t.step},
                 {"busy", t.busy},
                 {"bubble", t.bubble},
                 {"inner", t.inner},
                 {"sending", t.sending}});
  push_json(L, result);
  if (query.flag("entries", true)) set_entries(L, t, rows);
  return 1;
}

// (layout, ranks) -> the layers of each stage, a list of texts
int pipeline_layout(lua_State* L) {
  const std::string layout = text_argument(L, 1);
  const auto ranks = static_cast<int64_t>(luaL_checknumber(L, 2));
  push_json(L, naming("moe.pipeline_layout.layout: ",
                      [&] { return pipeline::parse_layout(layout, ranks); }));
  return 1;
}

}  // namespace

void open_pipeline(lua_State* L) {
  new_type<PipelineTurns>(L, kPipelineTurnsDef);
  static constexpr luaL_Reg kFunctions[] = {
      {"pipeline_layout", core_function<with_effect<pipeline_layout>>},
      {"pipeline_rank", core_function<pipeline_rank>},
      {"pipeline_refusal", core_function<pipeline_refusal>},
      {"pipeline_times", core_function<with_effect<pipeline_times>>},
      {"pipeline_turns", core_function<pipeline_turns>},
      {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
