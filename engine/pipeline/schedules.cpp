#include <algorithm>
#include <optional>
#include <string_view>

#include "engine/pipeline/turn.h"

namespace moe::pipeline {
namespace {

/// Returns some forwards, then a forward and a backward in turn, then the other backwards. Forwards
/// come in groups of micro-batches that pass all chunks; backward number k has the micro-batch of
/// forward k, and its chunk counted from the last. step: how many more forwards lead than on the
/// next rank. late: backwards are whole, or their W is this many backwards late.
Turns alternate(const Query& q, int64_t rank, int64_t group, int64_t step,
                std::optional<int64_t> late = {}) {
  Turns turns;
  const auto add = [&](Work work, int64_t k) {
    const int64_t first = k / (group * q.chunks) * group, in_group = k - first * q.chunks;
    const int64_t width = std::min(group, q.micro_batches - first), chunk = in_group / width;
    turns.push_back({work, static_cast<int32_t>(first + in_group % width),
                     static_cast<int32_t>(work == Work::kF ? chunk : q.chunks - 1 - chunk)});
  };
  const int64_t size = q.chunks * q.micro_batches;
  const int64_t lead = std::min((q.chunks - 1) * group + step * (q.ranks - 1 - rank), size);
  for (int64_t k = 0; k < size + lead + late.value_or(0); ++k) {
    if (k < size) add(Work::kF, k);
    if (k >= lead && k - lead < size) add(late ? Work::kI : Work::kB, k - lead);
    if (late && k >= lead + *late) add(Work::kW, k - lead - *late);
  }
  return turns;
}

void require_interleaving(const Query& q) {
  if (q.chunks < 2) {
    throw user_error("needs_virtual_stages: a rank has 1 stage; give chunks = 2 or more");
  }
  if (q.ranks < 2) throw user_error("needs_ranks: there is 1 rank; give 2, or take '1f1b'");
}

Turns interleaved(const Query& q, int64_t rank) {
  require_interleaving(q);
  return alternate(q, rank, q.group, 2);
}

/// Returns the micro-batches of a round as PyTorch counts them.
int64_t round_of(const Query& q) {
  const int64_t rounds = std::max<int64_t>(1, q.micro_batches / q.ranks);
  if (q.micro_batches % rounds == 0) return q.micro_batches / rounds;
  throw user_error("uneven_rounds: {} micro-batches do not make {} equal rounds; give a multiple",
                   q.micro_batches, rounds);
}

Turns interleaved_torch(const Query& q, int64_t rank) {
  require_interleaving(q);
  return alternate(q, rank, round_of(q), 2);
}

Turns zb_h1(const Query& q, int64_t rank) {
  return alternate(q, rank, q.chunks == 1 ? q.micro_batches : round_of(q), 1, rank);
}

/// Chunk 0 is the stage on the way down, 1 the one on the way back.
Turns dualpipev(const Query& q, int64_t rank) {
  if (q.micro_batches < 2 * q.ranks) {
    throw user_error("too_few_micro_batches: {} ranks need at least {} micro-batches, not {}",
                     q.ranks, 2 * q.ranks, q.micro_batches);
  }
  Turns turns, owed;                             // owed: the I whose W are to come
  std::array<std::array<int32_t, 2>, 2> next{};  // [forward or backward][chunk]
  size_t weights = 0;
  // Adds turns so many times: work and chunk of each, + for an F beside the B after it. W is that
  // of the oldest I without one.
  const auto add = [&](int64_t times, std::string_view steps) {
    for (size_t at = 0; at < steps.size() * static_cast<size_t>(times); at += 3) {
      const std::string_view step = steps.substr(at % steps.size(), 3);
      if (step[0] == 'W') {
        turns.push_back(owed[weights++]);
        turns.back().work = Work::kW;
        continue;
      }
      const Work work = *find_named<Work>(step.substr(0, 1));
      const int32_t chunk = step[1] == '0' ? 0 : 1;
      int32_t& micro = next[work == Work::kF ? 0 : 1][static_cast<size_t>(chunk)];
      turns.push_back({work, micro++, chunk, step[2] == '+'});
      if (work == Work::kI) owed.push_back(turns.back());
    }
  };
  const int64_t behind = q.ranks - 1 - rank;
  add(2 * behind, "F0 ");
  add(rank + 1, "F0 F1 ");
  add(behind, "I1 W  F1 ");
  // On the last rank the first two of the middle are of one micro-batch.
  add(1, behind == 0 ? "F0 B1 F1+B0 " : "F0+B1 F1+B0 ");
  add(q.micro_batches - 2 * q.ranks + rank, "F0+B1 F1+B0 ");
  add(behind, "B1 F1+B0 ");
  for (int64_t k = 0; k < 2 * (rank + 1); ++k) {
    add(1, k <= rank ? (k % 2 == 0 ? "B1 " : "B0 ") : (k % 2 == 0 ? "I1 " : "I0 "));
  }
  add(behind, "W  I0 ");
  add(rank + 1, "W  ");
  return turns;
}

}  // namespace

const std::vector<ScheduleDef>& schedules() {
  static const std::vector<ScheduleDef> all = {
      {"1f1b",
       "a forward and a backward in turn, after as many forwards as ranks follow (PipeDream-Flush)",
       1, true, false, Placing::kLoop,
       [](const Query& q, int64_t rank) { return alternate(q, rank, q.micro_batches, 1); }},
      {"interleaved",
       "1f1b over several stages per rank, in groups of micro-batches (arXiv 2104.04473)", 2, false,
       true, Placing::kLoop, interleaved},
      {"interleaved_torch",
       "interleaved with PyTorch 2.11's groups, which follow from the micro-batches", 2, false,
       false, Placing::kLoop, interleaved_torch},
      {"zb_h1", "1f1b with each W as many backwards late as ranks come before (arXiv 2401.10241)",
       1, false, false, Placing::kLoop, zb_h1},
      {"dualpipev", "both ways in a V, forwards beside backwards (deepseek-ai/DualPipe 3da1bbe)", 2,
       true, false, Placing::kV, dualpipev},
  };
  return all;
}

}  // namespace moe::pipeline
