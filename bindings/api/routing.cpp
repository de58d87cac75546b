// Functions of core for routing models: making them from names and from recorded traces, counting
// their choices, and converting other tools' routing traces.
#include "bindings/routing.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "engine/routing/formats/trace_formats.h"
#include "engine/routing/workload.h"

namespace moe::lua {
namespace {

// core.workload(name, options, seed) -> routing model, its full name
int make_workload(lua_State* L) {
  const nlohmann::json options = to_json(L, 2);
  WorkloadOptions given;
  for (const auto& [name, value] : options.items()) given[name] = value.get<double>();
  push_routing(
      L, workload(luaL_checkstring(L, 1), given, static_cast<uint64_t>(luaL_checknumber(L, 3))));
  return 2;
}

// core.loads(routing model, { step, layer from 1, ranks, tokens, experts, k, ep }) -> number of
// choices, indexed by [source rank][expert]
int loads(lua_State* L) {
  Host::of(L).end_loading();
  const RoutingHandle& handle = check_userdata<RoutingHandle>(L, 1, kRoutingType);
  const nlohmann::json values = to_json(L, 2);
  const Fields fields(values, "loads");
  const RoutingQuery query = {.step = fields.integer("step") - 1,
                              .layer = fields.integer("layer") - 1,
                              .ranks = fields.integer("ranks"),
                              .tokens = fields.integer("tokens"),
                              .experts = fields.integer("experts"),
                              .k = fields.integer("k"),
                              .ep = fields.integer("ep", 0)};
  const Host::EngineCall call(Host::of(L));
  const ExpertCounts loads = handle.routing->loads(query);
  lua_createtable(L, static_cast<int>(loads.sources), 0);
  for (int64_t s = 0; s < loads.sources; ++s) {
    lua_createtable(L, static_cast<int>(loads.experts), 0);
    for (int64_t e = 0; e < loads.experts; ++e) {
      lua_pushnumber(L, static_cast<double>(loads.at(s, e)));
      lua_rawseti(L, -2, static_cast<int>(e + 1));
    }
    lua_rawseti(L, -2, static_cast<int>(s + 1));
  }
  return 1;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// core.trace_routing(file, cycle) -> routing model that replays the trace, its name
int trace_routing(lua_State* L) {
  const std::string path = text_argument(L, 1);
  const Host::EngineCall call(Host::of(L));
  const ReadTrace read = trace_in(L, path);
  const bool cycle = lua_toboolean(L, 2) != 0;
  push_routing(L, routing_of(read.trace,
                             fmt::format("trace({}, {:08x}{})", file_name(path), read.hash >> 32,
                                         cycle ? ", cycle" : ""),
                             cycle));
  return 2;
}

// core.trace_info(file) -> the sizes of the trace
int trace_info(lua_State* L) {
  const Host::EngineCall call(Host::of(L));
  const std::shared_ptr<const Trace> t = trace_in(L, text_argument(L, 1)).trace;
  nlohmann::json blocks = nlohmann::json::array();
  for (const int32_t block : t->blocks) blocks.push_back(block + 1);
  push_json(L, {{"steps", t->steps},
                {"layers", t->layers},
                {"ranks", t->ranks},
                {"tokens", t->tokens},
                {"experts", t->experts},
                {"k", t->k},
                {"blocks", blocks},
                {"choices", !t->choices.empty()}});
  return 1;
}

// core.trace_import { format, files, experts or 0, k, to; of rank_loads where, node,
// experts_per_rank, even, or none } -> path of the trace
int trace_import(lua_State* L) {
  const nlohmann::json values = to_json(L, 1);
  const Fields f(values, "trace.import");
  const Files& files = Host::of(L).files();
  const Host::EngineCall call(Host::of(L));
  std::vector<std::string> texts;
  std::vector<NamedText> named;
  const auto& paths = values.at("files");
  for (const auto& path : paths) texts.push_back(files.read(path));
  for (size_t i = 0; i < texts.size(); ++i) named.push_back({file_name(paths[i]), texts[i]});
  const std::string format = f.text("format");
  const int64_t experts = f.integer("experts"), k = f.integer("k");
  const auto where = values.value("where", std::map<std::string, std::string>());
  const auto beside = [&](size_t manifest, const std::string& file) {
    const std::filesystem::path path = paths.at(manifest).get<std::string>();
    return files.read(path.parent_path() / file);
  };
  const Trace trace =
      format == "megatron"   ? trace_of_megatron(named, experts)
      : format == "tensorrt" ? trace_of_tensorrt(named.at(0), k)
      : format == "rank_loads"
          ? trace_of_rank_loads(named.at(0), k, where, values.value("node", int64_t{0}),
                                values.value("experts_per_rank", int64_t{1}), f.flag("even", false),
                                experts)
      : format == "token_imbalance" ? trace_of_token_imbalance(named, beside)
                                    : trace_of_csv(named.at(0), experts, k);
  const std::filesystem::path to = files.writable(f.text("to"));
  write_file(to, trace_bytes(trace));
  lua_pushstring(L, to.c_str());
  return 1;
}

// core.trace_export { format, trace, to, step, layer } -> paths of the files. to: the file, its
// prefix (megatron: a file per rank) or the folder (token_imbalance). step, layer: from 1, only for
// tensorrt and token_imbalance, which hold one.
int trace_export(lua_State* L) {
  const nlohmann::json values = to_json(L, 1);
  const Fields f(values, "trace.export");
  const Host::EngineCall call(Host::of(L));
  const Trace trace = *trace_in(L, f.text("trace")).trace;
  const std::string format = f.text("format"), to = f.text("to");
  std::vector<std::pair<std::string, std::string>> out;  // name and text of each file
  if (format == "megatron") {
    for (const std::string& text : megatron_of_trace(trace)) {
      out.emplace_back(fmt::format("{}_rank{}.jsonl", to, out.size()), text);
    }
  } else if (format == "tensorrt") {
    out.emplace_back(to, tensorrt_of_trace(trace, f.integer("step") - 1, f.integer("layer") - 1));
  } else if (format == "token_imbalance") {
    out = token_imbalance_of_trace(trace, f.integer("step") - 1, f.integer("layer") - 1);
    for (auto& [name, text] : out) name.insert(0, to + "/");
  } else {
    out.emplace_back(to, csv_of_trace(trace));
  }
  nlohmann::json paths = nlohmann::json::array();
  for (const auto& [name, text] : out) {
    const std::filesystem::path path = Host::of(L).files().writable(name);
    write_file(path, text);
    paths.push_back(path.string());
  }
  push_json(L, paths);
  return 1;
}

}  // namespace

std::shared_ptr<const RoutingModel> routing_in(lua_State* L, int index) {
  lua_getfield(L, index, "routing");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return nullptr;
  }
  lua_getfield(L, -1, "handle");
  std::shared_ptr<const RoutingModel> routing =
      check_userdata<RoutingHandle>(L, lua_gettop(L), kRoutingType).routing;
  lua_pop(L, 2);
  return routing;
}

ReadTrace trace_in(lua_State* L, const std::string& path) {
  const std::string bytes = Host::of(L).files().read(path);
  return {std::make_shared<const Trace>(read_trace(bytes, file_name(path))), text_hash(bytes)};
}

void push_routing(lua_State* L, RoutingModel routing) {
  const std::string name = routing.name;
  push_kept<RoutingHandle>(L, kRoutingType,
                           std::make_shared<const RoutingModel>(std::move(routing)));
  push_text(L, name);
}

void open_routing(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {{"loads", core_function<loads>},
                                            {"trace_export", core_function<trace_export>},
                                            {"trace_import", core_function<trace_import>},
                                            {"trace_info", core_function<trace_info>},
                                            {"trace_routing", core_function<trace_routing>},
                                            {"workload", core_function<make_workload>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
  new_inner_type<RoutingHandle>(L, kRoutingType);
}

}  // namespace moe::lua
