// Routes: what travels from tokens to their experts and back, by which hops. A dispatcher is a
// function from an exchange to a Route (scripts/moe/dispatchers, moe.policy.dispatcher). Rows that
// follow are in rows.h, times in law.h; both are the only places that count or time them.
//
// Words: a choice is one (token, expert) pair; ranks are numbered node by node, each with a NIC of
// its own (its rail). NICs carry rows between nodes, NVLink inside one; a row that stays on its
// rank uses no link.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/field.h"

namespace moe::dispatch {

/// What becomes one row of a hop: a choice; a token's choices that end on the same rank; or all of
/// a token's choices that this hop takes to the same rank, such as those of a node.
enum class Dedup : uint8_t { kChoice, kRank, kNode };
constexpr std::array<const char*, 3> names_of(Dedup) {
  return {"choice", "rank", "node"};
}

/// Where a hop takes a row. kNone: to the expert's rank. kRail: to the expert's node, to the rank
/// with the place of this one. kLocal: inside this node, to the rank with the place of the expert's
/// rank. kRing: one rank on, as often as there are such hops.
enum class Forward : uint8_t { kNone, kRail, kLocal, kRing };
constexpr std::array<const char*, 4> names_of(Forward) {
  return {"none", "rail", "local", "ring"};
}

/// What is added on the way back: nothing (the source adds), the outputs of a token on a rank, or
/// these and then the rows of a node.
enum class Reduce : uint8_t { kNone, kRank, kRankNode };
constexpr std::array<const char*, 3> names_of(Reduce) {
  return {"none", "rank", "rank_node"};
}

/// Element types of rows on the wire; fp8: e4m3 with a scale of 4 bytes per 128 numbers.
enum class Wire : uint8_t { kFp8, kBf16, kFp32 };
constexpr std::array<const char*, 3> names_of(Wire) {
  return {"fp8", "bf16", "fp32"};
}
/// Bytes of `hidden` numbers, with their scales.
constexpr int64_t payload_bytes(Wire wire, int64_t hidden) {
  if (wire == Wire::kFp8) return hidden + 4 * (hidden / 128);
  return hidden * (wire == Wire::kBf16 ? 2 : 4);
}

enum class Way : uint8_t { kDispatch, kCombine };
constexpr std::array<const char*, 2> names_of(Way) {
  return {"dispatch", "combine"};
}

struct Hop {
  Forward forward = Forward::kNone;
  Dedup dedup = Dedup::kChoice;
  int64_t group = 0;
};
constexpr auto fields_of(const Hop*) {
  return field_table<Hop>(
      field("forward", &Hop::forward,
            "none: to the expert's rank; rail: to its node, to the rank with this one's place; "
            "local: inside this node, to the rank with the place of the expert's; ring: one on"),
      field("dedup", &Hop::dedup,
            "what is one row: a choice, a token's choices on a rank, or all that the hop takes to "
            "one rank"),
      field("group", &Hop::group, "ranks of what the hop takes for a node; 0: those of a node")
          .from(0, 65536));
}

/// The law of a dispatch or combine, and its parameters for one dispatcher and GPU; law.h has the
/// formula. The defaults are what a fit begins with and is drawn to where rows say nothing.
struct Law {
  double latency_us = 25, latency_us_per_log2_nodes = 5, expert_us = 0.001;
  double nic_efficiency = 0.88, nvlink_efficiency = 0.69;
  double sm_bytes_per_s = 20e9, sm_power = 1, row_us = 0.02, token_us = 0.05, token_rows = 1;
  double sharpness = 4;
};
constexpr auto fields_of(const Law*) {
  return field_table<Law>(
      field("latency_us", &Law::latency_us, "time of a call without rows").from(0, 1e6),
      field("latency_us_per_log2_nodes", &Law::latency_us_per_log2_nodes,
            "further time for each doubling of the nodes")
          .from(0, 1e6),
      field("expert_us", &Law::expert_us, "time per expert of a rank").from(0, 1e6),
      field("nic_efficiency", &Law::nic_efficiency, "share of a NIC's rate that rows reach")
          .from(1e-3, 1),
      field("nvlink_efficiency", &Law::nvlink_efficiency, "share of NVLink's rate that rows reach")
          .from(1e-3, 1),
      field("sm_bytes_per_s", &Law::sm_bytes_per_s, "bytes that one SM copies per second")
          .from(1, 1e15),
      field("sm_power", &Law::sm_power, "n SMs copy n^sm_power times what one does").from(0, 2),
      field("row_us", &Law::row_us, "time of one SM per row that a rank receives").from(0, 1e6),
      field("token_us", &Law::token_us, "time of one SM per token").from(0, 1e6),
      field("token_rows", &Law::token_rows, "rows that an SM copies per token beside those sent")
          .from(0, 1e3),
      field("sharpness", &Law::sharpness,
            "p of (nic^p + nvlink^p + sm^p)^(1/p), how little the shorter times add")
          .from(0.2, 100));
}

/// There is one hop at least. back: empty stands for the hops of `there` in reverse.
struct Route {
  std::string name;
  std::vector<Hop> there, back;
  Reduce reduce = Reduce::kNone;
  bool to_all = false;
  bool nvlink = true;
  Wire dispatch = Wire::kFp8, combine = Wire::kBf16;
  int64_t dispatch_bytes = 0, combine_bytes = 0;
  int64_t control_bytes = 0, buffer_bytes = 0, static_rows = 0, capacity = 0, max_tokens = 0;
  int64_t sms = 0;
  bool host_sync = false;
  std::string times_of;

