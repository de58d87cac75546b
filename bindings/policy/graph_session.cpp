#include "bindings/policy/graph_session.h"

#include <algorithm>

#include "bindings/host/field_json.h"
#include "bindings/host/userdata.h"

namespace moe::lua {
namespace {

constexpr const char* kContextType = "policy context";

// Returns the seed of ctx.rng in a policy's call, made from --seed and the stage's name.
uint64_t policy_stream(const Host& host, const std::string& stage) {
  uint32_t stream = hash32(static_cast<uint64_t>(host.options().seed.value_or(1)), 1000211);
  for (const char c : stage) stream = hash32(static_cast<unsigned char>(c), stream);
  return stream;
}

// Returns the session to which a field of ctx belongs; upvalue 1 is the session's number.
GraphSession& session_of(lua_State* L) {
  return GraphSession::of(L, static_cast<uint32_t>(lua_tonumber(L, lua_upvalueindex(1))));
}

int context_model(lua_State* L) {
  const GraphSession& session = session_of(L);
  session.context();
  push_json(L, session.view().model);
  return 1;
}

int context_cluster(lua_State* L) {
  push_json(L, cluster_table(session_of(L).context().cluster));
  return 1;
}

int context_stage(lua_State* L) {
  lua_pushstring(L, session_of(L).context().stage.c_str());
  return 1;
}

int context_rng(lua_State* L) {
  push_userdata<Rng>(L, kRngType, policy_stream(Host::of(L), session_of(L).context().stage));
  return 1;
}

// Removes ctx from the arguments if it is the first, so that ctx:f(op) and ctx.f(op) are
// equivalent.
void drop_context_argument(lua_State* L) {
  if (lua_istable(L, 1)) lua_remove(L, 1);
}

int context_cost_ms(lua_State* L) {
  drop_context_argument(L);
  const auto [session, op] = check_op(L, 1);
  lua_pushnumber(L, session->cost_ms(op));
  return 1;
}

int context_log(lua_State* L) {
  drop_context_argument(L);
  const auto [session, op] = check_op(L, 1);
  session->log(op, utf8_argument(L, 2));
  return 0;
}

// ctx:skip(why[, op]). Upvalue 1 is the number of the session: the handle of `op` has it too, but
// `op` may be absent.
int context_skip(lua_State* L) {
  drop_context_argument(L);
  GraphSession& session = session_of(L);
  const std::string why = utf8_argument(L, 1);
  session.skip(why, lua_isnoneornil(L, 2) ? OpId() : check_op(L, 2).second);
  return 0;
}

constexpr Member kContext[] = {
    {"model", "moe.ContextModel", "sizes of the model", method<context_model>},
    {"cluster", "moe.ContextCluster", "the devices and links", method<context_cluster>},
    {"stage", "string", "name of the policy", method<context_stage>},
    {"rng", "moe.Rng", "random numbers that depend only on --seed and the policy's name",
     method<context_rng>},
    {"cost_ms", "(op: moe.Op): number", "time of the op if it runs alone, by the plan's cost model",
     method<context_cost_ms>},
    {"log", "(op: moe.Op, why: string)", "adds a decision about the op to plan:explain()",
     method<context_log>},
    {"skip", "(why: string, op?: moe.Op)",
     "records why the policy does not change the graph or schedule, or this op",
     method<context_skip>}};

int rng_uniform(lua_State* L) {
  lua_pushnumber(L, check_userdata<Rng>(L, 1, kRngType).uniform());
  return 1;
}

int rng_below(lua_State* L) {
  Rng& rng = check_userdata<Rng>(L, 1, kRngType);
  const lua_Number n = luaL_checknumber(L, 2);
  if (!(n >= 1 && n <= 16777216))
    throw user_error("rng:below: {} is not allowed; give a whole number from 1 to 2^24", n);
  lua_pushnumber(L, static_cast<double>(rng.below(static_cast<int64_t>(n)) + 1));
  return 1;
}

}  // namespace

nlohmann::json cluster_table(const Cluster& c) {
  nlohmann::json table = values_json(c);
  table["devices"] = c.num_devices();
  return table;
}

GraphSession::GraphSession(lua_State* L, Graph graph, Schedule* schedule,
                           const PassContext& context, std::shared_ptr<const PolicyView> view)
    : L_(L),
      host_(Host::of(L)),
      graph_(std::move(graph)),
      schedule_(schedule),
      context_(context),
      view_(std::move(view)),
      serial_(host_.add_session(this)),
      what_(fmt::format("{} '{}'", schedule ? "schedule" : "pass", context.stage)) {
  lua_newtable(L);
  handles_ = std::make_unique<Reference>(L);
}

GraphSession::GraphSession(lua_State* L, Graph graph, std::string what)
    : L_(L),
      host_(Host::of(L)),
      graph_(std::move(graph)),
      serial_(host_.add_session(this)),
      what_(std::move(what)) {
  lua_newtable(L);
  handles_ = std::make_unique<Reference>(L);
}

const PassContext& GraphSession::context() const {
  if (!context_) throw user_error("{}: this is only known in passes and schedule policies", what_);
  return *context_;
}

GraphSession::~GraphSession() {
  host_.remove_session(serial_);
}

GraphSession& GraphSession::of(lua_State* L, uint32_t serial) {
  GraphSession* session = Host::of(L).session(serial);
  if (session == nullptr || !session->open_) {
    throw UserError(
        "this handle is from a call of a policy that has ended; keep the op's name instead");
  }
  return *session;
}

Graph& GraphSession::edit() {
  if (schedule_ != nullptr)
    throw UserError("a schedule policy cannot edit the graph; only a pass can");
  deps_.reset();
  producers_.reset();
  reachability_.reset();
  return graph_;
}

Schedule& GraphSession::schedule() {
  if (schedule_ == nullptr)
    throw UserError("a pass has no schedule; only a policy of moe.policy.schedule has one");
  if (closed_)
    throw UserError("a pick cannot change the schedule, which is finished when a pick is called");
  return *schedule_;
}

void GraphSession::close() {
  if (schedule_ != nullptr) kept_ = *schedule_;
  if (schedule_ != nullptr) schedule_ = &kept_;
  // The picks of the kept schedule have references to this session, which would never be destroyed.
  for (Lane& lane : kept_.lanes) lane.choose = nullptr;
  context_->log = nullptr;
  open_ = false;
  closed_ = true;
}

double GraphSession::cost_ms(OpId op) {
  const Deadline::Pause pause(deadline_.get());  // the cost model may have to measure the op
  return to_ms(context().cost.op_ns(graph_, op));
}

Work GraphSession::work(OpId op) const {
  return graph_.def(op).work(graph_, graph_.op(op), WorkContext{view_->slot_occupancy});
}

std::string GraphSession::lane_name(OpId op) const {
  if (schedule_ != nullptr) return schedule_->lanes[schedule_->lane_of[op.index()].index()].name;
  return name_of(graph_.def(op).lane);
}

const Dependencies& GraphSession::deps() {
  if (!deps_) deps_ = dependencies(graph_);
  return *deps_;
}

const std::vector<OpId>& GraphSession::producers() {
  if (!producers_) producers_ = graph_.producers();
  return *producers_;
}

const Reachability& GraphSession::reachability() {
  const size_t num_edges = schedule_ ? schedule_->order_edges.size() : 0;
  if (!reachability_ || reachable_edges_ != num_edges) {
    std::vector<std::pair<OpId, OpId>> edges;
    for (size_t i = 0; i < num_edges; ++i) {
      edges.emplace_back(schedule_->order_edges[i].from, schedule_->order_edges[i].to);
    }
    reachability_.emplace(graph_, deps(), edges);
    reachable_edges_ = num_edges;
  }
  return *reachability_;
}

void GraphSession::before(OpId from, OpId to, const std::string& why) {
  if (from == to)
    throw user_error("op '{}' cannot come before itself; give two different ops",
                     graph_.op(from).name);
  schedule().before(from, to, context().stage, why);
}

void GraphSession::log(OpId op, const std::string& why) {
  const PassContext& c = context();
  if (c.log != nullptr) c.log->push_back({graph_.op(op).name, c.stage, why});
}

void GraphSession::skip(const std::string& why, OpId op) {
  if (context().log != nullptr) context().skip(why, op.valid() ? graph_.op(op).name : "");
}

bool GraphSession::push_known(lua_State* L, int64_t key) {
  handles_->push(L);
  lua_rawgeti(L, -1, static_cast<int>(key));
  lua_remove(L, -2);
  if (!lua_isnil(L, -1)) return true;
  lua_pop(L, 1);
  return false;
}

void GraphSession::remember(lua_State* L, int64_t key) {
  handles_->push(L);
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, static_cast<int>(key));
  lua_pop(L, 1);
}

