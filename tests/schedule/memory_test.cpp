#include "engine/schedule/memory.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/schedule/lifetime.h"
#include "tests/schedule/fixture.h"

namespace moe {
namespace {

using fake::add;

MemoryPlan plan_of(const Graph& graph, const Schedule& schedule) {
  return plan_memory(graph, schedule, lane_orders(graph, schedule));
}

/// True when every use of a is over before b is written.
bool over_before(const TensorUses& uses, const std::vector<std::vector<bool>>& after, size_t a,
                 size_t b) {
  const size_t writer = uses.producer[b].index();
  const auto& readers = uses.readers[a];
  return after[uses.producer[a].index()][writer] &&
         std::all_of(readers.begin(), readers.end(),
                     [&](OpId r) { return after[r.index()][writer]; });
}

/// True when b's producer may write over its input a.
bool in_place(const Graph& graph, const TensorUses& uses,
              const std::vector<std::vector<bool>>& after, size_t a, size_t b) {
  const size_t writer = uses.producer[b].index();
  const Op& op = graph.ops()[writer];
  const auto pairs = alias_pairs(graph, op);
  const bool pair = std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) {
    return op.outputs[static_cast<size_t>(p.first)].index() == b &&
           op.inputs[static_cast<size_t>(p.second)].index() == a;
  });
  const auto& readers = uses.readers[a];
  return pair && std::all_of(readers.begin(), readers.end(), [&](OpId r) {
           return r.index() == writer || after[r.index()][writer];
         });
}

TEST_CASE("the lives of storage add up to what is in use at most when ops run one by one") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Graph graph = fake::random_graph(seed, 90);
    const Schedule schedule = fake::random_schedule(graph, seed, 6);
    const LaneOrders orders = lane_orders(graph, schedule);
    const MemoryPlan plan = plan_memory(graph, schedule, orders);
    const HappensBefore hb(graph, schedule, orders);
    std::vector<size_t> place(graph.num_ops());
    for (size_t i = 0; i < place.size(); ++i) place[hb.serial()[i].index()] = i;
    std::vector<Bytes> in_use(graph.num_ops());
    for (const StorageLife& life : storage_lives(graph, schedule, orders, plan)) {
      size_t to = life.last.empty() ? in_use.size() - 1 : 0;
      for (const OpId op : life.last) to = std::max(to, place[op.index()]);
      for (size_t i = place[life.first.index()]; i <= to; ++i) in_use[i] += life.bytes;
    }
    CHECK(*std::max_element(in_use.begin(), in_use.end()) == plan.liveness_bytes);
  }
}

TEST_CASE("no two tensors that may be alive together share a byte, on any timing") {
  int64_t shared = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const Graph graph = fake::random_graph(seed, 90);
    const Schedule schedule = fake::random_schedule(graph, seed, 6);
    const LaneOrders orders = lane_orders(graph, schedule);
    const MemoryPlan plan = plan_memory(graph, schedule, orders);
    const auto after = fake::brute_force(graph, schedule, orders);
    const TensorUses uses(graph);
    Bytes sum = 0;
    for (size_t a = 0; a < plan.buffers.size(); ++a) {
      const Buffer& x = plan.buffers[a];
      if (x.persistent) continue;
      sum += x.bytes;
      CHECK(x.offset + x.bytes <= plan.arena_bytes);
      for (size_t b = a + 1; b < plan.buffers.size(); ++b) {
        const Buffer& y = plan.buffers[b];
        const bool overlap =
            !y.persistent && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
        if (!overlap) continue;
        ++shared;
        const bool fine = over_before(uses, after, a, b) || over_before(uses, after, b, a) ||
                          in_place(graph, uses, after, a, b) || in_place(graph, uses, after, b, a);
        INFO("seed " << seed << ": " << graph.tensors()[a].name << " " << graph.tensors()[b].name);
        CHECK(fine);
      }
    }
    CHECK(plan.arena_bytes <= sum);
    CHECK(plan.arena_bytes >= plan.liveness_bytes);
  }
  CHECK(shared > 1000);
}

TEST_CASE("an op writes in place of an input that dies at it") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a");
  const OpId b = add(graph, "map", "b", {graph.out(a)});
  add(graph, "work", "c", {graph.out(b)});
  const MemoryPlan plan = plan_of(graph, default_schedule(graph));
  CHECK(plan.buffers[graph.out(b).index()].alias_of == graph.out(a));
  CHECK(plan.buffers[graph.out(b).index()].offset == plan.buffers[graph.out(a).index()].offset);
  CHECK(plan.arena_bytes == 2 * 64);  // a and b together, c beside them
}

TEST_CASE("an op does not write in place of an input that is read later or on another lane") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a");
  const OpId b = add(graph, "map", "b", {graph.out(a)});
  const OpId reader = add(graph, "send", "reader", {graph.out(a)});
  Schedule schedule = default_schedule(graph);
  CHECK(!plan_of(graph, schedule).buffers[graph.out(b).index()].alias_of.valid());
  schedule.before(reader, b, "test", "then a is free");
  CHECK(plan_of(graph, schedule).buffers[graph.out(b).index()].alias_of == graph.out(a));
}

