// Methods of the argument s of a schedule policy: s:free(a,b) s:before(a,b) s:sequence{...}
// s:lane(op,lane) s:under(op,comm) s:chunk(op,bytes) s:priority(op,n) s:discipline(lane,{ pick=,
// exclusive=, hold= }).
#include <cmath>

#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "bindings/policy/pick.h"
#include "engine/base/names.h"

namespace moe::lua {
namespace {

GraphSession& check_schedule(lua_State* L) {
  return GraphSession::of(L, check_userdata<ScheduleHandle>(L, 1, kScheduleType).session);
}

// s:free(a, b) -> whether the ops differ and no path of current edges joins them in any direction
int is_free(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId a = check_own_op(L, 2, session), b = check_own_op(L, 3, session);
  lua_pushboolean(L, a != b && session.reachability().independent(a, b));
  return 1;
}

// Returns the reason of an order edge: the text that the recipe gives, or the recipe's line.
std::string reason(lua_State* L, int index) {
  if (!lua_isnoneornil(L, index)) return utf8_argument(L, index);
  const std::optional<Position> position = Host::of(L).recipe_position(L);
  return position ? fmt::format("{}:{}", position->source, position->line) : "policy";
}

int before(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId from = check_own_op(L, 2, session), to = check_own_op(L, 3, session);
  session.before(from, to, reason(L, 4));
  count_kept(L);
  return 0;
}

int sequence(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const std::vector<OpId> ops = check_ops(L, 2, session);
  const std::string why = reason(L, 3);
  for (size_t i = 1; i < ops.size(); ++i) session.before(ops[i - 1], ops[i], why);
  count_kept(L);
  return 0;
}

int lane(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session);
  Schedule& schedule = session.schedule();
  const LaneId to = schedule.lane(luaL_checkstring(L, 3));
  const OpDef& def = session.graph().def(op);
  if (schedule.lanes[to.index()].kind != def.lane) {
    throw RunError(
        fmt::format("{}illegal schedule: op '{}' is of kind {}, which lane '{}' does not run",
                    recipe_position(L), session.graph().op(op).name, def.name,
                    schedule.lanes[to.index()].name));
  }
  schedule.lane_of[op.index()] = to;
  return 0;
}

// s:under(op, comm): orders `op` after the ops that the collective waits for and before those that
// wait for the collective, so that it may run during the collective.
int under(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session), comm = check_own_op(L, 3, session);
  const Graph& graph = session.graph();
  const std::string name = graph.op(op).name, comm_name = graph.op(comm).name;
  if (graph.def(comm).collective == Collective::kNone) {
    throw user_error("s:under: op '{}' is not a collective; give a collective as second argument",
                     comm_name);
  }
  if (op == comm || !session.reachability().independent(op, comm)) {
    throw user_error(
        "s:under: ops '{}' and '{}' are already ordered; call it only if s:free is true for them",
        name, comm_name);
  }
  const std::string why = lua_isnoneornil(L, 4) ? "under " + comm_name : utf8_argument(L, 4);
  const Dependencies& deps = session.deps();
  for (const OpId p : deps.preds[comm.index()]) session.before(p, op, why);
  for (const OpId s : deps.succs[comm.index()]) session.before(op, s, why);
  return 0;
}

// Returns the whole number from lo to hi at `index`; `what` names it in the error.
int64_t check_whole(lua_State* L, int index, const char* what, double lo, double hi) {
  const double value = luaL_checknumber(L, index);
  if (!(value >= lo && value <= hi) || value != std::floor(value)) {
    throw user_error("{}: {} is not allowed; give a whole number from {} to {}", what, value, lo,
                     hi);
  }
  return static_cast<int64_t>(value);
}

int chunk(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session);
  const auto message = static_cast<double>(message_bytes(session.graph(), op));
  const std::string what = fmt::format("s:chunk: bytes of '{}'", session.graph().op(op).name);
  // If the op is not a transfer, set_chunk throws.
  const Bytes bytes = message > 0 ? check_whole(L, 3, what.c_str(), 1, message) : 1;
  session.schedule().set_chunk(session.graph(), op, bytes, session.context().stage);
  return 0;
}

int priority(lua_State* L) {
  constexpr double kMost = 9007199254740992.0;  // 2^53: up to it doubles hold all whole numbers
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session);
  session.schedule().set_priority(op, check_whole(L, 3, "s:priority", -kMost, kMost));
  return 0;
}

// Stack indices of the fields of a discipline.
struct DisciplineFields {
  int pick, exclusive, hold;
};

DisciplineFields check_fields(lua_State* L, int table) {
  check_keys(L, table, "s:discipline", {"pick", "exclusive", "hold"});
  const auto field = [&](const std::string& key, std::initializer_list<int> types,
                         const char* give) {
    lua_getfield(L, table, key.c_str());
    const int type = lua_type(L, -1);
    if (type != LUA_TNIL && std::find(types.begin(), types.end(), type) == types.end()) {
      throw user_error("s:discipline: {}: a {} is not allowed; give {}", key, luaL_typename(L, -1),
                       give);
    }
    return lua_gettop(L);
  };
  return {field("pick", {LUA_TSTRING, LUA_TFUNCTION},
                "\"order\", \"priority\" or a function of the ready ops"),
          field("exclusive", {LUA_TTABLE}, "a list of lanes"),
          field("hold", {LUA_TFUNCTION}, "a function of an op and the graph")};
}

