// How long a dispatch or combine takes:
//   t = latency + latency per log2 nodes + time per expert + (nic^p + nvlink^p + sm^p)^(1/p),
// where nic and nvlink are bytes / (efficiency x rate) of the fullest link, and sm = (tokens x
// token_us + rows x row_us + (bytes copied + token_rows x tokens x row bytes) / sm_bytes_per_s) /
// SMs^sm_power. Rates are those of data sheets; the other numbers are a Law, which is fitted to
// microbenchmarks of one dispatcher on one GPU (scripts/moe/gpus/dispatch.lua).
#pragma once

#include "engine/dispatch/rows.h"

namespace moe::dispatch {

/// Rows of a rank per token of it: those that it receives, that all hops move (also where they
/// stay), and that leave by its NIC and its NVLink port.
struct TokenRows {
  double received = 0, moved = 0, nic = 0, nvlink = 0;
};
/// What published bandwidths count per token of a rank, whether it leaves its node or not: what the
/// first hop there sends, rows of nodes, rows of ranks or choices.
double logical_rows(const Route& route, const Exchange& exchange, const Choices& choices);

/// One call of a rank; rates: bytes per second of its NIC and of its NVLink port, one way.
struct Call {
  double tokens = 0, row_bytes = 0, experts = 0, nodes = 1, sms = 0;
  double nic_bytes_per_s = 50e9, nvlink_bytes_per_s = 450e9;
};

/// Choices of `tokens` tokens on each rank, drawn from a seed: uniform, or of the best groups.
Choices sampled_choices(const Exchange& exchange, int64_t tokens, uint64_t seed);
/// 8,192 tokens, the same every time, that stand for all.
Choices sampled_choices(const Exchange& exchange);
/// The mean rank's rows where tokens choose so.
TokenRows token_rows(const Route& route, const Exchange& exchange, const Choices& choices, Way way);

/// The parts of a call's time in microseconds: before any row, of the fullest NIC and NVLink port,
/// and of the SMs that copy rows.
struct Parts {
  double start = 0, nic = 0, nvlink = 0, sm = 0;
};
Parts parts_us(const Law& law, const TokenRows& rows, const Call& call);
double time_us(const Law& law, const TokenRows& rows, const Call& call);

}  // namespace moe::dispatch
