// Schedule handles: s:free(a,b) s:before(a,b) s:sequence{...} s:lane(op,lane) s:under(op,comm).
#include "bindings/graph_session.h"
#include "bindings/userdata.h"

namespace moe::lua {
namespace {

GraphSession& check_schedule(lua_State* L) {
  return GraphSession::of(L, check_userdata<ScheduleHandle>(L, 1, kScheduleType).session);
}

OpId check_own_op(lua_State* L, int index, const GraphSession& session) {
  const auto [owner, op] = check_op(L, index);
  if (owner != &session) throw UserError("an op of another graph");
  return op;
}

// No path by data or by order so far, in either direction.
int is_free(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId a = check_own_op(L, 2, session), b = check_own_op(L, 3, session);
  lua_pushboolean(L, a != b && session.reachability().independent(a, b));
  return 1;
}

// The reason of an order edge: what the recipe gives, or the line that makes it.
std::string reason(lua_State* L, int index) {
  if (!lua_isnoneornil(L, index)) return luaL_checkstring(L, index);
  const std::optional<Position> position = Host::of(L).recipe_position(L);
  return position ? fmt::format("{}:{}", position->source, position->line) : "policy";
}

int before(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId from = check_own_op(L, 2, session), to = check_own_op(L, 3, session);
  session.before(from, to, reason(L, 4));
  return 0;
}

int sequence(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const std::vector<OpId> ops = check_ops(L, 2, session);
  const std::string why = reason(L, 3);
  for (size_t i = 1; i < ops.size(); ++i) session.before(ops[i - 1], ops[i], why);
  return 0;
}

int lane(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session);
  Schedule& schedule = session.schedule();
  const LaneId to = schedule.lane(luaL_checkstring(L, 3));
  const OpDef& def = session.graph().def(op);
  if (schedule.lanes[to.index()].kind != def.lane) {
    throw RunError(fmt::format("{}illegal schedule: '{}' is a {}, which lane '{}' does not run",
                               recipe_position(L), session.graph().op(op).name, def.name,
                               schedule.lanes[to.index()].name));
  }
  schedule.lane_of[op.index()] = to;
  return 0;
}

// After what the collective waits for, before what waits for it: the op may run while it does.
int under(lua_State* L) {
  GraphSession& session = check_schedule(L);
  const OpId op = check_own_op(L, 2, session), comm = check_own_op(L, 3, session);
  const Graph& graph = session.graph();
  const std::string name = graph.op(op).name, comm_name = graph.op(comm).name;
  if (graph.def(comm).collective == Collective::kNone) {
    throw user_error("s:under: '{}' is not a collective", comm_name);
  }
  if (op == comm || !session.reachability().independent(op, comm)) {
    throw user_error("s:under: '{}' and '{}' are ordered already; ask s:free first", name,
                     comm_name);
  }
  const std::string why = luaL_optstring(L, 4, ("under " + comm_name).c_str());
  const Dependencies& deps = session.deps();
  for (const OpId p : deps.preds[comm.index()]) session.before(p, op, why);
  for (const OpId s : deps.succs[comm.index()]) session.before(op, s, why);
  return 0;
}

}  // namespace

void open_schedule(lua_State* L) {
  static constexpr luaL_Reg kMethods[] = {
      {"before", method<before>},     {"free", method<is_free>}, {"lane", method<lane>},
      {"sequence", method<sequence>}, {"under", method<under>},  {nullptr, nullptr}};
  new_type<ScheduleHandle>(L, kScheduleType, kMethods);
}

}  // namespace moe::lua
