#include "engine/cost/cost_model.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "engine/base/errors.h"
#include "engine/cost/op_table.h"
#include "engine/cost/profile_cache.h"
#include "engine/network/closed_form.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

Cluster two_nodes() {
  return {.name = "pair",
          .nodes = 2,
          .devices_per_node = 2,
          .device = {.name = "gpu",
                     .gemm_flops_per_s = 1e12,
                     .vector_flops_per_s = 1e11,
                     .memory_bytes_per_s = 1e9,
                     .launch_ns = 8'000},
          .intra = {100e9, 1'000},
          .nic = {10e9, 2'500},
          .a2a_base_ns = 20'000};
}

Graph four_ranks() {
  Graph graph(fake::table());
  graph.num_ranks = 4;
  return graph;
}

TEST_CASE("a compute op takes the longer of its flops and its bytes, and a launch") {
  Graph g = four_ranks();
  const OpId gemm = g.add_op("compute", "a", {}, {{"flops", 2e9}, {"bytes", 1e3}, {"gemm", {1}}});
  const OpId vector = g.add_op("compute", "b", {}, {{"flops", 2e9}, {"bytes", 1e3}});
  const OpId memory = g.add_op("compute", "c", {}, {{"flops", 2e9}, {"bytes", 5e8}});
  const OpId nothing = g.add_op("compute", "d", {});
  const RooflineCost cost(two_nodes(), {});
  CHECK(cost.op_ns(g, gemm) == 2'000'000 + 8'000);
  CHECK(cost.op_ns(g, vector) == 20'000'000 + 8'000);
  CHECK(cost.op_ns(g, memory) == 500'000'000 + 8'000);
  CHECK(cost.op_ns(g, nothing) == 8'000);
}

TEST_CASE("a view takes no time and no launch, and is never timed") {
  Graph g = four_ranks();
  const OpId view = g.add_op("view", "v", {}, {{"bytes", 1e9}});
  const OpId copy = g.add_op("view", "c", {}, {{"bytes", 1e9}, {"copies", {1}}});
  const RooflineCost roofline(two_nodes(), {});
  CHECK(roofline.op_ns(g, view) == 0);
  CHECK(roofline.op_ns(g, copy) == 1'000'000'000 + 8'000);
  const auto measure = [](const Graph& graph, OpId op, const WorkContext&) {
    if (graph.op(op).name == "v") throw std::logic_error("a view was timed");
    return Samples{{17}};
  };
  const ProfileCost profile(std::make_shared<ProfileCache>(""), "cpu", measure, nullptr, {});
  CHECK(profile.op_ns(g, view) == 0);
  CHECK(profile.op_ns(g, copy) == 17);
  CHECK(profile.num_measured() == 1);
}

TEST_CASE("collectives go by closed form and pay no launch") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}});
  const OpId reduce = g.add_op("all_reduce", "r", {}, {{"bytes", 4e6}});
  const Cluster cluster = two_nodes();
  const RooflineCost cost(cluster, {});
  CHECK(cost.op_ns(g, a2a) == all_to_all_ns(cluster, 1e6));
  CHECK(cost.op_ns(g, reduce) ==
        all_reduce_ns(cluster, {.bytes = 4e6, .algorithm = cluster.all_reduce}));
  CHECK(cost.algorithm(g, reduce) == "two_level");
  CHECK(cost.algorithm(g, a2a) == "");
  // By hand: a NIC carries 2 devices' 2 pairs of 1e6 bytes at 10e9 bytes/s.
  CHECK(cost.op_ns(g, a2a) == 400'000 + 5'000 + 20'000);
  CHECK(wire_bytes(g, a2a, {}) == 3'000'000);
  CHECK(wire_bytes(g, reduce, {}) == 6'000'000);
}

TEST_CASE(
    "what a collective puts on the links takes there what the cost model says, or scales to it") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}});
  const OpId reduce = g.add_op("all_reduce", "r", {}, {{"bytes", 4e6}});
  const OpId nothing = g.add_op("all_reduce", "n", {}, {{"bytes", 0.0}});
  const OpId compute = g.add_op("compute", "c", {}, {{"bytes", 4e6}});
  const RooflineCost cost(two_nodes(), {});
  REQUIRE(cost.network() != nullptr);
  CHECK(cost.network()->name == "pair");
  for (const OpId op : {a2a, reduce}) {
    CHECK(alone_ns(*cost.network(), cost.transfer(g, op).value()) == cost.op_ns(g, op));
  }
  CHECK(!cost.transfer(g, nothing));
  CHECK(!cost.transfer(g, compute));
  const auto measure = [](const Graph&, OpId, const WorkContext&) { return Samples{{1'000'000}}; };
  const auto cache = std::make_shared<ProfileCache>("");
  const Cluster link = two_nodes();
  const ProfileCost slower(cache, "cpu", measure, &link, {}),
      alone(cache, "cpu", measure, nullptr, {});
  REQUIRE(slower.network() != nullptr);
  CHECK(std::get<AllToAll>(slower.transfer(g, a2a)->what).bytes_per_pair == 1e6);
  CHECK(alone.network() == nullptr);
  CHECK(!alone.transfer(g, a2a));
}

TEST_CASE("collectives in groups go by the closed form of all groups at once, tables or not") {
  Graph g = four_ranks();
  const Attrs across = {{"bytes", 4e6}, {"group", int64_t{2}}, {"stride", int64_t{2}}};
  const OpId a2a = g.add_op("all_to_all", "a", {}, across);
  const OpId reduce = g.add_op("all_reduce", "r", {}, across);
  const OpId whole = g.add_op("all_to_all", "w", {}, {{"bytes", 4e6}});
  const Cluster cluster = two_nodes();
  const InterpolatedTable flat({{0, 7}, {1e9, 7}});
  const RooflineCost cost(cluster, {},
                          {{Collective::kAllToAll, flat}, {Collective::kAllReduce, flat}});
  CHECK(cost.op_ns(g, a2a) == all_to_all_ns(cluster, 2e6, {2, 2}));
  CHECK(cost.op_ns(g, reduce) == all_reduce_ns(cluster, {4e6}, {2, 2}));
  CHECK(cost.op_ns(g, whole) == 7);
  // By hand: a NIC carries 2 devices' pair of 2e6 bytes at 10e9 bytes/s; start-up with one peer.
  CHECK(all_to_all_ns(cluster, 2e6, {2, 2}) ==
        400'000 + 5'000 + cluster.a2a_base_ns + cluster.a2a_per_peer_ns);
  CHECK(wire_bytes(g, a2a, {}) == 2'000'000);
  CHECK(wire_bytes(g, reduce, {}) == 4'000'000);
  CHECK(op_signature(g, a2a) != op_signature(g, whole));
  g.op(a2a).rows.group.size = 3;
  CHECK_THROWS_WITH(cost.op_ns(g, a2a), Catch::Contains("op 'a': group = 3, stride = 2") &&
                                            Catch::Contains("divide the 4 ranks"));
}

TEST_CASE("halves of an all-reduce go by closed form, half of its table, or measured times") {
  Graph g = four_ranks();
  const Attrs all = {{"bytes", 4e6}};
  const OpId reduce = g.add_op("all_reduce", "r", {}, all);
  const OpId scatter = g.add_op("reduce_scatter", "s", {}, all);
  const OpId gather = g.add_op("all_gather", "g", {}, all);
  Cluster cluster = two_nodes();
  cluster.all_reduce = AllReduceAlgorithm::kRing;
  cluster.all_reduce_base_ns = 0;
  const RooflineCost closed(cluster, {});
  CHECK(std::abs(closed.op_ns(g, scatter) + closed.op_ns(g, gather) - closed.op_ns(g, reduce)) <=
        1);
  CHECK(closed.algorithm(g, scatter) == "ring");
  for (const OpId half : {scatter, gather}) CHECK(wire_bytes(g, half, {}) == 3'000'000);
  const RooflineCost table(cluster, {},
                           {{Collective::kAllReduce, InterpolatedTable({{0, 7}, {1e9, 7}})}});
  for (const OpId half : {scatter, gather}) CHECK(table.op_ns(g, half) == 4);
  CHECK(table.time_source(g, scatter) == TimeSource::kExtrapolated);
  cluster.nodes = 1;
  cluster.devices_per_node = 4;
  cluster.nics_per_node = 1;
  cluster.collective_times = MOE_SOURCE_DIR "/scripts/moe/gpus/h100.times";
  const auto grids = OpTables::open(cluster.collective_times);
  const RooflineCost measured(cluster, {});
  for (const auto& [op, name] : {std::pair(scatter, "reduce_scatter"), {gather, "all_gather"}}) {
    const double ns = grids->find(name, "bf16")->at(std::array{4.0, 4e6}).ns;
    CHECK(measured.op_ns(g, op) == static_cast<Nanoseconds>(std::ceil(ns)));
    CHECK(measured.algorithm(g, op) == "measured");
  }
  CHECK_THAT(measured.describe(), Catch::Contains("as measured on H100 SXM"));
  cluster.nodes = cluster.devices_per_node = 2;
  const RooflineCost of_groups(cluster, {});
  const double pair_ns = grids->find("reduce_scatter", "bf16")->at(std::array{2.0, 4e6}).ns;
  for (const int64_t stride : {1, 2}) {  // in a node, across nodes
    const OpId pairs = g.add_op("reduce_scatter", fmt::format("s{}", stride), {},
                                {{"bytes", 4e6}, {"group", int64_t{2}}, {"stride", stride}});
    const bool is_measured = of_groups.algorithm(g, pairs) == "measured";
    CHECK(is_measured == (stride == 1));
    CHECK((of_groups.op_ns(g, pairs) == static_cast<Nanoseconds>(std::ceil(pair_ns))) ==
          is_measured);
  }
  CHECK(of_groups.op_ns(g, scatter) == closed.op_ns(g, scatter));
  CHECK_THAT(of_groups.describe(), Catch::Contains("inside a node with even pieces as measured"));
}

TEST_CASE(
    "inside a node uneven pieces take the measured time of even ones times their forms' ratio") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}});
  Cluster node{.nodes = 1, .devices_per_node = 4, .device = two_nodes().device, .intra = {1e9, 0}};
  const RooflineCost by_form(node, {});
  node.collective_times = MOE_SOURCE_DIR "/scripts/moe/gpus/h100.times";
  const RooflineCost measured(node, {});
  std::vector<double> bytes(16, 1e6);
  const auto ns = [&](const RooflineCost& cost) {
    return static_cast<double>(cost.routed_ns(g, a2a, {.bytes = &bytes}));
  };
  const double even = static_cast<double>(measured.op_ns(g, a2a)), closed = ns(by_form);
  CHECK(ns(measured) == even);
  bytes[1] = 3e6;
  CHECK(ns(measured) == Approx(even * ns(by_form) / closed).margin(1));
  CHECK(ns(measured) > even);
}

