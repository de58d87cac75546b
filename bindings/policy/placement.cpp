#include "bindings/policy/placement.h"

#include <algorithm>
#include <atomic>

#include "bindings/policy/graph_session.h"
#include "engine/graph/op_def.h"
#include "engine/sim/step_trial.h"

namespace moe::lua {
namespace {

/// The policy of one rank: its Lua state, its function, and the deadline of its calls.
class RankPlacement {
 public:
  RankPlacement(const HostOptions& options, std::shared_ptr<Watchdog> watchdog,
                std::shared_ptr<const LuaPlacement> policy, int64_t rank, const PlacementRun& run)
      : host_(options, std::move(watchdog)),
        policy_(std::move(policy)),
        rank_(rank),
        log_(run.log),
        deadline_(
            host_.watchdog(), [] {}, [this] { too_late(); }) {
    if (run.peak_bytes && policy_->device_bytes > 0) {
      left_ = policy_->device_bytes - *run.peak_bytes;
    }
    if (run.simulated) trial_ = std::make_unique<StepTrial>(run.simulated);
    try {
      if (!policy_->library) host_.evaluate_policies();
      fetch();
    } catch (const UserError& e) {
      throw user_error("placement '{}', rank {}: {}", policy_->name, rank_, e.what());
    }
  }

  Placement place(const PlaceInput& in) {
    lua_State* L = host_.state();
    lua_settop(L, 0);
    step_ = in.step;
    layer_ = in.layer;
    place_->push(L);
    PlaceCall call{&in, policy_.get(), left_, {}};
    if (log_ && rank_ == 0) {
      call.log = [this, &in](const std::string& why) { log_->add(in.step, in.layer, why); };
    }
    if (trial_) {
      call.simulate_ms = [this, &in](const Placement& p) { return to_ms(trial_->step_ns(in, p)); };
    }
    const PlacementViews views(L, std::move(call), *tables_);
    options_->push(L);
    Failure failure;
    deadline_.arm(host_.options().policy_deadline_s);
    const bool good = try_call(L, 4, 1, failure);
    deadline_.disarm();
    // After a tail call the message may have no line of the recipe; then that of place() is added.
    if (!good && failure.message.find(".lua:") == std::string::npos)
      failure.message.insert(0, line_);
    if (!good && failure.kind == "run") throw RunError(failure.message);
    if (!good) throw UserError(failure.message);
    try {
      Placement next = views.result(L, -1);
      if (trial_) trial_->placed(in, next);
      return next;
    } catch (const UserError& e) {
      throw user_error("{}{}", line_, e.what());
    }
  }

 private:
  // Gets the policy's function place and its options from the definition that the recipe made in
  // this state, or from the library's module of its own methods.
  void fetch() {
    lua_State* L = host_.state();
    host_.push_policy("placement", policy_->name,
                      policy_->library ? "moe.techniques.balance.pass" : "moe");
    lua_getfield(L, -1, "place");
    line_ = function_position(L);
    place_ = std::make_unique<Reference>(L);
    push_json(L, policy_->options);
    options_ = std::make_unique<Reference>(L);
    tables_ = std::make_unique<PlacementTables>(L, *policy_);
    lua_settop(L, 0);
  }

  // Called on the watchdog's thread.
  void too_late() const {
    exit_now(
        fmt::format(
            "placement '{}', rank {}, step {}, layer {}: a call of place() passed the deadline of "
            "{} s",
            policy_->name, rank_, step_.load(), layer_.load() + 1,
            host_.options().policy_deadline_s),
        3);
  }

  Host host_;
  std::shared_ptr<const LuaPlacement> policy_;
  int64_t rank_;
  std::optional<Bytes> left_;
  std::shared_ptr<PlacementLog> log_;
  std::unique_ptr<StepTrial> trial_;  // null where nothing is simulated
  std::unique_ptr<Reference> place_, options_;
  std::unique_ptr<PlacementTables> tables_;
  std::string line_;  // where place() begins, "recipe.lua:5: "
  std::atomic<int64_t> step_{0}, layer_{0};
  Deadline deadline_;
};

/// The policies of all ranks, made when first needed. Each rank has a Lua state of its own, which
/// all its layers share.
class Ranks {
 public:
  template <class Make>
  std::shared_ptr<RankPlacement> of(int64_t rank, const Make& make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<RankPlacement>& state = states_[rank];
    if (!state) state = make();
    return state;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<RankPlacement>> states_;
};

using nlohmann::json;

/// Returns the holders of experts other than their owners, either residents or copies: a list of {
/// expert, devices }, with ids from 1.
json copies_json(const Placement& placement, bool residents) {
  json list = json::array();
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    json devices = json::array();
    for (const int64_t d : placement.holders(e)) {
      if (d != placement.owner(e) && placement.is_resident(e, d) == residents) {
        devices.push_back(d + 1);
      }
    }
    if (!devices.empty()) list.push_back({{"expert", e + 1}, {"devices", std::move(devices)}});
  }
  return list;
}

json placement_json(const PlacementRecord& record, const Placement& before) {
  const Placement placement = Placement::decode(record.bounds, record.in_force);
  json owners = json::array();
  for (int64_t e = 0; e < record.bounds.experts; ++e) owners.push_back(placement.owner(e) + 1);
  int64_t moves = 0;
  for (const Move& move : resident_moves(before, placement)) moves += move.from != move.to ? 1 : 0;
  const auto most = [](const std::vector<int64_t>& rows) {
    return rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end());
  };
  int64_t sum = 0;
  for (const int64_t rows : record.computed) sum += rows;
  return {{"layer", record.layer + 1},
          {"owners", std::move(owners)},
          {"replicas", copies_json(placement, true)},
          {"shadows", copies_json(placement, false)},
          {"moves", moves},
          {"copies", shadow_moves(placement).size()},
          {"max_load", most(record.computed)},
          {"mean_load", static_cast<double>(sum) / static_cast<double>(record.computed.size())},
          {"max_load_plain", most(record.computed_plain)}};
}

}  // namespace