TEST_CASE("an op does not write in place of an input of another size, or one it reads twice") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a"), b = add(graph, "work", "b");
  const OpId small = add(graph, "map", "small", {graph.out(a)}, "1024");
  const OpId twice = add(graph, "map", "twice", {graph.out(b), graph.out(b)});
  const MemoryPlan plan = plan_of(graph, default_schedule(graph));
  CHECK(!plan.buffers[graph.out(small).index()].alias_of.valid());
  CHECK(!plan.buffers[graph.out(twice).index()].alias_of.valid());
}

TEST_CASE("parameters, states and inputs lie apart from the arena and from each other") {
  Graph graph(fake::table());
  const TensorId w = graph.add_tensor({.name = "w", .shape = {17}, .kind = TensorKind::kParam});
  const TensorId v = graph.add_tensor({.name = "v", .shape = {17}, .kind = TensorKind::kState});
  const TensorId x = graph.add_tensor({.name = "x", .shape = {3}, .kind = TensorKind::kInput});
  add(graph, "work", "a", {w, v, x});
  const MemoryPlan plan = plan_of(graph, default_schedule(graph));
  CHECK(plan.persistent_bytes == 128 + 128 + 64);
  CHECK(plan.buffers[v.index()].offset == 128);
  CHECK(plan.buffers[x.index()].offset == 256);
  CHECK(plan.buffers[x.index()].persistent);
}

TEST_CASE("the loss stays until the step ends, any other unread tensor dies where it is made") {
  for (const char* sizes : {"1", "16"}) {
    Graph graph(fake::table());
    const OpId loss = add(graph, "work", "loss", {}, sizes);
    const OpId next = add(graph, "work", "next");
    const MemoryPlan plan = plan_of(graph, default_schedule(graph));
    const bool kept = plan.buffers[graph.out(loss).index()].offset !=
                      plan.buffers[graph.out(next).index()].offset;
    CHECK(kept == (std::string(sizes) == "1"));
  }
}

TEST_CASE("element_bytes sizes floating-point tensors and leaves indices alone") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a", {}, "64");
  const OpId i = graph.add_op("work", "i", {}, {{"sizes", "64"}, {"i32", int64_t{1}}});
  const Schedule schedule = default_schedule(graph);
  const MemoryPlan plan = plan_memory(graph, schedule, lane_orders(graph, schedule), 8);
  CHECK(plan.buffers[graph.out(a).index()].bytes == 512);
  CHECK(plan.buffers[graph.out(i).index()].bytes == 256);
}

/// A chain forward, then a backward that reads the activations in reverse, with a few sizes.
Graph training_graph(int64_t layers) {
  Graph graph(fake::table());
  const char* sizes[] = {"1024", "3072", "4096", "1024", "96"};
  std::vector<TensorId> made{graph.out(add(graph, "work", "x", {}, "1024"))};
  for (int64_t i = 0; i < layers * 5; ++i) {
    made.push_back(
        graph.out(add(graph, "work", "f" + std::to_string(i), {made.back()}, sizes[i % 5])));
  }
  TensorId grad = made.back();
  for (int64_t i = layers * 5; i-- > 0;) {
    const std::string name = "b" + std::to_string(i);
    const TensorId x = made[static_cast<size_t>(i)];
    add(graph, "work", name + ".dw", {grad, x}, "512");
    grad = graph.out(add(graph, "work", name, {grad, x}, sizes[(i + 4) % 5]));
  }
  return graph;
}

TEST_CASE("for a serial schedule the arena is close to the bytes that must be alive") {
  const Graph graph = training_graph(24);
  const MemoryPlan plan = plan_of(graph, default_schedule(graph));
  CHECK(static_cast<double>(plan.arena_bytes) <= 1.05 * static_cast<double>(plan.liveness_bytes));
}

TEST_CASE("the holders of the peak are the largest tensors alive at it, persistent ones included") {
  Graph graph(fake::table());
  const TensorId w =
      graph.add_tensor({.name = "w", .shape = {1 << 19}, .kind = TensorKind::kParam});
  const OpId early = add(graph, "work", "early", {}, std::to_string(1 << 18));
  const OpId a = add(graph, "work", "a", {graph.out(early)}, std::to_string(1 << 16));
  const OpId big = add(graph, "work", "big", {graph.out(a), w}, std::to_string(1 << 20));
  add(graph, "work", "end", {graph.out(a), graph.out(big)}, "16");
  const Schedule schedule = default_schedule(graph);
  const LaneOrders orders = lane_orders(graph, schedule);
  const MemoryPlan plan = plan_memory(graph, schedule, orders);
  CHECK(peak_of(graph, schedule, orders, plan, 3).holders ==
        std::vector<std::string>{"big 4.0 MiB", "w 2.0 MiB", "a 0.2 MiB"});
}

}  // namespace
}  // namespace moe
