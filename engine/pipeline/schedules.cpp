#include "engine/pipeline/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace moe::pipeline {
namespace {

void add_turn(Turns& turns, Work work, int64_t chunk, int64_t micro, bool beside = false) {
  turns.push_back({work, beside, static_cast<int32_t>(micro), static_cast<int32_t>(chunk)});
}

/// The order in which a rank takes forwards, in groups of N micro-batches that pass all chunks. The
/// backward number k has the micro-batch of forward k and its chunk counted from the last.
class Order {
 public:
  Order(const Query& q, int64_t group) : q_(q), group_(group) {}
  int64_t size() const { return q_.chunks * q_.micro_batches; }

  void add(Turns& turns, Work work, int64_t k) const {
    const int64_t first = k / (group_ * q_.chunks) * group_;
    const int64_t width = std::min(group_, q_.micro_batches - first);
    const int64_t in_group = k - first * q_.chunks;
    const int64_t chunk = in_group / width;
    add_turn(turns, work, work == Work::kF ? chunk : q_.chunks - 1 - chunk,
             first + in_group % width);
  }

 private:
  const Query q_;
  const int64_t group_;
};

/// Returns `warm_up` forwards, then a forward and a backward in turn, then the other backwards.
/// late: backwards are whole, or their W is this many backwards late.
Turns alternate(const Order& order, int64_t warm_up, std::optional<int64_t> late = {}) {
  Turns turns;
  const int64_t size = order.size();
  const auto backward = [&](int64_t k) {
    order.add(turns, late ? Work::kI : Work::kB, k);
    if (late && k >= *late) order.add(turns, Work::kW, k - *late);
  };
  warm_up = std::min(warm_up, size);
  for (int64_t k = 0; k < warm_up; ++k) order.add(turns, Work::kF, k);
  for (int64_t k = warm_up; k < size; ++k) {
    order.add(turns, Work::kF, k);
    backward(k - warm_up);
  }
  for (int64_t k = size - warm_up; k < size; ++k) backward(k);
  for (int64_t k = std::max<int64_t>(0, size - late.value_or(0)); k < size; ++k) {
    order.add(turns, Work::kW, k);
  }
  return turns;
}

void require_chunks(const Query& q, int64_t chunks) {
  if (q.chunks == chunks) return;
  throw refusal(chunks == 1 ? "one_stage_a_rank" : "two_stages_a_rank",
                fmt::format("the schedule has {} per rank, not {}; give chunks = {}",
                            chunks == 1 ? "one stage" : "two stages", q.chunks, chunks));
}

void require_interleaving(const Query& q) {
  if (q.chunks < 2) {
    throw refusal("needs_virtual_stages",
                  "interleaving needs at least 2 stages per rank, not 1; give chunks = 2 or more");
  }
  if (q.ranks < 2) {
    throw refusal("needs_ranks", "interleaving needs at least 2 ranks, not 1; take '1f1b'");
  }
}

Turns one_f_one_b(const Query& q, int64_t rank) {
  require_chunks(q, 1);
  return alternate(Order(q, q.micro_batches), q.ranks - 1 - rank);
}

Turns interleave(const Query& q, int64_t rank, int64_t group) {
  return alternate(Order(q, group), (q.chunks - 1) * group + 2 * (q.ranks - 1 - rank));
}

Turns interleaved(const Query& q, int64_t rank) {
  require_interleaving(q);
  const int64_t group = q.group > 0 ? q.group : q.ranks, rest = q.micro_batches % group;
  if (group < q.ranks) {
    throw refusal("group_below_ranks",
                  fmt::format("the group of {} micro-batches is smaller than the {} ranks; give at "
                              "least as many micro-batches as ranks",
                              group, q.ranks));
  }
  if (group > q.micro_batches) {
    throw refusal("group_above_micro_batches",
                  fmt::format("the group of {} micro-batches is larger than all {}; give a smaller "
                              "group or more micro-batches",
                              group, q.micro_batches));
  }
  if (rest > 0 && rest < q.ranks) {
    throw refusal("short_last_group",
                  fmt::format("{} micro-batches in groups of {} leave {} for the last group, fewer "
                              "than the {} ranks; give a multiple of {}",
                              q.micro_batches, group, rest, q.ranks, group));
  }
  return interleave(q, rank, group);
}

/// Returns the micro-batches of a round as PyTorch counts them.
int64_t round_of(const Query& q) {
  const int64_t rounds = std::max<int64_t>(1, q.micro_batches / q.ranks);
  if (q.micro_batches % rounds == 0) return q.micro_batches / rounds;
  throw refusal("uneven_rounds",
                fmt::format("{} micro-batches do not make {} equal rounds; give a multiple of {}",
                            q.micro_batches, rounds, rounds));
}

Turns interleaved_torch(const Query& q, int64_t rank) {
  require_interleaving(q);
  return interleave(q, rank, round_of(q));
}

Turns zb_h1(const Query& q, int64_t rank) {
  const int64_t group = q.chunks == 1 ? q.micro_batches : round_of(q);
  return alternate(Order(q, group), (q.chunks - 1) * group + q.ranks - 1 - rank, rank);
}

/// Writes the turns of DualPipeV; chunk 0 is the stage on the way down, 1 the one on the way back.
class DualPipeV {
 public:
  void f(int64_t chunk, bool beside = false) {
    add_turn(turns, Work::kF, chunk, forwards_[chunk]++, beside);
  }
  void b(int64_t chunk) { add_turn(turns, Work::kB, chunk, backwards_[chunk]++); }
  void i(int64_t chunk) {
    owed_.push_back({chunk, backwards_[chunk]});
    add_turn(turns, Work::kI, chunk, backwards_[chunk]++);
  }
  void w() {
    add_turn(turns, Work::kW, owed_.front().first, owed_.front().second);
    owed_.pop_front();
  }
  void pair(int64_t forward, int64_t backward) {
    f(forward, true);
    b(backward);
  }

