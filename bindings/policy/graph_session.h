// One call of a Lua pass or schedule: the graph and the schedule that its handles stand for.
// Handles are (session, id); they are refused once the call has returned, except while a pick that
// the schedule has left behind is called, which may read them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "bindings/reference.h"
#include "engine/base/rng.h"
#include "engine/passes/pass.h"

namespace moe::lua {

class GraphSession : public std::enable_shared_from_this<GraphSession> {
 public:
  /// L: where the plan is being made. schedule: null for a pass, which may edit the graph;
  /// otherwise the graph is fixed.
  GraphSession(lua_State* L, Graph graph, Schedule* schedule, const PassContext& context,
               double slot_occupancy);
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
  /// For changes. Throws UserError in a pass, and once the policy's call is over.
  Schedule& schedule();
  const PassContext& context() const { return context_; }

  double cost_ms(OpId op);
  Work work(OpId op) const;
  std::string lane_name(OpId op) const;
  int64_t priority(OpId op) const { return schedule_ ? schedule_->priority_of(op) : 0; }
  const Dependencies& deps();
  const std::vector<OpId>& producers();
  /// Paths by data, mutation and order edges as they now stand.
  const Reachability& reachability();
  void before(OpId from, OpId to, const std::string& why);
  void log(OpId op, const std::string& why);
  /// What the policy was told and did not do; op may be invalid: about no single one.
  void skip(const std::string& why, OpId op);

  /// Pushes the one handle of an op or tensor (the same op is the same value in Lua).
  void push_op(lua_State* L, OpId op);
  void push_ops(lua_State* L, const std::vector<OpId>& ops);
  void push_tensor(lua_State* L, TensorId tensor);
  void push_graph(lua_State* L);
  void push_schedule(lua_State* L);
  void push_context(lua_State* L);

  /// Calls the policy's function: apply([s,] g, ctx, o) under the deadline.
  void call_policy(const Reference& apply, const Reference& options);
  /// Calls the function under `num_args` arguments, under the deadline; errors end in "(in
  /// <what>)".
  void call(lua_State* L, int num_args, int num_results, const std::string& what);
  /// "schedule 'longest_first'"
  const std::string& what() const { return what_; }

  /// The call is over: its handles are refused, and the schedule is kept as it now stands.
  void close();
  /// Handles may be read in between.
  class Visit {
   public:
    explicit Visit(GraphSession& session) : session_(session) { session_.open_ = true; }
    ~Visit() { session_.open_ = false; }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    GraphSession& session_;
  };

 private:
  bool push_known(lua_State* L, int64_t key);
  void remember(lua_State* L, int64_t key);

  lua_State* L_;
  Host& host_;
  Graph graph_;
  Schedule* schedule_;
  Schedule kept_;  // once closed
  bool open_ = true, closed_ = false;
  PassContext context_;
  double slot_occupancy_;
  uint32_t serial_;
  std::string what_;  // "schedule 'longest_first'"
  std::unique_ptr<Reference> handles_;
  std::optional<Dependencies> deps_;
  std::optional<std::vector<OpId>> producers_;
  std::optional<Reachability> reachability_;
  size_t reachable_edges_ = 0;
  std::unique_ptr<Deadline> deadline_;
};

/// As ctx.model and ctx.cluster show them.
nlohmann::json model_table(const ModelSpec& model);
nlohmann::json cluster_table(const Cluster& cluster);

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
                                                            SharedReference options,
                                                            double slot_occupancy);
/// picks: gets what it takes to call the policy's picks elsewhere; may be null.
std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule_policy(
    lua_State* L, SharedReference apply, SharedReference options, double slot_occupancy,
    std::shared_ptr<PickPolicies> picks);

/// The types of ctx and of ctx.rng.
void open_policy_context(lua_State* L);
void open_schedule(lua_State* L);  // bind_schedule.cpp
void open_ops(lua_State* L);       // bind_op.cpp

}  // namespace moe::lua