TEST_CASE("padding that is not sent costs nothing") {
  Graph g = four_ranks();
  const OpId padded = g.add_op("all_to_all", "a", {}, {{"bytes", 3.2e6}});
  const OpId irregular = g.add_op("all_to_all", "b", {}, {{"bytes", 4e6}, {"irregular", {1}}});
  const RooflineCost cost(two_nodes(), {.slot_occupancy = 0.8});
  CHECK(cost.op_ns(g, irregular) == cost.op_ns(g, padded));
  CHECK(wire_bytes(g, irregular, {.slot_occupancy = 0.8}) == 2'400'000);
}

TEST_CASE("a table takes the place of the closed form for its kind alone") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 1500.0}});
  const OpId reduce = g.add_op("all_reduce", "r", {}, {{"bytes", 1500.0}});
  Cluster cluster = two_nodes();
  cluster.all_reduce = AllReduceAlgorithm::kRing;
  const RooflineCost cost(cluster, {},
                          {{Collective::kAllToAll, InterpolatedTable({{1000, 100}, {2000, 200}})}});
  CHECK(cost.op_ns(g, a2a) == 150);
  CHECK(cost.op_ns(g, reduce) == all_reduce_ns(cluster, {1500}));
  CHECK_THAT(cost.describe(),
             Catch::Contains("all-to-all by table") && !Catch::Contains("all-reduce by table"));
}

