// What tests can have the emulated cuDNN be: its version, its engines, their notes and refusals;
// and what it counts.
#include "tests/cuda/cudnn/cudnn_builder.h"

using namespace moe::test;

namespace {

/// The library as tests want it, until the end of the case.
struct Knobs {
  Knobs() { emulation::cudnn_calls = {}; }
  ~Knobs() {
    emulation::cudnn_knobs = {};
    emulation::cudnn_calls = {};
  }
};

Descriptor graph_of_exp(Cudnn& cudnn) {
  const Dims dims = {1, 1, 2, 2};
  const TensorOf x = {CUDNN_DATA_FLOAT, dims, dense(dims), 1}, y = {x.type, dims, dense(dims), 2};
  const Descriptor op = cudnn.begin_pointwise(CUDNN_POINTWISE_EXP, {x, y});
  return cudnn.finished(cudnn.begin_graph({cudnn.finished(op)}));
}

std::vector<int> notes_of(Descriptor engine) {
  std::vector<int> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  int64_t count = 0;
  must(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()));
  notes.resize(static_cast<size_t>(count));
  return notes;
}

}  // namespace

TEST_CASE("cuDNN emulated: heuristics offer as many engines as asked for, with their notes",
          "[cudnn]") {
  const Knobs knobs;
  emulation::cudnn_knobs.engines = 4;
  emulation::cudnn_knobs.nondeterministic = {1, 2};
  Cudnn cudnn;
  const Descriptor heuristics = cudnn.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  must(set_part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_of_exp(cudnn)));
  must(set_enum(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A));
  cudnn.finished(heuristics);
  int64_t count = 0;
  const auto offered = [&](int64_t requested, void* to) {
    must(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, requested, &count, to));
    return count;
  };
  CHECK(offered(0, nullptr) == 4);
  std::vector<Descriptor> configs;
  for (int i = 0; i < 6; ++i) configs.push_back(cudnn.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  CHECK(offered(2, configs.data()) == 2);
  CHECK(offered(6, configs.data()) == 4);
  for (size_t i = 0; i < 4; ++i) {
    Descriptor engine = cudnn.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    must(cudnnBackendGetAttribute(configs[i], CUDNN_ATTR_ENGINECFG_ENGINE,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    int64_t index = -1;
    must(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                  &count, &index));
    CHECK(index == static_cast<int64_t>(i));
    const std::vector<int> notes = notes_of(engine);
    CHECK((notes.back() == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == (i == 1 || i == 2));
  }
}

TEST_CASE("cuDNN emulated: the first engines refuse to become plans where a test wants that",
          "[cudnn]") {
  const Knobs knobs;
  emulation::cudnn_knobs.first_supported = 2;
  emulation::cudnn_knobs.workspace_bytes = 0;
  Cudnn cudnn;
  const Descriptor graph = graph_of_exp(cudnn);
  for (int64_t engine = 0; engine < 2; ++engine)
    CHECK(cudnnBackendFinalize(cudnn.begin_plan(graph, engine)) == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK_THAT(last_error(), Catch::Contains("engine 1 has no kernel"));
  CHECK(emulation::cudnn_calls.plans.empty());
  const Descriptor plan = cudnn.finished(cudnn.begin_plan(graph, 2));
  float x[4] = {}, y[4] = {};
  const Descriptor pack = cudnn.finished(cudnn.begin_pack({{1, x}, {2, y}}, nullptr));
  for (int i = 0; i < 3; ++i) must(cudnnBackendExecute(cudnn.handle, plan, pack));
  CHECK(y[3] == 1);
  CHECK(emulation::cudnn_calls.plans == std::map<int64_t, int>{{2, 1}});
  CHECK(emulation::cudnn_calls.executions == std::map<int64_t, int>{{2, 3}});
  CHECK(emulation::cudnn_calls.bad_params == 0);
}

TEST_CASE("cuDNN emulated: the version and the start of the library are as a test wants them",
          "[cudnn]") {
  const Knobs knobs;
  CHECK(cudnnGetVersion() == 91900);
  emulation::cudnn_knobs.version = 90100;
  CHECK(cudnnGetVersion() == 90100);
  emulation::cudnn_knobs.create_fails = true;
  cudnnHandle_t handle = nullptr;
  CHECK(cudnnCreate(&handle) == CUDNN_STATUS_NOT_INITIALIZED);
  CHECK(std::string(cudnnGetErrorString(CUDNN_STATUS_NOT_INITIALIZED)) ==
        "CUDNN_STATUS_NOT_INITIALIZED");
}

TEST_CASE("cuDNN emulated: handles and descriptors are counted until they are destroyed",
          "[cudnn]") {
  const int handles = emulation::cudnn_handles, descriptors = emulation::cudnn_descriptors;
  Descriptor gone = nullptr;
  {
    Cudnn cudnn;
    graph_of_exp(cudnn);
    CHECK(emulation::cudnn_handles == handles + 1);
    CHECK(emulation::cudnn_descriptors == descriptors + 5);
    REQUIRE(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &gone) == 0);
    must(cudnnBackendDestroyDescriptor(gone));
  }
  CHECK(emulation::cudnn_handles == handles);
  CHECK(emulation::cudnn_descriptors == descriptors);
  CHECK_THROWS_WITH(cudnnBackendDestroyDescriptor(gone), Catch::Contains("destroyed twice"));
  CHECK_THROWS_WITH(cudnnBackendFinalize(gone), Catch::Contains("not there"));
}
