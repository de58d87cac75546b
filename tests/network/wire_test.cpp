#include "engine/network/wire.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "tests/network/clusters.h"

namespace moe {
namespace {

using test::all_reduce;
using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;
using test::kMiB;

/// Tells every op at its start_ns, or some time before, looks at the wire at random times in
/// between, and moves only to times at which something may happen or at which it has to act.
std::vector<NetworkTimes> told_as_they_begin(const Cluster& cluster,
                                             const std::vector<NetworkOp>& ops,
                                             const NetworkOptions& options, bool alike, Rng& rng) {
  Wire wire(cluster, options, alike);
  std::vector<NetworkTimes> times(ops.size());
  std::vector<size_t> op_of, left(ops.size());
  std::vector<Nanoseconds> announced;
  for (size_t i = 0; i < ops.size(); ++i) {
    left[i] = i;
    announced.push_back(ops[i].start_ns - (rng.below(2) == 0 ? rng.below(ops[i].start_ns + 1) : 0));
  }
  std::stable_sort(left.begin(), left.end(),
                   [&](size_t a, size_t b) { return announced[a] < announced[b]; });
  std::vector<Done> ended;
  for (size_t next = 0;;) {
    for (; next < left.size() && announced[left[next]] == wire.now(); ++next) {
      wire.begin(ops[left[next]], static_cast<double>(ops[left[next]].start_ns));
      op_of.push_back(left[next]);
    }
    Nanoseconds to = wire.next_ns();
    REQUIRE(to >= wire.now());
    if (next < left.size()) to = std::min(to, announced[left[next]]);
    if (to == kNever) break;
    if (rng.below(2) == 0) to = wire.now() + rng.below(to - wire.now() + 1);
    const Nanoseconds expected = wire.next_ns();
    wire.advance(to, ended);
    REQUIRE(wire.now() == to);
    for (const Done& done : ended) {
      REQUIRE(done.times.end_ns >= std::min(expected, to));
      REQUIRE(done.times.end_ns <= to);
      times[op_of.at(done.op)] = done.times;
    }
    ended.clear();
  }
  return times;
}

std::vector<NetworkOp> random_meeting(const Cluster& cluster, Rng& rng) {
  std::vector<NetworkOp> ops;
  const int64_t count = 2 + rng.below(4);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kind = rng.below(4);
    const double bytes = static_cast<double>(rng.below(1 << 18));
    if (kind == 0) ops.push_back(all_reduce(64 * bytes, rng.below(4)));
    if (kind == 1) ops.push_back(all_to_all(bytes));
    if (kind == 2) ops.push_back(all_to_all(bytes, AllToAllAlgorithm::kPairwise));
    if (kind == 3) {
      ops.push_back(all_to_all_v(test::random_matrix(cluster.num_devices(), rng)));
    }
    ops.back().start_ns = rng.below(3) == 0 ? 0 : rng.below(2'000'000);
    ops.back().priority = rng.below(3);
  }
  return ops;
}

TEST_CASE("what is told as it begins ends as what is told in advance") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const std::vector<NetworkOp> ops = random_meeting(cluster, rng);
    const NetworkOptions options{.share = static_cast<Share>(seed % 4), .efficiency = 0.8};
    const NetworkRun advance = run_collectives(cluster, ops, options);
    const auto online = told_as_they_begin(cluster, ops, options, advance.nodes_alike, rng);
    for (size_t i = 0; i < ops.size(); ++i) {
      INFO("seed " << seed << ", op " << i << " of " << ops.size());
      CHECK(online[i].begin_ns == advance.ops[i].begin_ns);
      CHECK(online[i].end_ns == advance.ops[i].end_ns);
      CHECK(online[i].rank_end_ns == advance.ops[i].rank_end_ns);
    }
  }
}

TEST_CASE("an all-to-all that another joins ends as if both had been known") {
  // Alone it would share by bytes and end before what the rule makes of it.
  Rng rng(11);
  const Cluster cluster = eight_a_node(16, 4);
  const NetworkOp first = all_to_all_v(test::random_matrix(16, rng));
  NetworkOp second = all_reduce(16 * kMiB, 4);
  const Nanoseconds alone = alone_ns(cluster, first);
  second.start_ns = alone / 2;
  const NetworkRun known = run_collectives(cluster, {first, second});
  REQUIRE(known.ops[0].end_ns > alone + 1000);
  Wire wire(cluster, {}, false);
  std::vector<Done> ended;
  wire.begin(first, 0);
  CHECK(wire.next_ns() == alone);
  wire.advance(second.start_ns, ended);
  wire.begin(second, static_cast<double>(second.start_ns));
  while (wire.next_ns() != kNever) wire.advance(wire.next_ns(), ended);
  REQUIRE(ended.size() == 2);
  for (const Done& done : ended) CHECK(done.times.end_ns == known.ops[done.op].end_ns);
}