  /// Whether rows are added on the way back.
  bool adds() const { return to_all || reduce != Reduce::kNone; }
  /// Whether a row may stand for several choices of a token.
  bool shares() const;
  Wire wire(Way way) const { return way == Way::kDispatch ? dispatch : combine; }
  int64_t row_bytes(Way way) const {
    return way == Way::kDispatch ? dispatch_bytes : combine_bytes;
  }
};
constexpr auto fields_of(const Route*) {
  return field_table<Route>(
      internal(&Route::name, "is that of the dispatcher"),
      field("there", &Route::there, "the hops to the experts").must(),
      field("back", &Route::back, "the hops back; default: those of `there` in reverse"),
      field("reduce", &Route::reduce, "what is added on the way back"),
      field("to_all", &Route::to_all, "whether all ranks get all rows"),
      field("nvlink", &Route::nvlink, "whether ranks of a node exchange rows by NVLink"),
      field("dispatch", &Route::dispatch, "element type on the way there"),
      field("combine", &Route::combine, "element type on the way back"),
      field("dispatch_bytes", &Route::dispatch_bytes, "bytes of a row on the way there")
          .from(1, 1e12)
          .must(),
      field("combine_bytes", &Route::combine_bytes, "bytes of a row on the way back")
          .from(1, 1e12)
          .must(),
      field("control_bytes", &Route::control_bytes, "bytes to each peer before the rows: counts")
          .from(0, 1e12),
      field("buffer_bytes", &Route::buffer_bytes, "buffers of a rank; 0: not known").from(0, 1e15),
      field("static_rows", &Route::static_rows,
            "rows for which a rank has space whatever is chosen; 0: it waits for counts")
          .from(0, 1e12),
      field("capacity", &Route::capacity,
            "rows that each rank sends for each expert, padded; 0: those in use")
          .from(0, 1e9),
      field("max_tokens", &Route::max_tokens, "tokens for which a rank has buffers; 0: any number")
          .from(0, 1e9),
      field("sms", &Route::sms, "SMs that the kernels take; 0: none, or all for a short time")
          .from(0, 1024),
      field("host_sync", &Route::host_sync, "whether the CPU waits for counts"),
      field("times_of", &Route::times_of,
            "the dispatcher whose measured times hold; default: its own"));
}

/// The sizes of one exchange. expert_rank: [experts]; empty: consecutive, as many on each rank.
/// groups, top_groups: where choices are drawn, a token chooses from its best groups of consecutive
/// experts by their largest score; 0: from all.
struct Exchange {
  int64_t ranks = 1, ranks_per_node = 1, experts = 1, topk = 1, hidden = 1;
  int64_t max_nodes = 0;  // that a token may reach; 0: any
  int64_t groups = 0, top_groups = 0;
  std::vector<int32_t> expert_rank;

  int64_t nodes() const { return ranks / ranks_per_node; }
  int64_t rank_of(int64_t expert) const {
    return expert_rank.empty() ? expert / (experts / ranks)
                               : expert_rank[static_cast<size_t>(expert)];
  }
};

/// The experts that tokens chose, from 0; -1: none.
struct Choices {
  std::vector<int64_t> first;    // [ranks + 1]: the first token of each rank, then all tokens
  std::vector<int32_t> experts;  // [tokens, topk]

  int64_t tokens() const { return first.back(); }
  std::span<const int32_t> of(int64_t token, int64_t topk) const {
    return std::span(experts).subspan(static_cast<size_t>(token * topk), static_cast<size_t>(topk));
  }
};

/// Throws UserError "field: value ..." for sizes or element types that no dispatcher can serve.
void check(const Exchange& exchange, Wire dispatch, Wire combine);
/// The same, also for the hops of a route and the bytes of its rows.
void check(const Route& route, const Exchange& exchange);
/// Throws UserError "choices[rank][token]: ..." (from 1) for choices that the exchange or the route
/// refuses: an expert that does not exist or is named twice, more nodes than allowed, more rows
/// than capacity, for all-gathers ranks with different numbers of tokens.
void check(const Route& route, const Exchange& exchange, const Choices& choices);

}  // namespace moe::dispatch