void GraphSession::push_op(lua_State* L, OpId op) {
  const int64_t key = op.value + 1;
  if (push_known(L, key)) return;
  push_userdata<OpHandle>(L, kOpType, serial_, op);
  remember(L, key);
}

void GraphSession::push_ops(lua_State* L, const std::vector<OpId>& ops) {
  lua_createtable(L, static_cast<int>(ops.size()), 0);
  for (size_t i = 0; i < ops.size(); ++i) {
    push_op(L, ops[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void GraphSession::push_tensor(lua_State* L, TensorId tensor) {
  if (!tensor.valid()) {
    lua_pushboolean(L, 0);
    return;
  }
  const int64_t key = -(tensor.value + 1);
  if (push_known(L, key)) return;
  push_userdata<TensorHandle>(L, kTensorType, serial_, tensor);
  remember(L, key);
}

void GraphSession::push_graph(lua_State* L) {
  push_userdata<GraphHandle>(L, kGraphType, serial_);
}

void GraphSession::push_schedule(lua_State* L) {
  push_userdata<ScheduleHandle>(L, kScheduleType, serial_);
}

void GraphSession::push_context(lua_State* L) {
  lua_newtable(L);
  for (const Member& m : kContext) {
    lua_pushnumber(L, serial_);
    lua_pushcclosure(L, m.function, 1);
    if (!m.is_method()) lua_call(L, 0, 1);
    lua_setfield(L, -2, m.name);
  }
  lua_createtable(L, 0, 1);
  lua_pushstring(L, kContextType);
  lua_pushvalue(L, -3);
  lua_newtable(L);
  lua_pushcclosure(L, method<unknown_member>, 3);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

void GraphSession::call(lua_State* L, int num_args, int num_results, const std::string& what) {
  const double seconds = host_.options().policy_deadline_s;
  const std::string late = fmt::format("a call passed the deadline of {} s", seconds);
  deadline_ = std::make_unique<Deadline>(
      host_.watchdog(),
      [this, late] { host_.limits().stop("run", late, Limits::Where::kAnywhere); },
      [what, late] { exit_now(what + ": " + late, 3); });
  Failure failure;
  deadline_->arm(seconds);
  const bool good = try_call(L, num_args, num_results, failure);
  deadline_.reset();
  host_.limits().take_stop();
  if (good) return;
  failure.message += fmt::format(" (in {})", what);
  if (failure.kind == "run") throw RunError(failure.message);
  throw LuaError(std::move(failure));
}

void GraphSession::call_policy(const Reference& apply, const Reference& options) {
  apply.push(L_);
  if (schedule_ != nullptr) push_schedule(L_);
  push_graph(L_);
  push_context(L_);
  options.push(L_);
  call(L_, schedule_ != nullptr ? 4 : 3, 0, what_);
}

std::pair<GraphSession*, OpId> check_op(lua_State* L, int index) {
  const OpHandle handle = check_userdata<OpHandle>(L, index, kOpType);
  GraphSession& session = GraphSession::of(L, handle.session);
  if (session.graph().removed(handle.op)) {
    throw user_error("op '{}' was removed from the graph, so its handle can no longer be used",
                     session.graph().op(handle.op).name);
  }
  return {&session, handle.op};
}

OpId check_own_op(lua_State* L, int index, const GraphSession& session) {
  const auto [owner, op] = check_op(L, index);
  if (owner != &session)
    throw user_error(
        "op '{}' belongs to the graph of another policy call; give an op of this call's g",
        owner->graph().op(op).name);
  return op;
}

std::vector<OpId> check_ops(lua_State* L, int index, const GraphSession& session) {
  if (!lua_istable(L, index)) {
    throw user_error(
        "argument {}: a {} is given, but a list of ops is needed, such as {{ op }} or g:ops {{}}",
        index - 1, luaL_typename(L, index));
  }
  std::vector<OpId> ops;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    ops.push_back(check_own_op(L, lua_gettop(L), session));
    lua_pop(L, 1);
  }
  return ops;
}

std::function<Graph(Graph, const PassContext&)> pass_policy(
    lua_State* L, SharedReference apply, SharedReference options,
    std::shared_ptr<const PolicyView> view) {
  return [=](Graph graph, const PassContext& context) {
    GraphSession session(L, std::move(graph), nullptr, context, view);
    session.call_policy(*apply, *options);
    return session.take_graph();
  };
}

std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule_policy(
    lua_State* L, SharedReference apply, SharedReference options,
    std::shared_ptr<const PolicyView> view, std::shared_ptr<PickPolicies> picks) {
  return [=](const Graph& graph, Schedule schedule, const PassContext& context) {
    Schedule before = schedule;
    const auto session = std::make_shared<GraphSession>(L, graph, &schedule, context, view);
    session->call_policy(*apply, *options);
    session->close();
    const auto is_new = [&](const Lane& lane) {
      return lane.pick == Pick::kPolicy && lane.stage == context.stage;
    };
    if (picks && std::any_of(schedule.lanes.begin(), schedule.lanes.end(), is_new)) {
      for (Lane& lane : before.lanes) lane.choose = nullptr;  // picks belong to this Lua state
      options->push(L);
      picks->list.push_back({context.stage, to_json(L, -1, true), std::move(before)});
      lua_pop(L, 1);
    }
    return schedule;
  };
}

void push_rng(lua_State* L, uint64_t stream, std::initializer_list<int64_t> on) {
  stream = hash32(static_cast<uint64_t>(Host::of(L).options().seed.value_or(1)), stream);
  for (const int64_t value : on) stream = hash32(static_cast<uint64_t>(value), stream);
  push_userdata<Rng>(L, kRngType, stream);
}

void open_policy_context(lua_State* L) {
  static constexpr Member kRng[] = {
      {"below", "(n: integer): integer", "a whole number from 1 to n", method<rng_below>},
      {"uniform", "(): number", "a number in [0, 1)", method<rng_uniform>}};
  new_type<Rng>(L, {kRngType, "rng", "random numbers of a policy's call", kRng});
  declare_type({kContextType, "ctx",
                "the call of a pass or schedule policy: sizes, costs, and its log", kContext});
}

}  // namespace moe::lua
