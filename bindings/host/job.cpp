#include "bindings/host/job.h"

#include <exception>

#include "bindings/host/convert.h"

namespace moe::lua {
namespace {

using nlohmann::json;

/// Converts the exception to a Failure.
Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const LuaError& e) {
    return e.failure();
  } catch (const UserError& e) {
    return {"core", e.what(), ""};
  } catch (const RunError& e) {
    return {"run", e.what(), ""};
  } catch (const std::exception& e) {
    return foreign_failure(e);
  }
}

[[noreturn]] void raise(const json& failure) {
  const std::string kind = failure.at("kind"), message = failure.at("message");
  if (kind == "core") throw UserError(message);
  if (kind == "run") throw RunError(message);
  if (kind == "internal") throw InternalError(message);
  throw LuaError({kind, message, failure.at("traceback")});
}

std::string bytes_of(const json& value) {
  const std::vector<uint8_t> bytes = json::to_msgpack(value);
  return {bytes.begin(), bytes.end()};
}

/// Returns the specification of a plan as JSON, in the form in which processes compare theirs.
json asked_for(lua_State* L, int index, const Host& host) {
  json spec = to_json(L, index, true);
  spec.erase("cost");  // this field may differ: it names the file in which rank 0 caches times
  spec["--seed"] = host.options().seed.value_or(1);
  spec["script"] = fmt::format("{:016x}", host.code_hash());
  return spec;
}

/// Returns the first difference of two specifications as "model/layers: 2, rank 0 has 4"; "" if
/// there is none.
std::string difference(const json& mine, const json& theirs) {
  const json all = json::diff(mine, theirs);
  if (all.empty()) return "";
  const std::string path = all[0].at("path");
  const auto value = [&](const json& in) -> std::string {
    const json::json_pointer at(path);
    return in.contains(at) ? in.at(at).dump() : "nothing";
  };
  return fmt::format("{}: {}, rank 0 has {}", path.substr(1), value(theirs), value(mine));
}

void compare(Processes& job, const json& mine) {
  const std::vector<std::string> all = job.gather("plan", bytes_of(mine));
  for (size_t r = 1; r < all.size(); ++r) {
    const std::string differs = difference(mine, json::from_msgpack(all[r]));
    if (differs.empty()) continue;
    throw run_error(
        "rank {} requests another plan than rank 0: {}; the recipe must do the same on all ranks",
        r, differs);
  }
}

}  // namespace

Processes* job_of(const Host& host) {
  return host.options().mode == "policies" ? nullptr : host.options().processes;
}

bool is_root(const Host& host) {
  const Processes* const job = job_of(host);
  return job == nullptr || job->is_root();
}

json broadcast_from_root(const Host& host, const std::string& what,
                         const std::function<json()>& find) {
  Processes* const job = job_of(host);
  if (job == nullptr) return find();
  json answer = json::object();
  std::exception_ptr error;
  if (job->is_root()) {
    try {
      answer["value"] = find();
    } catch (const std::exception&) {
      error = std::current_exception();
      const Failure failure = failure_of(error);
      answer["error"] = {
          {"kind", failure.kind}, {"message", failure.message}, {"traceback", failure.traceback}};
    }
  }
  // After the job has failed rank 0 does not broadcast, so that it can still save its results.
  const bool alone = job->is_root() && job->failed();
  const std::string text = alone ? "" : job->broadcast(what, bytes_of(answer));
  if (error) std::rethrow_exception(error);
  if (!job->is_root()) answer = json::from_msgpack(text);
  if (answer.contains("error")) raise(answer["error"]);
  return std::move(answer["value"]);
}

PlanHandle plan_for_all(lua_State* L, int index) {
  const Host& host = Host::of(L);
  Processes* const job = job_of(host);
  PlanHandle handle;
  if (job != nullptr) compare(*job, asked_for(L, index, host));
  const json program = broadcast_from_root(host, "plan", [&]() -> json {
    handle.plan = make_plan(plan_spec_of(L, index, handle));
    if (job == nullptr) return nullptr;
    const std::string bytes = packed_program(*handle.plan);
    return json::binary({bytes.begin(), bytes.end()});
  });
  if (is_root(host)) return handle;
  const std::vector<uint8_t>& bytes = program.get_binary();
  const std::string packed(bytes.begin(), bytes.end());
  handle.plan = plan_of_program(plan_spec_of(L, index, handle, packed), packed);
  return handle;
}

}  // namespace moe::lua