std::shared_ptr<const LuaPlacement> placement_policy_of(lua_State* L, const Fields& stage,
                                                        const PlanSpec& spec,
                                                        const PolicyView& view) {
  auto policy = std::make_shared<LuaPlacement>();
  policy->name = stage.text("name");
  policy->options = stage.at("options").value();
  policy->model = view.model;
  policy->cluster = cluster_table(spec.cluster);
  if (spec.routing) policy->workload = spec.routing->name;
  policy->device_bytes = spec.cluster.device.memory_bytes;
  const Fields how = stage.at("placement"), options = stage.at("options");
  PlacementStage& placed = policy->stage;
  // The hash of the code keeps measured times of two policies with the same name apart.
  placed.policy = fmt::format("{}@{:08x}", policy->name, Host::of(L).code_hash() >> 32);
  placed.use = how.text("at") == "layer" ? PlacementUse::kNow : PlacementUse::kNext;
  placed.moves_residents = how.flag("moves", false);
  placed.weighted = how.flag("weighted", false);
  policy->library = how.flag("library", false);
  placed.every = options.integer("every");
  placed.shadows = options.integer("shadows");
  placed.extra_residents = options.integer("extra_residents");
  placed.static_rows = options.integer("static_rows");
  placed.plan_s = options.number("plan_us") * 1e-6;
  placed.expected_copies = options.number("expected_copies");
  for (const auto& [name, value] : policy->options.items()) {
    if (value.is_number()) placed.options[name] = value.get<double>();
  }
  return policy;
}

void PlacementLog::add(int64_t step, int64_t layer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  lines_[{step, layer}].push_back(why);
}

std::vector<std::string> PlacementLog::at(int64_t step, int64_t layer) const {
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find({step, layer});
  return found == lines_.end() ? std::vector<std::string>() : found->second;
}

RankPlacements rank_placements(const Host& host, std::shared_ptr<const LuaPlacement> policy,
                               const PlacementRun& run) {
  return [options = host.rank_options(), watchdog = host.watchdog(), policy, run,
          ranks = std::make_shared<Ranks>()](int64_t rank,
                                             const std::string& name) -> PlacementFunction {
    if (name != policy->stage.policy) return nullptr;
    const auto state = ranks->of(rank, [&] {
      return std::make_shared<RankPlacement>(options, watchdog, policy, rank, run);
    });
    return [state](const PlaceInput& in) { return state->place(in); };
  };
}

json placements_json(const RunResult& result, int64_t first_step, const PlacementLog& log) {
  json steps = json::array();
  std::vector<Placement> before;
  for (const std::vector<PlacementRecord>& records : result.placements) {
    json layers = json::array();
    const auto step = first_step + static_cast<int64_t>(steps.size());
    const auto layers_of_one = std::count_if(records.begin(), records.end(),
                                             [](const auto& record) { return record.micro == 0; });
    for (size_t l = 0; l < records.size(); ++l) {
      const Placement now = Placement::decode(records[l].bounds, records[l].in_force);
      if (before.size() <= l) before.push_back(now);
      json layer = placement_json(records[l], before[l]);
      const auto at = static_cast<int64_t>(l);
      if (layers_of_one < static_cast<int64_t>(records.size())) {
        layer["micro_batch"] = records[l].micro + 1;
      }
      const std::vector<std::string> lines = log.at(step, at % layers_of_one);
      if (!lines.empty()) layer["log"] = lines;
      layers.push_back(std::move(layer));
      before[l] = now;
    }
    steps.push_back(std::move(layers));
  }
  return steps;
}

}  // namespace moe::lua