TEST_CASE("a roofline names its device and rates") {
  const std::string text = RooflineCost(two_nodes(), {.slot_occupancy = 0.8}).describe();
  for (const char* part : {"gpu", "pair", "1 TFLOP/s", "0.1 TFLOP/s", "1 GB/s", "8 us", "0.8"}) {
    CHECK_THAT(text, Catch::Contains(part));
  }
}

TEST_CASE("an op or a collective beyond the clock is refused by its name, time and rate") {
  Graph g = four_ranks();
  const OpId gemm = g.add_op("compute", "fc1", {}, {{"flops", 1e9}, {"gemm", {1}}});
  const OpId copies = g.add_op("compute", "copy", {}, {{"bytes", 1e9}});
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 1e9}});
  Cluster cluster = two_nodes();
  cluster.device.gemm_flops_per_s = cluster.device.memory_bytes_per_s = 1e-9;
  cluster.intra.bytes_per_s = cluster.nic.bytes_per_s = 1e-9;
  const RooflineCost cost(cluster, {});
  const auto refuses = [&](OpId op, const char* name, const char* time, const char* rate) {
    CHECK_THROWS_WITH(cost.op_ns(g, op), Catch::Contains(name) && Catch::Contains(time) &&
                                             Catch::Contains(rate) &&
                                             Catch::Contains("at most 104 days"));
    CHECK_THROWS_AS(cost.op_ns(g, op), UserError);
  };
  refuses(gemm, "op 'fc1'", "takes 1e+18 s", "cluster.device.gemm_flops_per_s = 1e-09");
  refuses(copies, "op 'copy'", "takes 1e+18 s", "cluster.device.memory_bytes_per_s = 1e-09");
  refuses(a2a, "op 'a'", " s, which is beyond", "cluster.intra.bytes_per_s = 1e-09");
  const RooflineCost table(two_nodes(), {},
                           {{Collective::kAllToAll, InterpolatedTable({{0, 0}, {1, 1e15}})}});
  CHECK_THROWS_WITH(table.op_ns(g, a2a), Catch::Contains("cluster.collectives"));
  const std::string slow = std::filesystem::temp_directory_path() / "moebench_slow_link.csv";
  std::ofstream(slow) << "op,us,ranks,bytes\nall_to_all,1e10,4,1\n";
  Cluster node{.nodes = 1, .devices_per_node = 4, .device = cluster.device, .intra = {1e9, 0}};
  node.collective_times = slow;
  const OpId large = g.add_op("all_to_all", "l", {}, {{"bytes", 1e15}});
  CHECK_THROWS_WITH(RooflineCost(node, {}).op_ns(g, large),
                    Catch::Contains("op 'l', by measured times of 1e+15 bytes") &&
                        Catch::Contains("beyond the clock"));
}

