// Functions for a recipe that runs in several processes (a job, one rank per process). Every
// process runs the script, and all of them take the same path, since values that could differ are
// found by rank 0 and broadcast. So plan_for_all and broadcast_from_root are collective: all
// processes must call them. Without a launcher there is one process; it only computes the result.
// Starting and connecting the processes is in engine/comm/job.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/comm/job/processes.h"

namespace moe::lua {

/// Returns the job of which this host is a member; null if there is none, and for a host that only
/// evaluates a rank's policies.
Processes* job_of(const Host& host);
/// Whether this process is rank 0 of the job or the only process: it writes files and prints.
bool is_root(const Host& host);

/// Calls `find` on rank 0 and returns its result in every process; an exception of `find` is thrown
/// in every process. `what` names the call in errors. In a job that has failed, rank 0 calls `find`
/// and does not broadcast.
nlohmann::json broadcast_from_root(const Host& host, const std::string& what,
                                   const std::function<nlohmann::json()>& find);

/// Returns the plan of the specification at `index`. Rank 0 makes the plan and sends it as bytes to
/// the other processes, which rebuild it. Throws RunError naming the rank and the field if a
/// process requests another plan than rank 0.
PlanHandle plan_for_all(lua_State* L, int index);

}  // namespace moe::lua
