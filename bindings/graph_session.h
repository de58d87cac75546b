// One call of a Lua pass or schedule: the graph and the schedule that its handles stand for.
// Handles are (session, id); they are refused once the call has returned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bindings/host.h"
#include "bindings/reference.h"
#include "engine/base/rng.h"
#include "engine/passes/pass.h"

namespace moe::lua {

class GraphSession {
 public:
  /// L: where the plan is being made. schedule: null for a pass, which may edit the graph;
  /// otherwise the graph is fixed.
  GraphSession(lua_State* L, Graph graph, Schedule* schedule, const PassContext& context,
               double fill);
  ~GraphSession();
  GraphSession(const GraphSession&) = delete;
  GraphSession& operator=(const GraphSession&) = delete;

  /// The session of a handle. Throws UserError when its call is over.
  static GraphSession& of(lua_State* L, uint32_t serial);

  uint32_t serial() const { return serial_; }
  const Graph& graph() const { return graph_; }
  /// For edits. Throws UserError in a schedule.
  Graph& edit();
  Graph take_graph() { return std::move(graph_); }
  /// Throws UserError in a pass.
  Schedule& schedule();
  const PassContext& context() const { return context_; }

  double cost_ms(OpId op);
  Work work(OpId op) const;
  std::string lane_name(OpId op) const;
  const Dependencies& deps();
  const std::vector<OpId>& producers();
  /// Paths by data, mutation and order edges as they now stand.
  const Reachability& reachability();
  void before(OpId from, OpId to, const std::string& why);
  void log(OpId op, const std::string& why);

  /// Pushes the one handle of an op or tensor (the same op is the same value in Lua).
  void push_op(lua_State* L, OpId op);
  void push_ops(lua_State* L, const std::vector<OpId>& ops);
  void push_tensor(lua_State* L, TensorId tensor);
  void push_graph(lua_State* L);
  void push_schedule(lua_State* L);
  void push_context(lua_State* L);

  /// Calls the policy's function: apply([s,] g, ctx, o) under the deadline.
  void call_policy(const Reference& apply, const Reference& options);

 private:
  bool push_known(lua_State* L, int64_t key);
  void remember(lua_State* L, int64_t key);

  lua_State* L_;
  Host& host_;
  Graph graph_;
  Schedule* schedule_;
  const PassContext& context_;
  double fill_;
  uint32_t serial_;
  std::string what_;  // "schedule 'longest_first'"
  std::unique_ptr<Reference> handles_;
  std::optional<Dependencies> deps_;
  std::optional<std::vector<OpId>> producers_;
  std::optional<Reachability> reachability_;
  size_t reachable_edges_ = 0;
  std::unique_ptr<Deadline> deadline_;
};

struct OpHandle {
  uint32_t session;
  OpId op;
};
struct TensorHandle {
  uint32_t session;
  TensorId tensor;
};
struct GraphHandle {
  uint32_t session;
};
struct ScheduleHandle {
  uint32_t session;
};
constexpr const char* kOpType = "op";
constexpr const char* kTensorType = "tensor";
constexpr const char* kGraphType = "graph";
constexpr const char* kScheduleType = "schedule";
constexpr const char* kRngType = "rng";

/// The op of the handle at `index`, and its session. Throws UserError for anything else, an op of
/// another session, or one that was removed.
std::pair<GraphSession*, OpId> check_op(lua_State* L, int index);
/// A list of op handles, all of `session`.
std::vector<OpId> check_ops(lua_State* L, int index, const GraphSession& session);

/// Stage functions for a make_plan that is called from L.
std::function<Graph(Graph, const PassContext&)> pass_policy(lua_State* L, SharedReference apply,
                                                            SharedReference options, double fill);
std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule_policy(
    lua_State* L, SharedReference apply, SharedReference options, double fill);

/// rng:uniform() in [0, 1), rng:below(n) in 1..n.
void open_rng(lua_State* L);
void open_schedule(lua_State* L);  // bind_schedule.cpp
void open_ops(lua_State* L);       // bind_op.cpp

}  // namespace moe::lua