TEST_CASE("a cluster of another size than the graph is refused with both numbers") {
  Graph g = four_ranks();
  g.num_ranks = 8;
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 8.0}});
  CHECK_THROWS_WITH(RooflineCost(two_nodes(), {}).op_ns(g, a2a),
                    Catch::Contains("'pair' has 4 devices") && Catch::Contains("8 ranks"));
}

TEST_CASE("a roofline needs a device with rates") {
  Cluster cluster = two_nodes();
  cluster.device.memory_bytes_per_s = 0;
  CHECK_THROWS_WITH(RooflineCost(cluster, {}),
                    Catch::Contains("cluster.device.memory_bytes_per_s = 0"));
}

TEST_CASE("a table goes through its points, straight between them and beyond its ends") {
  const InterpolatedTable table({{1024, 30}, {2048, 50}, {4096, 80}});
  CHECK(table.at(1024) == 30);
  CHECK(table.at(2048) == 50);
  CHECK(table.at(4096) == 80);
  CHECK(table.at(1536) == 40);
  CHECK(table.at(3072) == 65);
  CHECK(table.at(8192) == 140);
  CHECK(table.at(512) == 20);
  CHECK(InterpolatedTable({{100, 10}, {200, 110}}).at(0) == 0);  // the line is at -90 there
}

TEST_CASE("a table with a wrong row is refused with the row") {
  using Points = std::vector<std::pair<double, double>>;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(InterpolatedTable(Points{{1, 1}}), Catch::Contains("1 rows"));
  CHECK_THROWS_WITH(InterpolatedTable(Points{{1, 1}, {2, 2}, {2, 3}}), Catch::Contains("row 3"));
  CHECK_THROWS_WITH(InterpolatedTable(Points{{1, 1}, {2, nan}}), Catch::Contains("row 2"));
  CHECK_THROWS_WITH(InterpolatedTable(Points{{-1, 1}, {2, 1}}), Catch::Contains("row 1"));
}

TEST_CASE("a signature tells apart what decides the time, and nothing else") {
  Graph g = four_ranks();
  const TensorId w = fake::param(g, "w", 8);
  const TensorId v = fake::param(g, "v", 16);
  const OpId base = g.add_op("compute", "base", {w}, {{"n", {4}}});
  const OpId twin = g.add_op("compute", "another name", {w}, {{"n", {4}}}, Phase::kBackward);
  g.op(twin).layer = 3;
  g.op(twin).segment = Segment::kExpert;
  g.op(twin).part = 1;
  CHECK(op_signature(g, base) == op_signature(g, twin));

  std::set<std::string> all{op_signature(g, base)};
  const auto differs = [&](OpId op) { return all.insert(op_signature(g, op)).second; };
  CHECK(differs(g.add_op("update", "kind", {w}, {{"n", {4}}})));
  CHECK(differs(g.add_op("compute", "shape", {v}, {{"n", {4}}})));
  CHECK(differs(g.add_op("compute", "output shape", {w}, {{"n", {5}}})));
  CHECK(differs(g.add_op("compute", "two inputs", {w, v}, {{"n", {4}}})));
  CHECK(differs(g.add_op("compute", "order", {v, w}, {{"n", {4}}})));
  CHECK(differs(g.add_op("compute", "absent", {w, TensorId()}, {{"n", {4}}})));
  CHECK(differs(g.add_op("compute", "attribute", {w}, {{"n", {4}}, {"flops", 2.5}})));
  CHECK(differs(g.add_op("compute", "another value", {w}, {{"n", {4}}, {"flops", 2.75}})));
  CHECK(differs(g.add_op("compute", "text", {w}, {{"n", {4}}, {"to", "expert"}})));
  g.tensor(w).dtype = DType::kF16;
  CHECK(differs(base));
  g.num_ranks = 8;
  CHECK(differs(base));
}

