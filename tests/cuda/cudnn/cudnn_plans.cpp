// Handles, engines and plans of the emulated cuDNN, and what a plan demands of the tensors that it
// is executed on.
#include <algorithm>

#include "tests/cuda/cudnn/cudnn_parts.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace emulation {
namespace {

std::map<cudnnHandle_t, std::unique_ptr<cudnnContext>>& all_handles() {
  static std::map<cudnnHandle_t, std::unique_ptr<cudnnContext>> all;
  return all;
}

cudnnContext& handle_at(cudnnHandle_t handle) {
  if (all_handles().count(handle) == 0) forbid_cudnn("a handle that is not there");
  return *handle;
}

Part make_finished(cudnnBackendDescriptorType_t kind) {
  const auto made = std::make_shared<Descriptor>();
  made->kind = kind;
  made->finished = true;
  return made;
}

void give_notes(Descriptor& engine, int64_t index) {
  std::vector<int32_t> notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (cudnn_knobs.nondeterministic.count(index) == 1)
    notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  engine.make(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes);
  engine.make(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
              std::vector<int32_t>{CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION});
}

/// The addresses of the bytes of a tensor's elements, each once, in ascending order.
std::vector<uintptr_t> addresses(const Tensor& t, const void* at) {
  std::vector<int64_t> elements = places(t.dims, t.strides);
  std::sort(elements.begin(), elements.end());
  elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
  std::vector<uintptr_t> all;
  const size_t bytes = bytes_of(t.type);
  for (const int64_t place : elements)
    for (size_t i = 0; i < bytes; ++i)
      all.push_back(reinterpret_cast<uintptr_t>(at) + static_cast<size_t>(place) * bytes + i);
  return all;
}

bool meet(const std::vector<uintptr_t>& a, const std::vector<uintptr_t>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) return true;
    ++(a[i] < b[j] ? i : j);
  }
  return false;
}

/// One execution: a plan and where its tensors are.
struct Call {
  std::shared_ptr<const Program> program;
  Bindings bindings;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

std::string id_of(const Tensor& t) {
  return "tensor " + std::to_string(t.id);
}

/// Nothing promises anything of an output that shares memory with what else a plan touches.
void check_overlap(const Call& call) {
  std::map<int64_t, std::vector<uintptr_t>> all;
  for (const auto& [id, at] : call.bindings.pointers)
    all[id] = addresses(call.program->tensors.at(id), at);
  const auto workspace = reinterpret_cast<uintptr_t>(call.workspace);
  for (const auto& [id, place] : all) {
    const auto inside = std::lower_bound(place.begin(), place.end(), workspace);
    if (inside != place.end() && *inside < workspace + call.workspace_bytes)
      forbid_cudnn("a workspace that overlaps tensor " + std::to_string(id));
    if (call.program->written.count(id) == 0) continue;
    const Tensor& t = call.program->tensors.at(id);
    if (place.size() < static_cast<size_t>(num_elements(t.dims)) * bytes_of(t.type))
      forbid_cudnn("output " + std::to_string(id) + " has elements at one place");
    for (const auto& [other, its_place] : all)
      if (other != id && meet(place, its_place))
        forbid_cudnn("output " + std::to_string(id) + " overlaps tensor " + std::to_string(other));
  }
}

/// Where a real tensor is; a tensor by value is read now, as the host may change it after.
void bind(Call& call, int64_t id, void* at) {
  const auto found = call.program->tensors.find(id);
  if (found == call.program->tensors.end())
    forbid_cudnn("a pointer for tensor " + std::to_string(id) + ", which the graph has not");
  const Tensor& t = found->second;
  if (t.is_virtual) forbid_cudnn("a pointer for " + id_of(t) + ", which is virtual");
  if (!at) forbid_cudnn(id_of(t) + " is nowhere");
  if (t.by_value) {
    call.bindings.values[id] = read_element(t.type, at, 0);
    return;
  }
  if (reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(t.alignment) != 0)
    forbid_cudnn(id_of(t) + " is not at " + std::to_string(t.alignment) + " bytes");
  call.bindings.pointers[id] = at;
}

Call read_call(const Descriptor& plan, const Descriptor& pack) {
  Call call;
  call.program = plan.program;
  const auto ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size(); ++i) bind(call, ids[i], pointers[i]);
  for (const auto& [id, t] : call.program->tensors)
    if (!t.is_virtual && std::find(ids.begin(), ids.end(), id) == ids.end())
      forbid_cudnn(id_of(t) + " has no pointer");
  const auto bytes = plan.one<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  call.workspace_bytes = static_cast<size_t>(bytes);
  if (bytes > 0) call.workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  // Of memory of the host, as kernels' cases have it, nobody knows how long it is.
  if (bytes > 0 && (!call.workspace || (is_allocated(call.workspace, 1) &&
                                        !is_allocated(call.workspace, call.workspace_bytes))))
    forbid_cudnn("a workspace that is too small or not there");
  check_overlap(call);
  return call;
}

