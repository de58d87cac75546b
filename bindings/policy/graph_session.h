// One call of a pass, a schedule policy or the building of a model written in Lua, with the graph
// and schedule to which its handles refer. A handle is (session, id). Handles are refused after the
// call has returned, except for reading while a pick that the schedule installed is called. The
// methods of handles are in bindings/api/graph.cpp, op.cpp and schedule.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "bindings/reference.h"
#include "engine/base/rng.h"
#include "engine/model/builder.h"
#include "engine/passes/pass.h"

namespace moe::lua {

class GraphSession : public std::enable_shared_from_this<GraphSession> {
 public:
  /// L: the state in which the plan is being made. schedule: null for a pass; with a schedule, the
  /// graph must not be edited.
  GraphSession(lua_State* L, Graph graph, Schedule* schedule, const PassContext& context,
               std::shared_ptr<const PolicyView> view);
  /// The session of a model that is being built: there is no cluster and no cost model. what: as
  /// what() returns it.
  GraphSession(lua_State* L, Graph graph, std::string what);
  ~GraphSession();
  GraphSession(const GraphSession&) = delete;
  GraphSession& operator=(const GraphSession&) = delete;

  /// Returns the session with the number `serial`, which its handles have. Throws UserError if the
  /// policy's call has ended.
  static GraphSession& of(lua_State* L, uint32_t serial);

  uint32_t serial() const { return serial_; }
  const Graph& graph() const { return graph_; }
  /// Returns the graph for editing. Throws UserError in a schedule policy.
  Graph& edit();
  Graph take_graph() { return std::move(graph_); }
  /// Returns the schedule for changes. Throws UserError in a pass, and after the policy's call.
  Schedule& schedule();
  /// Throws UserError in the session of a model.
  const PassContext& context() const;
  /// Requires: context() does not throw.
  const PolicyView& view() const { return *view_; }
  /// The model that is being built; null in passes and schedule policies.
  ModelBuilder* builder() const { return builder_; }
  void set_builder(ModelBuilder* builder) { builder_ = builder; }

  double cost_ms(OpId op);
  Work work(OpId op) const;
  std::string lane_name(OpId op) const;
  int64_t priority(OpId op) const { return schedule_ ? schedule_->priority_of(op) : 0; }
  const Dependencies& deps();
  const std::vector<OpId>& producers();
  /// Returns which ops reach which others by the current data, mutation and order edges.
  const Reachability& reachability();
  void before(OpId from, OpId to, const std::string& why);
  void log(OpId op, const std::string& why);
  /// Records why the policy did not do all that its options request; op: the op that this is about,
  /// or an invalid id if it is about no single op.
  void skip(const std::string& why, OpId op);

  /// Pushes the handle of an op or tensor; the same op always has the same handle.
  void push_op(lua_State* L, OpId op);
  void push_ops(lua_State* L, const std::vector<OpId>& ops);
  void push_tensor(lua_State* L, TensorId tensor);
  void push_graph(lua_State* L);
  void push_schedule(lua_State* L);
  void push_context(lua_State* L);

  /// Calls the policy's function apply([s,] g, ctx, o) with a deadline.
  void call_policy(const Reference& apply, const Reference& options);
  /// Calls the function that is on the stack below its num_args arguments, with a deadline. Error
  /// messages end in "(in <what>)".
  void call(lua_State* L, int num_args, int num_results, const std::string& what);
  /// Returns the policy's kind and name for messages: "schedule 'longest_first'" or "pass '...'".
  const std::string& what() const { return what_; }

  /// Ends the call: handles are refused from now on, and the current schedule is kept.
  void close();
  /// Exists while a pick is called, after close(): until it is destroyed, handles can be read
  /// again. Changes of graph and schedule stay refused.
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
  Schedule* schedule_ = nullptr;
  Schedule kept_;  // the schedule after close()
  bool open_ = true, closed_ = false;
  std::optional<PassContext> context_;
  ModelBuilder* builder_ = nullptr;
  std::shared_ptr<const PolicyView> view_ = std::make_shared<const PolicyView>();
  uint32_t serial_;
  std::string what_;  // "schedule 'longest_first'"
  std::unique_ptr<Reference> handles_;
  std::optional<Dependencies> deps_;
  std::optional<std::vector<OpId>> producers_;
  std::optional<Reachability> reachability_;
  size_t reachable_edges_ = 0;
  std::unique_ptr<Deadline> deadline_;
};

/// Returns the cluster as ctx.cluster shows it.
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
/// Pushes random numbers that depend only on --seed, `stream` and these numbers.
void push_rng(lua_State* L, uint64_t stream, std::initializer_list<int64_t> on);

/// Returns the op of the handle at `index`, and its session. Throws UserError if the value is not
/// an op handle, or its session has ended, or the op was removed.
std::pair<GraphSession*, OpId> check_op(lua_State* L, int index);
/// Returns the op of the handle at `index`. Throws UserError as check_op does, or if the op is not
/// of `session`.
OpId check_own_op(lua_State* L, int index, const GraphSession& session);
/// Returns the ops of the list of handles at `index`. Throws UserError if it is not such a list, or
/// as check_own_op does.
std::vector<OpId> check_ops(lua_State* L, int index, const GraphSession& session);

/// Returns the tensor at `index`: a tensor handle, or an op handle, which means its first output.
/// Throws UserError if the value is neither, or is not of `session`.
TensorId check_tensor(lua_State* L, int index, const GraphSession& session);
/// Returns the tensors of the list at `index`, in which `false` means an absent one.
std::vector<TensorId> check_tensors(lua_State* L, int index, const GraphSession& session);
/// Returns the attributes in the table at `index`, none if there is no table. `what` begins errors.
Attrs check_attrs(lua_State* L, int index, const char* what);

/// Return the functions by which make_plan, called from L, runs a pass or schedule policy in Lua.
std::function<Graph(Graph, const PassContext&)> pass_policy(lua_State* L, SharedReference apply,
                                                            SharedReference options,
                                                            std::shared_ptr<const PolicyView> view);
/// picks: null, or receives what an executor needs to call the policy's picks in another Lua state.
std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule_policy(
    lua_State* L, SharedReference apply, SharedReference options,
    std::shared_ptr<const PolicyView> view, std::shared_ptr<PickPolicies> picks);

/// Makes the type of random number generators: rng:uniform() in [0, 1), rng:below(n) in 1..n.
void open_policy_context(lua_State* L);
void open_schedule(lua_State* L);  // api/schedule.cpp
void open_ops(lua_State* L);       // api/op.cpp

}  // namespace moe::lua