/// Counts its calls; an op takes its attribute "ns", plus and minus a spread.
struct FakeClock {
  int calls = 0;
  std::vector<double> fills;  // that ops were measured with
  ProfileCost::Measure measure() {
    return [this](const Graph& graph, OpId op, const WorkContext& context) {
      ++calls;
      fills.push_back(context.slot_occupancy);
      const Nanoseconds ns = attr_int(graph.op(op), "ns");
      return Samples{{ns + 50, ns - 3, ns, ns - 9, ns + 7}};
    };
  }
};

TEST_CASE("an op is timed once a signature, and not at all when the cache knows it") {
  Graph g = four_ranks();
  const OpId a = g.add_op("compute", "a", {}, {{"ns", {1000}}});
  const OpId same = g.add_op("compute", "same", {}, {{"ns", {1000}}});
  const OpId other = g.add_op("compute", "other", {}, {{"ns", {2000}}});
  const auto cache = std::make_shared<ProfileCache>("");
  FakeClock clock;
  const ProfileCost first(cache, "cpu-v1", clock.measure(), nullptr, {});
  CHECK(first.op_ns(g, a) == 1000);
  CHECK(first.op_ns(g, same) == 1000);
  CHECK(first.op_ns(g, other) == 2000);
  CHECK(clock.calls == 2);
  CHECK(first.num_measured() == 2);
  CHECK(first.measuring_ns() > 0);

  const ProfileCost second(cache, "cpu-v1", clock.measure(), nullptr, {});
  CHECK(second.op_ns(g, a) == 1000);
  CHECK(clock.calls == 2);
  CHECK(second.num_measured() == 0);

  const ProfileCost other_kernels(cache, "cpu-v2", clock.measure(), nullptr, {});
  CHECK(other_kernels.op_ns(g, a) == 1000);
  CHECK(clock.calls == 3);
}

TEST_CASE("a plan keeps the time it has seen although the cache has moved on") {
  Graph g = four_ranks();
  const OpId a = g.add_op("compute", "a", {}, {{"ns", {1000}}});
  const auto cache = std::make_shared<ProfileCache>("");
  FakeClock clock;
  const ProfileCost cost(cache, "cpu", clock.measure(), nullptr, {});
  CHECK(cost.op_ns(g, a) == 1000);
  cache->store("cpu | " + op_signature(g, a), {{5}});
  CHECK(cost.op_ns(g, a) == 1000);
  CHECK(ProfileCost(cache, "cpu", clock.measure(), nullptr, {}).op_ns(g, a) == 5);
}

TEST_CASE("two occupancies share the profile of an op just when its work follows neither") {
  Graph g = four_ranks();
  const OpId padded = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}, {"ns", {1000}}});
  const OpId irregular =
      g.add_op("all_to_all", "b", {}, {{"bytes", 4e6}, {"ns", {1000}}, {"irregular", {1}}});
  CHECK_FALSE(work_follows_occupancy(g, padded));
  CHECK(work_follows_occupancy(g, irregular));
  const auto cache = std::make_shared<ProfileCache>("");
  FakeClock clock;
  const auto profile = [&](OpId op, double slot_occupancy) {
    const int before = clock.calls;
    ProfileCost(cache, "cpu", clock.measure(), nullptr, {.slot_occupancy = slot_occupancy})
        .op_ns(g, op);
    return clock.calls - before;
  };
  CHECK(profile(padded, 0.8) == 1);
  CHECK(profile(padded, 0.5) == 0);
  CHECK(profile(irregular, 0.8) == 1);
  CHECK(profile(irregular, 0.5) == 1);
  CHECK(profile(irregular, 0.80049) == 0);  // keys have three decimals
  CHECK(profile(irregular, 0.8006) == 1);
  CHECK(clock.fills == std::vector<double>{1.0, 0.8, 0.5, 0.801});
  CHECK(cache->find("cpu | " + op_signature(g, irregular) + " fill=0.8").has_value());
}