void set_pick(lua_State* L, GraphSession& session, LaneId lane, int index) {
  Schedule& schedule = session.schedule();
  const std::string& stage = session.context().stage;
  if (lua_isfunction(L, index)) {
    lua_pushvalue(L, index);
    return schedule.set_pick(lane, Pick::kPolicy, stage, lua_choose(L, session, lane));
  }
  const std::string name = luaL_optstring(L, index, "order");
  if (name != "order" && name != "priority") {
    throw UserError(unknown_name("s:discipline: pick", name, {"order", "priority"}));
  }
  schedule.set_pick(lane, name == "order" ? Pick::kOrder : Pick::kPriority, stage);
}

void set_exclusive(lua_State* L, GraphSession& session, LaneId lane, int index) {
  std::vector<LaneId> lanes{lane};
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    lanes.push_back(session.schedule().lane(luaL_checkstring(L, -1)));
    lua_pop(L, 1);
  }
  session.schedule().share_exclusively(std::move(lanes), session.context().stage);
}

// Calls the recipe's function `hold` for each op of the lane. `hold` returns nil, or the compute op
// from whose begin transfers of lower priority are held back until the op is posted.
void set_holds(lua_State* L, GraphSession& session, LaneId lane, int function) {
  Schedule& schedule = session.schedule();
  for (size_t i = 0; i < schedule.lane_of.size(); ++i) {
    if (schedule.lane_of[i] != lane) continue;
    const OpId until(static_cast<int64_t>(i));
    lua_pushvalue(L, function);
    session.push_op(L, until);
    session.push_graph(L);
    lua_call(L, 2, 1);
    if (!lua_isnil(L, -1)) {
      const OpId from = check_own_op(L, lua_gettop(L), session);
      if (session.graph().def(from).lane != LaneKind::kCompute) {
        throw user_error(
            "s:discipline: hold of op '{}': returned op '{}', which is not a compute op; return a "
            "compute op or nil",
            session.graph().op(until).name, session.graph().op(from).name);
      }
      schedule.holds.push_back({from, until, session.context().stage});
    }
    lua_pop(L, 1);
  }
}

int discipline(lua_State* L) {
  GraphSession& session = check_schedule(L);
  lua_settop(L, 3);
  const LaneId lane = session.schedule().lane(luaL_checkstring(L, 2));
  const DisciplineFields fields = check_fields(L, 3);
  set_pick(L, session, lane, fields.pick);
  if (!lua_isnil(L, fields.exclusive)) set_exclusive(L, session, lane, fields.exclusive);
  if (lua_isnil(L, fields.hold)) return 0;
  if (!session.schedule().picks(lane) && lua_isnil(L, fields.exclusive)) {
    throw user_error(
        "s:discipline: hold: has no effect, since lane '{}' runs its ops in the schedule's order "
        "and is not exclusive with another lane; give pick or exclusive too",
        session.schedule().lanes[lane.index()].name);
  }
  set_holds(L, session, lane, fields.hold);
  return 0;
}

}  // namespace

void open_schedule(lua_State* L) {
  static constexpr Member kSchedule[] = {
      {"free", "(a: moe.Op, b: moe.Op): boolean",
       "whether neither op waits for the other, directly or through ops between them",
       method<is_free>},
      {"before", "(a: moe.Op, b: moe.Op, why?: string)", "b waits for a", method<before>},
      {"sequence", "(ops: moe.Op[], why?: string)", "each op waits for the one before it",
       method<sequence>},
      {"lane", "(op: moe.Op, lane: string)", "runs the op on another lane of its kind",
       method<lane>},
      {"under", "(op: moe.Op, comm: moe.Op, why?: string)",
       "runs op after the ops that the collective waits for and before those that wait for it",
       method<under>},
      {"chunk", "(op: moe.Op, bytes: integer)", "sends the transfer in chunks of this many bytes",
       method<chunk>},
      {"priority", "(op: moe.Op, n: integer)",
       "sets the priority, by default 0; where a lane picks by priority, the highest goes first",
       method<priority>},
      {"discipline",
       "(lane: string, t: { pick?: \"order\"|\"priority\"|(fun(ready: moe.Op[]): moe.Op), "
       "exclusive?: string[], hold?: fun(op: moe.Op, g: moe.Graph): moe.Op? })",
       "sets how the lane chooses its next op; at most once per lane. lane: \"comm\", or "
       "\"comm_reduce\" where the system gives all-reduces a lane of their own. pick: by order, by "
       "priority or by a function that returns one of the ready ops; exclusive: lanes that never "
       "transfer at the same time; hold: returns the compute op that, once begun, holds back "
       "transfers of lower priority until op is posted",
       method<discipline>}};
  new_type<ScheduleHandle>(
      L, {kScheduleType, "s", "the lanes and orders of a plan, which a schedule policy sets",
          kSchedule});
}

}  // namespace moe::lua