TEST_CASE("alone it ends at its scaled closed form to the nanosecond, whenever it begins") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const double bytes = static_cast<double>(rng.below(1 << 20));
    Wire wire(cluster, {}, false);
    for (const NetworkOp& op : {all_to_all(bytes), all_reduce(bytes, rng.below(4)),
                                all_to_all_v(test::random_matrix(cluster.num_devices(), rng))}) {
      // A table or a profile that knows better: any whole number of nanoseconds.
      const Nanoseconds closed = alone_ns(cluster, op), known = 1 + rng.below(10'000'000);
      if (closed == 0) continue;
      const Nanoseconds at = wire.now() + rng.below(1'000'000'000'000);
      const double scale = static_cast<double>(known) / static_cast<double>(closed);
      wire.begin(op, static_cast<double>(at), rng.below(2) == 0 ? 1 : scale);
      std::vector<Done> ended;
      while (wire.next_ns() != kNever) wire.advance(wire.next_ns(), ended);
      REQUIRE(ended.size() == 1);
      const NetworkTimes& times = ended[0].times;
      INFO("seed " << seed << ": " << closed << " scaled to " << known);
      CHECK(times.begin_ns == at);
      CHECK((times.end_ns == at + closed || times.end_ns == at + known));
      CHECK(times.end_ns == wire.now());
      CHECK(*std::max_element(times.rank_end_ns.begin(), times.rank_end_ns.end()) == times.end_ns);
    }
  }
}

TEST_CASE("where every collective and every begin is twice as long, so is every end") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const std::vector<NetworkOp> ops = random_meeting(cluster, rng);
    std::vector<Nanoseconds> ends[2];
    for (const int64_t scale : {1, 2}) {
      Wire wire(cluster, {.share = static_cast<Share>(seed % 4)}, false);
      for (const NetworkOp& op : ops) {
        wire.begin(op, static_cast<double>(scale * op.start_ns), static_cast<double>(scale));
      }
      std::vector<Done> ended;
      while (wire.step(ended)) {
      }
      std::vector<Nanoseconds>& all = ends[scale - 1];
      all.resize(ops.size());
      for (const Done& done : ended) all[done.op] = done.times.end_ns;
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      INFO("seed " << seed << ", op " << i);
      CHECK(std::abs(ends[1][i] - 2 * ends[0][i]) <= 2);
    }
  }
}

TEST_CASE("one after the other, each begun at the other's end, collectives do not meet") {
  const Cluster cluster = eight_a_node(16);
  Wire wire(cluster, {.share = Share::kPerFlow, .efficiency = 0.5}, true);
  std::vector<Done> ended;
  Nanoseconds at = 0;
  for (int i = 0; i < 20; ++i) {
    const NetworkOp op = i % 2 == 0 ? all_to_all(12'345.0 + i) : all_reduce(54'321.0 * (i + 1));
    wire.begin(op, static_cast<double>(at));
    at += alone_ns(cluster, op);
    CHECK(wire.next_ns() <= at);
    wire.advance(at, ended);
    REQUIRE(ended.size() == static_cast<size_t>(i + 1));
    CHECK(ended.back().times.end_ns == at);
    CHECK(wire.next_ns() == kNever);
  }
}

TEST_CASE("what the links carried is told once, for collectives alone and beside others") {
  const Cluster cluster = eight_a_node(16);
  Wire wire(cluster, {.share = Share::kPerCollective, .efficiency = 1, .keep_use = true}, false);
  std::vector<Done> ended;
  wire.begin(all_to_all(kMiB), 0);
  wire.begin(all_to_all(kMiB), 1e9);
  wire.begin(all_to_all(kMiB), 1e9 + 1e5);
  double out = 0, idle_from = 0;
  for (const Nanoseconds to : {500'000'000, 2'000'000'000}) {
    wire.advance(to, ended);
    for (const LinkUse& use : wire.take_use()) {
      const LinkName name = wire.name(use.link);
      CHECK(use.bytes_per_s <= wire.bytes_per_s(use.link) * (1 + 1e-9));
      CHECK(use.end_ns <= static_cast<double>(to));
      if (name.kind != LinkKind::kNicOut || name.node != 0) continue;
      CHECK(use.begin_ns >= idle_from);
      idle_from = use.end_ns;
      out += use.bytes_per_s * (use.end_ns - use.begin_ns) / kNsPerSecond;
    }
  }
  CHECK(ended.size() == 3);
  CHECK(out == Approx(3 * 8 * 8 * kMiB));
  CHECK(wire.take_use().empty());
}

TEST_CASE("a wire that cannot be is refused, and a begin in the past is a bug") {
  Cluster cluster = eight_a_node(16);
  CHECK_THROWS_WITH(Wire(cluster, {.efficiency = 2}, true),
                    Catch::Contains("efficiency = 2: must be above 0"));
  Wire wire(cluster, {}, true);
  std::vector<Done> ended;
  wire.advance(1000, ended);
  CHECK_THROWS_AS(wire.begin(all_to_all(1), 10), InternalError);
  CHECK_THROWS_AS(wire.begin(all_to_all(1), 2000, 0), InternalError);
  CHECK_THROWS_AS(wire.begin(all_to_all_v(std::vector<double>(256, 1)), 900), InternalError);
  cluster.nic.bytes_per_s = 0;
  CHECK_THROWS_WITH(Wire(cluster, {}, true), Catch::Contains("cluster.nic.bytes_per_s = 0"));
}

}  // namespace
}  // namespace moe