TEST_CASE("work at another occupancy lies on the line between the occupancies beside it") {
  Graph g = four_ranks();
  const OpId irregular =
      g.add_op("all_to_all", "b", {}, {{"bytes", 4e6}, {"irregular", int64_t{1}}});
  const OpId padded = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}});
  std::vector<double> fills;
  const auto measure = [&](const Graph&, OpId, const WorkContext& work) {
    fills.push_back(work.slot_occupancy);
    return Samples{{std::llround(1000 * work.slot_occupancy * work.slot_occupancy)}};
  };
  const ProfileCost cost(std::make_shared<ProfileCache>(""), "cpu", measure, nullptr,
                         {.slot_occupancy = 0.8});
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 0.8}}) == cost.op_ns(g, irregular));
  CHECK(fills == std::vector<double>{0.8});
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 0.6}}) == 375);  // 0.4 of 250 to 562.5
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 0.79}}) == Approx(625).margin(1));
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 1}}) == 1000);
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 0}}) == 0);
  for (int i = 0; i <= 100; ++i) cost.routed_ns(g, irregular, {{.slot_occupancy = i / 100.0}});
  CHECK(fills.size() == 6);  // 0, 1/4, 1/2, 3/4, 1 and the plan's own
  // A device with copies of experts can receive more rows than it has slots, at most those of all.
  CHECK(cost.routed_ns(g, irregular, {{.slot_occupancy = 1.5}}) == 1900);
  CHECK_NOTHROW(cost.routed_ns(g, irregular, {{.slot_occupancy = 4}}));
  CHECK_THROWS_AS(cost.routed_ns(g, irregular, {{.slot_occupancy = 4.1}}), InternalError);
  CHECK(cost.routed_ns(g, padded, {{.slot_occupancy = 0.3}}) == cost.op_ns(g, padded));
}

TEST_CASE("an uneven all-to-all takes its matrix's closed form, and what its fullest rank copies") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}, {"irregular", int64_t{1}}});
  const Cluster cluster = two_nodes();
  std::vector<double> bytes(16, 1e5);
  bytes[3] = 4e6;
  const RoutedWork routed = {{.slot_occupancy = 1}, &bytes};
  CHECK(RooflineCost(cluster, {}).routed_ns(g, a2a, routed) == all_to_all_v_ns(cluster, bytes));
  CHECK(RooflineCost(cluster, {}).op_ns(g, a2a) == all_to_all_ns(cluster, 1e6));
  CHECK(std::get<AllToAll>(transfer_on(cluster, g, a2a, routed)->what).bytes == bytes);
  const auto slow = [](const Graph&, OpId, const WorkContext& work) {
    return Samples{{std::llround(1e9 * work.slot_occupancy)}};
  };
  const ProfileCost copies(std::make_shared<ProfileCache>(""), "cpu", slow, &cluster, {});
  CHECK(copies.routed_ns(g, a2a, {{.slot_occupancy = 0.9}, &bytes}) == 900'000'000);
}

TEST_CASE("an op that is timed again keeps the lower median, for all who read the cache") {
  Graph g = four_ranks();
  const OpId op = g.add_op("compute", "op", {});
  Nanoseconds now = 900;
  const auto measure = [&](const Graph&, OpId, const WorkContext&) {
    return Samples{{now, now, now}};
  };
  const auto cache = std::make_shared<ProfileCache>("");
  const ProfileCost cost(cache, "cpu", measure, nullptr, {});
  CHECK(cost.op_ns(g, op) == 900);
  now = 700;
  CHECK(cost.op_ns(g, op) == 900);
  cost.time_again(g, op);
  CHECK(cost.op_ns(g, op) == 700);
  now = 800;
  cost.time_again(g, op);
  CHECK(cost.op_ns(g, op) == 700);
  CHECK(ProfileCost(cache, "cpu", measure, nullptr, {}).op_ns(g, op) == 700);
}

/// What stands in the cache for an op of 1000 ns: disturbed samples, measured on a busy machine.
struct DisturbedOnce {
  Graph g = four_ranks();
  OpId op = g.add_op("compute", "op", {});
  std::shared_ptr<ProfileCache> cache = std::make_shared<ProfileCache>("");
  std::string key = "cpu | " + op_signature(g, op);
  Samples now = {{1000}};
  int looked = 0, measured = 0;

  DisturbedOnce() { cache->store(key, {{1500}, 0.75, true}); }
  ProfileCost cost(bool quiet) {
    const auto measure = [this](const Graph&, OpId, const WorkContext&) {
      ++measured;
      return now;
    };
    return {cache, "cpu", measure, nullptr, {}, nullptr, [this, quiet] { return ++looked, quiet; }};
  }
};