  Turns turns;

 private:
  std::array<int64_t, 2> forwards_{}, backwards_{};
  std::deque<std::pair<int64_t, int64_t>>
      owed_;  // chunk and micro-batch of each W, the oldest first
};

Turns dualpipev(const Query& q, int64_t rank) {
  require_chunks(q, 2);
  if (q.micro_batches < 2 * q.ranks) {
    throw refusal("too_few_micro_batches",
                  fmt::format("DualPipeV needs at least {} micro-batches on {} ranks, not {}",
                              2 * q.ranks, q.ranks, q.micro_batches));
  }
  const int64_t before_last = q.ranks - 1 - rank;
  DualPipeV d;
  for (int64_t k = 0; k < 2 * before_last; ++k) d.f(0);
  for (int64_t k = 0; k <= rank; ++k) d.f(0), d.f(1);
  for (int64_t k = 0; k < before_last; ++k) d.i(1), d.w(), d.f(1);
  for (int64_t k = 0; k <= q.micro_batches - 2 * q.ranks + rank; ++k) {
    if (k == 0 && before_last == 0) {
      d.f(0), d.b(1);  // on the last rank the two are of one micro-batch
    } else {
      d.pair(0, 1);
    }
    d.pair(1, 0);
  }
  for (int64_t k = 0; k < before_last; ++k) d.b(1), d.pair(1, 0);
  for (int64_t k = 0; k < 2 * (rank + 1); ++k) k <= rank ? d.b(1 - k % 2) : d.i(1 - k % 2);
  for (int64_t k = 0; k < before_last; ++k) d.w(), d.i(0);
  for (int64_t k = 0; k <= rank; ++k) d.w();
  return d.turns;
}

}  // namespace

UserError refusal(std::string_view code, std::string_view reason) {
  return user_error("{}: {}", code, reason);
}

const std::vector<ScheduleDef>& schedules() {
  static const std::vector<ScheduleDef> all = [] {
    std::vector<ScheduleDef> rows = {
        {"1f1b",
         "a forward and a backward in turn, after as many forwards as ranks follow (arXiv "
         "2006.09503, PipeDream-Flush; Megatron-LM d98e8a6)",
         {},
         1,
         Placing::kLoop,
         one_f_one_b},
        {"interleaved",
         "1f1b over several stages per rank, in groups of micro-batches (arXiv 2104.04473; "
         "Megatron-LM d98e8a6, schedules.py)",
         {integer_option("group", 0, 0, 1e9,
                         "micro-batches of a group, at least as many as ranks; 0: as many")},
         2,
         Placing::kLoop,
         interleaved},
        {"interleaved_torch",
         "interleaved as PyTorch 2.11 has it (ScheduleInterleaved1F1B): groups follow from the "
         "micro-batches, which may be fewer than the ranks",
         {},
         2,
         Placing::kLoop,
         interleaved_torch},
        {"zb_h1",
         "1f1b with each W as many backwards late as ranks come before (ZB-H1, arXiv 2401.10241; "
         "with several stages per rank PyTorch's InterleavedZeroBubble)",
         {},
         1,
         Placing::kLoop,
         zb_h1},
        {"dualpipev",
         "DualPipe cut in half: both ways of the micro-batches in a V, forwards beside backwards "
         "(deepseek-ai/DualPipe 3da1bbe, dualpipev.py)",
         {},
         2,
         Placing::kV,
         dualpipev},
    };
    check_rows("pipeline schedules", rows);
    return rows;
  }();
  return all;
}

}  // namespace moe::pipeline