int64_t engine_of(const Descriptor& plan) {
  return plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
      .part(CUDNN_ATTR_ENGINECFG_ENGINE)
      .one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

}  // namespace

cudnnStatus_t finish_engine(Descriptor& d) {
  const auto index = d.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (index < 0 || index >= cudnn_knobs.engines)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine " + std::to_string(index));
  give_notes(d, index);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish_heuristics(Descriptor& d) {
  std::vector<Part> configs;
  for (int64_t i = 0; i < cudnn_knobs.engines; ++i) {
    const Part engine = make_finished(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    engine->make(CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                 d.values.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).parts);
    engine->make(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector<int64_t>{i});
    give_notes(*engine, i);
    configs.push_back(make_finished(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    configs.back()->make(CUDNN_ATTR_ENGINECFG_ENGINE, {engine});
  }
  d.make(CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish_plan(Descriptor& d) {
  handle_at(d.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
  const int64_t engine = engine_of(d);
  if (engine < cudnn_knobs.first_supported)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED,
                  "engine " + std::to_string(engine) + " has no kernel for the graph");
  d.program = d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                  .part(CUDNN_ATTR_ENGINECFG_ENGINE)
                  .part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)
                  .program;
  d.make(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
         std::vector<int64_t>{cudnn_knobs.workspace_bytes});
  ++cudnn_calls.plans[engine];
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish_variant_pack(Descriptor& d) {
  auto ids = d.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  if (ids.size() != d.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size())
    return refuse(CUDNN_STATUS_BAD_PARAM, "not as many pointers as ids");
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
    return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two pointers for one id");
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace emulation

using namespace emulation;

size_t cudnnGetVersion() {
  return cudnn_knobs.version;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status / 1000) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case 1:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case 2:
      return "CUDNN_STATUS_BAD_PARAM";
    case 3:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  const CudnnLock lock(cudnn_mutex());
  if (!handle) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for a handle");
  if (cudnn_knobs.create_fails)
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "the library does not start");
  auto made = std::make_unique<cudnnContext>();
  *handle = made.get();
  all_handles()[*handle] = std::move(made);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const CudnnLock lock(cudnn_mutex());
  handle_at(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  Call call;
  cudaStream_t stream = nullptr;
  {
    const CudnnLock lock(cudnn_mutex());
    if (!handle) return refuse(CUDNN_STATUS_BAD_PARAM, "no handle");
    stream = handle_at(handle).stream;
    Part its_plan, pack;
    for (const cudnnStatus_t status :
         {finished_at(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, its_plan),
          finished_at(variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, pack)})
      if (status != CUDNN_STATUS_SUCCESS) return status;
    call = read_call(*its_plan, *pack);
    ++cudnn_calls.executions[engine_of(*its_plan)];
  }
  give(stream, [call = std::move(call)] {
    if (call.workspace) std::memset(call.workspace, 0xff, call.workspace_bytes);
    run_program(*call.program, call.bindings);
  });
  return CUDNN_STATUS_SUCCESS;
}