TEST_CASE("disturbed samples are measured again on a quiet machine, else used and counted") {
  DisturbedOnce t;
  const ProfileCost busy = t.cost(false);
  CHECK(busy.op_ns(t.g, t.op) == 1500);
  CHECK(busy.op_ns(t.g, t.op) == 1500);
  CHECK(busy.num_disturbed() == 1);
  CHECK(t.measured == 0);
  CHECK(t.looked == 1);

  const ProfileCost quiet = t.cost(true);
  CHECK(quiet.op_ns(t.g, t.op) == 1000);
  CHECK(quiet.num_disturbed() == 0);
  CHECK(quiet.num_measured() == 1);
  CHECK(t.cache->find(t.key) == t.now);
  CHECK(t.cost(true).op_ns(t.g, t.op) == 1000);  // its row is a good one now
  CHECK(t.measured == 1);
  CHECK(t.looked == 2);
}

TEST_CASE("a new measurement replaces disturbed samples only if it is better") {
  DisturbedOnce t;
  t.now = {{1600}, 0.9, true};
  const ProfileCost worse = t.cost(true);
  CHECK(worse.op_ns(t.g, t.op) == 1500);
  CHECK(worse.num_disturbed() == 1);
  t.now = {{1400}, 0.5, true};
  const ProfileCost better = t.cost(true);
  CHECK(better.op_ns(t.g, t.op) == 1400);
  CHECK(better.num_disturbed() == 1);
  CHECK(t.cache->find(t.key) == t.now);
  t.now = {{1450}};  // slower, but undisturbed: the machine itself is slower now
  better.time_again(t.g, t.op);
  CHECK(better.op_ns(t.g, t.op) == 1450);
  CHECK(better.num_disturbed() == 0);
}

TEST_CASE("a first measurement that is disturbed is stored as such and counted") {
  DisturbedOnce t;
  const OpId fresh = t.g.add_op("compute", "fresh", {}, {{"flops", 7.0}});
  t.now = {{300}, 0.6, true};
  const ProfileCost cost = t.cost(true);
  CHECK(cost.op_ns(t.g, fresh) == 300);
  CHECK(cost.num_disturbed() == 1);
  CHECK(t.looked == 0);
  CHECK(t.cache->find("cpu | " + op_signature(t.g, fresh)) == t.now);
}

InStep made_up_in_step() {
  return {.source = "3 steps",
          .factors = {{"compute forward", 1.5}, {"compute backward", 0.5}},
          .overall = 2,
          .peers = 1.1,
          .late = {{"all_to_all", 300}, {"all_reduce", 700}}};
}

TEST_CASE("in a step, an op takes its time alone times its kind's factor and the peers'") {
  Graph g = four_ranks();
  const TensorId w = fake::param(g, "w", 8);
  const auto alone = [&](Phase phase) {
    return g.add_op("compute", "op", {}, {{"ns", {1000}}}, phase);
  };
  const OpId forward = alone(Phase::kForward), backward = alone(Phase::kBackward);
  const OpId unseen = g.add_op("update", "u", {w}, {{"ns", {1000}}}, Phase::kUpdate);
  const OpId view = g.add_op("view", "v", {w}, {{"ns", {1000}}});
  const auto cache = std::make_shared<ProfileCache>("");
  FakeClock clock;
  ProfileCost cost(cache, "cpu", clock.measure(), nullptr, {});
  CHECK(cost.op_ns(g, forward) == 1000);
  cost.set_in_step(made_up_in_step());
  CHECK(cost.op_ns(g, forward) == 1650);
  CHECK(cost.op_ns(g, backward) == 550);
  CHECK(cost.op_ns(g, unseen) == 2200);  // of a kind that was not seen: all ops together
  CHECK(cost.op_ns(g, view) == 0);
  CHECK_THAT(cost.describe(),
             Catch::Contains("from 3 steps: compute x2.000 by kind, peers x1.100"));
  // The cache keeps times alone, so that who does not rehearse is not touched by who does.
  const ProfileCost plain(cache, "cpu", clock.measure(), nullptr, {});
  CHECK(plain.op_ns(g, forward) == 1000);
  CHECK(plain.num_measured() == 0);
  CHECK_THAT(plain.describe(), !Catch::Contains("in-step"));
}

