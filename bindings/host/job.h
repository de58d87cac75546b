// A recipe that runs in several processes: what rank 0 alone finds and broadcasts. Scripts
// run in every process and go the same way, since they see the same values; each function here is
// collective. In a program that no launcher started, `find` is called, and that is all.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/comm/job/processes.h"

namespace moe::lua {

/// The job that this host takes part in; null: none, also for a rank's policies.
Processes* job_of(const Host& host);
/// Whether this process is rank 0 of the job, or alone: it writes the files and prints.
bool is_root(const Host& host);

/// What rank 0 found; what it threw is thrown everywhere. `what` names the call in errors. In a job
/// that has failed rank 0 finds it for itself alone.
nlohmann::json broadcast_from_root(const Host& host, const std::string& what,
                                   const std::function<nlohmann::json()>& find);

/// The plan of the specification at `index`, whose values are `spec`: made on rank 0 alone, as
/// bytes to the others, who make theirs of it. Throws RunError naming a rank that asks for another
/// plan, and the field.
PlanHandle plan_for_all(lua_State* L, int index);

}  // namespace moe::lua