TEST_CASE("in a step, a collective ends its kind's lateness after the link or the memory says") {
  Graph g = four_ranks();
  const OpId wire_bound = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}, {"ns", {1000}}});
  const OpId memory_bound = g.add_op("all_reduce", "b", {}, {{"bytes", 4.0}, {"ns", {70'000}}});
  const Cluster link = two_nodes();
  FakeClock clock;
  ProfileCost cost(std::make_shared<ProfileCache>(""), "cpu", clock.measure(), &link, {});
  InStep in_step = made_up_in_step();
  cost.set_in_step(in_step);
  CHECK(cost.op_ns(g, wire_bound) == all_to_all_ns(link, 1e6) + 300);
  CHECK(cost.op_ns(g, memory_bound) == 70'000 + 700);
  in_step.late_bytes["all_reduce"] = 16;  // of 4 bytes here: 300 + (700 - 300) / 4
  cost.set_in_step(in_step);
  CHECK(cost.op_ns(g, memory_bound) == 70'000 + 400);
  CHECK(cost.sharing(g, wire_bound).taken == 0);
  in_step.core_ns = 60;
  in_step.core_late_ns = 20;
  cost.set_in_step(in_step);
  CHECK(cost.sharing(g, wire_bound).taken == 1000 + 60);  // its bytes in memory, and waking
  CHECK(cost.sharing(g, wire_bound).late == 20);
  CHECK(cost.sharing(g, g.add_op("compute", "c", {}, {{"ns", {10}}})).taken == 0);
  in_step.late.erase("all_to_all");
  cost.set_in_step(in_step);
  CHECK(cost.op_ns(g, wire_bound) == all_to_all_ns(link, 1e6) + 700);  // the least of those seen
  // Their copies were timed while the machine was disturbed.
  in_step.late["all_to_all"] = -10'000'000;
  in_step.late["all_reduce"] = -100'000;
  cost.set_in_step(in_step);
  CHECK(cost.op_ns(g, wire_bound) == all_to_all_ns(link, 1e6));  // a link is never faster
  CHECK(cost.op_ns(g, memory_bound) == collective_ns(link, g, memory_bound, {}));
  in_step.late.clear();
  cost.set_in_step(in_step);
  CHECK(cost.op_ns(g, wire_bound) == all_to_all_ns(link, 1e6));
}

TEST_CASE("an overlap table is read by blocks, between its rows and at its ends") {
  const OverlapTable table = {.source = "measured",
                              .by_blocks = {{2, {1.1, 1.2}}, {4, {1.3, 1.6}}, {16, {1.5, 2}}}};
  CHECK(table.at(2).gemm == 1.1);
  CHECK(table.at(4).memory == 1.6);
  CHECK(table.at(3).gemm == Approx(1.2));
  CHECK(table.at(10).memory == Approx(1.8));
  CHECK(table.at(1).memory == 1.2);
  CHECK(table.at(32).gemm == 1.5);
  CHECK(OverlapTable().at(8).gemm == 1);
  CHECK(OverlapTable().at(8).memory == 1);
}

TEST_CASE("a profile slows compute down beside its run's transfers, by their blocks") {
  Graph g = four_ranks();
  const OpId a2a = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}, {"ns", {1000}}});
  const OpId compute = g.add_op("compute", "c", {}, {{"ns", {10}}});
  FakeClock clock;
  ProfileCost cost(std::make_shared<ProfileCache>(""), "gpu", clock.measure(), nullptr, {});
  CHECK(cost.sharing(g, a2a).none());
  cost.set_overlap({.source = "measured with c", .by_blocks = {{8, {1.1, 1.25}}}}, 8);
  CHECK(cost.sharing(g, a2a).slowdown.gemm == 1.1);
  CHECK(cost.sharing(g, a2a).slowdown.memory == 1.25);
  CHECK(cost.sharing(g, a2a).taken == 0);
  CHECK(cost.sharing(g, compute).none());
  CHECK(cost.op_ns(g, compute) == 10);
  CHECK_THAT(cost.describe(), Catch::Contains("beside transfers of 8 blocks, measured with c"));
}

TEST_CASE("a profiled collective takes the longer of the link and the memory") {
  Graph g = four_ranks();
  const OpId wire_bound = g.add_op("all_to_all", "a", {}, {{"bytes", 4e6}, {"ns", {1000}}});
  const OpId memory_bound = g.add_op("all_to_all", "b", {}, {{"bytes", 4.0}, {"ns", {70'000}}});
  const OpId compute = g.add_op("compute", "c", {}, {{"ns", {10}}});
  const Cluster link = two_nodes();
  FakeClock clock;
  const auto cache = std::make_shared<ProfileCache>("");
  const ProfileCost cost(cache, "cpu", clock.measure(), &link, {});
  CHECK(cost.op_ns(g, wire_bound) == all_to_all_ns(link, 1e6));
  CHECK(cost.op_ns(g, memory_bound) == 70'000);
  CHECK(cost.op_ns(g, compute) == 10);
  CHECK(ProfileCost(cache, "cpu", clock.measure(), nullptr, {}).op_ns(g, wire_bound) == 1000);
  CHECK_THAT(cost.describe(), Catch::Contains("cpu") && Catch::Contains("pair"));
}

}  // namespace
}  // namespace moe
